// Texts in the room that they have: cut, or in as many lines as they take.

/**
 * Lines of whole words; a word that is longer than a line has one of its own.
 * @param {string} text
 * @param {number} room
 * @param {(text: string) => number} wide of a text, in the unit of `room`
 */
export function wrapped(text, room, wide) {
  return filled(text.split(/\s+/).filter(Boolean), room, wide);
}

/**
 * Lines of parts that an end of a line may stand between, but not in.
 * @param {string[]} parts
 * @param {number} room
 * @param {(text: string) => number} wide
 */
export function filled(parts, room, wide) {
  /** @type {string[]} */
  const lines = [];
  for (const word of parts) {
    const last = lines[lines.length - 1], longer = `${last} ${word}`;
    if (last !== undefined && wide(longer) <= room) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/**
 * As much of a text as has room, and "…" for the rest.
 * @param {string} text
 * @param {number} room pixels
 * @param {(text: string) => number} wide
 */
export function cut(text, room, wide) {
  if (wide(text) <= room) return text;
  let low = 0, high = text.length - 1;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (wide(`${text.slice(0, middle).trimEnd()}…`) <= room) low = middle;
    else high = middle - 1;
  }
  return `${text.slice(0, low).trimEnd()}…`;
}
