"""Draw the three pictures of docs/architecture.md into docs/images: `make pictures`, a second.

`folders` is read from the table in tests/test_layers.py; `one_op` and `threads` from the tables
here. Each file carries the hash of what it was drawn from: tests/repository/test_docs.py says when
a table has changed and the picture has not.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.test_layers import BELOW  # noqa: E402

IMAGES = ROOT / "docs" / "images"
FONT = "Helvetica,Arial,sans-serif"
HEAD = f"""  graph [fontname="{FONT}" fontsize=11 ranksep=0.25 nodesep=0.2 pad=0.1 bgcolor=white]
  node [fontname="{FONT}" fontsize=11 shape=box style="filled,rounded" color="#5b6773"
        fillcolor="#eef1f4" margin="0.12,0.06"]
  edge [fontname="{FONT}" fontsize=10 color="#5b6773" arrowsize=0.6]
"""
BLUE, GREEN, RED, GREY = "#dce4fb", "#d8efe9", "#fbe3dd", "#eef1f4"

# What each package is for: the text in its box.
PURPOSE = {
    "errors": "every exception that kit raises on purpose",
    "text": "foreign text made safe; numbers for people",
    "shown": "tables that show themselves",
    "threads": "a thread that runs, or a clear error",
    "cores": "how many may be used",
    "files": "a file is written whole or not at all",
    "versions": "versions that were tried",
    "notebook": "which notebook kernel this is",
    "ir": "graph, plan",
    "trace": "timeline, metrics, gaps",
    "runs": "settings; a run and its file",
    "formats": "traces from and for other tools",
    "runtime": "records, cuts, compiles and issues ops",
    "torch": 'device "kit"',
    "jax": "kit.jax.step",
    "measure": "a workload under settings becomes a run",
    "workloads": "the shipped training steps",
    "widgets": "a run becomes pictures",
    "reports": "one HTML or Markdown file",
    "gpu_check": "a machine's GPU, as numbers",
}

# The files that one op of torch passes, each once, from the call to the plot:
# (where it happens, colour, {file: what happens there}).
ONE_OP = [
    (
        "the thread that records",
        BLUE,
        {
            "kit/torch/tensors/tensor.py": "KitTensor.__torch_dispatch__: a call of torch",
            "kit/torch/dispatch.py": "Dispatcher: finds the recipe, or has it made",
            "kit/torch/ops/recipes.py": "the recipe of calls of a kind: op, inputs, views",
            "kit/runtime/recording/bulk.py": "the op becomes one row of the growing bulk",
            "kit/runtime/recording/stream.py": "the bulk of this thread: full? a new phase?",
            "kit/runtime/session/streams.py": "then cuts it: a task, and its results' cells",
            "kit/runtime/session/issuer.py": "numbers the task and hands it on",
            "kit/runtime/engine/engine.py": "starts the task once what it reads is there",
        },
    ),
    (
        "the worker of the device",
        GREEN,
        {
            "kit/runtime/session/executor.py": "runs the task's program, and fills the cells",
            "kit/runtime/session/compiler.py": "finds that program: its own, or one for all places",
            "kit/runtime/compiling/cache.py": "the program, if an equal segment ran before",
            "kit/runtime/compiling/lower.py": "else: segment to one jax function to XLA",
            "kit/runtime/rules/table.py": "the rule of each op, in jax",
        },
    ),
    (
        "after the step: the thread that measures",
        GREY,
        {
            "kit/runtime/session/tracer.py": "runs three steps under the profiler",
            "kit/runtime/profiling/freeze.py": "tasks and spans become Graph, Segment, Timeline",
            "kit/runtime/profiling/device_spans.py": "XLA's kernels and the nodes they compute",
            "kit/trace/planes.py": "events of XLA's planes, one lane a thread or stream",
            "kit/measure/kit_run.py": "puts the Run together",
            "kit/runs/run.py": "the Run: frozen, saved as one file",
        },
    ),
    (
        "the kernel of the notebook, then the page",
        RED,
        {
            "kit/widgets/explorer/view.py": "takes the run that was measured",
            "kit/widgets/explorer/pictures.py": "gives it to each view of the table",
            "kit/widgets/timeline/view.py": "redraws by one assignment",
            "kit/widgets/timeline/payload.py": "columns of numbers for the page",
            "kit/widgets/timeline/js/plot.js": "draws them: the op is a bar",
        },
    ),
]

# The threads: name -> (title, what it does, colour).
THREADS = {
    "main": (
        "your program's thread",
        "records ops; waits at a sync point, or a step ahead of the device",
        BLUE,
    ),
    "loader": ("loader", "prepares and copies batches ahead", BLUE),
    "worker": ("worker, one for a device", "runs segments as soon as their inputs exist", GREEN),
    "ahead": ("compile ahead", "compiles while nothing runs (explorer)", GREEN),
    "rerun": ("rerun", "records the step again when a control moves", BLUE),
    "exchange": ("exchange", "combines what replicas send", GREEN),
    "device": ("XLA", "kernels, on its own threads or streams", GREY),
    "page": ("the notebook's page", "draws; controls change settings", RED),
}
HANDS = [
    ("page", "rerun", "settings"),
    ("rerun", "worker", "tasks"),
    ("loader", "main", "batches"),
    ("main", "worker", "tasks"),
    ("ahead", "worker", "compiled\nprograms"),
    ("worker", "device", "programs"),
    ("exchange", "worker", "results"),
    ("main", "exchange", "gradients"),
    ("device", "main", "values, at\na sync point"),
]


def reduction(below: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that the others do not already imply."""

    def reach(name: str) -> set[str]:
        return below[name].union(*(reach(other) for other in below[name]))

    return [
        (name, other)
        for name, others in below.items()
        for other in sorted(others)
        if not any(other in reach(between) for between in others - {other})
    ]


