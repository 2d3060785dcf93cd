"""What launched each kernel of a native run: the op, its line, its module and its arrays.

Pure: the profiler's events and the ops of a step that was looked at in, callers out. An event is
torch's `FunctionEvent`, of which this file reads what `events.py` does, and thread, id, fwd_thread,
sequence_nr, input_shapes and concrete_inputs.

The ops of a traced step are those of a step that was looked at (`match.py` finds which): so each
event gets the line of its op. An op of the backward pass has the line of the op whose gradient it
computes; what Python calls in it, as a hook or a checkpoint that computes again, has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from kit.measure.native.events import ancestors, begins_in, is_outermost
from kit.measure.native.lines import Lines, SeenNode, SeenOp
from kit.measure.native.match import FREE, match
from kit.runtime.recording.bulk import NOWHERE, Site
from kit.runtime.recording.sites import format_site
from kit.text import format_share
from kit.trace.host import ENGINE
from kit.trace.imported import MAX_CALLERS, NOT_AN_ARRAY, Caller

__all__ = ["NOTHING", "Launches", "find_launches"]

_DEEPEST = 16  # gradients of gradients
_OF_DEVICES = ("cuda", "cu", "hip")  # how the calls that launch are named
_NO_LINE = SeenOp("")
_MUCH = 0.05  # of the kernels' time
_OTHER_OPS = "other ops than the steps whose lines were noted"
_OTHER_LINES = "steps call the same ops on different lines by turns"


@dataclass(frozen=True)
class Launches:
    """Callers of the kernels, and the number of each event's."""

    callers: tuple[Caller, ...] = ()
    sites: tuple[Site, ...] = ()  # of the callers, with whole paths, the most frequent first
    notes: tuple[str, ...] = ()
    numbers: Mapping[int, int] = field(default_factory=dict)  # identity of an event -> its caller

    def of(self, event: Any) -> int:
        """The caller of a kernel, or of an op that is one; -1: none is known."""
        return self.numbers.get(id(event), -1)


NOTHING = Launches()


def find_launches(
    events: Sequence[Any], steps: Sequence[Any], looks: Sequence[Lines], *, device: str
) -> Launches:
    """What launched the kernels among the events.

    Args:
        events: all of a profile, and they live on: what is found is found by identity.
        steps: their regions, in the thread in which they run.
        looks: at steps before these, one or more; none: nothing is known.
        device: "cuda"; or "cpu", whose kernels are the outermost ops.
    """
    if not any(look.ops for look in looks) or not steps:
        return NOTHING
    host = [e for e in events if e.device_type.name == "CPU"]
    host.sort(key=lambda e: (e.time_range.start, -e.time_range.end))
    tree, others, branched = _Tree(host), 0, False
    found: dict[int, tuple[Any, SeenOp]] = {}
    for step in steps:
        inside = [e for e in host if begins_in(e, step)]
        forward = [e for e in inside if e.thread == step.thread and tree.engine(e) is None]
        alike, is_whole = _alike(forward, looks)
        others += not is_whole
        for pairs, look in alike:
            for e, op in pairs + _gradients(tree, inside, look.gradients):
                _, known = found.get(id(e), (e, op))
                branched = branched or known.site != op.site
                found[id(e)] = e, _common(known, op)
    whys = [
        *[f"{others} of {len(steps)} traced steps called {_OTHER_OPS}"] * (others > 0),
        *[_OTHER_LINES] * branched,
    ]
    return _Callers(tree, found).of([*_launches(events, host, device)], whys)


def _alike(
    forward: Sequence[Any], looks: Sequence[Lines]
) -> tuple[list[tuple[list[tuple[Any, SeenOp]], Lines]], bool]:
    """All looks at steps of the same ops as this one, or else the look that is most like it.

    Steps of the same ops may call them on other lines, by a branch: where the looks differ, which
    one this step has taken is not known.
    """
    found = [(*match(forward, look.ops), look) for look in looks]
    alike = [(pairs, look) for pairs, is_whole, look in found if is_whole]
    if alike:
        return alike, True
    pairs, _, look = max(found, key=lambda one: len(one[0]))
    return [(pairs, look)], False


