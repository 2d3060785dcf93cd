"""How long the graph view needs to open a step of an unrolled transformer, by size.

    python benchmarks/graph_layout.py [--layers 9 45 180 445] [--browser] [--no-naive]

Each row: how many groups there are and how many of them are different, making the scene (every
group laid out, nothing remembered from before; the CPU time includes dot's), the scene's size as
packed JSON, and with `--browser` how long a page needs from that JSON to the drawn picture, and to
open every group of it. Compared with the naive way, one call of `dot` for the whole graph, at the
sizes where that ends within a minute.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from kit.ir import Aval, Graph, Node
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.trace import Timeline
from kit.widgets.graph import dot as graph_dot
from kit.widgets.graph.view import graph_model, graph_payload

LIMIT_S = {27_000: 1.0, 67_000: 3.0}  # what opening may take
NAIVE_LIMIT_S = 60.0
NORM = ("mean", "var", "sub", "pow", "rsqrt", "mul", "mul", "add")


class Step:
    """Forward, backward and update of `layers` transformer blocks, op by op."""

    def __init__(self, layers: int) -> None:
        self.nodes: list[Node] = []
        x = self.chain(("embedding", "add"), [self.var("input")], "Model.embed")
        kept = []
        for i in range(layers):
            x, saved = self.block(x, f"Model.layers.{i}")
            kept.append(saved)
        g = self.chain(("sum", "neg"), [x], "Model.head")
        g, updates = self.chain(("expand", "mul"), [g], "Model.head", "backward"), []
        for i in reversed(range(layers)):
            for part in ("mlp.down", "mlp.up", "norm2", "attention.out", "attention", "norm1"):
                scope = f"Model.layers.{i}.{part}"
                for k in range(12):
                    op = ("mm", "mul", "sum", "t")[k % 4]
                    g = self.add(op, [g, kept[i][k % len(kept[i])]], scope, "backward")
                updates.append((g, scope))
        for g, scope in updates:
            w = self.var("parameter")
            m = self.chain(("mul", "add"), [g], scope, "update")
            self.add("addcdiv", [w, m], scope, "update")

    def add(self, op: str, inputs: list[int], scope: str = "", phase: str = "forward") -> int:
        own = op if op in ("input", "parameter") else f"aten.{op}.default"
        aval = (Aval((8, 128, 64), "float32"),)
        self.nodes.append(Node(own, tuple((i, 0) for i in inputs), (), aval,
                               f"model.py:{len(self.nodes) % 90}", phase, scope))  # fmt: skip
        return len(self.nodes) - 1

    def var(self, kind: str) -> int:
        return self.add(kind, [])

    def chain(
        self, ops: tuple[str, ...], inputs: list[int], scope: str, phase: str = "forward"
    ) -> int:
        x = inputs[0]
        for op in ops:
            x = self.add(op, [x, *inputs[1:]], scope, phase)
        return x

    def linear(self, x: int, scope: str) -> int:
        w = self.add("t", [self.var("parameter")], scope)
        return self.add("add", [self.add("mm", [x, w], scope), self.var("parameter")], scope)

    def block(self, x: int, at: str) -> tuple[int, list[int]]:
        n = self.chain(NORM, [x, x], f"{at}.norm1")
        q, k, v = (self.linear(n, f"{at}.attention.{name}") for name in "qkv")
        a = self.add("bmm", [q, k], f"{at}.attention")
        a = self.chain(("mul", "softmax", "dropout", "view"), [a], f"{at}.attention")
        a = self.linear(self.add("bmm", [a, v], f"{at}.attention"), f"{at}.attention.out")
        mid = self.add("add", [x, a], at)
        n = self.chain(NORM, [mid, mid], f"{at}.norm2")
        h = self.add("gelu", [self.linear(n, f"{at}.mlp.up")], f"{at}.mlp")
        out = self.add("add", [mid, self.linear(h, f"{at}.mlp.down")], at)
        return out, [q, k, v, a, mid, n, h]


def scene_s(run: Run, repeats: int) -> tuple[float, float, dict[str, Any]]:
    """Seconds to make the scene when dot has not been asked before, of CPU time too; the scene."""
    times = []
    for _ in range(repeats):
        graph_dot._slot.cache_clear()
        start, cpu = time.perf_counter(), sum(os.times()[:4])
        scene = graph_payload(run, timeout_s=60)
        times.append((time.perf_counter() - start, sum(os.times()[:4]) - cpu))
    return median(t for t, _ in times), median(t for _, t in times), scene


def naive_s(graph: Graph) -> float | None:
    """Seconds of one `dot` call for all ops and edges; None beyond the limit."""
    lines = [f"n{i} -> n{t};" for t in graph.ops for i, _ in graph.nodes[t].inputs]
    text = "digraph { node [shape=box]; " + "\n".join(lines) + "}"
    start = time.perf_counter()
    try:
        subprocess.run([shutil.which("dot") or "dot", "-Tjson0"], input=text.encode(),
                       capture_output=True, timeout=NAIVE_LIMIT_S, check=True)  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    return time.perf_counter() - start


class Page:
    """An empty graph view in headless Chromium, to give scenes to."""

    def __init__(self, folder: Path) -> None:
        from bokeh.embed import file_html
        from bokeh.resources import INLINE

        from tests.browser.labserver import open_browser

        path = folder / "graph.html"
        path.write_text(file_html(graph_model(graph_payload(None))[0], INLINE))
        self._opened = open_browser(offline=True)
        self.page = self._opened.__enter__().page
        self.page.goto(path.as_uri())
        self.page.wait_for_function(
            "window.g = Bokeh.documents[0] && [...Bokeh.documents[0]._all_models.values()]"
            ".map((m) => m.kitGraph).find((g) => g && g.scene)"
        )

    def draw(self, scene: str) -> list[float]:
        """Milliseconds to read and draw the scene, and to open all of it."""
        found: list[float] = self.page.evaluate(
            """(text) => { const t = performance.now(); g.open = new Set();
              g.take(JSON.parse(text)); const u = performance.now(); g.setOpen(g.scene.strings);
              return [u - t, performance.now() - u]; }""",
            scene,
        )
        return found

    def close(self) -> None:
        self._opened.__exit__(None, None, None)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--layers", type=int, nargs="*", default=[1, 2, 9, 45, 180, 445])
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--browser", action="store_true")
    options.add_argument("--no-naive", action="store_true")
    args = options.parse_args()
    folder = tempfile.TemporaryDirectory()
    page = Page(Path(folder.name)) if args.browser else None
    print(
        f"{'nodes':>7}{'ops':>7}{'groups':>8}{'shapes':>8}{'scene s':>9}{'cpu s':>7}{'gz MB':>7}"
        f"{'draw ms':>9}{'open all ms':>13}{'one dot s':>11}{'ratio':>8}"
    )
    ended = not args.no_naive
    for layers in args.layers:
        graph = Graph(tuple(Step(layers).nodes))
        run = Run(Settings(), (), (), Timeline.of([]), graphs=(graph,))
        took, cpu, scene = scene_s(run, args.repeats)
        text = json.dumps(scene, default=lambda a: a.tolist())
        drawn = page.draw(text) if page else None
        naive = naive_s(graph) if ended else None
        ended = naive is not None
        groups = int((scene["rows"]["shape"] >= 0).sum())
        row = f"{len(graph):>7,}{len(graph.ops):>7,}{groups:>8,}{len(scene['shapes']):>8}"
        row += f"{took:>9.3f}{cpu:>7.2f}{len(gzip.compress(text.encode())) / 1e6:>7.2f}"
        row += f"{drawn[0]:>9.0f}{drawn[1]:>13.0f}" if drawn else f"{'':>22}"
        row += f"{naive:>11.2f}{naive / took:>8.0f}" if naive else f"{'-':>11}{'-':>8}"
        limit = next((s for n, s in LIMIT_S.items() if len(graph) <= n * 1.02 and n > 20_000
                      and len(graph) > n / 2), None)  # fmt: skip
        print(row + (f"   {'within' if took <= limit else 'OVER'} {limit:g} s" if limit else ""))
    if page:
        page.close()


if __name__ == "__main__":
    main()
