// For a page that holds a timeline: draw another payload, highlight a selection, hear of a choice.
// `models` has what `timeline_js_args` names. A selection is {nodes: Set of numbers, sites: Set of
// strings, label}; its sites are written as `theme.plain` writes them.

function drawTimeline(payload, models) {
  const row = {}; // the one row of the source: see `flat` in timeline_payload.py
  for (const [name, value] of Object.entries(payload)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      for (const [key, column] of Object.entries(value)) row[`${name}.${key}`] = [column];
    } else row[name] = [value];
  }
  models.figure.title.text = payload.title;
  timelineHighlight(models, {nodes: [], sites: []});
  models.marked.data = {start: [], stop: []};
  models.timeline.data = row;
}

function timelineHighlight(models, {nodes, sites, label = ""}) {
  models.lit.data = {nodes: [[...nodes].join(" ")], sites: [[...sites].join("\n")], label: [label],
    serial: models.picked.data.serial ?? [0]};
}

// Call `told` with the selection, empty if the choice was undone; it does not hear of highlights.
function timelineOnPick(models, told) {
  models.picked.properties.data.change.connect(() => {
    const {kind, index} = models.picked.data;
    told(kind[0] === "" ? {nodes: new Set(), sites: new Set(), label: ""}
      : selectionOf(readTimeline(models.timeline.data), kind[0], index[0]));
  });
}
