// The page of many ranks: a rank that is picked in one table or row is marked in all.

import {goToRow, markRows, NOTHING, pickedIn} from "../../widgets/base/js/listing.js";

/** @typedef {import("../../widgets/base/js/listing.js").Selection} Selection */

/** Listen to the page. */
export function startRanks() {
  let label = "";
  const select = (/** @type {Selection} */ picked) => {
    label = picked.label;
    markRows(document.body, picked);
  };
  const onPick = (/** @type {Event} */ event) => {
    goToRow(event);
    const picked = pickedIn(event);
    if (picked) select(picked.label === label ? NOTHING : picked);
  };
  document.addEventListener("click", onPick);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") select(NOTHING);
    else onPick(event);
  });
}
