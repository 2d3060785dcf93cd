// Paints pins: a line at the time of each, and its text at the foot of its part's lanes.
import {clipText} from "./axis.js";
import {AXIS, FONT} from "./tones.js";

const HIGH = 16, MOST = 220; // pixels: the height and the largest width of a text

/** @param {import("./picture.js").Context} ctx @param {import("./picture.js").Picture} picture */
export function paintPins(ctx, {table, view, tones}) {
  const {at = [], text = [], part = []} = table.pins;
  ctx.font = `600 11px ${FONT}`;
  ctx.textBaseline = "middle";
  const y = view.height - HIGH - 2; // the foot of the canvas: lanes scroll under it
  for (let i = at.length - 1; i >= 0; i--) { // the earlier one lies above the later one
    const x = view.x(at[i]);
    if (x < view.gutter - 1 || x > view.right + 1) continue;
    const top = Math.max(view.y(table.parts.top[part[i]]), AXIS);
    const bottom = view.y(table.parts.bottom[part[i]]);
    ctx.fillStyle = tones.accent;
    ctx.fillRect(x - 0.75, top, 1.5, Math.max(bottom, y) - top);
    const next = part[i + 1] === part[i] ? view.x(at[i + 1]) : view.right;
    const said = clipText(String(text[i]), Math.min(next - x - 8, view.right - x - 8, MOST));
    const width = said ? ctx.measureText(said).width + 8 : 7; // without room for a text, a stump
    ctx.fillRect(x - 0.75, y, width, HIGH);
    ctx.fillStyle = tones.ground;
    ctx.fillText(said, x + 3, y + HIGH / 2 + 0.5);
  }
}
