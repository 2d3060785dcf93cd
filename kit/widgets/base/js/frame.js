// A view's stored page in a notebook: a frame as high as what is in it, in the notebook's theme.

// What the texts of views are coloured by.
const COLORS = ["--jp-ui-font-color1", "--jp-ui-font-color2", "--jp-layout-color0", "--jp-layout-color1",
  "--jp-layout-color2", "--jp-border-color2", "--jp-error-color1", "--jp-brand-color1",
  "--jp-mirror-editor-string-color"];

/**
 * Have a frame follow what is in it and around it; nothing where it has gone, or may not be looked into.
 * @param {HTMLIFrameElement} frame that has loaded
 */
export function follow(frame) {
  const page = frame.contentDocument?.body;
  if (!page) return;
  const fit = () => {
    const high = page.offsetHeight; // none while the frame is hidden
    if (high) frame.style.height = `${high + 8}px`;
  };
  new ResizeObserver(fit).observe(page); // figures come later, parts are unfolded
  dress(page);
  new MutationObserver(() => dress(page)).observe(document.body, {attributes: true,
    attributeFilter: ["data-jp-theme-light", "data-jp-theme-name"]});
}

/** Give a page the colours of the one around it, where that names a theme. @param {HTMLElement} page */
function dress(page) {
  const {jpThemeLight} = document.body.dataset;
  if (jpThemeLight === undefined) return;
  const root = page.ownerDocument.documentElement, own = getComputedStyle(document.body);
  for (const name of COLORS) root.style.setProperty(name, own.getPropertyValue(name));
  root.style.colorScheme = jpThemeLight === "false" ? "dark" : "light";
  page.dataset.jpThemeLight = jpThemeLight; // figures look here
}