def _gradients(
    tree: _Tree, inside: Sequence[Any], nodes: Sequence[SeenNode]
) -> list[tuple[Any, SeenOp]]:
    """The ops of the backward passes, for what is known of their arrays.

    Each function of autograd is compared by itself: in some, torch calls other ops while it is
    looked at.
    """
    called: dict[int, list[Any]] = {}
    for e in inside:
        if (engine := tree.engine(e)) is not None and e is not engine:
            called.setdefault(id(engine), []).append(e)
    engines = [e for e in inside if id(e) in called and any(map(_is_op, called[id(e)]))]
    found = []
    for engine, node in match(engines, nodes)[0]:
        pairs, is_alike = match(called[id(engine)], node.ops)
        found += pairs if is_alike else []
    return found


class _Tree:
    """What the host's events are inside of, and the op of the forward pass that each is for."""

    def __init__(self, host: Iterable[Any]) -> None:
        self._engines: dict[int, Any] = {}
        self._forward: dict[tuple[int, int], Any] = {}
        for e in host:
            # A function of the user's or of a library's has a number, too.
            if e.sequence_nr >= 0 and not _is_gradient(e):
                # of several with one number the last is the op whose gradient has it, too
                self._forward[e.thread, e.sequence_nr] = e

    def engine(self, event: Any) -> Any:
        """The function of the backward pass that an event is inside of, or None."""
        passed = []
        at, found = event, None
        while at is not None and id(at) not in self._engines:
            passed.append(at)
            if at.name.startswith(ENGINE):
                found = at
                break
            at = at.cpu_parent
        else:
            found = None if at is None else self._engines[id(at)]
        self._engines.update((id(e), found) for e in passed)
        return found

    def forward(self, event: Any) -> Any:
        """The op whose gradient is computed where this event is, or None."""
        engine = self.engine(event)
        if engine is None:
            return None
        return self._forward.get((engine.fwd_thread, engine.sequence_nr))


class _Callers:
    """Callers, each once, with how often they launched something."""

    def __init__(self, tree: _Tree, found: Mapping[int, tuple[Any, SeenOp]]) -> None:
        self._tree, self._found = tree, found
        self._longest: dict[int, tuple[Any, SeenOp]] = {}  # by the outermost op around
        self._within: dict[int, SeenOp] = {}  # by a function of the user's or of a library's
        takes: dict[int, float] = {}  # the least of all steps: a hiccup is in one
        for event, op in found.values():
            took = event.time_range.elapsed_us()
            takes[id(op)] = min(took, takes.get(id(op), took))
        for event, op in found.values():
            for e in ancestors(event):
                if e.sequence_nr >= 0 and not _is_op(e):
                    self._within[id(e)] = _common(self._within.get(id(e), op), op)
            outermost = [event, *filter(_is_op, _outwards(event))][-1]
            _, longest = self._longest.setdefault(id(outermost), (event, op))
            longer, long = ((one.name not in FREE, takes[id(one)]) for one in (op, longest))
            if longer > long:
                self._longest[id(outermost)] = event, op

    def of(self, launched: Sequence[tuple[Any, Any]], whys: Sequence[str]) -> Launches:
        """The callers of kernels, given with what launched each.

        Args:
            whys: what may have cost some of them their line.
        """
        kernels: Counter[tuple[Caller, Site]] = Counter()
        calls: dict[tuple[Caller, Site], set[int]] = {}
        keys: dict[int, tuple[Caller, Site]] = {}
        took = without = 0.0
        for kernel, call in launched:
            event, op = self._seen(call)
            key = keys[id(kernel)] = self._caller(call, op and _with_own_sizes(op, event))
            kernels[key] += 1
            took += kernel.time_range.elapsed_us()
            without += 0.0 if key[1] != NOWHERE else kernel.time_range.elapsed_us()
            calls.setdefault(key, set()).add(id(event))
        number = {key: n for n, (key, _) in enumerate(kernels.most_common(MAX_CALLERS))}
        return Launches(
            tuple(replace(k[0], calls=len(calls[k]), kernels=kernels[k]) for k in number),
            tuple(dict.fromkeys(site for _, site in number)),
            _note(whys, without / max(took, 1e-9)),
            {kernel: number.get(key, -1) for kernel, key in keys.items()},
        )

    def _seen(self, call: Any) -> tuple[Any, SeenOp | None]:
        """The innermost op that was looked at around this, or else the longest that it called."""
        for e in _outwards(call):
            if found := self._found.get(id(e)):
                return found
        return self._longest.get(id(call), (call, None))

    def _caller(self, call: Any, op: SeenOp | None) -> tuple[Caller, Site]:
        is_backward = self._tree.engine(call) is not None
        named = next((e.name for e in _outwards(call) if _is_op(e)), "")
        if op is None:
            op = SeenOp(named)
        site, module = op.site, op.module
        for _ in range(_DEEPEST):  # gradients of gradients
            if (module and site != NOWHERE) or self._tree.engine(call) is None:
                break
            if (call := self._tree.forward(call)) is None:
                break
            line = self._seen(call)[1] or self._within.get(id(call)) or _NO_LINE
            site, module = site if site != NOWHERE else line.site, module or line.module
        caller = Caller(
            op=op.name,
            module=module,
            site=format_site(site),
            inputs=op.inputs,
            others=op.others,
            is_backward=is_backward,
        )
        return caller, site


