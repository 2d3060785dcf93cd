"""Which folder of kit may import which: imports point down, and no circle is allowed.

Imports inside functions count, and so do those under TYPE_CHECKING: they say what a file knows.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

KIT = Path(__file__).parents[1] / "kit"

_TOP = ["errors", "threads", "cores", "text", "shown", "files", "versions", "notebook"]
_DATA = [*_TOP, "ir", "trace", "trace/ranks", "runs"]
_RECORDING = [*_DATA, "runtime/rules", "runtime/engine", "runtime/recording"]
_SESSION = [
    *_RECORDING,
    "runtime/compiling",
    "runtime/profiling",
    "runtime/steps",
    "runtime/processes",
    "runtime/session",
]
_RUNTIME = [*_SESSION, "runtime/replicas"]
_TENSORS = [*_RUNTIME, "torch/tensors"]
_OPS = [*_TENSORS, "torch/ops", "torch/scaling", "torch/hybrid"]
_FRONT_ENDS = [*_OPS, "torch", "torch/parallel", "jax", "formats"]
_MEASURE = [*_FRONT_ENDS, "measure/base", "measure/native", "measure"]
_PICTURES = [
    *_DATA, "runs/device", "runs/analysis", "runs/verdict", "runs/whatif", "widgets/base",
]  # fmt: skip
_VIEWS = [*_PICTURES, "widgets/timeline", "widgets/graph", "widgets/compare"]

_CHECKED = [*_MEASURE, "measure/search", "workloads", "workloads/rnn", "gpu_check/base"]

# folder -> the folders below it that it may import, its own aside: the picture of the house.
BELOW: dict[str, list[str]] = {
    "errors": [],
    "threads": ["errors"],
    "cores": ["errors"],
    "text": [],
    "shown": ["text"],
    "files": ["errors"],
    "versions": ["errors"],
    "notebook": [],
    "ir": ["errors", "text"],
    "trace": ["errors", "text", "shown", "ir"],
    "trace/ranks": ["errors", "text", "shown", "ir", "trace"],
    "runs": ["errors", "text", "files", "ir", "trace"],
    "runs/saved": _DATA,
    "runs/device": _DATA,
    "runs/analysis": [*_DATA, "runs/device"],
    "runs/verdict": [*_DATA, "runs/device", "runs/analysis"],
    "runs/whatif": [*_DATA, "runs/device", "runs/analysis"],
    "runs/tables": [*_DATA, "runs/device", "runs/analysis"],
    "formats": [*_DATA, "runs/verdict", "runs/tables", "formats/chrome"],
    "formats/chrome": _DATA,
    "formats/ranks": [
        *_DATA,
        "runs/device",
        "runs/analysis",
        "runs/tables",
        "formats/chrome",
        "formats",
    ],
    "runtime/rules": _DATA,
    "runtime/engine": _DATA,
    "runtime/recording": [*_DATA, "runtime/rules", "runtime/engine"],
    "runtime/compiling": _RECORDING,
    "runtime/profiling": _RECORDING,
    "runtime/steps": [*_RECORDING, "runtime/compiling"],
    "runtime/processes": _RECORDING,
    "runtime/session": _SESSION,
    "runtime/replicas": _SESSION,
    "torch/tensors": _RUNTIME,
    "torch/ops": _TENSORS,
    "torch/scaling": [*_TENSORS, "torch/ops"],
    "torch/hybrid": [*_TENSORS, "torch/ops"],
    "torch": _OPS,
    "torch/parallel": [*_OPS, "torch"],
    "jax": _RUNTIME,
    "measure/base": _FRONT_ENDS,
    "measure/native": [*_FRONT_ENDS, "measure/base"],
    "measure": [*_FRONT_ENDS, "measure/base", "measure/native"],
    "measure/attached": _MEASURE,
    "measure/many": _MEASURE,
    "measure/search": [*_MEASURE, "measure/many"],
    "workloads": [*_MEASURE, "measure/many", "measure/search", "workloads/rnn"],
    "workloads/rnn": [*_MEASURE, "measure/many", "measure/search"],
    "widgets": [*_VIEWS, "widgets/memory", "widgets/numbers"],
    "widgets/base": _PICTURES,
    "widgets/timeline": _PICTURES,
    "widgets/graph": _PICTURES,
    "widgets/compare": [*_PICTURES, "widgets/timeline"],
    "widgets/memory": _VIEWS,
    "widgets/ranks": _PICTURES,
    "widgets/numbers": [*_VIEWS, "widgets/memory"],
    "widgets/explorer": [*_VIEWS, "widgets/memory", "widgets/numbers", "widgets"],
    "reports": [
        *_VIEWS,
        "widgets/memory",
        "widgets/numbers",
        "widgets/ranks",
        "widgets",
        "formats",
    ],
    "gpu_check": [*_DATA, "gpu_check/base"],
    "gpu_check/base": [*_MEASURE, "measure/search"],
    "gpu_check/parts": [*_CHECKED, "runs/device"],
}

# first folder -> packages from outside; the standard library is always allowed.
# ml_dtypes gives numpy its bfloat16, as jax does.
PACKAGES: dict[str, set[str]] = {
    "trace": {"numpy"},
    "runs": {"numpy"},
    "formats": {"numpy", "jax"},
    "runtime": {"numpy", "ml_dtypes", "jax", "jaxlib"},
    "torch": {"numpy", "ml_dtypes", "torch"},
    "jax": {"numpy", "ml_dtypes", "jax", "jaxlib"},
    "measure": {"numpy", "torch", "jax", "psutil"},
    "workloads": {"numpy", "torch", "jax"},
    "widgets": {
        "numpy", "bokeh", "ipywidgets", "jupyter_bokeh", "graphviz", "traitlets", "IPython",
    },
    "reports": {"numpy", "bokeh"},
    "gpu_check": {"numpy", "torch", "jax"},
}  # fmt: skip

# The top joins the others, so it may import all of them.
TOP = (
    "__init__", "__main__", "api", "cli", "cli/scripts", "reports/__main__", "gpu_check/__main__",
)  # fmt: skip

# (file, what it imports): the only imports that point up. A run answers `run.advice()`,
# `run.to_markdown()`, `run.query()` and `run.to_dataframe()`, made of what its verdict says, and
# it is saved and loaded by its own name.
EXCEPTIONS = {
    ("runs/run", "runs/verdict/advice"),
    ("runs/run", "runs/verdict/markdown"),
    ("runs/run", "runs/saved/file"),
    ("runs/run", "runs/tables/frame"),
    ("runs/run", "runs/tables/query"),
}


def _name(path: Path) -> str:
    """`kit/runs/run.py` -> `runs/run`; `kit/ir/__init__.py` -> `ir/__init__`."""
    return path.relative_to(KIT).with_suffix("").as_posix()


FILES = {_name(path): path for path in sorted(KIT.rglob("*.py"))}


def folder_of(file: str) -> str:
    """`runs/run` -> `runs`; a file at the top, `errors`, is a folder of its own."""
    return file.rpartition("/")[0] or file


def is_top(file: str) -> bool:
    """Is this file one of those that join all others?"""
    return file in TOP or folder_of(file) in TOP


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            assert node.module is not None
            for alias in node.names:  # `from kit.ir import plan` names a file in the list
                full = f"{node.module}.{alias.name}"
                yield node.lineno, full if _file_of(full) else node.module


def _file_of(dotted: str) -> str:
    """`kit.runs.run` -> `runs/run`; "" if kit has no such file."""
    name = dotted.removeprefix("kit.").replace(".", "/") if dotted != "kit" else "__init__"
    if not dotted.startswith("kit"):
        return ""
    return name if name in FILES else f"{name}/__init__" if f"{name}/__init__" in FILES else ""


def offences(file: str, source: str) -> list[str]:
    """Imports of one file that the tables do not allow."""
    folder = folder_of(file)
    packages = PACKAGES.get(folder.split("/")[0], set()) | sys.stdlib_module_names
    found = []
    for line, name in imports(ast.parse(source)):
        root = name.split(".")[0]
        if root != "kit":
            if root not in packages:
                found.append(f"line {line}: {name}")
            continue
        target = _file_of(name) or _file_of(name.rpartition(".")[0])
        room = folder_of(target)
        if (file, target) in EXCEPTIONS or room == folder or room in BELOW[folder]:
            continue
        found.append(f"line {line}: {name}")
    return found


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one member (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for after in edges.get(node, ()):
            if after not in index:
                visit(after)
                low[node] = min(low[node], low[after])
            elif after in stack:
                low[node] = min(low[node], index[after])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(set(stack[at:]))
            del stack[at:]

    for node in list(edges):
        if node not in index:
            visit(node)
    return [component for component in found if len(component) > 1]


def file_edges() -> dict[str, set[str]]:
    """file -> the files that it imports; without the exceptions and the files at the top."""
    edges: dict[str, set[str]] = defaultdict(set)
    for file, path in FILES.items():
        if is_top(file):
            continue
        for _, name in imports(ast.parse(path.read_text(encoding="utf-8"))):
            target = _file_of(name) or _file_of(name.rpartition(".")[0])
            if name.startswith("kit.") and target != file and (file, target) not in EXCEPTIONS:
                edges[file].add(target)
    return edges


def folder_edges(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """folder -> the folders that its files import."""
    found: dict[str, set[str]] = defaultdict(set)
    for file, targets in edges.items():
        found[folder_of(file)] |= {folder_of(t) for t in targets} - {folder_of(file)}
    return found


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_only_what_its_folder_may(file: str):
    if not is_top(file):
        assert offences(file, FILES[file].read_text(encoding="utf-8")) == []


def test_no_files_import_each_other_in_a_circle():
    assert [sorted(circle) for circle in circles(file_edges())] == []


def test_no_folders_import_each_other_in_a_circle():
    assert [sorted(circle) for circle in circles(folder_edges(file_edges()))] == []


def test_the_table_itself_points_down():
    assert circles({folder: set(below) for folder, below in BELOW.items()}) == []


def test_what_other_files_import_of_a_file_is_in_its_list():
    trees = {file: ast.parse(path.read_text(encoding="utf-8")) for file, path in FILES.items()}
    listed = {file: _listed(trees[file]) for file in trees if not file.endswith("__init__")}
    missing = {
        f"{target}: {alias.name}"
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (target := _file_of(node.module or "")) in listed
        for alias in node.names
        if alias.name not in listed[target]
    }
    assert sorted(missing) == []


def _listed(tree: ast.Module) -> set[str]:
    """What `__all__` of a file names."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


