// Paints steps, waits, sync points and the range that is measured.
import {formatCount, formatNs} from "../../../base/js/format.js";
import {clipText} from "./axis.js";
import {AXIS, FONT} from "./tones.js";

/** @typedef {import("./picture.js").Picture} Picture */
/** @typedef {import("./picture.js").Context} Context */

export const MANY_SYNCS = 80; // on the screen: their lines would hide what they are drawn over

/** @param {Context} ctx @param {Picture} picture */
export function paintSteps(ctx, {table, view, tones}) {
  const {steps, parts} = table;
  ctx.font = `11px ${FONT}`;
  ctx.textBaseline = "middle";
  let drawn = -1;
  for (let i = 0; i < steps.start.length; i++) {
    const from = view.x(steps.start[i]), to = view.x(steps.start[i] + steps.length[i]);
    if (to < view.gutter || from > view.width || (to - drawn < 1 && to > drawn)) continue;
    drawn = to;
    const top = view.y(parts.steps_top[steps.part[i]]), bottom = view.y(parts.bottom[steps.part[i]]);
    ctx.fillStyle = i % 2 ? tones.odd : tones.even;
    ctx.fillRect(from, top, to - from, 18);
    ctx.fillStyle = tones.edge;
    if (to - from > 4) for (const x of [from, to]) ctx.fillRect(x - 0.5, top, 1, bottom - top);
    const left = Math.max(from, view.gutter) + 5;
    // Else the time would stand before a name that is read from the right; the mark has a width.
    const mark = /[^ -~]/.test(steps.name[i]) ? "\u200e" : "";
    const text = `${steps.name[i]}${mark} · ${formatNs(steps.length[i])}`;
    ctx.fillStyle = tones.ink;
    ctx.fillText(clipText(text, Math.min(to, view.right) - left - 3), left, top + 9.5);
  }
  const left = Math.max(view.x(table.end), view.gutter) + 5, text = "room for the longest run";
  if (table.axis <= table.end || clipText(text, view.right - left) !== text) return;
  ctx.fillStyle = tones.muted;
  ctx.fillText(text, left, view.y(parts.steps_top[0]) + 9.5);
}

/** The time in which the host waited, shaded over all lanes of its part; a pixel is shaded once.
 * @param {Context} ctx @param {Picture} picture */
export function paintWaits(ctx, {table, view, flags, wait: color}) {
  if (table.hidesWaits) return;
  const {at, wait, part} = table.syncs;
  let drawn = -1, last = -1;
  ctx.fillStyle = color;
  for (let i = 0; i < at.length; i++) {
    if (part[i] !== last) [drawn, last] = [-1, part[i]];
    const from = Math.max(view.x(at[i]), drawn, view.gutter);
    const to = Math.min(view.x(at[i] + wait[i]), view.width);
    if (to - from < 0.4) continue;
    drawn = to;
    const top = view.y(table.parts.syncs_top[part[i]]) + 10;
    ctx.globalAlpha = flags?.marks[i] ? 0.22 : 0.10;
    ctx.fillRect(from, top, to - from, view.y(table.parts.bottom[part[i]]) - top);
  }
  ctx.globalAlpha = 1;
}

/**
 * Sync points that are on the canvas. Of those on top of each other one is shown, `many` with it: the
 * longest; what is picked or lit stands for itself.
 * @typedef {{i: number, x: number, many: number, isPick: boolean, isLit: boolean}} Shown
 * @param {Pick<Picture, "table" | "flags" | "pick">
 *   & {view: Pick<Picture["view"], "x" | "gutter" | "width">}} picture @returns {Shown[]}
 */
export function syncsShown({table, view, flags, pick}) {
  const {at, wait, part} = table.syncs;
  /** @type {Shown[]} */
  const shown = [];
  if (table.hidesWaits) return shown;
  for (let i = 0; i < at.length; i++) {
    const x = view.x(at[i]), last = shown.at(-1);
    if (x < view.gutter - 6 || x > view.width) continue;
    const isPick = pick?.kind === "sync" && pick.i === i, isLit = Boolean(flags?.marks[i]);
    if (!last || part[last.i] !== part[i] || x - last.x >= 3 || isPick || isLit) {
      shown.push({i, x, many: 1, isPick, isLit});
    } else if (!last.isPick && !last.isLit) {
      last.many += 1;
      if (wait[i] > wait[last.i]) last.i = i;
    }
  }
  return shown;
}

/** @param {Context} ctx @param {Picture} picture */
export function paintSyncs(ctx, picture) {
  const {table, view, flags, wait} = picture, {syncs, parts} = table;
  ctx.font = `11px ${FONT}`;
  ctx.textBaseline = "middle";
  const shown = syncsShown(picture), isDense = shown.length > MANY_SYNCS;
  let labelled = 0; // width of the text that the point before has at its right
  shown.forEach(({i, x, many, isPick, isLit}, k) => {
    const top = view.y(parts.syncs_top[syncs.part[i]]), bottom = view.y(parts.bottom[syncs.part[i]]);
    ctx.globalAlpha = flags === null || isLit ? 1 : 0.3;
    ctx.strokeStyle = ctx.fillStyle = wait;
    ctx.lineWidth = isPick ? 2 : 1;
    if (!isDense || isPick || isLit) dashedLine(ctx, x, top + 14, bottom);
    triangle(ctx, x, top + 9, isPick ? 7 : isDense ? 3 : 5);
    const others = many > 1 ? `${formatCount(many)} here, the longest ` : "";
    const text = `${others}${syncs.cause[i]} · ${formatNs(syncs.wait[i])}`;
    const length = ctx.measureText(text).width + 16;
    const near = (/** @type {number} */ n) =>
      (shown[n] && syncs.part[shown[n].i] === syncs.part[i] ? shown[n].x : null);
    const before = near(k - 1) ?? view.gutter, after = near(k + 1) ?? view.right;
    if (after > x + length) ctx.fillText(text, x + 9, top + 9.5);
    else if (near(k + 1) === null && x - length > before + labelled) {
      ctx.textAlign = "right";
      ctx.fillText(text, x - 9, top + 9.5);
      ctx.textAlign = "left";
    }
    labelled = after > x + length ? length : 0;
  });
  ctx.globalAlpha = 1;
}

/** @param {Context} ctx @param {number} x @param {number} top @param {number} bottom */
function dashedLine(ctx, x, top, bottom) {
  ctx.setLineDash([4, 3]);
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x, bottom);
  ctx.stroke();
  ctx.setLineDash([]);
}

/** @param {Context} ctx @param {number} x @param {number} y @param {number} size */
function triangle(ctx, x, y, size) {
  ctx.beginPath();
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y - size);
  ctx.lineTo(x, y + size);
  ctx.fill();
}

/** @param {Context} ctx @param {Picture} picture */
export function paintMark(ctx, {view, tones, mark}) {
  if (!mark) return;
  const [from, to] = mark.map((time) => view.x(time));
  ctx.fillStyle = tones.accent;
  ctx.globalAlpha = 0.12;
  ctx.fillRect(from, AXIS, to - from, view.height);
  ctx.globalAlpha = 1;
  for (const x of [from, to]) ctx.fillRect(x - 0.5, AXIS, 1, view.height);
}
