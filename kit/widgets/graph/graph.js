// The graph view in the page: places boxes, opens groups, colours, searches, exports. No kernel needed.
//
// With place.js, view.js, draw.js and controls.js before it, this is the body
// of a bokeh CustomJS (live) and part of a report's script. It defines:
//   graphDraw(models, scene)            draw another scene; see `graph_data.py` for what is in it
//   graphHighlight(models, selection)   ring what holds one of {nodes: Set, sites: Set, label}
//   graphOnPick(models, tell)           tell({nodes, sites, label}) when the user picks something
//   graphOpen(models, keys)             open these groups and no others
//   graphEvent(models, source)          a model of the figure has changed
// `models` are those of `graph_js_args`. The state hangs on `models.view`, so all copies share it.

function graphOf(models) {
  if (!models.view.kitGraph) {
    const graph = new KitGraph(models);
    models.view.kitGraph = graph;
    graph.obey(models.state.tags[0], true);
  }
  return models.view.kitGraph;
}

function graphDraw(models, scene) {
  graphOf(models).take(scene);
}

function graphHighlight(models, selection) {
  graphOf(models).highlight(selection);
}

function graphOnPick(models, tell) {
  graphOf(models).tell = tell;
}

function graphOpen(models, keys) {
  graphOf(models).setOpen(keys);
}

function graphEvent(models, source) {
  const graph = graphOf(models);
  if (source === models.boxes.selected) return graph.clicked();
  if (source === models.state) return graph.obey(models.state.tags[0], false);
  if (source === models.scene) return graph.take(models.scene.tags[0]);
  if (source === models.engine) return graph.layOut();
  if (!graph.scene) graph.take(models.scene.tags[0]);
  if (!graph.scene) return undefined;
  return source === models.figure ? graph.resized() : graph.moved();
}
