// Paints one frame of a timeline onto its two canvases.
import {paintGhost} from "./ghost.js";
import {paintIdle, paintPath} from "./idle.js";
import {paintAxis, paintGrid, paintLanes} from "./lanes.js";
import {paintMark, paintSteps, paintSyncs, paintWaits} from "./marks.js";
import {paintPins} from "./pins.js";
import {Overview} from "./overview.js";
import {paintArrows, RowPainter} from "./rows.js";
import {savedPicture} from "./saved.js";
import {AXIS, FONT, OVERVIEW} from "./tones.js";

export class Painter {
  /** @param {HTMLCanvasElement} canvas @param {HTMLCanvasElement} over the overview */
  constructor(canvas, over) {
    this.canvas = canvas;
    this.over = over;
    this.rows = new RowPainter();
    this.overview = new Overview(over);
    this.painted = 0; // frames
  }

  /** @param {number} width @param {number} height of the canvas, in pixels of the page */
  resize(width, height) {
    const ratio = window.devicePixelRatio || 1;
    for (const [canvas, high] of /** @type {[HTMLCanvasElement, number][]} */ (
      [[this.canvas, height], [this.over, OVERVIEW]])) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(high * ratio);
      canvas.style.height = `${high}px`;
    }
  }

  /** @param {import("./picture.js").Picture} picture */
  paint(picture) {
    const {view, tones, table} = picture;
    const ctx = this.canvas.getContext("2d");
    if (!ctx) return;
    const ratio = this.canvas.width / view.width;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.globalAlpha = 1;
    ctx.fillStyle = tones.ground;
    ctx.fillRect(0, 0, view.width, view.height);
    ctx.save();
    ctx.beginPath();
    ctx.rect(view.gutter, AXIS, view.right - view.gutter, view.height - AXIS);
    ctx.clip();
    const axis = paintGrid(ctx, picture);
    paintSteps(ctx, picture);
    paintWaits(ctx, picture);
    paintGhost(ctx, picture);
    this.rows.paint(ctx, picture, ratio);
    paintIdle(ctx, picture);
    paintPath(ctx, picture);
    paintSyncs(ctx, picture);
    paintArrows(ctx, picture);
    paintMark(ctx, picture);
    paintPins(ctx, picture);
    if (table.message) paintMessage(ctx, picture);
    ctx.restore();
    paintAxis(ctx, picture, axis);
    paintLanes(ctx, picture);
    this.overview.paint(picture);
    if (this.painted === 0) performance.mark("kit-timeline"); // when the first picture was there
    this.painted += 1;
  }

  /**
   * The picture as it is, with what is said of it.
   * @param {import("./saved.js").Said} said
   * @param {import("./tones.js").Tones} tones
   */
  picture(said, tones) {
    return savedPicture([this.over, this.canvas], this.over.height / OVERVIEW, said, tones);
  }
}

/** @param {CanvasRenderingContext2D} ctx @param {import("./picture.js").Picture} picture */
function paintMessage(ctx, {view, tones, table}) {
  ctx.fillStyle = tones.muted;
  ctx.font = `13px ${FONT}`;
  ctx.textAlign = "center";
  ctx.fillText(table.message, (view.gutter + view.right) / 2, AXIS + 40);
  ctx.textAlign = "left";
}