@pytest.mark.parametrize("top", [KIT, KIT.parent / "tests"], ids=["kit", "tests"])
def test_no_folder_is_crowded(top: Path):
    crowded = {
        folder.relative_to(top).as_posix(): count
        for folder in [top, *(path for path in top.rglob("*") if path.is_dir())]
        if (
            count := sum(
                f.suffix in {".py", ".js"} and f.stem != "__init__" for f in folder.iterdir()
            )
        )
        > 17
    }
    assert crowded == {}


def test_no_files_of_a_folder_share_a_prefix():
    """A prefix is a folder: `run_file.py` beside `run.py` wants to be `run/file.py`."""
    names: dict[str, list[str]] = defaultdict(list)
    for path in FILES.values():
        names[_name(path.parent) if path.parent != KIT else ""].append(path.stem.strip("_"))
    shared = [
        f"{folder}/{one}, {other}"
        for folder, stems in names.items()
        for one, other in pairwise(sorted(stems))
        if one.split("_")[0] == other.split("_")[0]
    ]
    assert shared == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("errors", "import numpy"),
        ("ir/graph", "from kit.trace import Timeline"),
        ("trace/metrics", "def f():\n    import jax"),
        ("runs/run", "from kit.runtime.session.session import Session"),
        ("runs/saved/file", "from kit.runs.verdict.advice import advise"),
        ("runtime/engine/engine", "from kit.runtime.session.session import Session"),
        ("runtime/session/session", "import torch.nn"),
        ("torch/ops/losses", "from kit.torch.dispatch import Dispatcher"),
        ("torch/tensors/tensor", "import jax"),
        ("jax/program", "import torch"),
        ("jax/program", "from kit.torch.tensors.tensor import KitTensor"),
        ("jax/__init__", "import torch"),
        ("widgets/explorer/view", "import kit.jax"),
        ("widgets/explorer/view", "from kit.runtime.session import session"),
        ("widgets/base/page", "from kit.widgets.timeline.view import TimelineView"),
        ("reports/html", "import torch"),
        ("workloads/masked_lm", "from kit.widgets.base import theme"),
        ("workloads/masked_lm", "import kit.api"),
    ],
)
def test_a_forbidden_import_is_found(file: str, source: str):
    assert len(offences(file, source)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("torch/tensors/tensor", "import torch, json"),
        ("torch/scaling/scaler", "import torch"),
        ("jax/program", "import jax.numpy as jnp"),
        ("reports/html", "from kit.widgets.base import theme\nimport bokeh.embed"),
        ("runs/run", "from kit.runs.verdict.advice import advise"),
    ],
)
def test_an_allowed_import_is_let_through(file: str, source: str):
    assert offences(file, source) == []


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert circles(dict[str, set[str]]({"a": {"b"}, "b": set()})) == []
