// The report's page: controls choose a recorded run, and everything is redrawn from its block.
const index = JSON.parse(document.getElementById("index").textContent);
const byId = (id) => document.getElementById(id);
const blocks = new Map();
let pool = []; // columns that the graphs of several runs share
let shown = -1;
let ticket = 0; // the newest choice wins: an older one that unpacks late is dropped

async function block(i) {
  if (!pool.length) pool = await (await unpacked("pool")).json();
  if (!blocks.has(i)) blocks.set(i, await (await unpacked(`run-${i}`)).json());
  return blocks.get(i);
}

function scene(state) { // the graph of a run, its columns taken out of the pool
  const columns = (of) => Object.fromEntries(Object.entries(of).map(([k, n]) => [k, pool[n]]));
  return {...state, ...columns(state.parts), rows: columns(state.rows)};
}

function models(which) {
  const found = {};
  for (const [name, id] of Object.entries(index.models[which])) {
    for (const doc of Bokeh.documents) found[name] ??= doc.get_model_by_id(id);
  }
  return found;
}

function distance(a, b) {
  return a.reduce((sum, x, k) => sum + (x === b[k] ? 0 : 100 + Math.abs(x - b[k])), 0);
}

function nearest(at) {
  let best = 0;
  index.cells.forEach((cell, i) => {
    if (distance(cell.at, at) < distance(index.cells[best].at, at)) best = i;
  });
  return best;
}

function say(axis, k) {
  return `${axis.label} ${axis.values[k]}`;
}

function status(at, i, before) {
  const line = byId("status");
  line.replaceChildren();
  const cell = index.cells[i];
  if (distance(cell.at, at)) {
    const note = document.createElement("span");
    note.className = "missing";
    const asked = index.axes.map((axis, k) => say(axis, at[k])).join(", ");
    const got = index.axes.map((axis, k) => say(axis, cell.at[k])).join(", ");
    note.textContent = `Not recorded: ${asked}. Showing the nearest that was: ${got}. `;
    line.append(note);
  }
  if (before >= 0 && before !== i && cell.step && index.cells[before].step) {
    const old = index.cells[before].step;
    const change = (cell.step / old - 1) * 100;
    const word = Math.abs(change) < 1 ? "the same within 1 %"
      : `${Math.abs(change).toFixed(0)} % ${change < 0 ? "faster" : "slower"}`;
    const bold = document.createElement("b");
    bold.textContent = `${old.toFixed(1)} → ${cell.step.toFixed(1)} ms a step: ${word}`;
    line.append(bold, " than the setting shown before.");
  }
}

const PARTS = index.parts; // the keys of the views that are text: their sections and their blocks

// -- one selection in all views: {nodes: Set of numbers, sites: Set of strings, label} ------------

const NOTHING = {nodes: new Set(), sites: new Set(), label: ""};
let selected = NOTHING;

function select(picked) {
  selected = picked;
  highlightTimeline(models("timeline"), picked);
  graphHighlight(models("graph"), picked);
  PARTS.forEach((id) => markRows(byId(id), picked));
  byId("selected").hidden = !(picked.nodes.size || picked.sites.size);
  byId("selected").firstElementChild.textContent = `selected: ${inWords(picked)}`;
}

function inWords({nodes, sites, label}) { // as `selection_text` in kit/widgets/explorer/linked.py
  const ops = nodes.size ? `${nodes.size.toLocaleString("en")} op${nodes.size > 1 ? "s" : ""}` : "no ops";
  const where = sites.size > 1 ? `on ${sites.size} lines` : sites.size ? `at ${[...sites][0]}` : "";
  return [sites.has(label) || !label ? "" : `${label}:`, ops, where].filter(Boolean).join(" ");
}

function same(a, b) {
  const equal = (x, y) => x.size === y.size && [...x].every((e) => y.has(e));
  return equal(a.nodes, b.nodes) && equal(a.sites, b.sites);
}

function listenToPicks() {
  onTimelinePick(models("timeline"), select);
  graphOnPick(models("graph"), select);
  for (const kind of ["click", "keydown"]) {
    for (const id of PARTS) {
      byId(id).addEventListener(kind, (event) => {
        const picked = pickedIn(event);
        if (picked) select(same(picked, selected) ? NOTHING : picked);
      });
    }
  }
  byId("selected").querySelector("button").addEventListener("click", () => select(NOTHING));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && selected !== NOTHING) select(NOTHING);
  });
}

async function show(at) {
  const mine = ++ticket;
  const i = nearest(at);
  const data = await block(i);
  if (mine !== ticket) return;
  status(at, i, shown);
  shown = i;
  for (const part of PARTS) {
    byId(part).innerHTML = data[part]; // made and escaped by kit, never taken from a run as it is
  }
  select(NOTHING);
  drawTimeline(data.timeline, models("timeline"));
  graphDraw(models("graph"), data.scene ??= scene(data.graph));
  drawSweep(at);
  document.documentElement.dataset.shown = String(i);
}

