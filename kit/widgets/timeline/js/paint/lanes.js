// Paints what stands around the spans: the axis and its grid, the names of the lanes.
import {clipApart, clipText, readableTicks} from "./axis.js";
import {AXIS, FONT, RIGHT} from "./tones.js";

/** @typedef {import("./picture.js").Picture} Picture */
/** @typedef {import("./picture.js").Context} Context */

/** @param {Context} ctx @param {Picture} picture @returns {ReturnType<typeof readableTicks>} */
export function paintGrid(ctx, {view, tones}) {
  const found = readableTicks(view.shownFrom, view.shownTo, view.right - view.gutter);
  ctx.fillStyle = tones.line;
  for (const time of found.ticks) ctx.fillRect(view.x(time) - 0.5, AXIS, 1, view.height);
  return found;
}

/** @param {Context} ctx @param {Picture} picture @param {ReturnType<typeof readableTicks>} axis */
export function paintAxis(ctx, {view, tones}, {ticks, write}) {
  ctx.font = `11px ${FONT}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "center";
  ctx.fillStyle = tones.muted;
  for (const time of ticks) {
    const text = write(time), half = text.length * 3.1;
    const x = Math.min(Math.max(view.x(time), view.gutter + half - 4), view.right - half + 4);
    ctx.fillText(text, x, AXIS / 2);
  }
  ctx.textAlign = "left";
}

/** @param {Context} ctx @param {Picture} picture */
export function paintLanes(ctx, {table, view, tones}) {
  const {gutter} = view;
  ctx.save();
  ctx.fillStyle = tones.ground;
  ctx.fillRect(0, AXIS, gutter, view.height);
  ctx.fillRect(view.right, AXIS, RIGHT, view.height);
  ctx.beginPath();
  ctx.rect(0, AXIS, view.right, view.height);
  ctx.clip();
  ctx.textBaseline = "middle";
  /** @param {string} text @param {number} x @param {number} down @param {string} color
   * @param {string} [font] */
  const write = (text, x, down, color, font = "11px") => {
    ctx.font = `${font} ${FONT}`;
    ctx.fillStyle = color;
    ctx.fillText(clipText(text, gutter - x - 4), x, view.y(down), Math.max(gutter - x - 4, 1));
  };
  const {parts, headings, lanes} = table;
  for (let part = 0; part < parts.label.length; part++) {
    if (parts.label[part]) paintPartLabel(ctx, parts.label[part], view.y(parts.top[part]), view.width, tones);
    write("steps", 8, parts.steps_top[part] + 10, tones.muted);
    write("sync points", 8, parts.syncs_top[part] + 10, tones.muted);
  }
  for (let i = 0; i < headings.text.length; i++) {
    const down = headings.top[i] + 9;
    paintHeading(ctx, headings.text[i], view.y(down), view, tones);
  }
  const lefts = Array.from(lanes.label, (_, i) => (lanes.group[i] ? 18 : 8));
  const labels = clipApart(Array.from(lanes.label, String), lefts.map((x) => gutter - x - 4));
  for (let i = 0; i < labels.length; i++) {
    write(labels[i], lefts[i], (lanes.top[i] + lanes.bottom[i]) / 2, tones.ink);
  }
  for (const {top} of table.idle) write("why idle", 18, top + 8, tones.muted);
  ctx.restore();
  paintScrollbar(ctx, view, tones.edge);
}

/** A long one goes on beyond the names of the lanes: beside it nothing is drawn but a line.
 * @param {Context} ctx @param {string} heading @param {number} y @param {Picture["view"]} view
 * @param {Picture["tones"]} tones */
function paintHeading(ctx, heading, y, view, tones) {
  ctx.font = `600 11px ${FONT}`;
  const text = clipText(heading, view.right - 8), end = Math.max(view.gutter, 14 + ctx.measureText(text).width);
  ctx.fillStyle = tones.ground;
  ctx.fillRect(view.gutter, y - 7, end - view.gutter, 14);
  ctx.fillStyle = tones.ink;
  ctx.fillText(text, 8, y);
  ctx.fillStyle = tones.line;
  ctx.fillRect(end, y, view.width, 1);
}

/** @param {Context} ctx @param {string} label @param {number} y @param {number} width
 * @param {Picture["tones"]} tones */
function paintPartLabel(ctx, label, y, width, tones) {
  ctx.fillStyle = tones.strip;
  ctx.fillRect(0, y + 3, width, 19);
  ctx.font = `600 12px ${FONT}`;
  ctx.fillStyle = tones.ink;
  ctx.fillText(label, 8, y + 13);
}

/** @param {Context} ctx @param {Picture["view"]} view @param {string} color */
function paintScrollbar(ctx, view, color) {
  const most = view.lanesHeight, shown = view.height - AXIS;
  if (most <= view.height) return;
  const h = shown * shown / (most - AXIS);
  ctx.fillStyle = color;
  ctx.fillRect(view.width - 6, AXIS + (shown - h) * view.scroll / (most - view.height), 4, h);
}
