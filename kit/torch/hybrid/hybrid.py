"""`hybridize`: a Python loop over tensors becomes one op, issued once.

The first call with arguments of a kind (geometries, what shares memory, plain values) runs the
function as it is and looks at what it recorded: which op results became the arguments' new values,
or were returned. Later calls of that kind record one op that stands for all of it, and run none of
the function's Python. Results that depend on no tensor are made once and shared: buffers are
immutable, so equal constants can be one buffer.

What cannot be repeated so is found at the first call: a read of numbers, a tensor that is no
argument, something kept or changed elsewhere, random numbers of the host, gradients. Then the
function runs as it is each time, and `Hybrid.reasons` says why.
"""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from kit.errors import SettingsError
from kit.runtime.recording.bulk import Value
from kit.runtime.recording.sites import is_kits, is_users
from kit.runtime.steps.functions import KnownFunction
from kit.runtime.steps.names import codes_in
from kit.runtime.steps.own_state import host_draws
from kit.runtime.steps.recording import Draw
from kit.torch.hybrid.programs import Made, Trace, each_made, learn
from kit.torch.tensors.buffer import Buffer, View
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor

__all__ = ["Hybrid", "hybridize", "written"]

MANY = 64  # kinds of calls that are learnt
_TRIES = 3  # calls to be learnt, of a function that changes what it reaches for
_GRADIENTS = "gradients are recorded; call it in torch.no_grad()"
_TOO_MANY = (
    f"it was called with {MANY} kinds of arguments; pass a number that changes as a 0-d tensor"
)
_CHANGES = f"what it reaches for has changed {MANY} times; pass what changes as a 0-d tensor"

P = ParamSpec("P")
T = TypeVar("T")
_ref, _spec, _needs_grad = attrgetter("ref"), attrgetter("spec"), attrgetter("requires_grad")
_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_TENSORS, _BUFFERS = {KitTensor}, {Buffer}
_FEW = (list, tuple, dict)


