"""Texts of strangers, runs and traces that are full of them, and what must not come out of each.

What a stranger can choose is found by trying: each text of a saved run is replaced, and those that
the loader takes are the ones that a stranger chooses. So a new field joins by itself.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import mistune

from kit.errors import KitError
from kit.runs.compiles import Compile
from kit.runs.run import Fused, Run
from kit.runs.settings import Settings
from kit.runs.sources import Snippet
from kit.trace.imported import MAX_NAME
from tests.factories import make_run

__all__ = ["HOSTILE", "MARK", "hostile_file", "hostile_trace", "problems_of", "strings_of"]

MARK = "kit-evil"  # the tag that none of these texts may become
HOSTILE = {
    "markup": f"</style></script><{MARK} {MARK}=x>\"'><{MARK}>",
    "markdown": f"|[a](http://{MARK})![b](http://{MARK})`<{MARK}>***{MARK}***$$x$$",
    "lines": f"\n\n# {MARK}\r\nkit: {MARK}\n* {MARK}\n    {MARK}\v\f\x85{MARK}",
    "controls": f"\x1b[31m\x1b]0;{MARK}\x07\x9b2J\0\x08\x7f"
    "\u202e\u2066\u200f\u061c\u2028\ufeff\U000e0041\udfff\ud800",
    "formula": f"=cmd|'/C {MARK}'!A1",
    "long": "W" * 5 * MAX_NAME,
}
Path_ = tuple[str, ...]


def full_run() -> Run:
    """A run with something in each of its fields."""
    run = make_run(Settings(steps=4, bulk_forward=4, bulk_backward=5), kernels=12, hostile=False)
    node = run.graphs[0].ops[0]
    twice = tuple(
        Compile(step, 0, "forward", "shape", "the shape changed", 2, 0, "train.py:11",
                "train.py:10", "float32[2]", "float32[3]", 1.0, 2.0)
        for step in range(4)
    )  # fmt: skip
    return replace(
        run,
        compiles=twice,
        fused=(Fused(0, "fusion.0", (node, node + 1)),),
        unlowered={"aten.nonzero at train.py:9": 2},
        sources=(Snippet("train.py", 9, ("def step():", "    return loss")),),
        label="before",
        environment={**run.environment, "git commit": "abc", "host": "here", "torch": "2"},
    )


def hostile_file(folder: Path, text: str) -> tuple[Path, list[str]]:
    """A saved run with this text before each text that a stranger may choose.

    Returns:
        The file, and what the loader says of the texts that it refuses.
    """
    full_run().save(folder / "good.kitrun")
    with zipfile.ZipFile(folder / "good.kitrun") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    good = json.loads(members["run.json"])
    taken, refused = set[Path_](), list[str]()
    trial = folder / "trial.kitrun"
    for place in sorted(set(_places(good))):
        _write(trial, members, _changed(good, {place}, text))
        try:
            Run.load(trial)
        except KitError as error:
            refused.append(str(error).partition("read: ")[2])
        else:
            taken.add(place)
    path = folder / "hostile.kitrun"
    _write(path, members, _changed(good, taken, text))
    return path, refused


def hostile_trace(folder: Path, text: str) -> Path:
    """A trace of torch.profiler whose names, keys and arguments begin with this text."""
    threads: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": f"{text}thread"}},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"{text}python"}},
    ]
    events = [
        _event(f"{text}ProfilerStep#0", "user_annotation", 0, 90),
        _event("ProfilerStep#1", "user_annotation", 100, 90),
        _event(f"{text}aten::mm", "cpu_op", 1, 30, {f"{text}key": text, "External id": 1}),
        _event(f"{text}aten::item", "cpu_op", 40, 30),
        _event("aten::item", "cpu_op", 110, 30),
        _event("aten::_local_scalar_dense", "cpu_op", 112, 20),
        _event(f"train.py(3): {text}", "python_function", 1, 80, {"Python id": 1}),
        _event(f"{text}train.py(3): f", "python_function", 105, 80, {"Python id": 2}),
        _event("cudaStreamSynchronize", "cuda_runtime", 150, 20, {"correlation": 7}),
        _event(f"{text}gemm", "kernel", 5, 20, {"device": 0, "stream": text, "correlation": 7}),
        _event(text, text, 6, 7),
        _event(f"{text}part", "user_annotation", 2, 30),
        _event(f"nn.Module: {text}Net_0", "python_function", 2, 60, {"Python id": 3}),
        _event(f"{text}mm", "cpu_op", 3, 10, {"External id": 2, "Input Dims": [[text]]}),
        _event("cudaLaunchKernel", "cuda_runtime", 4, 2, {"correlation": 9, "External id": 2}),
        _event(f"{text}add", "kernel", 30, 5, {"device": 0, "stream": 8, "correlation": 9}),
    ]
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": f"{text}GPU"}],
        "host_name": f"{text}host",
        "traceEvents": threads + events,
    }
    path = folder / "hostile.json"
    path.write_text(json.dumps(head))
    return path


def _event(
    name: str, cat: str, ts: float, dur: float, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 1, "tid": 1,
            "args": args or {}}  # fmt: skip


def _places(item: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Where texts stand: names of fields on the way, "*" for any of a list, "keys" for names."""
    if isinstance(item, str):
        yield at
    elif isinstance(item, list):
        for x in item:
            yield from _places(x, (*at, "*"))
    elif isinstance(item, dict):
        for key, x in item.items():
            yield from _places(x, (*at, key))
        yield (*at, "keys")


