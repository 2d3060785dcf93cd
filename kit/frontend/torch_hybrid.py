"""`hybridize`: a Python loop over tensors becomes one op, issued once.

The first call with arguments of a kind (geometries, what shares memory, plain values) runs the
function as it is and looks at what it recorded: which op results became the arguments' new values,
or were returned. Later calls of that kind record one op that stands for all of it, and run none of
the function's Python. Results that depend on no tensor are made once and shared: buffers are
immutable, so equal constants can be one buffer.

What cannot be repeated so is found at the first call: a read of numbers, a tensor that is no
argument, something kept elsewhere, gradients. Then the function runs as it is each time, and
`Hybrid.reasons` says why.
"""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import torch

from kit.frontend.torch_tensor import Buffer, KitTensor, View
from kit.runtime.lowering import HOLE, Program, format_site
from kit.runtime.steps import Draw
from kit.runtime.stream import Bulk, Op, Value

if TYPE_CHECKING:
    from kit.frontend.torch_frontend import Frontend

__all__ = ["Hybrid", "hybridize", "written"]

MANY = 64  # kinds of calls that are learnt
_GRADIENTS = "gradients are recorded; call it in torch.no_grad()"
_TOO_MANY = (
    f"it was called with {MANY} kinds of arguments; pass a number that changes as a 0-d tensor"
)

P = ParamSpec("P")
T = TypeVar("T")
_ref, _spec, _needs_grad = attrgetter("ref"), attrgetter("spec"), attrgetter("requires_grad")
_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_TENSORS, _BUFFERS = {KitTensor}, {Buffer}


@dataclass(eq=False)
class _Trace:
    """What the calls of one kind do."""

    op: Op | None = None  # the whole function; None if only constants are left of it
    leaves: list[int] = field(default_factory=list)  # which bases it reads
    scalars: list[float] = field(default_factory=list)
    shared: list[Value] = field(default_factory=list)  # results that depend on nothing
    copies: bool = False  # some results are what arguments were before
    changed: list[int] | None = None  # bases that get a new value; None: all, in order
    becomes: list[int] = field(default_factory=list)  # which result each of them gets
    pick: Callable[[list[Value]], Sequence[Value]] = tuple  # those of them, quickly
    written: list[int] | None = None  # arguments whose memory is written; None: all
    result: Any = None  # what to return, with `_Made` for tensors


@dataclass(frozen=True)
class _Made:
    """A returned tensor: an argument, or one over new memory, or a view of either."""

    argument: int = -1
    base: int = -1  # an argument's memory
    value: int = -1  # a result, for new memory
    base_spec: Any = None
    views: tuple[Op, ...] = ()
    spec: Any = None