def _with_own_sizes(op: SeenOp, event: Any) -> SeenOp:
    """The op with the sizes of its event: a batch of another length may be in another step.

    Without arrays where it is called with others, such as those that `torch.vmap` takes apart.
    """
    shapes, others = event.input_shapes, event.concrete_inputs
    is_alike = len(op.inputs) <= len(shapes) and all(
        seen is NOT_AN_ARRAY or len(seen.shape) == len(own)
        for seen, own in zip(op.inputs, shapes, strict=False)
    )
    is_alike = is_alike and all(
        not seen or seen == str(own) for seen, own in zip(op.others, others, strict=False)
    )
    inputs = (
        seen if seen is NOT_AN_ARRAY else replace(seen, shape=tuple(own))
        for seen, own in zip(op.inputs, shapes, strict=False)
    )
    return replace(op, inputs=tuple(inputs)) if is_alike else replace(op, inputs=(), others=())


def _common(one: SeenOp, other: SeenOp) -> SeenOp:
    """The first, with the line of both and the modules around both."""
    if one.site == other.site and one.module == other.module:
        return one
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one.module, other.module, strict=False))
    site = one.site if one.site == other.site else NOWHERE
    return replace(one, site=site, module=tuple(name for name, _ in pairs))


def _note(whys: Sequence[str], without: float) -> tuple[str, ...]:
    """Why much of the kernels' time has no line, where it is for this."""
    if not whys or without < _MUCH:
        return ()
    share = format_share(without)
    return (f"{share} of the kernels' time is of no known line: {'; '.join(whys)}",)


def _launches(events: Iterable[Any], host: Iterable[Any], device: str) -> Iterator[tuple[Any, Any]]:
    """Each kernel, and the call that launched it: on a CPU an op is its own."""
    if device == "cpu":
        yield from ((e, e) for e in host if is_outermost(e))
        return
    calls = {e.id: e for e in host if _is_call(e)}
    for e in events:
        if e.device_type.name != "CPU" and not e.is_user_annotation and e.id in calls:
            yield e, calls[e.id]


def _is_op(event: Any) -> bool:
    return bool(event.name.startswith("aten::"))


def _is_gradient(event: Any) -> bool:
    """The engine's event of a function of autograd, or that function's own, which is in it."""
    around = event.cpu_parent
    is_own = around is not None and around.name == f"{ENGINE}: {event.name}"
    return is_own or bool(event.name.startswith(ENGINE))


def _is_call(event: Any) -> bool:
    """Of CUDA's or HIP's functions; ops and regions of the program are numbered otherwise."""
    is_own = event.is_user_annotation or "::" in event.name
    return not is_own and event.name.startswith(_OF_DEVICES)


def _outwards(event: Any) -> Iterator[Any]:
    """The event, and those around it."""
    yield event
    yield from ancestors(event)
