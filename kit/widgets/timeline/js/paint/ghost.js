// Paints the run before: a pale line under each row, at the times that it had.
import {dustOf, levelOfDetail} from "../data/detail.js";
import {AXIS} from "./tones.js";

const PALE = 0.5;

/** Pixels of a ghost's line under a row of this height; the bars above it are so much lower.
 * @param {number} height */
export function ghostLine(height) {
  return height >= 14 ? 5 : 3;
}

/** @param {CanvasRenderingContext2D} ctx @param {import("./picture.js").Picture} picture */
export function paintGhost(ctx, {table, view, ghost, ghostFills}) {
  if (!ghost) return;
  const width = Math.max(1, Math.round(view.right - view.gutter)), dust = dustOf(width);
  const {key, start, stop} = ghost.table, shift = ghost.shift;
  ctx.globalAlpha = PALE;
  ghost.rows.forEach((from, row) => {
    const top = view.y(table.rows.top[row] + table.rows.height[row]) + 1;
    if (from < 0 || top < AXIS || top > view.height) return;
    const high = ghostLine(table.rows.whole[row]) - 1;
    const wide = levelOfDetail(ghost.table, from, view.shownFrom - shift, view.shownTo - shift, width, dust);
    for (const i of wide) {
      const left = Math.max(view.x(start[i] + shift), view.gutter);
      ctx.fillStyle = ghostFills[key[i]];
      ctx.fillRect(left, top, Math.min(view.x(stop[i] + shift), view.right) - left - 0.5, high);
    }
    dust.count.forEach((count, p) => {
      if (count === 0) return;
      ctx.globalAlpha = PALE * (0.43 + 0.57 * Math.min(1, dust.busy[p])); // as full as it was
      ctx.fillStyle = ghostFills[key[dust.longest[p]]];
      ctx.fillRect(view.gutter + p, top, 1, high);
    });
    ctx.globalAlpha = PALE;
  });
  ctx.globalAlpha = 1;
}
