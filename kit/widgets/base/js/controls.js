// Controls of a page that screen readers and the keyboard can use: names, states, undo and redo.
import {copyField, sayFor} from "./copy.js";
import {WRITTEN} from "./keys.js";

const CONTROLS = "[role=slider], .noUi-handle, select, input, .jupyter-widget-toggle-buttons, "
  + ".widget-toggle-buttons";

/** Name controls by the text beside them; ipywidgets joins the two for few kinds only. */
export function nameControls() {
  for (const box of document.querySelectorAll(".kit-labelled:not([data-kit-named])")) {
    nameControlsOf(/** @type {HTMLElement} */ (box));
  }
  for (const line of document.querySelectorAll(".kit-announce:not([role])")) {
    line.setAttribute("role", "status");
    line.setAttribute("aria-live", "polite");
  }
  for (const bar of document.querySelectorAll(".kit-explorer .progress:not([role])")) {
    bar.setAttribute("role", "progressbar");
    bar.setAttribute("aria-label", "progress of the run");
  }
}

/** @param {HTMLElement} box */
function nameControlsOf(box) {
  const label = box.querySelector(".kit-label")?.textContent;
  const parts = box.querySelectorAll(CONTROLS);
  if (!label || !parts.length) return;
  box.dataset.kitNamed = "1";
  for (const part of parts) {
    part.setAttribute("aria-label", label);
    if (part.matches(".widget-toggle-buttons, .jupyter-widget-toggle-buttons")) nameChoices(part);
  }
  const readout = /** @type {HTMLElement | null} */ (box.querySelector(".widget-readout"));
  const handle = box.querySelector(".noUi-handle");
  if (readout && handle) {
    readout.contentEditable = "false"; // to type into it has no effect; Tab need not stop there
    follow(handle, readout);
  }
}

/** A slider's handle says what its readout shows. @param {Element} handle @param {Element} readout */
function follow(handle, readout) {
  const say = () => {
    if (handle.getAttribute("aria-valuetext") !== readout.textContent) {
      handle.setAttribute("aria-valuetext", readout.textContent ?? "");
    }
  };
  say();
  new MutationObserver(say).observe(readout, {childList: true, characterData: true, subtree: true});
  new MutationObserver(say).observe(handle, {attributes: true, attributeFilter: ["aria-valuetext"]});
}

/** @param {Element} group buttons of which one is chosen */
function nameChoices(group) {
  group.setAttribute("role", "group");
  const say = () => group.querySelectorAll("button").forEach((button) => {
    const pressed = String(button.classList.contains("mod-active"));
    if (button.getAttribute("aria-pressed") !== pressed) button.setAttribute("aria-pressed", pressed);
  });
  say();
  new MutationObserver(say).observe(group, {attributes: true, attributeFilter: ["class"], subtree: true});
}

const ANSWER = 4000; // milliseconds that a browser lets a click copy something

/** After a click on the button for it, copy the link that the kernel writes into the field beside.
 * @param {MouseEvent} event */
export async function copyLink(event) {
  const target = event.target instanceof Element ? event.target : null;
  const button = /** @type {HTMLElement | null | undefined} */ (target?.closest(".kit-copy-link"));
  const field = /** @type {HTMLInputElement | null | undefined} */ (
    button?.closest(".kit-history")?.querySelector(".kit-link input"));
  if (!button || !field) return;
  field.value = "";
  const isThere = () => field.value !== "" && field.getClientRects().length > 0;
  for (let waited = 0; !isThere() && waited < ANSWER; waited += 50) {
    await new Promise((done) => { setTimeout(done, 50); });
  }
  if (isThere()) await copyField(field, button);
  else sayFor(button, "No answer yet: the link will stand below");
}

/** Ctrl + Z and Ctrl + Y in an explorer press its buttons. @param {KeyboardEvent} event */
export function undoByKeys(event) {
  const target = event.target instanceof Element ? event.target : null;
  const root = target?.closest(".kit-explorer");
  if (!target || !root || !(event.ctrlKey || event.metaKey) || event.altKey) return;
  const inner = event.composedPath()[0]; // in a plot the event's target is the plot's own element
  if (inner instanceof Element && inner.matches(WRITTEN)) return; // has an undo of its own
  const key = event.key.toLowerCase();
  const which = key === "y" || (key === "z" && event.shiftKey) ? ".kit-redo" : key === "z" ? ".kit-undo" : "";
  if (!which) return;
  event.preventDefault();
  event.stopPropagation();
  /** @type {HTMLElement | null} */ (root.querySelector(which))?.click();
}
