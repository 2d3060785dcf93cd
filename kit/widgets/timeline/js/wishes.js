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
 * Each wish has a greater number than those before. The clock is in it, as what the kernel offers
 * comes with the last number that the kernel has heard, and may cross a wish on its way.
 * @param {Record<string, any>} models
 * @param {"pin" | "unpin" | "step" | string} what
 * @param {string} [text]
 */
export function askFor({asked}, what, text = "") {
  const serial = Math.max(asked.data.serial[0] + 1, Date.now());
  asked.data = {...asked.data, what: [what], text: [text], serial: [serial]};
}
