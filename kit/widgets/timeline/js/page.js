// For a page that holds a timeline: draw another payload, highlight a selection, hear of a choice.
// `models` has what `timeline_js_args` names. The sites of a selection are written as `theme.plain`
// writes them.
import {NOTHING} from "../../base/js/listing.js";
import {selectionOf} from "./data/search.js";
import {readTimeline} from "./data/table.js";

/** The one row of a source: `flat` of payload.py. @param {Record<string, any>} payload */
function flat(payload) {
  /** @type {Record<string, any[]>} */
  const row = {};
  for (const [name, value] of Object.entries(payload)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      for (const [key, column] of Object.entries(value)) row[`${name}.${key}`] = [column];
    } else row[name] = [value];
  }
  return row;
}

/**
 * @param {Record<string, any>} payload what `timeline_payload` in Python made
 * @param {Record<string, any>} models
 * @param {{payload: Record<string, any>, name: string} | null} [before] a run that lies under it
 */
export function drawTimeline(payload, models, before = null) {
  models.figure.title.text = payload.title;
  highlightTimeline(models, NOTHING);
  models.marked.data = {start: [], stop: []};
  if (models.ghost) models.ghost.data = before ? {...flat(before.payload), name: [before.name]} : {};
  models.timeline.data = flat(payload);
}

/**
 * @param {Record<string, any>} models
 * @param {{nodes: Iterable<number>, sites: Iterable<string>, label?: string}} selection
 */
export function highlightTimeline(models, {nodes, sites, label = ""}) {
  models.lit.data = {nodes: [[...nodes].join(" ")], sites: [[...sites].join("\n")], label: [label],
    serial: models.picked.data.serial ?? [0]};
}

/**
 * Call `tell` with each choice of the user, empty if it was undone; highlights are not told.
 * @param {Record<string, any>} models
 * @param {(selection: import("../../base/js/listing.js").Selection) => void} tell
 */
export function onTimelinePick(models, tell) {
  models.picked.properties.data.change.connect(() => {
    const {kind, index} = models.picked.data;
    tell(kind[0] === "" ? NOTHING : selectionOf(readTimeline(models.timeline.data), kind[0], index[0]));
  });
}
