// What a kernel can be asked for: the source `asked` says what it offers, and carries the wish.

/**
 * What the kernel offers: "pin" (and to take pins away), "step". Nothing without a kernel.
 * @param {Record<string, any>} models
 * @returns {string[]}
 */
export function offered({asked}) {
  if (document.getElementById("models")) return []; // a saved page holds its models
  return String(asked.data.can[0]).split(" ");
}

/**
 * The number of the picture that is shown, which goes with all that is said to the kernel: it may have
 * drawn another one meanwhile.
 * @param {Record<string, any>} models
 * @returns {number[]}
 */
export function drawingOf({timeline}) {
  return timeline.data.drawing ?? [0]; // a page without a kernel has no number
}

/**
 * A number greater than those before. The clock is in it: what the kernel says comes with the last
 * number that it has heard, which may be of another copy of the view, or cross a wish on its way.
 * @param {{data: Record<string, any>}} source
 */
function nextSerial({data}) {
  return Math.max((data.serial ?? [0])[0] + 1, Date.now());
}

/**
 * Tell what is chosen; the same choice again is news, too.
 * @param {Record<string, any>} models
 * @param {string} kind "" for nothing
 * @param {number} i
 */
export function tellPick(models, kind, i) {
  const {picked} = models;
  picked.data = {kind: [kind], index: [i], serial: [nextSerial(picked)], drawing: drawingOf(models)};
}

/**
 * @param {Record<string, any>} models
 * @param {"pin" | "unpin" | "step" | string} what
 * @param {string} [text]
 */
export function askFor(models, what, text = "") {
  const {asked} = models;
  asked.data = {...asked.data, what: [what], text: [text], serial: [nextSerial(asked)], drawing: drawingOf(models)};
}
