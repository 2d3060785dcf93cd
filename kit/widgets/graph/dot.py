"""Lay groups out with graphviz: a small graph for each different one, all in one `dot` process.

The DOT text holds local numbers and sizes, no text from a program: nothing needs escaping, and
groups that look the same give equal text, which is laid out once and remembered. The same text is
laid out by graphviz in the browser where there is no `dot` (`graphviz_wasm/`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any

from kit.errors import EngineError, LayoutError, but_of_handlers
from kit.threads import start_thread
from kit.widgets.graph.grid import Inside, Size, lay_out_as_grid
from kit.widgets.graph.tree import Shape

__all__ = ["dot_text", "lay_out", "run_dot"]

_MAX_COMPONENTS_IN_ROW = 5
_HEAD = (
    "graph [rankdir=TB ranksep=0.4 nodesep=0.22 splines=spline nslimit=1 nslimit1=1 mclimit=0.5]; "
    'node [shape=box fixedsize=true label=""]; edge [arrowhead=none];'
)


def lay_out(
    shapes: Sequence[Shape],
    sizes: Sequence[Sequence[Size]],
    *,
    timeout_s: float,
) -> tuple[list[Inside], str]:
    """The inside of each shape, and what laid them out: "graphviz dot", or a grid and why.

    What dot does not answer within `timeout_s` gets the grid.
    """
    texts = [dot_text(shape, own) for shape, own in zip(shapes, sizes, strict=True)]
    program = shutil.which("dot") or ""
    slots = [_slot(program, t, s.is_reversed) for t, s in zip(texts, shapes, strict=True)]
    unknown = {id(slot): n for n, slot in enumerate(slots) if not slot}
    missing = sorted(unknown.values(), key=lambda n: len(texts[n]))
    why = "" if program else "dot was not found"
    if program and missing:  # the small ones are done if a large one takes too long
        try:
            answers = run_dot(program, [texts[n] for n in missing], timeout_s)
        except LayoutError as error:
            why, answers = str(error), {}
        for at, n in enumerate(missing):
            if at in answers and (inside := _read(answers[at], shapes[n], sizes[n])) is not None:
                slots[n].append(inside)
    found = [
        slot[0] if slot else lay_out_as_grid(shape, own)
        for slot, shape, own in zip(slots, shapes, sizes, strict=True)
    ]
    grids = sum(not slot for slot in slots)
    if not grids:
        return found, "graphviz dot"
    part = "" if grids == len(found) else f" for {grids} of {len(found)} groups"
    return found, f"a plain grid{part}: {why or 'dot gave no layout for it'}"


def dot_text(shape: Shape, sizes: Sequence[Size]) -> str:
    """The shape's children and edges in DOT; the name of the graph is left out."""
    parts = [f"n{i} [width={w / 72:.3f} height={h / 72:.3f}];" for i, (w, h) in enumerate(sizes)]
    for a, b, _, _ in shape.edges:
        parts.append(f"n{b} -> n{a};" if shape.is_reversed else f"n{a} -> n{b};")
    parts += [f"n{a} -> n{b} [style=invis];" for a, b in _wrap(len(sizes), shape)]
    return f"{{{_HEAD} {' '.join(parts)}}}"


def run_dot(program: str, texts: Sequence[str], timeout_s: float) -> dict[int, dict[str, Any]]:
    """What one `dot -Tjson0` answers to all of these texts, by their position.

    Raises:
        LayoutError: it failed, or took too long, before it answered anything.
    """
    whole = "\n".join(f"digraph g{n} {text}" for n, text in enumerate(texts))
    problem = ""
    try:
        output, status = _asked(program, whole.encode(), timeout_s)
        problem = f"dot failed with status {status}" if status else ""
    except subprocess.TimeoutExpired as error:
        output, problem = error.stdout or b"", f"dot took longer than {timeout_s:g} s"
    except but_of_handlers(OSError, EngineError) as error:  # the latter: no thread could start
        raise LayoutError(f"dot failed: {type(error).__name__}") from error
    answers = _answers(output.decode("utf-8", "replace"))
    if not answers:
        raise LayoutError(problem or "dot answered something that is no layout")
    return answers


