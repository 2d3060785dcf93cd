// What a graph in the page and the kernel tell each other, where there is a kernel.

/** The messages of one copy of a figure; they go through the tags of the model `state`. */
export class Messages {
  /** @param {import("./graph.js").KitGraph} graph */
  constructor(graph) {
    this.graph = graph;
    this.first = Date.now(); // no other copy of the figure begins with the same
    this.sequence = this.first;
  }

  /** The nodes that are chosen; -1 is a removed op. @returns {number[]} */
  nodes() {
    const {chosen, scene} = this.graph;
    return [...chosen].map((i) => scene?.rows.node[i]).filter((node) => node >= 0);
  }

  /** Tell the kernel what is shown.
   * @param {Record<string, any>} [news] `pick`: what was selected; `need`: what the page lacks */
  report(news = {}) {
    const {graph} = this;
    this.sequence += 1;
    const message = {from: "page", sequence: this.sequence, drawing: graph.scene?.drawing ?? 0,
      open: [...graph.open], color_by: graph.colorBy, // with what follows, for a copy that is drawn later
      nodes: this.nodes(), label: graph.chosenLabel, ...news};
    graph.models.state.setv({tags: [JSON.stringify(message)]});
  }

  /** @param {string | undefined} text a message of the kernel
   * @param {boolean} isFirst the page, or its copy of the figure, is new */
  obey(text, isFirst) {
    if (!text) return;
    const {graph} = this, message = JSON.parse(text);
    if (message.from === "page" && !isFirst) return;
    const {answered = null} = message; // what this copy said before its last word is no news
    if (answered >= this.first && answered < this.sequence) return;
    const isRecolored = message.color_by && message.color_by !== graph.colorBy;
    if (isRecolored) graph.colorBy = message.color_by;
    const nodes = message.nodes ?? message.pick?.nodes;
    const chosen = {nodes, sites: message.sites ?? [], label: message.label ?? message.pick?.label};
    if (isFirst) {
      graph.open = new Set(message.open ?? []);
      if (nodes?.length) graph.waiting = chosen;
      return;
    }
    if (message.open && message.open.join("\n") !== [...graph.open].sort().join("\n")) {
      graph.setOpen(message.open, {isSilent: true});
    }
    if (nodes && nodes.join() !== this.nodes().sort((a, b) => a - b).join()) graph.highlight(chosen);
    else if (isRecolored) graph.draw();
  }
}
