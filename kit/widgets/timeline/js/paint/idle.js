// Paints why a device was idle, and the critical path.
import {isPlaced} from "../data/arrange.js";
import {clipText} from "./axis.js";
import {AXIS, FONT} from "./tones.js";

export const IDLE_PX = 15; // the height of a row of causes

/** @typedef {import("./picture.js").Picture} Picture */

/** A bar for each gap, in the colour of its cause. @param {CanvasRenderingContext2D} ctx
 * @param {Picture} picture */
export function paintIdle(ctx, {table, view, tones, causes}) {
  const {gaps, colors, idle} = table;
  ctx.font = `11px ${FONT}`;
  ctx.textBaseline = "middle";
  for (const {part, group, top} of idle) {
    const y = view.y(top);
    if (y + IDLE_PX < AXIS || y > view.height) continue;
    for (let i = 0; i < gaps.start.length; i++) {
      if (gaps.part[i] !== part || gaps.device[i] !== group) continue;
      const from = Math.max(view.x(gaps.start[i]), view.gutter);
      const to = Math.min(view.x(gaps.start[i] + gaps.length[i]), view.right);
      if (to < from) continue;
      ctx.fillStyle = causes[gaps.cause[i]];
      ctx.globalAlpha = 0.55;
      ctx.fillRect(from, y, Math.max(to - from, 0.6), IDLE_PX);
      ctx.globalAlpha = 1;
      if (to - from < 30) continue;
      ctx.fillStyle = tones.ink;
      ctx.fillText(clipText(colors.causes[gaps.cause[i]], to - from - 6), from + 3, y + IDLE_PX / 2 + 0.5);
    }
  }
}

/** A line through the lanes, along what each step had to wait for. @param {CanvasRenderingContext2D} ctx
 * @param {Picture} picture */
export function paintPath(ctx, {table, view, tones, showsPath}) {
  if (!showsPath) return;
  const {path, rows} = table;
  ctx.strokeStyle = tones.ink;
  ctx.lineWidth = 2.5;
  ctx.lineJoin = "round";
  ctx.beginPath();
  let isDrawn = false;
  for (let i = 0; i < path.start.length; i++) {
    const row = path.row[i];
    if (row < 0 || !isPlaced(rows.top[row])) continue; // what is between is a line from end to begin
    const y = view.y(rows.top[row] + rows.height[row] / 2);
    const from = view.x(path.start[i]), to = view.x(path.start[i] + path.length[i]);
    if (isDrawn) ctx.lineTo(from, y);
    else ctx.moveTo(from, y);
    ctx.lineTo(to, y);
    isDrawn = true;
  }
  ctx.stroke();
}
