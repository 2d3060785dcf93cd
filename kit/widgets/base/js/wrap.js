// Texts in as many lines as they take.

/**
 * Lines of whole words; a word that is longer than a line has one of its own.
 * @param {string} text
 * @param {number} room
 * @param {(text: string) => number} wide of a text, in the unit of `room`
 */
export function wrapped(text, room, wide) {
  /** @type {string[]} */
  const lines = [];
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const last = lines[lines.length - 1], longer = `${last} ${word}`;
    if (last !== undefined && wide(longer) <= room) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}