const wanted = [...index.cells[index.first].at];

function control(axis, k) {
  const label = document.createElement("label");
  const name = document.createElement("span");
  name.textContent = `${axis.label}: `;
  const input = document.createElement(axis.number ? "input" : "select");
  input.name = axis.name;
  if (axis.number) {
    const value = document.createElement("output");
    value.textContent = axis.values[wanted[k]];
    name.append(value);
    Object.assign(input, {type: "range", min: 0, max: axis.values.length - 1, step: 1});
    input.setAttribute("aria-valuetext", axis.values[wanted[k]]);
    input.addEventListener("input", () => {
      value.textContent = axis.values[input.value];
      input.setAttribute("aria-valuetext", axis.values[input.value]);
    });
  } else {
    axis.values.forEach((text, n) => input.add(new Option(text, n)));
  }
  input.value = wanted[k];
  input.addEventListener("input", () => {
    wanted[k] = Number(input.value);
    show(wanted);
  });
  label.append(name, input);
  return label;
}

const SERIES = ["#2f6db5", "#d1701f", "#2a9d6f", "#a3479b", "#7a6a2f", "#c23b4b"];

function drawSweep(at) {
  const rows = index.axes.map((axis, k) => [axis, k]).filter(([axis]) => axis.number);
  const word = index.axes.findIndex((axis) => !axis.number && axis.name === "loss_scaling");
  const split = word >= 0 ? word : index.axes.findIndex((axis) => !axis.number);
  byId("sweep").replaceChildren(...rows.map(([axis, k]) => panel(axis, k, split, at)));
}

function panel(axis, k, split, at) {
  const near = index.cells[shown].at;
  const groups = split < 0 ? [0] : index.axes[split].values.map((_, n) => n);
  const lines = groups.map((g) => axis.values.map((_, x) => {
    const cell = index.cells.find((c) => c.at.every(
      (v, a) => v === (a === k ? x : a === split ? g : near[a])));
    return cell && cell.step ? [x, cell.step] : null;
  }).filter(Boolean));
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.textContent = `step time (ms) by ${axis.label}`;
  figure.append(caption, chart(axis, lines, k));
  if (split >= 0) figure.append(key(index.axes[split].values));
  return figure;
}

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function chart(axis, lines, k) {
  const [w, h, left, right, top, bottom] = [360, 170, 40, 14, 12, 26];
  const most = Math.max(...lines.flat().map((p) => p[1]), 0.001) * 1.08;
  const x = (v) => left + (w - left - right) * (axis.values.length > 1 ? v / (axis.values.length - 1) : 0.5);
  const y = (v) => h - bottom - (h - top - bottom) * (v / most);
  const root = svg("svg", {viewBox: `0 0 ${w} ${h}`, role: "img",
    "aria-label": `step time by ${axis.label}`});
  for (const part of [0, 0.5, 1]) {
    const value = (most / 1.08) * part;
    root.append(svg("line", {class: "axis", x1: left, x2: w - right, y1: y(value), y2: y(value)}),
      svg("text", {x: left - 6, y: y(value) + 4, "text-anchor": "end"}, value.toPrecision(2) * 1));
  }
  axis.values.forEach((text, n) => root.append(
    svg("text", {x: x(n), y: h - 8, "text-anchor": "middle"}, text)));
  lines.forEach((line, n) => {
    const color = SERIES[n % SERIES.length];
    root.append(svg("polyline", {points: line.map((p) => `${x(p[0])},${y(p[1])}`).join(" "),
      fill: "none", stroke: color, "stroke-width": 2}));
    line.forEach((p) => root.append(svg("circle", {cx: x(p[0]), cy: y(p[1]), r: 2.5, fill: color})));
  });
  const cell = index.cells[shown];
  if (cell.step) {
    root.append(svg("circle", {class: "now", cx: x(cell.at[k]), cy: y(cell.step), r: 7, fill: "none",
      stroke: "currentColor", "stroke-width": 2}));
  }
  return root;
}

function key(names) {
  const row = document.createElement("div");
  row.className = "key";
  names.forEach((name, n) => {
    const item = document.createElement("span");
    const swatch = document.createElement("i");
    swatch.style.background = SERIES[n % SERIES.length];
    item.append(swatch, name);
    row.append(item);
  });
  return row;
}

function start() {
  if (!window.Bokeh?.documents.length || !models("graph").boxes) {
    setTimeout(start, 20);
    return;
  }
  byId("controls").append(...index.axes.map(control));
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  listenToPicks();
  show(wanted);
}
start();