def _asked(program: str, text: bytes, timeout_s: float) -> tuple[bytes, int]:
    """What dot writes, and its exit status.

    Not by `subprocess.run`: at an interrupt that kills dot, and leaves it as a zombie. A thread
    starts it, as no interrupt comes in there: one within `Popen` would leave dot running.
    """
    begun: Future[subprocess.Popen[bytes]] = Future()
    try:
        start_thread(partial(_begin, program, begun), "kit dot")
        process = begun.result()
        try:
            output, _ = process.communicate(text, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            process.kill()
            error.stdout, _ = process.communicate()
            raise
        return output, process.returncode
    except BaseException:
        begun.add_done_callback(_end)  # now, or as soon as it has begun
        raise


def _begin(program: str, begun: Future[subprocess.Popen[bytes]]) -> None:
    pipe = subprocess.PIPE
    try:
        command = [program, "-Tjson0"]
        begun.set_result(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe))
    except OSError as error:
        begun.set_exception(error)


def _end(begun: Future[subprocess.Popen[bytes]]) -> None:
    if begun.exception() is None:
        with begun.result() as process:
            process.kill()


def _answers(output: str) -> dict[int, dict[str, Any]]:
    """The JSON objects one after the other, as far as they can be read."""
    decoder, at, found = json.JSONDecoder(), 0, {}
    while (at := output.find("{", at)) >= 0:
        try:
            answer, at = decoder.raw_decode(output, at)
            found[int(str(answer["name"]).removeprefix("g"))] = answer
        except (ValueError, KeyError, RecursionError):
            break
    return found


@lru_cache(maxsize=4096)
def _slot(program: str, text: str, is_reversed: bool) -> list[Inside]:
    """What this `dot` has made of a text: nothing yet, or one answer."""
    return []


def _wrap(count: int, shape: Shape) -> list[tuple[int, int]]:
    """Invisible edges that put unconnected children into several rows instead of one wide one."""
    root = list(range(count))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for a, b, _, _ in shape.edges:
        root[find(a)] = find(b)
    parts: dict[int, list[int]] = {}
    for i in range(count):
        parts.setdefault(find(i), []).append(i)
    groups = list(parts.values())
    pairs = zip(groups, groups[_MAX_COMPONENTS_IN_ROW:], strict=False)
    hidden = [(above[-1], below[0]) for above, below in pairs]
    return [(b, a) for a, b in hidden] if shape.is_reversed else hidden


def _read(answer: dict[str, Any], shape: Shape, sizes: Sequence[Size]) -> Inside | None:
    """The places in dot's answer; None if it is not an answer to this question."""
    try:
        _, _, width, height = (float(x) for x in answer["bb"].split(","))
        places, ids = {}, {}
        for thing in answer["objects"]:
            i = int(thing["name"].removeprefix("n"))
            x, y = (float(v) for v in thing["pos"].split(","))
            places[i], ids[thing["_gvid"]] = (x, height - y), i
        curves = {}
        for line in answer.get("edges", ()):
            a, b = ids[line["tail"]], ids[line["head"]]
            points = _points(line["pos"], height)
            if shape.is_reversed:
                a, b = b, a
                points = [v for n in range(len(points) - 2, -1, -2) for v in points[n : n + 2]]
            if line.get("style") != "invis":
                curves[a, b] = tuple(points)
        boxes = tuple((*places[i], *size) for i, size in enumerate(sizes))
        return Inside(width, height, boxes, tuple(curves[a, b] for a, b, _, _ in shape.edges))
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def _points(pos: str, height: float) -> list[float]:
    """The B-spline of an edge as control points."""
    flat = []
    for part in pos.split():
        if part[0] not in "se":
            x, y = part.split(",")
            flat += [float(x), height - float(y)]
    return flat
