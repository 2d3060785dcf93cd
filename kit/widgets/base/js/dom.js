// Elements of a page.

/**
 * A new element. An attribute that begins with "on" is a listener; a string among the children
 * becomes text, never markup.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node | string)} children
 * @returns {any}
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/**
 * Replace what an element holds. The control that had the focus gets it again, found by its name:
 * a keyboard must not begin anew at the top of the page.
 * @param {HTMLElement} parent
 * @param {...(Node | string)} children
 */
export function refill(parent, ...children) {
  const focused = /** @type {Document | ShadowRoot} */ (parent.getRootNode()).activeElement;
  const name = focused instanceof HTMLElement && parent.contains(focused) ? nameOf(focused) : "";
  parent.replaceChildren(...children);
  if (!name) return;
  const controls = /** @type {HTMLElement[]} */ ([...parent.querySelectorAll("button, input, select, [tabindex]")]);
  controls.find((control) => nameOf(control) === name)?.focus({preventScroll: true});
}

/** @param {HTMLElement} control */
function nameOf(control) {
  return control.dataset.act ?? control.getAttribute("aria-label") ?? control.textContent ?? "";
}

/**
 * Let the user save something as a file.
 * @param {string} name
 * @param {Blob} blob
 */
export function download(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = element("a", {href: url, download: name});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/**
 * Let Escape close what a button has opened, while the focus is in one of these parts.
 * @param {HTMLElement[]} parts
 * @param {HTMLElement} opened
 * @param {() => void} close
 */
export function closeByEscape(parts, opened, close) {
  for (const part of parts) {
    part.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || opened.hidden) return;
      event.preventDefault();
      event.stopPropagation();
      close();
    });
  }
}
