// The strip above the lanes: all of the time, host above and devices below, and what is shown of it.
import {busiest} from "../data/detail.js";
import {colorOfKind} from "../data/table.js";
import {MANY_SYNCS} from "./marks.js";
import {FONT, OVERVIEW} from "./tones.js";

/** @typedef {import("./picture.js").Picture} Picture */

export class Overview {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    /** @type {HTMLCanvasElement | null} */
    this.image = null; // drawn once: a frame only copies it
  }

  /** What is shown or its colours have changed. */
  reset() {
    this.image = null;
  }

  /** @param {Picture} picture */
  paint(picture) {
    const {view, tones} = picture;
    const ctx = this.canvas.getContext("2d");
    if (!ctx) return;
    const ratio = this.canvas.width / view.width;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = tones.ground;
    ctx.fillRect(0, 0, view.width, OVERVIEW);
    const width = view.right - view.gutter, rounded = Math.round(width);
    if (this.image?.width !== rounded) this.image = busyImage(picture, rounded);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(this.image, view.gutter, 2, width, OVERVIEW - 6);
    const [low, high] = view.whole();
    const x = (/** @type {number} */ time) => view.gutter + (time - low) / (high - low) * width;
    paintSyncs(ctx, picture, x);
    const [from, to] = [x(view.shownFrom), x(view.shownTo)];
    ctx.fillStyle = tones.ground;
    ctx.globalAlpha = 0.72;
    ctx.fillRect(view.gutter, 2, from - view.gutter, OVERVIEW - 6);
    ctx.fillRect(to, 2, view.right - to, OVERVIEW - 6);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = tones.accent;
    ctx.lineWidth = 1.2;
    ctx.strokeRect(from, 2, Math.max(to - from, 2), OVERVIEW - 6);
    ctx.fillStyle = tones.muted;
    ctx.font = `11px ${FONT}`;
    ctx.textBaseline = "middle";
    ctx.fillText("all of it", 8, OVERVIEW / 2 - 1);
  }
}

/** @param {CanvasRenderingContext2D} ctx @param {Picture} picture @param {(time: number) => number} x */
function paintSyncs(ctx, {table, wait}, x) {
  const {syncs, parts} = table;
  const height = syncs.at.length > MANY_SYNCS ? 4 : OVERVIEW - 6;
  ctx.fillStyle = wait;
  for (let i = 0, drawn = -9; i < syncs.at.length; i++) {
    if (parts.outline[syncs.part[i]]) continue;
    const at = x(syncs.at[i]);
    if (at - drawn < 1.5 && at >= drawn) continue;
    drawn = at;
    ctx.fillRect(at - 0.5, 2, 1.4, height);
  }
}

/** How busy the host and the devices were, pixel by pixel. @param {Picture} picture
 * @param {number} width */
function busyImage({table, view, tones}, width) {
  const image = document.createElement("canvas");
  [image.width, image.height] = [width, OVERVIEW - 6];
  const ctx = /** @type {CanvasRenderingContext2D} */ (image.getContext("2d"));
  ctx.fillStyle = tones.strip;
  ctx.fillRect(0, 0, width, OVERVIEW);
  const {host, device} = busiest(table, width, ...view.whole());
  const strips = /** @type {[Float64Array, number, string][]} */ (
    [[host, 2, colorOfKind(table, "forward")], [device, 15, tones.muted]]);
  for (const [bins, top, color] of strips) {
    ctx.fillStyle = color;
    bins.forEach((busy, p) => {
      if (busy <= 0) return;
      ctx.globalAlpha = 0.15 + 0.75 * Math.min(1, busy);
      ctx.fillRect(p, top, 1, 11);
    });
  }
  return image;
}
