// Small timelines for the tests.
import {readTimeline} from "../../kit/widgets/timeline/js/data/table.js";

/**
 * A table of rows of spans [start, stop, kind], each row a lane of its own.
 * @param {any[][][]} rows
 * @param {Record<string, any[]>} [given] columns instead of those that follow from the rows
 */
export function tableOf(rows, given = {}) {
  const spans = rows.flat();
  const kinds = [...new Set(spans.map(([, , kind]) => kind))];
  const delta = rows.flatMap((row) => row.map(([start], i) => start - (i > 0 ? row[i - 1][0] : 0)));
  const each = (/** @type {(row: any[][], r: number) => any} */ value) => [rows.map(value)];
  const perKey = (/** @type {any} */ value) => [kinds.map(() => value)];
  let first = 0;
  const columns = {
    "spans.delta": [delta], "spans.length": [spans.map(([start, stop]) => stop - start)],
    "spans.key": [spans.map(([, , kind]) => kinds.indexOf(kind))], "spans.count": [[]], "spans.segment": [[]],
    "keys.kind": [kinds], "keys.name": [kinds.map((kind) => `${kind} name`)], "keys.where": perKey("host/main"),
    "keys.detail": perKey(""), "keys.bar": perKey(""), "keys.nodes": perKey(""), "keys.segment": perKey(-1), "keys.color": perKey("#587080"),
    "rows.first": each((row) => { first += row.length; return first - row.length; }),
    "rows.crowded": each((row) => row.some(([start], i) => i > 0 && start < row[i - 1][1])),
    "rows.part": each(() => 0), "rows.lane": each((_, r) => r),
    "rows.top": each((_, r) => 40 + r * 20), "rows.height": each(() => 16),
    "lanes.label": each((_, r) => `lane ${r}`), "lanes.group": each(() => ""), "lanes.part": each(() => 0),
    "lanes.top": each((_, r) => 40 + r * 20), "lanes.bottom": each((_, r) => 55 + r * 20),
    "headings.text": [[]], "headings.top": [[]], "headings.part": [[]], "keys.lane": perKey(0), "keys.part": perKey(0),
    "syncs.at": [[]], "syncs.wait": [[]], "syncs.part": [[]], "syncs.cause": [[]], "syncs.site": [[]], "syncs.via": [[]],
    "steps.start": [[]], "steps.length": [[]], "steps.part": [[]], "steps.name": [[]],
    "gaps.start": [[]], "gaps.length": [[]], "gaps.part": [[]], "gaps.cause": [[]], "gaps.device": [[]],
    "parts.label": [[""]], "parts.gaps_known": [[true]], "parts.outline": [[false]],
    "parts.steps_top": [[0]], "parts.top": [[0]], "parts.bottom": [[200]], "parts.syncs_top": [[20]],
    "graph.nodes": [[]], "graph.segments": [[]], "graph.site": [[]], "graph.sites": [[]],
    "colors.kind": [["wait", "forward"]], "colors.color": [["#dd5a3c", "#5674d8"]], "colors.causes": [["late dispatch"]],
    "colors.said": [["it was late"]], "colors.cause_color": [["#dd5a3c"]], "path.start": [[]], "pins.at": [[]], "pins.text": [[]], "pins.part": [[]],
    title: [""], note: [""], summary: [""], message: [""], end_ns: [1000], content_px: [200], ...given,
  };
  return readTimeline(columns);
}