class Hybrid(Generic[P, T]):
    """A function whose calls on device "kit" are one op each; elsewhere it is the function.

    Attributes:
        reasons: why calls were run as they are, with how often.
    """

    def __init__(self, function: Callable[P, T]) -> None:
        functools.update_wrapper(self, function)
        self.reasons: dict[str, int] = {}
        self._function = function
        self._code = _code_of(function)
        self._names = _global_names(getattr(self._code, "__code__", None))
        self._changes = 0  # of what it reaches for further away, between two calls

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """Of a method, one for each object, which keeps it: their parts differ."""
        if owner is None or not isinstance(self._function, types.FunctionType):
            return self  # a module and a function of C are not bound either
        own = getattr(owner, "__dict__", None)
        if own is None or isinstance(owner, type):  # has slots, or is below @classmethod
            return types.MethodType(self, owner)
        key = f"hybrid {self._function.__qualname__}"  # A.f and B.f are two
        method = types.MethodType(self._function, owner)
        if key not in own or own[key]._function != method:  # a copy of an object has its dict
            own[key] = Hybrid(method)
        return own[key]

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
        tape = tensors[0].tape
        if tape.is_tracing:  # part of the caller's own program
            return self._function(*args, **kwargs)
        if torch.is_grad_enabled() and any(map(_needs_grad, tensors)):
            return self._as_it_is(args, kwargs, _GRADIENTS)
        with tape.session.lock:
            refs = list(map(_ref, tensors))
            key.append(tuple(map(_spec, tensors)))
            outside = self._outside()
            key.append(torch.is_autocast_enabled("kit") and torch.get_autocast_dtype("kit"))
            key.append((torch.get_default_dtype(), torch.is_grad_enabled()))
            bases = _bases(refs, key)
            traces = tape.programs.setdefault(self, {})
            alike = tuple(key)  # in all but what is outside
            kind = (*alike, tuple(map(_told_apart, outside)))
            trace = traces.get(kind)
            if isinstance(trace, Trace) and trace.has_changed(self._code):
                trace = self._changed(traces, kind)
            if trace is None:
                trace = traces.get(alike, _TOO_MANY if len(traces) >= MANY else None)
            if trace is None or isinstance(trace, int):
                made = self._first(tape, traces, kind, args, kwargs, tensors, bases)
                if isinstance(trace := traces.get(kind), Trace):
                    trace.hold(outside)
                return made
            if not isinstance(trace, str):
                return _again(tape, trace, tensors, bases)  # type: ignore[no-any-return]
        return self._as_it_is(args, kwargs, trace)  # its ops take the lock one by one

    def _changed(self, traces: dict[Any, Any], kind: Any) -> str | None:
        """What it reaches for has changed since it was learnt: it is learnt anew, some times."""
        self._changes += 1
        if self._changes >= MANY:
            traces[kind] = _CHANGES
        else:
            del traces[kind]
        return traces.get(kind)

    def _outside(self) -> list[Any]:
        """Globals, closure and defaults that the function uses; of a method, its object's parts."""
        code = self._code
        known = getattr(code, "__globals__", {})
        outside = [known[name] for name in self._names if name in known]
        for cell in getattr(code, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # not filled yet
                outside.append(cell.cell_contents)
        outside.extend(getattr(code, "__defaults__", None) or ())
        outside.extend((getattr(code, "__kwdefaults__", None) or {}).values())
        outside.extend(getattr(getattr(code, "__self__", None), "__dict__", {}).values())
        return outside

    def _as_it_is(self, args: Any, kwargs: Any, why: str) -> T:
        if why not in self.reasons:
            self._warn(why)
        self.reasons[why] = self.reasons.get(why, 0) + 1
        return self._function(*args, **kwargs)

    def _first(self, tape: Tape, traces: dict[Any, Any], kind: Any, args: Any, kwargs: Any,
               tensors: list[KitTensor], bases: list[Buffer]) -> T:  # fmt: skip
        """Run the function, and learn from what it recorded."""
        session = tape.session
        alike, told = kind[:-1], kind[-1]
        tries = traces.get(alike, 0) + 1
        drawn, known = host_draws(session.frontends), self._known()
        named = KnownFunction(self._code) if known is None and tries == _TRIES else known
        stream = session.stream
        stream.begin(tape.place.follow())
        before = [base.read(tape) for base in bases]
        stream.flush("hybridize")
        for tensor in tensors:
            tensor.ref.forget()  # views are part of the program
        bulk = stream.new_bulk()
        bulk.limit = 1 << 60  # not to be cut in the middle
        try:
            with tape.tracing() as writes:
                result = self._function(*args, **kwargs)
        finally:
            bulk.limit = 0  # the next op looks again
        trace: Trace | str | int
        if stream.bulk is not bulk:
            trace = "it waits for the device, or another thread needs what it makes"
        else:
            trace = learn(tape, bulk, result, tensors, bases, before, writes)
        if isinstance(trace, Trace):
            trace.known = known
            if host_draws(session.frontends) != drawn:
                trace = "it draws random numbers on the host"
            elif (what := named.change(self._code) if named is not None else "") or (
                told != tuple(map(_told_apart, self._outside()))
            ):
                kind, trace = alike, tries
                if named is not None and (tries == _TRIES or named.unseen):
                    trace = _in_words(what, named)
            else:
                traces.pop(alike, None)
        traces[kind] = trace
        if isinstance(trace, str):
            self.reasons.setdefault(trace, 0)
            self._warn(trace)
        return result

    def _warn(self, why: str) -> None:
        name = getattr(self._function, "__qualname__", "a function")
        warnings.warn(f"kit.hybridize: {name} runs as it is, because {why}", stacklevel=4)

    def _known(self) -> KnownFunction | None:
        """What the program's own code reaches for; None if all of it tells calls apart anyway."""
        code = getattr(self._code, "__code__", None)
        if code is None or is_kits(code.co_filename):
            return None
        is_method = isinstance(self._code, types.MethodType)  # of a class, which has more
        if not is_method and not any(map(_leads_on, self._outside())):
            return None
        inner: list[Hybrid[Any, Any]] = [self]
        for one in inner:  # grows: those that it calls, which are no functions of the program's
            inner += [x for x in one._outside() if isinstance(x, Hybrid) and x not in inner]
        return KnownFunction(self._code, hooks=[one._code for one in inner[1:]])


def hybridize(function: Callable[P, T]) -> Hybrid[P, T]:
    """Make a function of tensors one op: `for a in arrays: a[()] = 0` costs what one op costs.

    The function may loop, write in place, make and return tensors. Called again with arguments of
    the same shapes, dtypes and plain values, its Python does not run: what it did is issued again.
    A float argument is part of the kind, as are autocast and the numbers, and short lists and dicts
    of them, among the function's globals, in its closure and, of a method, in its object; pass a
    number that changes at each call as a 0-d tensor. If an object, a module or a function that it
    reaches for has changed, it is learnt anew.

    @kit.hybridize
    def zero_grad(arrays):
        for a in arrays:
            a[()] = 0

    A function that cannot be repeated (it reads a value, keeps or uses tensors that are no
    arguments, draws random numbers on the host, changes what it reaches for, or gradients are
    recorded) runs as it is, with a warning that says why.

    Raises:
        SettingsError: it cannot be called.
    """
    if not callable(function):
        raise SettingsError(f"hybridize takes a function, not {type(function).__name__}")
    return Hybrid(function)


def _code_of(function: Any) -> Any:
    """The function or method in Python that a call runs."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__code__") else function.__call__


def _told_apart(outside: Any) -> Any:
    """What tells an object outside of the function apart: numbers, and few of them, by value."""
    kind = type(outside)
    if kind in _PLAIN:
        return kind, repr(outside)
    if kind in _FEW and len(outside) <= MANY:
        items = outside.values() if kind is dict else outside
        if all(type(x) in _PLAIN for x in items):
            return kind, repr(outside)
    return id(outside)


def _in_words(what: str, known: KnownFunction) -> str:
    if known.unseen:
        return known.unseen.replace("the step names", "it names").replace("each step", "each call")
    name = what.rpartition(": ")[2].removeprefix("global ") or "what it reaches for"
    return f"it changes {name} itself, and a repetition would not"


def _leads_on(thing: Any) -> bool:
    """May code of the program's reach for more through it?"""
    if isinstance(thing, types.ModuleType):
        return is_users(getattr(thing, "__file__", None) or "")
    if isinstance(thing, types.FunctionType):
        return is_users(thing.__code__.co_filename)
    if type(thing) in _FEW:
        return not isinstance(_told_apart(thing), tuple)  # else each call compares its numbers
    return type(thing) not in _PLAIN and not isinstance(thing, types.BuiltinFunctionType)


def _global_names(code: Any) -> tuple[str, ...]:
    """Every name that the code may look up in its globals, that of functions inside it included."""
    codes = () if code is None else codes_in(code)
    return tuple(dict.fromkeys(name for one in codes for name in one.co_names))


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


def _again(tape: Tape, trace: Trace, tensors: list[KitTensor], bases: list[Buffer]) -> Any:
    """The same effects and results on other tensors: one op, or none."""
    values = trace.shared
    if trace.op is not None:
        session = tape.session
        stream = session.stream
        stream.begin(tape.place.follow())
        draws = (session.draws.next() if isinstance(x, Draw) else x for x in trace.scalars)
        inputs = [bases[i].value or bases[i].read(tape) for i in trace.leaves]
        values = values + stream.record(trace.op, inputs, list(draws), tape.place.frame())
    if trace.copies:
        before = [base.read(tape) for base in bases]
        for value in before:
            value.is_shared = True
        values = values + before
    if trace.written is not None:
        written([tensors[i] for i in trace.written])
    else:
        written(tensors)
    changed = bases if trace.changed is None else [bases[i] for i in trace.changed]
    for base, value in zip(changed, trace.pick(values), strict=True):
        base.write(tape, value)
    return each_made(trace.result, _Results(tape, tensors, bases, values).make)


class _Results:
    """What one call returns: each memory and each tensor is made once, however often it comes."""

    def __init__(
        self, tape: Tape, tensors: list[KitTensor], bases: list[Buffer], values: list[Value]
    ) -> None:
        self._tape, self._tensors, self._bases, self._values = tape, tensors, bases, values
        self._buffers: dict[int, Buffer] = {}
        self._made: dict[int, KitTensor] = {}

    def make(self, made: Made) -> KitTensor:
        if made.argument >= 0:
            return self._tensors[made.argument]
        if made.number not in self._made:
            self._made[made.number] = self._tensor(made)
        return self._made[made.number]

    def _tensor(self, made: Made) -> KitTensor:
        ref: Buffer | View
        if made.base >= 0:
            ref = self._bases[made.base]
        else:
            if made.memory not in self._buffers:
                self._buffers[made.memory] = Buffer(made.base_spec, self._values[made.value])
            ref = self._buffers[made.memory]
        for op in made.views:
            ref = View(ref, op)
        return KitTensor.over(self._tape, ref, made.spec)
