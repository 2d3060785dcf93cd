// The graphs of a page. `models` are those of `graph_js_args`; a graph's state hangs on the model
// `view`, so all copies of its figure share it.
import {KitGraph} from "./graph.js";

/** @typedef {Record<string, any>} Models */

/** @param {Models} models @returns {KitGraph} */
function graphOf(models) {
  if (!models.view.kitGraph) {
    const graph = new KitGraph(models);
    models.view.kitGraph = graph;
    graph.messages.obey(models.state.tags[0], true);
  }
  return models.view.kitGraph;
}

/** Draw another scene. @param {Models} models @param {Record<string, any>} scene */
export function drawGraph(models, scene) {
  graphOf(models).take(scene);
}

/** Ring what belongs to a selection. @param {Models} models
 * @param {import("./graph.js").Selection} selection */
export function highlightGraph(models, selection) {
  graphOf(models).highlight(selection);
}

/** The keys of the groups that are open. @param {Models} models @returns {string[]} */
export function openGroups(models) {
  return [...graphOf(models).open];
}

/** Open these groups and no others. @param {Models} models @param {Iterable<string>} keys */
export function setOpenGroups(models, keys) {
  graphOf(models).setOpen(keys);
}

/** Call `tell` with each choice of the user. @param {Models} models
 * @param {(selection: import("./graph.js").Selection) => void} tell */
export function onGraphPick(models, tell) {
  graphOf(models).tell = tell;
}

/** A model of the figure has changed. @param {Models} models @param {any} source that model */
export function onGraphEvent(models, source) {
  const graph = graphOf(models);
  if (source === models.boxes.selected) graph.clicked();
  else if (source === models.state) graph.messages.obey(models.state.tags[0], false);
  else if (source === models.scene) graph.take(models.scene.tags[0]);
  else if (source === models.engine) graph.layOut();
  else {
    if (!graph.scene) graph.take(models.scene.tags[0]);
    if (!graph.scene) return;
    if (source === models.figure) graph.resized();
    else graph.moved();
  }
}