def _changed(item: Any, chosen: set[Path_], text: str, at: Path_ = ()) -> Any:
    if isinstance(item, str):
        return text + item if at in chosen else item
    if isinstance(item, list):
        return [_changed(x, chosen, text, (*at, "*")) for x in item]
    if isinstance(item, dict):
        before = text if (*at, "keys") in chosen else ""
        return {before + key: _changed(x, chosen, text, (*at, key)) for key, x in item.items()}
    return copy.copy(item)


def _write(path: Path, members: dict[str, bytes], head: Any) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, json.dumps(head).encode() if name == "run.json" else data)


class Page(HTMLParser):
    """The tags of a page and the text between them, as a browser takes them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] not in (["script"], ["style"]):
            self.text.append(data)


def problems_of(text: str, target: str) -> list[str]:
    """What a text does that a stranger's must not, where it is shown in this way.

    Args:
        target: "terminal", "html", "markdown", "csv", "json", "dot" or "label" (of a plot).
    """
    return _CHECKS[target](text)


def _seen(text: str, also: str = "\n") -> list[str]:
    odd = {c for c in text if not c.isprintable() and c not in also}
    return [f"lets {sorted(odd)!r} through"] if odd else []


def _terminal(text: str) -> list[str]:
    forged = [line for line in text.split("\n") if line.startswith((MARK, f"kit: {MARK}"))]
    return _seen(text) + [f"a line of its own: {line!r}" for line in forged]


def _html(text: str) -> list[str]:
    page = Page(text)
    tags = [f"became a tag: {tag}" for tag in page.tags if tag == MARK]
    active = [
        f"became an attribute: {name}={value[:60]!r}"
        for name, value in page.attributes
        if MARK in name or (name in ("href", "src") and MARK in value)
    ]
    return tags + active + _seen("".join(page.text), "\n\t\u200b")


def _markdown(text: str) -> list[str]:
    made = str(mistune.html(text))
    plain = "".join(Page(made).text)
    became = [
        *(t for t in re.findall(r"<(?:a|img|code|pre|em|strong)\b[^>]*>[^<]*", made) if MARK in t),
        *re.findall(rf"<(?:h\d|li)>{MARK}", made),
    ]
    return _html(made) + [f"became {t[:80]!r}" for t in became] + _seen(plain)


def _dot(text: str) -> list[str]:
    return _seen(text, "\n\t")


def _csv(text: str) -> list[str]:
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    number = re.compile(r"-?\d+(\.\d+)?")
    begins = [c for c in cells if c.lstrip().startswith(tuple("=+-@")) and not number.fullmatch(c)]
    return _seen(text) + [f"a formula: {c[:60]!r}" for c in begins]


def _json(text: str) -> list[str]:
    json.loads(text)
    return _seen(text) + ([] if text.isascii() else ["is not ASCII"])


def _label(text: str) -> list[str]:
    formulas = [text[:60]] if re.search(r"\$\$|\\[\[(]", text) else []
    return _seen(text, "\n\t\u200b") + formulas


_CHECKS: dict[str, Callable[[str], list[str]]] = {
    "terminal": _terminal,
    "html": _html,
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
    "dot": _dot,
    "label": _label,
}


def strings_of(item: Any) -> Iterator[str]:
    """All texts in dicts, lists and tuples."""
    if isinstance(item, str):
        yield item
    elif isinstance(item, dict):
        for key, value in item.items():
            yield from strings_of(key)
            yield from strings_of(value)
    elif isinstance(item, list | tuple):
        for value in item:
            yield from strings_of(value)
