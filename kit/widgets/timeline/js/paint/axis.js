// The axis of time: where its ticks are and how they read; texts that fit into a width.
import {writerOf} from "../../../base/js/format.js";

/**
 * Times of the ticks between two times, and how to write them.
 * @param {number} from
 * @param {number} to
 * @param {number} most how many there may be, about
 * @returns {{ticks: number[], write: (time: number) => string}}
 */
export function ticksOf(from, to, most) {
  const rough = (to - from) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough) ?? 10 * power);
  const largest = Math.max(Math.abs(from), Math.abs(to));
  const ticks = [];
  for (let time = Math.ceil(from / step) * step; time <= to; time += step) ticks.push(time + 0); // no "-0"
  return {ticks, write: writerOf(largest, step)};
}

/**
 * Ticks that are far enough apart for their texts.
 * @param {number} from
 * @param {number} to
 * @param {number} width pixels
 */
export function readableTicks(from, to, width) {
  const found = ticksOf(from, to, width / 110);
  const longest = Math.max(...found.ticks.map((time) => found.write(time).length), 1) * 6.3 + 14;
  return longest > 110 ? ticksOf(from, to, width / longest) : found;
}

const LETTER = 6.1; // pixels of one, at the size of all texts here

/**
 * The text that fits into so many pixels: all of it, its beginning, or nothing.
 * @param {string} text
 * @param {number} width
 */
export function clipText(text, width) {
  const most = Math.floor(width / LETTER);
  return text.length <= most ? text : most < 3 ? "" : `${text.slice(0, most - 1)}…`;
}

/**
 * Texts that fit, cut so that different ones stay different: at the end, in the middle, or before
 * the place where they differ.
 * @param {string[]} texts
 * @param {number[]} widths pixels of each
 * @returns {string[]}
 */
export function clipApart(texts, widths) {
  const found = texts.map((text, i) => clipText(text, widths[i]));
  for (const clip of [clipMiddle, clipBefore]) {
    for (const alike of groupsOf(found).filter((group) => new Set(group.map((i) => texts[i])).size > 1)) {
      const named = alike.map((i) => texts[i]);
      for (const i of alike) found[i] = clip(texts[i], widths[i], named);
    }
  }
  return found;
}

/** Indices of equal texts that are not empty. @param {string[]} texts @returns {number[][]} */
function groupsOf(texts) {
  const found = new Map();
  texts.forEach((text, i) => { if (text) found.set(text, [...found.get(text) ?? [], i]); });
  return [...found.values()].filter((group) => group.length > 1);
}

/** @param {string} text @param {number} width */
function clipMiddle(text, width) {
  const most = Math.floor(width / LETTER), tail = Math.floor(most / 3);
  return text.length <= most ? text : `${text.slice(0, most - 1 - tail)}…${text.slice(text.length - tail)}`;
}

/** From the word on in which texts begin to differ. @param {string} text @param {number} width
 * @param {string[]} others */
function clipBefore(text, width, others) {
  let same = 0;
  while (same < text.length && others.every((other) => other[same] === text[same])) same += 1;
  const word = text.slice(0, same).search(/[^\s/.:#-]*$/);
  return `…${clipText(text.slice(word), width - LETTER)}`;
}
