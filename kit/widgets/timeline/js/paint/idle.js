// Paints why a device was idle, and the critical path.
import {isPlaced} from "../data/arrange.js";
import {idlePixels} from "../data/idle.js";
import {clipText} from "./axis.js";
import {AXIS, FONT} from "./tones.js";

export const IDLE_PX = 15; // the height of a row of causes
const IDLE_ALPHA = 0.55, FAINTEST = 0.08; // of a pixel that is idle all through, and of one with any idle time

/** @typedef {import("./picture.js").Picture} Picture */

/** Gaps in the colour of their cause: wide ones as bars, others as pixels, the paler the less is idle.
 * @param {CanvasRenderingContext2D} ctx @param {Picture} picture */
export function paintIdle(ctx, picture) {
  const {table, view} = picture;
  if (!table.idle.length) return;
  const hatch = hatchIn(ctx, picture.tones.ground);
  ctx.font = `11px ${FONT}`;
  ctx.textBaseline = "middle";
  for (const {top, gaps} of table.idle) {
    const y = view.y(top);
    if (y + IDLE_PX >= AXIS && y <= view.height) paintGaps(ctx, picture, hatch, gaps, y);
  }
  ctx.globalAlpha = 1;
}

/** @param {CanvasRenderingContext2D} ctx @param {Picture} picture @param {CanvasPattern} hatch
 * @param {import("../data/idle.js").Gaps} gaps of one row @param {number} y */
function paintGaps(ctx, {table, view, tones, causes}, hatch, gaps, y) {
  const width = Math.max(1, Math.round(view.right - view.gutter)), {cause} = table.gaps;
  const pixels = idlePixels(gaps, cause, view.shownFrom, view.shownTo, width);
  for (let p = 0; p < width; p++) {
    if (pixels.causes[p] < 0) continue;
    ctx.fillStyle = causes[pixels.causes[p]];
    ctx.globalAlpha = FAINTEST + (IDLE_ALPHA - FAINTEST) * Math.min(1, pixels.filled[p]);
    ctx.fillRect(view.gutter + p, y, 1, IDLE_PX);
  }
  for (const n of pixels.wide) {
    const from = Math.max(view.x(gaps.start[n]), view.gutter), to = Math.min(view.x(gaps.stop[n]), view.right);
    const own = cause[gaps.index[n]];
    ctx.fillStyle = causes[own];
    ctx.globalAlpha = IDLE_ALPHA;
    ctx.fillRect(from, y, to - from, IDLE_PX);
    ctx.fillStyle = hatch;
    ctx.fillRect(from, y, to - from, IDLE_PX);
    if (to - from < 30) continue;
    ctx.fillStyle = tones.ink;
    ctx.globalAlpha = 1;
    ctx.fillText(clipText(table.colors.causes[own], to - from - 6), from + 3, y + IDLE_PX / 2 + 0.5);
  }
}

/** Idle time is hatched: its colours are those of kinds of work, too. @param {CanvasRenderingContext2D} ctx
 * @param {string} color @returns {CanvasPattern} */
function hatchIn(ctx, color) {
  const tile = document.createElement("canvas"), size = 6;
  tile.width = tile.height = size;
  const inTile = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  inTile.strokeStyle = color;
  inTile.beginPath();
  for (const x of [-size, 0, size]) {
    inTile.moveTo(x - 1, size + 1);
    inTile.lineTo(x + size + 1, -1);
  }
  inTile.stroke();
  return /** @type {CanvasPattern} */ (ctx.createPattern(tile, "repeat"));
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
    if (row < 0) continue; // what is between is a line from end to begin
    if (!isPlaced(rows.top[row])) { // a line across a lane that is hidden would be work that nobody did
      isDrawn = false;
      continue;
    }
    const y = view.y(rows.top[row] + rows.height[row] / 2);
    const from = view.x(path.start[i]), to = view.x(path.start[i] + path.length[i]);
    if (isDrawn) ctx.lineTo(from, y);
    else ctx.moveTo(from, y);
    ctx.lineTo(to, y);
    isDrawn = true;
  }
  ctx.stroke();
}
