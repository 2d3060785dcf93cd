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
 * Each wish has a greater number than those before. The clock is in it, as what the kernel offers
 * comes with the last number that the kernel has heard, and may cross a wish on its way.
 * @param {Record<string, any>} models
 * @param {"pin" | "unpin" | "step" | string} what
 * @param {string} [text]
 */
export function askFor(models, what, text = "") {
  const {asked} = models;
  const serial = Math.max(asked.data.serial[0] + 1, Date.now());
  asked.data = {...asked.data, what: [what], text: [text], serial: [serial], drawing: drawingOf(models)};
}
