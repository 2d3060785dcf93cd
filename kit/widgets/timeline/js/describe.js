// What a span, a sync point or a step is, in words: a heading and rows of [name, text].
import {formatAt, formatCount, formatNs} from "../../base/js/format.js";
import {lengthOf} from "./data/table.js";

/** @typedef {{head: string, rows: string[][]}} Description */

/**
 * @param {import("./data/table.js").Table} table
 * @param {"span" | "sync" | "step" | "gap"} kind
 * @param {number} i
 * @param {number} [near] how many spans or sync points are as close as this one
 * @returns {Description}
 */
export function describe(table, kind, i, near = 1) {
  const {head, rows} = kind === "step" ? describeStep(table, i)
    : kind === "gap" ? describeGap(table, i) : kind === "sync" ? describeSync(table, i, near) : describeSpan(table, i, near);
  return {head, rows: rows.filter(([, text]) => text !== "")};
}

/** @param {import("./data/table.js").Table} table @param {number} i @returns {Description} */
function describeStep({steps}, i) {
  return {head: steps.name[i],
    rows: [["took", formatNs(steps.length[i])], ["began at", formatAt(steps.start[i])]]};
}

/** @param {import("./data/table.js").Table} table @param {number} i @returns {Description} */
function describeGap({gaps, colors}, i) {
  return {head: `${gaps.device[i]} was idle: ${colors.causes[gaps.cause[i]]}`,
    rows: [["for", formatNs(gaps.length[i])], ["because", colors.said[gaps.cause[i]]],
      ["began at", formatAt(gaps.start[i])]]};
}

/** @param {import("./data/table.js").Table} table @param {number} i @param {number} near
 * @returns {Description} */
function describeSync({syncs}, i, near) {
  const isMany = near > 1, cause = syncs.cause[i];
  return {head: isMany ? `${formatCount(near)} sync points here, the longest is ${cause}` : `sync point: ${cause}`,
    rows: [["waited", formatNs(syncs.wait[i])], ["line", syncs.site[i] || "(no line known)"],
      ["through", syncs.via[i]], ["began at", formatAt(syncs.at[i])],
      ["zoom in", isMany ? "to see each of them" : ""]]};
}

/** @param {import("./data/table.js").Table} table @param {number} i @param {number} near
 * @returns {Description} */
function describeSpan(table, i, near) {
  const {keys, count} = table, k = table.key[i];
  const joined = count === null ? 1 : count[i], many = Math.max(near, joined);
  const name = keys.name[k];
  const rows = [["kind", keys.kind[k]],
    [joined > 1 ? "covers" : "took", formatNs(lengthOf(table, i))],
    ["began at", formatAt(table.start[i])], ["lane", keys.where[k]], ["of", keys.detail[k]]];
  if (joined > 1) rows.push(["joined", "this copy does not have each of them"]);
  else if (many > 1) rows.push(["zoom in", "to see each of them"]);
  return {head: many > 1 ? `${formatCount(many)} spans here, the longest is ${name}` : name, rows};
}

/** @param {Description} description @returns {string} all of it in one line */
export function inOneLine({head, rows}) {
  const flat = (/** @type {string} */ text) => text.replace(/:\n/g, ": ").replace(/\n/g, ", ");
  return [head, ...rows.map(([name, text]) => `${name} ${flat(text)}`)].join("  ·  ");
}
