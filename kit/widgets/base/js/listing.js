// Tables whose rows can be picked, and light up when what they stand for is picked elsewhere. A row
// has the lines and the nodes that it stands for; see listing.py.

/** @typedef {{nodes: Set<number>, sites: Set<string>, label: string}} Selection */

/** What is selected when nothing is. @type {Selection} */
export const NOTHING = {nodes: new Set(), sites: new Set(), label: ""};

/** The numbers of "3,7-9". @param {string | undefined} text @returns {number[]} */
export function numbersIn(text) {
  return (text || "").split(",").filter(Boolean).flatMap((part) => {
    const [first, last] = part.split("-").map(Number);
    return Array.from({length: (last ?? first) - first + 1}, (_, i) => first + i);
  });
}

/**
 * What a click, Enter or the space bar has picked; null for any other event.
 * @param {any} event
 * @returns {Selection | null}
 */
export function pickedIn(event) {
  const row = event.target.closest && event.target.closest("[data-row]");
  if (!row || (event.type === "keydown" && event.key !== "Enter" && event.key !== " ")) return null;
  if (event.type === "click" && String(window.getSelection())) return null; // text is being copied
  if (event.type === "keydown") event.preventDefault();
  const {nodes, site, label} = row.dataset;
  return {nodes: new Set(numbersIn(nodes)), sites: new Set(site ? [site] : []), label: label || site || ""};
}

/**
 * Tab stops at one row of a table: the last that was picked or gone to. The arrow keys go to the others.
 * @param {any} event
 */
export function goToRow(event) {
  const row = event.target.closest && event.target.closest("[data-row]");
  const table = row?.closest("[role='grid']");
  if (!table || event.ctrlKey || event.metaKey || event.altKey) return;
  const rows = /** @type {HTMLElement[]} */ ([...table.querySelectorAll("[data-row]")])
    .filter((other) => other.getClientRects().length);
  const at = rows.indexOf(row), last = rows.length - 1;
  const places = /** @type {Record<string, number>} */ ({ArrowUp: Math.max(at - 1, 0),
    ArrowDown: Math.min(at + 1, last), Home: 0, End: last});
  const to = event.type === "keydown" ? places[event.key] : at;
  if (to === undefined) return;
  for (const other of rows) other.tabIndex = other === rows[to] ? 0 : -1;
  if (to !== at) rows[to].focus();
  if (event.type === "keydown") event.preventDefault();
}

/**
 * Mark the rows that belong to a selection, and show one of them.
 * @param {Element} root
 * @param {Selection} selection
 */
export function markRows(root, {nodes, sites}) {
  const found = [];
  for (const row of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("[data-row]"))) {
    const isPicked = sites.has(row.dataset.site ?? "")
      || (nodes.size > 0 && numbersIn(row.dataset.nodes).some((node) => nodes.has(node)));
    row.classList.toggle("kit-picked", isPicked);
    row.setAttribute("aria-selected", String(isPicked));
    if (isPicked) found.push(row);
  }
  reveal(found);
}

/**
 * A listing with a height of its own scrolls to the first of these rows, if none of them can be seen.
 * @param {(HTMLElement | null)[]} rows null where one is not drawn
 */
export function reveal(rows) {
  const drawn = /** @type {HTMLElement[]} */ (rows.filter(Boolean));
  const box = drawn[0]?.closest(".kit-source-lines");
  if (!box) return;
  const low = box.scrollTop, high = low + box.clientHeight;
  if (!drawn.some((row) => row.offsetTop + row.offsetHeight > low && row.offsetTop < high)) {
    box.scrollTop = drawn[0].offsetTop - box.clientHeight / 3;
  }
}
