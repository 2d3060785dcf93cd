// Which dispatch of the host launched which kernel.

// As `kit.trace.kinds.ON_DEVICE`.
export const ON_DEVICE = ["kernel", "communication", "callback"];

/**
 * For each kernel the dispatch that launched it: the last one of its segment that began before it;
 * where spans name no segments and there are as many of both, in order. Otherwise -1. As
 * `kit.trace.active.launches`.
 * @param {import("./table.js").Table} table
 * @returns {Int32Array}
 */
export function launchesOf(table) {
  table.launches ??= findLaunches(table);
  return table.launches;
}

/** @param {import("./table.js").Table} table */
function findLaunches(table) {
  const {start} = table;
  const byStart = (/** @type {number} */ i, /** @type {number} */ j) => start[i] - start[j] || i - j;
  const found = new Int32Array(table.n).fill(-1);
  for (const {calls, kernels, isKnown} of groupsOf(table).values()) {
    calls.sort(byStart);
    kernels.sort(byStart);
    if (isKnown) {
      for (let k = 0, c = -1; k < kernels.length; k++) {
        while (c + 1 < calls.length && start[calls[c + 1]] <= start[kernels[k]]) c++;
        if (c >= 0) found[kernels[k]] = calls[c];
      }
    } else if (calls.length === kernels.length
        && calls.every((call, k) => start[call] <= start[kernels[k]])) {
      kernels.forEach((i, k) => { found[i] = calls[k]; });
    }
  }
  return found;
}

/**
 * Dispatches and kernels of each part and segment.
 * @param {import("./table.js").Table} table
 * @returns {Map<number, {calls: number[], kernels: number[], isKnown: boolean}>}
 */
function groupsOf(table) {
  const {keys, rows, first, key} = table;
  const groups = new Map();
  const role = keys.kind.map((/** @type {string} */ kind) =>
    (kind === "dispatch" ? "calls" : ON_DEVICE.includes(kind) ? "kernels" : ""));
  for (let row = 0; row < rows.part.length; row++) {
    for (let i = first[row]; i < first[row + 1]; i++) {
      const what = role[key[i]];
      if (what === "") continue;
      const segment = table.segmentOf(i), id = rows.part[row] * 2 ** 32 + segment;
      if (!groups.has(id)) groups.set(id, {calls: [], kernels: [], isKnown: segment >= 0});
      groups.get(id)[what].push(i);
    }
  }
  return groups;
}

/**
 * [dispatch, kernel] pairs of a picked span, at most `most` of them.
 * @param {import("./table.js").Table} table
 * @param {number} i
 * @param {number} most
 * @returns {number[][]}
 */
export function arrowsOf(table, i, most) {
  const kind = table.keys.kind[table.key[i]];
  const isLaunched = ON_DEVICE.includes(kind);
  if (!isLaunched && kind !== "dispatch") return [];
  const launches = launchesOf(table);
  if (isLaunched) return launches[i] < 0 ? [] : [[launches[i], i]];
  const pairs = [];
  for (let k = 0; k < table.n && pairs.length < most; k++) if (launches[k] === i) pairs.push([i, k]);
  return pairs;
}