def floors(names: Iterable[str], below: dict[str, list[str]]) -> list[list[str]]:
    """Folders by floor, the uppermost first: each stands above those that it may import."""
    chosen = list(names)

    def height(name: str) -> int:
        others = [other for other in below[name] if other in chosen and other != name]
        return 1 + max(map(height, others), default=0)

    tallest = max(map(height, chosen), default=0)
    return [[n for n in chosen if height(n) == h] for h in range(tallest, 0, -1)]


def folders() -> str:
    """The packages, the folders in each from top to bottom, and which package imports which."""
    packages = list(dict.fromkeys(name.split("/")[0] for name in BELOW))
    below = {
        package: {
            other.split("/")[0]
            for name, others in BELOW.items()
            if name.split("/")[0] == package
            for other in others
        }
        - {package}
        for package in packages
    }
    lines = [
        "  top [label=<<b>kit/api.py</b>, <b>kit/cli/</b><br/>the public verbs, the commands>"
        f' fillcolor="{BLUE}"]'
    ]
    for package in packages:
        inner = floors((n for n in BELOW if n.startswith(f"{package}/")), BELOW)
        rows = "".join(
            f'<br/><font point-size="10">{", ".join(map(shorten, row))}</font>' for row in inner
        )
        kind = ".py" if (ROOT / "kit" / f"{package}.py").exists() else "/"
        color = {"runtime": GREEN, "widgets": RED, "reports": RED}.get(package, GREY)
        lines.append(
            f"  {package} [label=<<b>kit/{package}{kind}</b><br/>"
            f'{in_lines(PURPOSE[package])}{rows}> fillcolor="{color}"]'
        )
    tops = [p for p in packages if not any(p in others for others in below.values())]
    lines += [f"  top -> {package}" for package in tops]
    lines += [f"  {name} -> {other}" for name, other in reduction(below)]
    # All single files in one row are too wide.
    lines += [f"  {one} [style=invis]" for one in ("notebook -> threads", "files -> cores")]
    return f"digraph folders {{\n{HEAD}" + "\n".join(lines) + "\n}\n"


def shorten(name: str) -> str:
    """`runtime/rules` -> `rules/`."""
    return name.rpartition("/")[2] + "/"


def in_lines(text: str) -> str:
    """A text for a box that is narrow."""
    return "<br/>".join(wrap(text, 22))


def one_op() -> str:
    """The files that one op passes, by thread, from top to bottom."""
    lines = []
    before = ""
    for number, (where, color, steps) in enumerate(ONE_OP):
        lines.append(f'  subgraph cluster_{number} {{ label="{where}" labeljust=l color="#aab3bd"')
        for file, what in steps.items():
            row = "".join(
                f'<td width="{width}" align="left">{text}</td>'
                for width, text in ((265, f"<b>{file}</b>"), (290, what))
            )
            table = f'<table border="0" cellborder="0" cellspacing="0"><tr>{row}</tr></table>'
            lines.append(
                f'    "{file}" [label=<{table}> height=0.3 margin="0.05,0" fillcolor="{color}"]'
            )
        lines.append("  }")
        for file in steps:
            lines += [f'  "{before}" -> "{file}"'] if before else []
            before = file
    return f"digraph one_op {{\n{HEAD}  ranksep=0.16\n" + "\n".join(lines) + "\n}\n"


def threads() -> str:
    """The threads of one process, and what one hands to another."""
    lines = [
        f'  {name} [label=<<b>{title}</b><br/>{in_lines(what)}> fillcolor="{color}"]'
        for name, (title, what, color) in THREADS.items()
    ]
    lines += [
        f'  {one} -> {other} [label="{what}"{" style=dashed" if one == "device" else ""}]'
        for one, other, what in HANDS
    ]
    return f"digraph threads {{\n{HEAD}  ranksep=0.4\n" + "\n".join(lines) + "\n}\n"


PICTURES = {"folders": folders, "one_op": one_op, "threads": threads}


def stamp(dot: str) -> str:
    """The comment in a picture that says what it was drawn from."""
    return f"<!-- drawn by scripts/diagrams.py from {hashlib.sha256(dot.encode()).hexdigest()} -->"


def draw(name: str) -> None:
    """One picture, as SVG: no wider than 620 points, which are 830 pixels."""
    dot = PICTURES[name]()
    done = subprocess.run(["dot", "-Tsvg"], input=dot, capture_output=True, text=True, check=True)
    body = re.sub(r"<!--.*?-->\n?", "", done.stdout, flags=re.S)
    start = body.index("<svg")
    width = re.search(r'width="(\d+)pt"', body)
    assert width
    assert int(width[1]) <= 620, f"{name} is {width[1]} points wide"
    (IMAGES / f"{name}.svg").write_text(f"{stamp(dot)}\n{body[start:]}", encoding="utf-8")


if __name__ == "__main__":
    for picture in PICTURES:
        draw(picture)
