"""A closed jaxpr becomes a `Program`: equations in order, ready to be recorded.

Calls are inlined; `scan`, `cond` and `while` stay one equation each. A program belongs to no
session; `Program.bind` interns its ops in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.extend import core

from kit.errors import LoweringError
from kit.ir import Aval
from kit.jax.arguments import host_array
from kit.jax.callbacks import as_traced
from kit.jax.places import frame_of, names_of, phases_of
from kit.jax.text import body_of, context_of, literal, primitive_text, shown
from kit.runtime.recording.bulk import NOWHERE, Frame, Op, Value
from kit.runtime.recording.sites import format_site
from kit.runtime.recording.stream import Stream
from kit.runtime.recording.template import HOLE
from kit.runtime.rules.jax import OneEquation, Static
from kit.runtime.session.session import Session

__all__ = ["Bound", "Equation", "Program", "is_without_numbers"]

_PLACING = ("sharding_constraint", "device_put")  # say where arrays are: here is one device


@dataclass(slots=True)
class Equation:
    """One equation: what to intern, and which places of the environment it reads and fills."""

    name: str
    template: Any
    avals: tuple[Aval, ...]
    outputs: tuple[Aval, ...]
    reads: tuple[int, ...]
    fills: tuple[int, ...]
    frame: Frame
    names: str
    is_needed: bool = False  # kept even if nothing reads its results
    phase: str = "forward"
    frees: tuple[int, ...] = ()  # places that nothing reads after it


@dataclass(eq=False)
class Program:
    """A function's equations for one kind of arguments.

    The environment holds the arguments first, then the constants, then each equation's results.
    Derivatives by integers, which have no numbers, are none of its results.
    """

    arguments: int
    constants: list[Any] = field(default_factory=list)
    equations: list[Equation] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    places: int = 0

    @classmethod
    def of(cls, closed: Any, phase: str | None = None) -> Program:
        """Flatten a closed jaxpr; `phase`: of all of it, if jax's names are not to say it.

        Raises:
            LoweringError: it holds something that is no pure computation on arrays.
        """
        program = _Flattener(closed).program
        phases = phases_of([e.names for e in program.equations])
        for equation, own in zip(program.equations, phases, strict=True):
            equation.phase = phase or own
        return program

    def bind(self, session: Session) -> Bound:
        """Intern the ops in a session, and put the constants on its device."""
        ops = [session.intern(e.name, e.template, e.avals, e.outputs, 0) for e in self.equations]
        constants = [session.inputs.constant(host_array(c), "parameter") for c in self.constants]
        return Bound(self, ops, constants)


@dataclass(eq=False, slots=True)
class Bound:
    """A program whose ops are interned in one session."""

    program: Program
    ops: list[Op]
    constants: list[Value]

    def record(self, session: Session, arguments: list[Value]) -> list[Value]:
        """Append the program to the session's stream; its results are pending values.

        Each equation counts as one call: a bulk may end before any of them.
        """
        program = self.program
        values: list[Value | None] = [None] * program.places
        values[: len(arguments)] = arguments
        values[len(arguments) : len(arguments) + len(self.constants)] = self.constants
        arguments.clear()
        with session.lock:
            stream = session.stream
            for op, equation in zip(self.ops, program.equations, strict=True):
                stream.begin(equation.phase)
                _issue(stream, op, equation, values)
        return [values[place] for place in program.results]  # type: ignore[misc]


def _issue(stream: Stream, op: Op, equation: Equation, values: list[Any]) -> None:
    """Record one equation. A function of its own, so that its locals hold no value afterwards."""
    made = stream.record(op, [values[i] for i in equation.reads], (), equation.frame)
    for place, value in zip(equation.fills, made, strict=True):
        if place >= 0:
            values[place] = value
    for place in equation.frees:
        values[place] = None


class _Flattener:
    """Walks a jaxpr and the calls in it, once."""

    def __init__(self, closed: Any) -> None:
        jaxpr = closed.jaxpr
        self.program = Program(len(jaxpr.invars))
        self.places = len(jaxpr.invars)
        # id of an array -> its number among the constants, and the array, which keeps its id
        self.constants: dict[int, tuple[int, Any]] = {}
        self.equations: list[Equation] = []
        known: dict[Any, Any] = dict(zip(jaxpr.invars, range(self.places), strict=True))
        # constants are numbered from -1 down until it is known how many there are
        known |= {v: self._constant(c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True)}
        self._walk(jaxpr, known, (NOWHERE, "", ""), "")
        told = [v for v in jaxpr.outvars if not is_without_numbers(v.aval)]
        self._finish([self._place(self._atom(v, known)) for v in told])

    def _constant(self, array: Any) -> int:
        constants = self.program.constants
        if id(array) not in self.constants:
            self.constants[id(array)] = len(constants), array
            constants.append(host_array(array))  # as it is now, in each session
        return -1 - self.constants[id(array)][0]

    def _atom(self, v: Any, known: dict[Any, Any]) -> Any:
        """A place, or a literal that is small enough to be a part of the program."""
        if not isinstance(v, core.Literal):
            return known[v]
        is_small = np.ndim(v.val) == 0 and _key_kind(v.aval) is None
        return v if is_small else self._constant(v.val)

    def _place(self, atom: Any) -> int:
        return self._constant(literal(atom)) if isinstance(atom, core.Literal) else atom

    def _walk(self, jaxpr: Any, known: dict[Any, Any], outer: Frame, names: str) -> None:
        for equation in jaxpr.eqns:
            inner = names_of(equation.source_info, names)
            frame = frame_of(equation.source_info, outer, inner)
            atoms = [self._atom(v, known) for v in equation.invars]
            body = body_of(equation)
            if all(is_without_numbers(v.aval) for v in equation.outvars) and equation.outvars:
                made = [None] * len(equation.outvars)
            elif equation.primitive.name in _PLACING:
                made = atoms
            elif body is None:
                _check_placing(equation, equation, frame)
                made = self._append(equation, atoms, frame, inner)
            else:
                called, consts = body
                local = dict(zip(called.invars, atoms, strict=True))
                local |= {
                    v: self._constant(c) for v, c in zip(called.constvars, consts, strict=True)
                }
                self._walk(called, local, frame, inner)
                made = [self._atom(v, local) for v in called.outvars]
            known.update(zip(equation.outvars, made, strict=True))

    def _append(self, equation: Any, atoms: list[Any], frame: Frame, names: str) -> list[Any]:
        equation = as_traced(equation)
        avals = [v.aval for v in equation.invars]
        for aval in [*avals, *(v.aval for v in equation.outvars)]:
            _check(equation, aval, frame)
        keys = tuple(_key_kind(aval) for aval in avals)
        reads = tuple(a for a in atoms if not isinstance(a, core.Literal))
        fills = tuple(range(self.places, self.places + len(equation.outvars)))
        self.places += len(fills)
        self.equations.append(
            Equation(
                f"jax.{equation.primitive.name}",
                _template(equation, atoms, keys),
                tuple(
                    _numbers_aval(v)
                    for v, a in zip(avals, atoms, strict=True)
                    if not isinstance(a, core.Literal)
                ),
                tuple(_numbers_aval(v.aval) for v in equation.outvars),
                reads,
                fills,
                frame,
                names,
                is_needed=bool(equation.effects),
            )
        )
        return list(fills)

    def _finish(self, results: list[int]) -> None:
        """Drop unused equations, number the places, and say where each place is read last."""
        program = self.program
        first = program.arguments
        count = len(program.constants)

        def renumber(place: int) -> int:
            if place < 0:
                return first - 1 - place
            return place if place < first else place + count

        program.places = self.places + count
        program.results = [renumber(p) for p in results]
        needed = set(program.results)
        for equation in reversed(self.equations):
            equation.reads = tuple(map(renumber, equation.reads))
            equation.fills = tuple(map(renumber, equation.fills))
            if not equation.is_needed and needed.isdisjoint(equation.fills):
                continue
            # places that this equation is the last to read, or that no equation reads
            ends = {*equation.reads, *equation.fills} - needed
            equation.frees = tuple(sorted(ends))
            needed.update(equation.reads)
            program.equations.append(equation)
        program.equations.reverse()


def _key_kind(aval: Any) -> str | None:
    """The name of a random key's implementation; None for an array of numbers."""
    if not jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return None
    found: list[str] = []

    def ask(keys: Any) -> Any:
        found.append(str(jax.random.key_impl(keys)))
        return jax.random.key_data(keys)

    jax.eval_shape(ask, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    return found[0]


def _numbers_aval(aval: Any) -> Aval:
    """The type that an array has in the stream: a key is the integers that it is made of."""
    if _key_kind(aval) is None:
        return Aval(tuple(aval.shape), str(aval.dtype))
    data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    return Aval(tuple(data.shape), str(data.dtype))


def is_without_numbers(aval: Any) -> bool:
    """A derivative by integers: it has a shape, and nothing is computed for it."""
    return getattr(aval, "dtype", None) == jax.dtypes.float0


def _check(equation: Any, aval: Any, frame: Frame) -> None:
    if isinstance(aval, jax.core.ShapedArray) and not is_without_numbers(aval):
        return
    raise LoweringError(
        f"kit.jax cannot record {equation.primitive.name!r} at {format_site(frame[0])}: "
        f"it works on {aval}, which is no array of numbers"
    )


def _check_placing(outer: Any, equation: Any, frame: Frame) -> None:
    """What stands within `outer`, such as in the body of a scan, runs as it is."""
    name, params = equation.primitive.name, equation.params
    placed = [params.get("sharding"), params.get("mesh"), *(params.get("devices") or ())]
    if any(_is_spread(x) for x in placed if x is not None):
        inside = "" if equation is outer else f" within {outer.primitive.name!r}"
        where = f" at {format_site(frame[0])}" if frame[0][0] else ""
        raise LoweringError(
            f"kit.jax cannot record {name!r}{inside}{where}: it spreads arrays over several "
            "devices, and a session has one. Give it a mesh of one device"
        )
    for value in params.values():
        for leaf in jax.tree.leaves(value):
            body = getattr(leaf, "jaxpr", leaf)
            for inner in getattr(body, "eqns", ()):
                _check_placing(outer, inner, frame)


def _is_spread(place: Any) -> bool:
    return getattr(place, "num_devices", getattr(place, "size", 1)) > 1


def _template(equation: Any, atoms: Sequence[Any], keys: tuple[str | None, ...]) -> Any:
    """The arguments of the rule: the equation, its operands, and its parameters to be seen."""
    is_known = primitive_text(equation.primitive) == equation.primitive.name
    text = "_" if is_known else primitive_text(equation.primitive)
    text += context_of(equation)
    if any(keys):
        text += f" keys={keys}"
    one = Static(OneEquation(_alone(equation), keys), text)
    operands = [
        Static(literal(a), shown(literal(a))) if isinstance(a, core.Literal) else HOLE
        for a in atoms
    ]
    params = {
        name: Static(value, shown(value))
        for name, value in equation.params.items()
        if value is not None  # most are: an equation has all the parameters of its primitive
    }
    return ((one, *operands), params)


def _alone(equation: Any) -> Any:
    """The equation as a closed jaxpr of its own, every operand an argument."""
    inputs = [core.Var(v.aval) for v in equation.invars]
    outputs = [core.Var(v.aval) for v in equation.outvars]
    only = equation.replace(invars=inputs, outvars=outputs)
    info = core.DebugInfo("jit", equation.primitive.name, None, None)
    jaxpr = core.Jaxpr((), inputs, outputs, [only], equation.effects, info)
    return core.ClosedJaxpr(jaxpr, ())
