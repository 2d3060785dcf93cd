// Which theme a page says that it has.

/**
 * Whether a page is dark: JupyterLab's, a stored page in a frame, VS Code's; null where it does not say.
 * @param {HTMLElement} body
 * @returns {boolean | null}
 */
export function saysDark({dataset, classList}) {
  if (dataset.jpThemeLight !== undefined) return dataset.jpThemeLight === "false";
  if (classList.contains("vscode-dark")) return true; // its light high contrast has both names
  if (classList.contains("vscode-high-contrast")) return !classList.contains("vscode-high-contrast-light");
  return classList.contains("vscode-light") ? false : null;
}
