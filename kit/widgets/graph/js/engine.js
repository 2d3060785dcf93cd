// Graphviz in the page, compiled to WebAssembly, for a kernel that has no `dot`.

/**
 * The engine of this page, loaded at first use; null if the page does not have its code yet.
 * @param {string | undefined} code
 * @returns {Promise<any> | null}
 */
export function graphvizOf(code) {
  if (!window.kitGraphviz && code) {
    const url = URL.createObjectURL(new Blob([code], {type: "text/javascript"}));
    window.kitGraphviz = import(url).then((module) => module.Graphviz.load());
    window.kitGraphviz.finally(() => URL.revokeObjectURL(url)).catch(() => {});
  }
  return window.kitGraphviz ?? null;
}

/**
 * The shapes of a scene as graphviz lays them out.
 * @param {any} graphviz
 * @param {import("./scene.js").Scene} scene
 */
export function shapesBy(graphviz, {dots, shapes}) {
  const answers = new Map();
  for (const text of new Set(dots)) {
    answers.set(text, JSON.parse(graphviz.layout(`digraph g ${text}`, "json0", "dot")));
  }
  return shapes.map((shape, n) => readDot(answers.get(dots[n]), shape));
}

/**
 * A shape with the places that graphviz answered, as dot.py reads them; a curve that dot left out is
 * kept.
 * @param {any} answer
 * @param {any} shape
 */
export function readDot(answer, shape) {
  const [, , width, height] = answer.bb.split(",").map(Number);
  const places = new Map(), ids = new Map(), curves = new Map();
  for (const thing of answer.objects) {
    const i = Number(thing.name.slice(1)), [x, y] = thing.pos.split(",").map(Number);
    places.set(i, [x, height - y]);
    ids.set(thing._gvid, i);
  }
  for (const line of answer.edges || []) {
    if (line.style === "invis") continue;
    const pairs = line.pos.split(" ").filter((/** @type {string} */ p) => !/^[se]/.test(p))
      .map((/** @type {string} */ p) => p.split(",").map(Number));
    let [a, b] = [ids.get(line.tail), ids.get(line.head)];
    if (shape.reversed) {
      [a, b] = [b, a];
      pairs.reverse();
    }
    curves.set(`${a} ${b}`, pairs.flatMap((/** @type {number[]} */ [x, y]) => [x, height - y]));
  }
  return {...shape, width, height,
    boxes: shape.boxes.map((/** @type {number[]} */ [, , w, h], /** @type {number} */ i) => [...places.get(i), w, h]),
    edges: shape.edges.map((/** @type {any[]} */ [a, b, values, size, curve]) =>
      [a, b, values, size, curves.get(`${a} ${b}`) || curve])};
}
