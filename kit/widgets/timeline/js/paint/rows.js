// Paints the spans of the lanes: narrow ones as one image for all rows, wide ones as bars.
import {inkOn, isPaleOn} from "../../../base/js/colors.js";
import {formatCount} from "../../../base/js/format.js";
import {clipText} from "./axis.js";
import {dustOf, levelOfDetail} from "../data/detail.js";
import {rowOf} from "../data/table.js";
import {AXIS, FONT, isDark} from "./tones.js";

/** @typedef {import("./picture.js").Picture} Picture */
/** @typedef {import("./picture.js").Context} Context */

const MOST_TEXTS = 300; // of one row, in one frame
// How opaque a pixel is, of 255, in which something ran: the grey of kernels is near a dark ground.
const LEAST = 110, LEAST_IN_DARK = 200;
const FAINT = 0.22; // what is not highlighted, where something is

/** Where a span is on the canvas: left, top, width, height. @param {Picture} picture @param {number} i */
export function boxOf({table, view}, i) {
  const row = rowOf(table, i);
  const left = Math.max(view.x(table.start[i]), view.gutter - 4);
  const right = Math.min(view.x(table.stop[i]), view.right + 4);
  return [left, view.y(table.rows.top[row]), Math.max(right - left, 1.5), table.rows.height[row]];
}

/** Keeps the memory that a frame needs from one frame to the next. */
export class RowPainter {
  constructor() {
    this.dust = dustOf(0);
    this.canvas = document.createElement("canvas"); // narrow spans of all rows, a pixel high
  }

  /** @param {Context} ctx @param {Picture} picture @param {number} ratio pixels of the device */
  paint(ctx, picture, ratio) {
    const {table, view, flags} = picture;
    const {top, height} = table.rows;
    const width = Math.max(1, Math.round((view.right - view.gutter) * ratio));
    if (this.dust.count.length !== width) this.dust = dustOf(width);
    const lit = flags ? flags.lit : null;
    const shown = [];
    for (let row = 0; row < top.length; row++) {
      const y = view.y(top[row]);
      if (y + height[row] > AXIS && y < view.height) shown.push(row);
    }
    const image = new DustImage(this.canvas, width, shown.length);
    /** @type {[number, number[]][]} */
    const bars = [];
    for (const row of shown) {
      const wide = levelOfDetail(table, row, view.shownFrom, view.shownTo, width, this.dust, lit);
      if (wide.length) bars.push([row, wide]);
      if (this.dust.count.some((count) => count > 0)) image.add(row, this.dust, picture);
    }
    image.paint(ctx, picture, width / ratio);
    for (const [row, wide] of bars) paintBars(ctx, picture, row, wide, lit);
    if (picture.hovered !== null) outline(ctx, boxOf(picture, picture.hovered), picture.tones.muted, 1);
    if (picture.pick?.kind === "span") outline(ctx, boxOf(picture, picture.pick.i), picture.tones.ink, 2);
  }
}

/** The narrow spans of several rows; it is made when the first row is added. */
class DustImage {
  /** @param {HTMLCanvasElement} canvas @param {number} width @param {number} most rows */
  constructor(canvas, width, most) {
    this.canvas = canvas;
    this.width = width;
    this.most = most;
    /** @type {number[]} */
    this.rows = [];
    /** @type {ImageData | null} */
    this.image = null;
    this.pixels = new Uint32Array(0);
    this.least = isDark() ? LEAST_IN_DARK : LEAST;
  }

