"""Files, classes and parameter lists stay small; `pytest -s tests/test_sizes.py` prints the sizes.

What is larger has a sentence here that defends it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

KIT = Path(__file__).parents[1] / "kit"
CAP = 450  # lines of a file
METHODS = 25  # of a class
ATTRIBUTES = 20  # of an object, its frozen fields included
PARAMETERS = 7  # of a function, without self

# Where a function takes what an op of torch's takes, torch has chosen its parameters.
OPS_OF_TORCH = ("runtime/rules/", "torch/hybrid/multi.py", "torch/parallel/batch_norm.py")

# What is not written here.
OF_OTHERS = ("widgets/graph/graphviz_wasm/",)

# file: function or class -> why it may be larger
LARGER: dict[str, str] = {
    "api.py: sweep": "public: the options of `kit.run` and those of a sweep",
    "api.py: compare": "public: the options of `kit.run` and those of a comparison",
    "api.py: autotune": "public: the options of `kit.run` and those of a search",
    "api.py: report": "public: the options of `kit.run` and those of a report",
    "measure/many/replicas.py: measure": "public: what `kit.run` takes, for a network of one's own",
    "runs/whatif/predict.py: predict": "public: all that can be asked, each by its name",
    "runs/run.py: Run": "public: a record, each field a key of the saved file",
    "runs/knob.py: Knob": "a row of the table of settings: all that is known of one",
    "runtime/replicas/collectives.py: post": "what one replica says of a collective, in one call",
    "runtime/session/session.py: Session": "a method for each public verb; its parts do the work",
    "torch/ops/attention.py: _choose": "torch's own parameters",
    "torch/parallel/replicas.py: Replicas": "the state of `DataParallel`, and its public options",
    "torch/parallel/replicas.py: __init__": "public: the options of `kit.DataParallel`",
}

# The files in which a function changes a name of its module, and why.
GLOBALS = {"runtime/processes/join.py": "a process can join others once, whichever thread asks"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Each file's name below kit/, and its syntax tree."""
    for path in sorted(KIT.rglob("*.py")):
        yield path.relative_to(KIT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def lines_by_room(top: Path) -> dict[str, dict[str, int]]:
    """room -> file -> lines."""
    rooms: dict[str, dict[str, int]] = defaultdict(dict)
    for path in sorted(p for p in top.rglob("*") if p.suffix in {".py", ".js"}):
        name = path.relative_to(top).as_posix()
        if name.startswith(OF_OTHERS):
            continue
        room = name.split("/")[0] if "/" in name else "(top)"
        rooms[room][name] = len(path.read_text(encoding="utf-8").splitlines())
    return rooms


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many parameters a caller may give."""
    given = function.args
    names = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def attributes(made: ast.ClassDef) -> set[str]:
    """The fields of a class, and what its methods assign to `self`."""
    found = {
        n.target.id
        for n in made.body
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    for node in ast.walk(made):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            found.add(node.attr)
    return found


def too_large(file: str, tree: ast.Module) -> Iterator[str]:
    """The classes and functions of a file that are above the limits."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in node.body)
            if methods > METHODS or len(attributes(node)) > ATTRIBUTES:
                yield f"{file}: {node.name}"
        elif (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and parameters(node) > PARAMETERS
            and not file.startswith(OPS_OF_TORCH)
        ):
            yield f"{file}: {node.name}"


@pytest.mark.parametrize("top", [KIT, KIT.parent / "tests"], ids=["kit", "tests"])
def test_no_file_is_longer_than_the_cap(top: Path):
    rooms = lines_by_room(top)
    print(f"\n{'room':<12}{'files':>6}{'lines':>8}{'median':>8}  longest")
    for room, files in rooms.items():
        longest = max(files, key=lambda name: files[name])
        print(
            f"{room:<12}{len(files):>6}{sum(files.values()):>8}{median(files.values()):>8.0f}"
            f"  {longest} ({files[longest]})"
        )
    too_long = {n: size for files in rooms.values() for n, size in files.items() if size > CAP}
    assert too_long == {}, f"split these, or argue in the commit: {too_long}"


def test_classes_and_parameter_lists_are_small_or_defended():
    found = {name for file, tree in trees() for name in too_large(file, tree)}
    assert sorted(found - LARGER.keys()) == [], "divide these, or defend them in LARGER"
    assert sorted(LARGER.keys() - found) == [], "no longer large: take them out of LARGER"


def test_no_function_changes_a_global():
    found = {file for file, tree in trees() for n in ast.walk(tree) if isinstance(n, ast.Global)}
    assert found == GLOBALS.keys()


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("def f(a, b, c, d, e, f, g, *, h): ...", ["x.py: f"]),
        ("class A:\n    def m(self, a, b, c, d, e, f, g): ...", []),
        ("class A:\n" + "\n".join(f"    a{i}: int" for i in range(21)), ["x.py: A"]),
        ("class A:\n" + "\n".join(f"    def m{i}(self): ..." for i in range(26)), ["x.py: A"]),
    ],
)
def test_what_is_too_large_is_found(source: str, what: list[str]):
    assert list(too_large("x.py", ast.parse(source))) == what