class Hybrid(Generic[P, T]):
    """A function whose calls on device "kit" are one op each; elsewhere it is the function.

    Attributes:
        reasons: why calls were run as they are, with how often.
    """

    def __init__(self, function: Callable[P, T]) -> None:
        functools.update_wrapper(self, function)
        self.reasons: dict[str, int] = {}
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, or issue what it did the last time on such arguments."""
        tensors: list[KitTensor] = []
        key: list[Any] = []
        odd: set[str] = set()
        _flatten(args, tensors, key, odd)
        if kwargs:
            _flatten(kwargs, tensors, key, odd)
        if not tensors:
            return self._function(*args, **kwargs)  # the same code runs natively
        if odd:
            return self._as_it_is(args, kwargs, f"its arguments hold {' and '.join(sorted(odd))}")
        home = tensors[0].spec.home
        if home.is_tracing:  # part of the caller's own program
            return self._function(*args, **kwargs)
        if torch.is_grad_enabled() and any(map(_needs_grad, tensors)):
            return self._as_it_is(args, kwargs, _GRADIENTS)
        with home.session.lock:
            refs = list(map(_ref, tensors))
            key.append(tuple(map(_spec, tensors)))
            bases = _bases(refs, key)
            traces = home.programs.setdefault(self, {})
            kind = tuple(key)
            trace = traces.get(kind)
            if trace is None and len(traces) >= MANY:
                trace = _TOO_MANY
            if trace is None:
                return self._first(home, traces, kind, args, kwargs, tensors, bases)
            if isinstance(trace, str):
                return self._as_it_is(args, kwargs, trace)
            return _again(home, trace, tensors, bases)  # type: ignore[no-any-return]

    def _as_it_is(self, args: Any, kwargs: Any, why: str) -> T:
        if why not in self.reasons:
            name = getattr(self._function, "__qualname__", "a function")
            warnings.warn(f"kit.hybridize: {name} runs as it is, because {why}", stacklevel=3)
        self.reasons[why] = self.reasons.get(why, 0) + 1
        return self._function(*args, **kwargs)

    def _first(self, home: Frontend, traces: dict[Any, Any], kind: Any, args: Any, kwargs: Any,
               tensors: list[KitTensor], bases: list[Buffer]) -> T:  # fmt: skip
        """Run the function, and learn from what it recorded."""
        session = home.session
        stream = session.stream
        stream.begin(home.places.follow())
        before = [base.read(home) for base in bases]
        session.cut(stream, "hybridize")
        for tensor in tensors:
            tensor.ref.forget()  # views are part of the program
        bulk = stream.new_bulk()
        bulk.limit = 1 << 60  # not to be cut in the middle
        home.is_tracing, home.overwritten = True, []
        try:
            result = self._function(*args, **kwargs)
        finally:
            writes, home.overwritten, home.is_tracing = home.overwritten, [], False
            bulk.limit = 0  # the next op looks again
        if stream.bulk is not bulk:
            trace: _Trace | str = "it waits for the device, or another thread needs what it makes"
        else:
            trace = _learn(home, bulk, result, tensors, bases, before, writes)
        traces[kind] = trace
        if isinstance(trace, str):
            self.reasons.setdefault(trace, 0)
            name = getattr(self._function, "__qualname__", "a function")
            warnings.warn(f"kit.hybridize: {name} runs as it is, because {trace}", stacklevel=3)
        return result


def hybridize(function: Callable[P, T]) -> Hybrid[P, T]:
    """Make a function of tensors one op: `for a in arrays: a[()] = 0` costs what one op costs.

    The function may loop, write in place, make and return tensors. Called again with arguments of
    the same shapes, dtypes and plain values, its Python does not run: what it did is issued again.
    A float argument is part of the kind; pass a number that changes at each call as a 0-d tensor.

    @kit.hybridize
    def zero_grad(arrays):
        for a in arrays:
            a[()] = 0

    A function that cannot be repeated (it reads a value, keeps or uses tensors that are no
    arguments, or gradients are recorded) runs as it is, with a warning that says why.
    """
    return Hybrid(function)


def written(tensors: Sequence[KitTensor]) -> None:
    """Tell autograd that these were written in place.

    Raises:
        RuntimeError: torch's own, for a leaf that requires grad.
    """
    if torch.is_grad_enabled() and any(t.requires_grad and t.is_leaf for t in tensors):
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation."
        )
    torch.autograd.graph.increment_version(tensors)


def _flatten(value: Any, tensors: list[KitTensor], key: list[Any], odd: set[str]) -> None:
    """Append the tensors, and to the key whatever else the call depends on."""
    kind = type(value)
    if kind is list or kind is tuple:
        key.append((kind, len(value)))
        if set(map(type, value)) == _TENSORS:
            tensors.extend(value)
        else:
            key.append("mixed")
            for item in value:
                _flatten(item, tensors, key, odd)
    elif kind is KitTensor:
        key.append(KitTensor)
        tensors.append(value)
    elif kind is dict:
        key.append(("dict", tuple(value)))
        for item in value.values():
            _flatten(item, tensors, key, odd)
    elif kind in _PLAIN:
        key.append((kind, repr(value) if kind is float else value))
    else:
        odd.add("CPU tensors" if isinstance(value, torch.Tensor) else f"a {kind.__name__}")


def _bases(refs: list[Any], key: list[Any]) -> list[Buffer]:
    """The buffers behind the arguments, each once; which one each shows goes to the key."""
    if set(map(type, refs)) == _BUFFERS and len(set(refs)) == len(refs):
        return refs
    bases: list[Buffer] = []
    number: dict[int, int] = {}
    for ref in refs:
        base = ref.base
        if id(base) not in number:
            number[id(base)] = len(bases)
            bases.append(base)
        chain = []
        while isinstance(ref, View):
            chain.append(ref.op.id)
            ref = ref.parent
        key.append((number[id(base)], base.spec, tuple(chain)))
    return bases


def _learn(home: Frontend, bulk: Bulk, result: Any, tensors: list[KitTensor], bases: list[Buffer],
           before: list[Value], writes: list[Buffer]) -> _Trace | str:  # fmt: skip
    """What the recorded ops amount to; or why they cannot be issued again."""
    trace = _Trace()
    known = {id(value): i for i, value in enumerate(before)}
    for leaf in bulk.leaves:
        if id(leaf) not in known:
            return f"it uses a tensor of {leaf.aval} that is no argument{_first_use(bulk, leaf)}"
    own = {id(base): i for i, base in enumerate(bases)}
    results: list[Value] = []
    number: dict[int, int] = {}

    def place(value: Value) -> int:
        if id(value) not in number:
            number[id(value)] = len(results)
            results.append(value)
        return number[id(value)]

    changed = []
    for i, (base, old) in enumerate(zip(bases, before, strict=True)):
        if base.value is not None and base.value is not old:
            changed.append(i)
            trace.becomes.append(place(base.value))
    trace.changed = changed if len(changed) < len(bases) else None
    touched = {id(base) for base in writes}
    overwritten = [i for i, t in enumerate(tensors) if id(t.ref.base) in touched]
    trace.written = overwritten if len(overwritten) < len(tensors) else None
    reached = set(own)  # buffers, and values that views keep, which we know how to reach
    for tensor in tensors:
        _chain(tensor.ref, reached)
    made = _describe(result, tensors, own, place, reached)
    if isinstance(made, str):
        return made
    trace.result = made
    once = list(dict.fromkeys(writes))
    writes.clear()
    if why := _kept_elsewhere(bulk, reached | set(number), once):
        return why
    _compile(home, bulk, trace, results, known)
    return trace


def _chain(ref: Buffer | View, reached: set[int]) -> tuple[Buffer, tuple[Op, ...]]:
    """The buffer, and the view ops from it on; what the views keep is noted as reached."""
    views = []
    while isinstance(ref, View):
        reached.add(id(ref.cached))
        views.append(ref.op)
        ref = ref.parent
    return ref, tuple(reversed(views))


def _describe(value: Any, tensors: list[KitTensor], own: dict[int, int],
              place: Callable[[Value], int], reached: set[int]) -> Any:  # fmt: skip
    """The result with `_Made` in place of tensors; or, as a str, why it cannot be made again."""
    if isinstance(value, KitTensor):
        for i, tensor in enumerate(tensors):
            if tensor is value:
                return _Made(argument=i)
        base, views = _chain(value.ref, reached)
        if id(base) in own:
            return _Made(base=own[id(base)], views=views, spec=value.spec)
        if base.value is None:
            return "it returns memory that it has not written"
        reached.add(id(base))
        return _Made(value=place(base.value), base_spec=base.spec, views=views, spec=value.spec)
    if type(value) in (list, tuple, dict):
        items = value.values() if type(value) is dict else value
        parts = [_describe(item, tensors, own, place, reached) for item in items]
        if (why := next((p for p in parts if isinstance(p, str)), None)) is not None:
            return why
        return dict(zip(value, parts, strict=True)) if type(value) is dict else type(value)(parts)
    if type(value) in (int, float, bool, type(None)):
        return value
    return f"it returns a {type(value).__name__}"


def _kept_elsewhere(bulk: Bulk, reached: set[int], writes: list[Buffer]) -> str:
    """Why a repetition would miss something: a tensor that lives on and that we cannot reach."""
    for is_sure in (False, True):
        # three hold what dies now: the list, the loop's variable, the call's argument
        foreign = [b.spec.aval for b in writes if id(b) not in reached and getrefcount(b) > 3]
        if not foreign:
            break
        if is_sure:
            return f"it writes a tensor of {foreign[0]} that is no argument"
        gc.collect()  # a cycle may hold what nobody will use
    writes.clear()  # they hold values
    for is_sure in (False, True):
        kept = [v.slot for v in bulk.values if id(v) not in reached and getrefcount(v) > 3]
        if not kept:
            break
        if is_sure:
            return f"it keeps what it made at {_site_of(bulk, kept[0])} elsewhere"
        gc.collect()
    return ""


def _constants(nodes: list[tuple[Op, tuple[int, ...]]], scalars: list[float]) -> list[Any]:
    """For each slot, what it is made of if that is no tensor and no chance, else None."""
    found: list[Any] = []
    numbers: dict[Any, int] = {}  # equal computations get one number
    at = 0
    for op, refs in nodes:
        given = tuple(scalars[at : at + op.scalars])
        at += op.scalars
        inputs = tuple(found[r] if r >= 0 else None for r in refs)
        if None in inputs or any(isinstance(x, Draw) for x in given):
            found += [None] * len(op.outputs)
        else:
            number = numbers.setdefault((op.id, inputs, given), len(numbers))
            found += [(number, k) for k in range(len(op.outputs))]
    return found


def _compile(home: Frontend, bulk: Bulk, trace: _Trace, results: list[Value],
             known: dict[int, int]) -> None:  # fmt: skip
    """Split the results: constants are kept, the rest becomes one op."""
    nodes = list(bulk.nodes())
    constant = _constants(nodes, bulk.scalars)
    constants: dict[Any, int] = {}
    order: list[tuple[str, int]] = []  # of each result: what it is, and which one of those
    wanted: list[int] = []
    for value in results:
        if id(value) in known:
            order.append(("old", known[id(value)]))  # what an argument was before
            trace.copies = True
        elif (key := constant[value.slot]) is None:
            order.append(("made", len(wanted)))
            wanted.append(value.slot)
        else:
            if key not in constants:
                constants[key] = len(trace.shared)
                trace.shared.append(value)
            order.append(("shared", constants[key]))
    shift = len(trace.shared)
    begin = {"shared": 0, "made": shift, "old": shift + len(wanted)}
    position = [begin[what] + k for what, k in order]
    trace.becomes = [position[k] for k in trace.becomes]
    if len(trace.becomes) > 1:
        trace.pick = itemgetter(*trace.becomes)
    elif trace.becomes:
        (only,) = trace.becomes
        trace.pick = lambda values: (values[only],)
    else:
        trace.pick = lambda values: ()
    trace.result = _renumber(trace.result, position)
    if not wanted:
        return
    used = _used(nodes, wanted)
    slots: dict[int, int] = {}
    leaves: dict[int, int] = {}
    kept, scalars = [], []
    slot = count = at = 0
    for i, (op, refs) in enumerate(nodes):
        if i in used:
            inputs = tuple(
                slots[r] if r >= 0 else -1 - leaves.setdefault(-1 - r, len(leaves)) for r in refs
            )
            kept.append((op, inputs))
            scalars += bulk.scalars[at : at + op.scalars]
            slots.update({slot + k: count + k for k in range(len(op.outputs))})
            count += len(op.outputs)
        slot += len(op.outputs)
        at += op.scalars
    avals = tuple(bulk.leaves[k].aval for k in leaves)
    program = Program(kept, avals, len(scalars), tuple(slots[s] for s in wanted))
    trace.leaves = [known[id(bulk.leaves[k])] for k in leaves]
    bases = range(len(trace.becomes)) if trace.changed is None else trace.changed
    pairs = zip(bases, trace.becomes, strict=True)
    by_base = {base: k - shift for base, k in pairs if shift <= k < begin["old"]}
    place_of = {base: k for k, base in enumerate(trace.leaves)}
    writes = _leading_writes(by_base, place_of)
    outputs = tuple(v.aval for v, (what, _) in zip(results, order, strict=True) if what == "made")
    holes = (HOLE,) * len(avals)
    trace.op = home.session.intern(
        "kit.hybrid", (holes, {"program": program}), avals, outputs, len(scalars), writes=writes
    )
    trace.scalars = scalars


def _used(nodes: list[tuple[Op, tuple[int, ...]]], wanted: list[int]) -> set[int]:
    maker: list[int] = []
    for i, (op, _) in enumerate(nodes):
        maker += [i] * len(op.outputs)
    used: set[int] = set()
    todo = [maker[s] for s in wanted]
    while todo:
        i = todo.pop()
        if i not in used:
            used.add(i)
            todo += [maker[r] for r in nodes[i][1] if r >= 0]
    return used


def _leading_writes(by_base: dict[int, int], place_of: dict[int, int]) -> tuple[int, ...]:
    """For the first outputs, as long as each overwrites an input: which one."""
    over = {output: place_of[base] for base, output in by_base.items() if base in place_of}
    writes: list[int] = []
    while len(writes) in over:
        writes.append(over[len(writes)])
    return tuple(writes)


def _renumber(made: Any, position: list[int]) -> Any:
    if isinstance(made, _Made):
        if made.value < 0:
            return made
        return _Made(value=position[made.value], base_spec=made.base_spec, views=made.views,
                     spec=made.spec)  # fmt: skip
    if isinstance(made, list | tuple):
        return type(made)(_renumber(item, position) for item in made)
    if isinstance(made, dict):
        return {name: _renumber(item, position) for name, item in made.items()}
    return made


def _again(home: Frontend, trace: _Trace, tensors: list[KitTensor], bases: list[Buffer]) -> Any:
    """The same effects and results on other tensors: one op, or none."""
    values = trace.shared
    if trace.op is not None:
        session = home.session
        stream = session.stream
        stream.begin(home.places.follow())
        draws = (session.next_random() if isinstance(x, Draw) else x for x in trace.scalars)
        inputs = [bases[i].value or bases[i].read(home) for i in trace.leaves]
        values = values + stream.record(trace.op, inputs, list(draws), home.places.frame())
    if trace.copies:
        values = values + [base.read(home) for base in bases]
    if trace.written is not None:
        written([tensors[i] for i in trace.written])
    else:
        written(tensors)
    changed = bases if trace.changed is None else [bases[i] for i in trace.changed]
    for base, value in zip(changed, trace.pick(values), strict=True):
        base.value = value
        base.version += 1
    return _make(home, trace.result, tensors, bases, values)


def _make(home: Frontend, made: Any, tensors: list[KitTensor], bases: list[Buffer],
          values: list[Value]) -> Any:  # fmt: skip
    if isinstance(made, _Made):
        if made.argument >= 0:
            return tensors[made.argument]
        ref: Buffer | View
        ref = bases[made.base] if made.base >= 0 else Buffer(made.base_spec, values[made.value])
        for op in made.views:
            ref = View(ref, op)
        return KitTensor.wrap(home, ref, made.spec)
    if isinstance(made, list | tuple):
        return type(made)(_make(home, item, tensors, bases, values) for item in made)
    if isinstance(made, dict):
        return {name: _make(home, item, tensors, bases, values) for name, item in made.items()}
    return made


def _first_use(bulk: Bulk, leaf: Value) -> str:
    number = next(i for i, value in enumerate(bulk.leaves) if value is leaf)
    for (_, refs), frame in zip(bulk.nodes(), bulk.frames, strict=True):
        if -1 - number in refs:
            return f", at {format_site(frame[0])}"
    return ""


def _site_of(bulk: Bulk, slot: int) -> str:
    for op, frame in zip(bulk.ops, bulk.frames, strict=True):
        slot -= len(op.outputs)
        if slot < 0:
            return format_site(frame[0]) or "an unknown line"
    return "an unknown line"