  /** @param {number} row @param {import("../data/detail.js").Dust} dust @param {Picture} picture */
  add(row, {count, busy, longest, lit}, {table, pixels: colors, flags}) {
    if (this.image === null) {
      if (this.canvas.width !== this.width) this.canvas.width = this.width;
      if (this.canvas.height < this.most) this.canvas.height = this.most;
      this.image = new ImageData(this.width, this.most);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    const {key} = table, {pixels, width} = this;
    const base = this.rows.length * width, isAll = flags === null;
    for (let p = 0; p < width; p++) {
      if (count[p] === 0) continue;
      let alpha = this.least + (255 - this.least) * Math.min(1, busy[p]);
      if (!isAll) alpha = lit[p] ? 255 : alpha * FAINT;
      pixels[base + p] = colors[key[longest[p]]] | (alpha & 255) << 24;
    }
    this.rows.push(row);
  }

  /** @param {Context} ctx @param {Picture} picture @param {number} wide pixels of the page */
  paint(ctx, {table, view}, wide) {
    if (this.image === null) return;
    const {top, height} = table.rows;
    this.canvas.getContext("2d")?.putImageData(this.image, 0, 0, 0, 0, this.width, this.rows.length);
    ctx.imageSmoothingEnabled = false;
    this.rows.forEach((row, k) => ctx.drawImage(this.canvas, 0, k, this.width, 1,
      view.gutter, view.y(top[row]), wide, height[row]));
  }
}

/** @param {Context} ctx @param {number[]} box @param {string} color @param {number} width */
function outline(ctx, [x, y, w, h], color, width) {
  ctx.strokeStyle = color;
  ctx.lineWidth = width;
  ctx.strokeRect(x - width / 2, y - width / 2, w + width, h + width);
}

/** @param {Context} ctx @param {Picture} picture @param {number} row @param {number[]} wide spans
 * @param {Uint8Array | null} lit */
function paintBars(ctx, picture, row, wide, lit) {
  const {table, view, tones, fills} = picture;
  const y = view.y(table.rows.top[row]), h = table.rows.height[row];
  const isOutline = table.parts.outline[table.rows.part[row]];
  ctx.lineWidth = isOutline ? 1.2 : 1;
  ctx.strokeStyle = `${tones.muted}99`; // the edge of a pale bar
  let style = "", alpha = 1, isPale = false;
  const texts = [];
  for (const i of wide) {
    const k = table.key[i], color = fills[k];
    const from = Math.max(view.x(table.start[i]), view.gutter - 2);
    const to = Math.min(view.x(table.stop[i]), view.right + 2);
    const isJoined = table.count !== null && table.count[i] > 1;
    const seen = (lit === null || lit[k] ? 1 : 0.2) * (isJoined ? 0.55 : 1);
    if (seen !== alpha) ctx.globalAlpha = alpha = seen;
    if (isOutline) {
      ctx.strokeStyle = color;
      ctx.strokeRect(from + 0.6, y + 0.6, Math.max(to - from - 1.2, 0.6), h - 1.2);
    } else {
      if (color !== style) {
        ctx.fillStyle = style = color;
        isPale = isPaleOn(color, tones.ground);
      }
      const width = to - from > 5 ? to - from - 0.7 : to - from;
      ctx.fillRect(from, y, width, h);
      if (isPale && width > 5) ctx.strokeRect(from + 0.5, y + 0.5, width - 1, h - 1);
    }
    if (to - from <= 24 || h < 13) continue;
    const ink = isOutline || isJoined ? tones.ink : inkOn(color);
    const text = isJoined ? `${formatCount(table.count[i])} spans` : table.keys.bar[k] || table.keys.name[k];
    texts.push({from, to, ink, text, seen});
  }
  paintTexts(ctx, view.gutter, y + h / 2 + 0.5, texts);
  ctx.globalAlpha = 1;
}

/** @param {Context} ctx @param {number} gutter @param {number} y
 * @param {{from: number, to: number, ink: string, text: string, seen: number}[]} texts */
function paintTexts(ctx, gutter, y, texts) {
  ctx.font = `11px ${FONT}`;
  ctx.textBaseline = "middle";
  for (const {from, to, ink, text, seen} of texts.slice(0, MOST_TEXTS)) {
    const left = Math.max(from, gutter) + 4;
    const clipped = clipText(text, to - left - 3);
    if (clipped === "") continue;
    ctx.globalAlpha = seen;
    ctx.fillStyle = ink;
    ctx.fillText(clipped, left, y);
  }
}

/**
 * From a dispatch to the begin of a kernel that it launched: from its end, unless it still went on.
 * @param {Context} ctx
 * @param {Picture} picture
 */
export function paintArrows(ctx, {table, view, tones, pick, arrows}) {
  if (pick?.kind !== "span") return;
  const {top, height} = table.rows;
  ctx.strokeStyle = ctx.fillStyle = tones.accent;
  ctx.globalAlpha = arrows.length > 8 ? 0.55 : 1;
  ctx.lineWidth = 1.5;
  for (const [call, kernel] of arrows) {
    const x1 = view.x(table.start[kernel]), x0 = Math.min(view.x(table.stop[call]), x1);
    if (Math.max(x0, x1) < view.gutter || Math.min(x0, x1) > view.width) continue;
    const [from, to] = [rowOf(table, call), rowOf(table, kernel)];
    const isBelow = top[to] > top[from];
    const y0 = view.y(top[from] + height[from] / 2), y1 = view.y(top[to] + (isBelow ? 0 : height[to]));
    paintArrow(ctx, [x0, y0], [x1, y1], isBelow);
  }
  ctx.globalAlpha = 1;
}

/** @param {Context} ctx @param {number[]} from @param {number[]} to @param {boolean} isBelow */
function paintArrow(ctx, [x0, y0], [x1, y1], isBelow) {
  const bend = (y1 - y0) * 0.6;
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.bezierCurveTo(x0 + Math.min(12, x1 - x0), y0 + bend * 0.6, x1, y1 - bend, x1, y1 - (isBelow ? 5 : -5));
  ctx.stroke();
  ctx.beginPath();
  ctx.moveTo(x1, y1);
  ctx.lineTo(x1 - 3.5, y1 - (isBelow ? 7 : -7));
  ctx.lineTo(x1 + 3.5, y1 - (isBelow ? 7 : -7));
  ctx.fill();
  ctx.beginPath();
  ctx.arc(x0, y0, 2.5, 0, 7);
  ctx.fill();
}
