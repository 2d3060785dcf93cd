// Copying a text for the user: by the clipboard where the page has one, else as Ctrl + C would.

const SAID = 2000; // milliseconds that a button says what became of a click

/**
 * After a click on a button, copy what a field holds. Where nothing copies, the field stays selected,
 * so that the user's own Ctrl + C does.
 * @param {HTMLInputElement} field it is shown
 * @param {HTMLElement} button says what became of it
 * @returns {Promise<boolean>} whether it was copied
 */
export async function copyField(field, button) {
  field.focus();
  field.select();
  const isCopied = await copied(field.value);
  if (isCopied) button.focus();
  sayFor(button, isCopied ? "Copied" : "Press Ctrl + C");
  return isCopied;
}

/** @param {string} text it is selected */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text); // a page of plain http has no clipboard
    return true;
  } catch {
    return document.execCommand("copy");
  }
}

/**
 * Let a button say something for a moment, then what it said at first.
 * @param {HTMLElement} button
 * @param {string} text
 */
export function sayFor(button, text) {
  button.dataset.kitName ??= button.textContent ?? "";
  clearTimeout(Number(button.dataset.kitSaying));
  button.textContent = text;
  button.dataset.kitSaying = String(setTimeout(() => {
    button.textContent = button.dataset.kitName ?? "";
  }, SAID));
}
