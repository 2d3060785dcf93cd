// What the panel beside a graph says of the op that is selected.
import {formatNs} from "../../base/js/format.js";

const MOST_NAMED = 8; // ops that it reads from

/** "%3 "; what was removed has no number in the run that is drawn.
 * @param {import("./scene.js").Scene} scene @param {number} row */
function numberOf(scene, row) {
  return scene.rows.node[row] < 0 ? "" : `%${scene.rows.node[row]} `;
}

/** What is known of an op: [what, text]. @param {import("./scene.js").Scene} scene @param {number} row
 * @returns {string[][]} */
export function panelOf(scene, row) {
  const {rows, sources, targets} = scene;
  const read = [];
  for (let e = 0; e < targets.length; e += 1) if (targets[e] === row) read.push(sources[e]);
  const named = [...new Set(read)].slice(0, MOST_NAMED).map((i) => `${numberOf(scene, i)}${scene.text("label", i)}`);
  const [low, high] = [rows.low[row], rows.high[row]];
  const time = rows.time[row] > 0 ? `${formatNs(rows.time[row])} on the device` : "";
  const shared = rows.shared[row] ? ", an equal share of its kernels" : "";
  const name = rows.node[row] < 0 ? "" : `%${rows.node[row]} = `;
  return [["op", `${name}${scene.text("op", row)}`], ["stop", scene.text("stop", row)], ["makes", scene.text("makes", row)],
    ["reads", scene.text("reads", row)], ["from", named.join("\n")], ["with", scene.text("attrs", row)],
    ["line", scene.text("site", row)], ["module", scene.text("scope", row)],
    ["segment", low < 0 ? "" : low === high ? `${low}` : `${low} to ${high}`],
    ["kernels", scene.text("kernels", row)], ["time a step", time && time + shared],
  ].filter(([, text]) => text !== "");
}
