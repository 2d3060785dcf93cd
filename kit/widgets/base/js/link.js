// What is shown, as a short text behind the # of an address: the range, the selection, the open groups.
// Such a text may come from anyone: what is not of its form, or is too long, is left out.

const MOST_TEXT = 20_000, MOST_NODES = 20_000, MOST_ITEMS = 500, MOST_NAME = 400;
const MOST_SETTINGS = 4_000; // of the text, left for the settings that a report writes before

/**
 * `shown`, `range`: nanoseconds, null for all of the time and for no range.
 * @typedef {{shown: number[] | null, range: number[] | null, nodes: number[], sites: string[],
 *   label: string, open: string[]}} Looked
 */

/** @param {Looked} looked @returns {Record<string, string>} what differs from a page just opened */
export function writeLooked({shown, range, nodes, sites, label, open}) {
  const times = (/** @type {number[] | null} */ pair) => (pair ? pair.map((ns) => Math.round(ns)).join("_") : "");
  const all = {shown: times(shown), range: times(range), nodes: nodes.length <= MOST_NODES ? rangesOf(nodes) : "",
    sites: listOf(sites), label: nodes.length || sites.length ? label.slice(0, MOST_NAME) : "",
    open: listOf([...open].sort())};
  /** @type {Record<string, string>} */
  const written = {};
  let length = MOST_SETTINGS;
  for (const [name, text] of Object.entries(all)) {
    const more = String(new URLSearchParams({[name]: text})).length + 1;
    if (text === "" || length + more > MOST_TEXT) continue; // what no reader takes is not written
    written[name] = text;
    length += more;
  }
  return written;
}

/** What a reader takes of a list. @param {string[]} texts */
function listOf(texts) {
  return texts.filter((x) => x && x.length <= MOST_NAME && !x.includes("\n")).slice(0, MOST_ITEMS).join("\n");
}

/** @param {string} text after the # @returns {Looked & {rest: Map<string, string>}} what it says; in
 *   `rest` what is not of a view, such as settings */
export function readLooked(text) {
  // Of a text that is too long the first pairs are read, whole: its settings are among them.
  const end = text.length > MOST_TEXT ? Math.max(text.lastIndexOf("&", MOST_TEXT), 0) : text.length;
  const given = new Map(new URLSearchParams(text.slice(0, end).replace(/^#/, "")));
  const get = (/** @type {string} */ name) => {
    const found = given.get(name) ?? "";
    given.delete(name);
    return found;
  };
  const list = (/** @type {string} */ found) =>
    found.split("\n").filter((x) => x && x.length <= MOST_NAME).slice(0, MOST_ITEMS);
  return {shown: timesIn(get("shown")), range: timesIn(get("range")), nodes: nodesIn(get("nodes")),
    sites: list(get("sites")), label: get("label").slice(0, MOST_NAME), open: list(get("open")), rest: given};
}

/** @param {string} text "100_2000" @returns {number[] | null} */
function timesIn(text) {
  const found = /^(-?\d{1,15})_(-?\d{1,15})$/.exec(text);
  if (!found || Number(found[1]) >= Number(found[2])) return null;
  return [Number(found[1]), Number(found[2])];
}

/** @param {number[]} nodes @returns {string} "3-5.9" */
function rangesOf(nodes) {
  /** @type {number[][]} */
  const runs = [];
  for (const node of [...nodes].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && last[1] === node - 1) last[1] = node;
    else runs.push([node, node]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(".");
}

/** @param {string} text @returns {number[]} */
function nodesIn(text) {
  const found = [];
  for (const part of text.split(".")) {
    const match = /^(\d{1,8})(?:-(\d{1,8}))?$/.exec(part);
    if (!match) continue;
    for (let i = Number(match[1]); i <= Number(match[2] ?? match[1]); i++) {
      if (found.length >= MOST_NODES) return [];
      found.push(i);
    }
  }
  return found;
}
