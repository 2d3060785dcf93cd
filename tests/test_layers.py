"""Which room of kit may import which: the table of docs/architecture.md, import by import.

Imports inside functions count, and so do those under TYPE_CHECKING: they say what a room knows.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

KIT = Path(__file__).parents[1] / "kit"

# room -> what it may import: rooms of kit and packages from outside; stdlib is always allowed.
# ml_dtypes gives numpy its bfloat16, as jax does.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "ir": {"kit.errors"},
    "trace": {"kit.errors", "numpy"},
    "runs": {"kit.errors", "kit.formats", "kit.ir", "kit.trace", "numpy"},
    "formats": {"kit.errors", "kit.ir", "kit.trace", "kit.runs", "kit.runtime", "numpy", "jax"},
    "runtime": {
        "kit.errors", "kit.ir", "kit.trace", "kit.runs", "numpy", "ml_dtypes", "jax", "jaxlib",
    },
    "torch": {
        "kit.errors", "kit.ir", "kit.runs", "kit.runtime", "numpy", "ml_dtypes", "torch",
    },
    "jax": {
        "kit.errors", "kit.ir", "kit.runs", "kit.runtime", "numpy", "ml_dtypes", "jax", "jaxlib",
    },
    "widgets": {
        "kit.errors", "kit.ir", "kit.trace", "kit.runs", "numpy",
        "bokeh", "ipywidgets", "jupyter_bokeh", "graphviz", "traitlets", "IPython",
    },
    "reports": {
        "kit.errors", "kit.ir", "kit.trace", "kit.runs", "kit.formats", "kit.widgets", "numpy",
        "bokeh",
    },
    "measure": {
        "kit.errors", "kit.ir", "kit.trace", "kit.runs", "kit.runtime", "kit.torch", "kit.jax",
        "numpy", "torch", "jax",
    },
    "workloads": {
        "kit.measure",
        "kit.errors", "kit.ir", "kit.trace", "kit.runs", "kit.runtime", "kit.torch", "kit.jax",
        "numpy",
        "torch", "jax",
    },
}  # fmt: skip

# The top room joins the others, so it may import all of them.
TOP = {"kit/__init__.py", "kit/__main__.py", "kit/api.py", "kit/reports/__main__.py"}

FILES = sorted(path for path in KIT.rglob("*.py"))


def room_of(module: str) -> str:
    """`kit.torch.device` -> `torch`."""
    parts = module.split(".")
    if len(parts) == 1:
        return "kit"
    return parts[1]


def allowed_for(path: Path) -> set[str]:
    """What one file may import, its own room included."""
    room = room_of(path.relative_to(KIT.parent).with_suffix("").as_posix().replace("/", "."))
    return ALLOWED[room] | {f"kit.{room}"}


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            assert node.module is not None
            if node.module == "kit":  # `from kit import errors` names a room in the list
                yield from ((node.lineno, f"kit.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def offences(path: Path, source: str) -> list[str]:
    """Imports of one file that the table does not allow."""
    allowed = allowed_for(path)
    found = []
    for line, name in imports(ast.parse(source)):
        root = name.split(".")[0]
        key = f"kit.{room_of(name)}" if root == "kit" else root
        if key not in allowed and root not in sys.stdlib_module_names:
            found.append(f"line {line}: {name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(KIT).as_posix())
def test_a_file_imports_only_what_its_room_may(path: Path):
    if path.relative_to(KIT.parent).as_posix() in TOP or path.is_relative_to(KIT / "cli"):
        return
    assert offences(path, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("errors.py", "import numpy"),
        ("ir/graph.py", "from kit.trace import Timeline"),
        ("trace/metrics.py", "def f():\n    import jax"),
        ("runs/run.py", "from kit.runtime.session.session import Session"),
        ("runtime/session/session.py", "import torch.nn"),
        ("torch/tensors/tensor.py", "import jax"),
        ("jax/program.py", "import torch"),
        ("jax/program.py", "from kit.torch.tensors.tensor import KitTensor"),
        ("torch/scaling/scaler.py", "import jax"),
        ("jax/__init__.py", "from kit.torch.tensors.tensor import KitTensor"),
        ("jax/__init__.py", "import torch"),
        ("widgets/explorer/view.py", "import kit.jax"),
        ("widgets/explorer/view.py", "from kit.runtime import session"),
        ("widgets/explorer/view.py", "from kit import torch"),
        ("reports/html.py", "import torch"),
        ("workloads/bert.py", "from kit.widgets import theme"),
        ("workloads/bert.py", "import kit.api"),
    ],
)
def test_a_forbidden_import_is_found(file: str, source: str):
    assert len(offences(KIT / file, source)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("torch/tensors/tensor.py", "import torch, json"),
        ("torch/scaling/scaler.py", "import torch"),
        ("jax/program.py", "import jax.numpy as jnp"),
        (
            "reports/html.py",
            "from kit.widgets.timeline.view import timeline_model\nimport bokeh.embed",
        ),
    ],
)
def test_an_allowed_import_is_let_through(file: str, source: str):
    assert offences(KIT / file, source) == []
