"""What to do for one kind of torch call, decided once: a `Recipe` is a closure that records it.

view       a new `View`; recorded only when it is read
compute    one node, fresh buffers
in-place   one node, its results become the next versions of what it writes
special    the few ops that are about memory, the host or random numbers (`SPECIAL`)
decompose  torch's own decomposition into ops that have rules
host       none of these: run by torch on the CPU, counted, a sync point
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from kit.errors import UnsupportedOp
from kit.ir import Aval
from kit.runtime.recording.bulk import Op, Value
from kit.runtime.recording.template import HOLE, Scalar
from kit.runtime.rules.table import functional_name
from kit.torch.ops.collectives import collective_recipe
from kit.torch.ops.fitting import check_fit, check_whole, infer
from kit.torch.ops.host import run_on_host
from kit.torch.ops.masks import masked_write
from kit.torch.ops.memory import SPECIAL
from kit.torch.ops.out import inplace_by_functional, out_recipe
from kit.torch.ops.refused import REFUSED
from kit.torch.ops.schema import (
    DROPPED,
    Recipe,
    decomposed,
    decomposition_of,
    flat_tensors,
    has_static_floats,
    with_tensors,
    write_slots,
    written_tensors,
)
from kit.torch.ops.strict import check_numbers, check_types, with_fitting_numbers
from kit.torch.tensors.buffer import Buffer, View
from kit.torch.tensors.checks import check_devices, check_sessions, check_writable
from kit.torch.tensors.inference import is_inference_mode, of_its_kind
from kit.torch.tensors.spec import Spec, dtype_name, is_lifted
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor, wrap

__all__ = ["make_recipe"]

Collect = Callable[[], list[Value]]
_EXACT = (torch.float64, torch.complex128)
_FUSED = "aten::_fused_"  # the step of a whole optimizer
_LISTS = ("aten::_foreach_", _FUSED)


@dataclass(frozen=True)
class _Call:
    """The first call of a kind. A recipe must not hold it: it holds tensors."""

    tape: Tape
    func: Any
    name: str  # of the op
    args: Any
    kwargs: Any


def make_recipe(tape: Tape, func: Any, args: Any, kwargs: Any) -> Recipe:
    """The recipe for calls of this kind; geometry and static arguments are as in `args`."""
    recipe = with_fitting_numbers(_uncounted(tape, func, args, kwargs), func, args, kwargs)
    is_of_lists = func._schema.name.startswith(_LISTS) and not isinstance(args[0], torch.Tensor)
    if not (is_of_lists and write_slots(func)):
        return recipe
    counted = _counted(recipe)
    return counted if func._schema.name.startswith(_FUSED) else _in_order(counted, func)


def _in_order(recipe: Recipe, func: Any) -> Recipe:
    """Torch goes through the lists tensor by tensor: a later one sees what was written before."""

    def ordered(tape: Tape, args: Any, kwargs: Any, *rest: Any) -> Any:
        if not _reads_what_it_wrote(args):
            return recipe(tape, args, kwargs, *rest)
        for i in range(len(args[0])):
            one = [x[i : i + 1] if isinstance(x, list | tuple) else x for x in args]
            tape.dispatch(func, one, kwargs)
        return None

    return ordered


def _reads_what_it_wrote(args: Any) -> bool:
    """Is memory of a tensor of the first list in a list again, further on?"""
    lists = [x for x in args if isinstance(x, list | tuple)]
    read = [(i, x) for one in lists[1:] for i, x in enumerate(one) if isinstance(x, KitTensor)]
    places = {tensor.ref.base: i for i, tensor in enumerate(args[0])}
    if len(places) == len(args[0]) and all(places.get(x.ref.base, i) >= i for i, x in read):
        return False
    parts = {_memory(tensor): i for i, tensor in enumerate(args[0])}
    if len(parts) < len(args[0]) or any(parts.get(_memory(x), i) < i for i, x in read):
        return True
    ordered = sorted({*parts, *(_memory(x) for _, x in read)})  # as of slices of one flat tensor
    return any(a[0] == b[0] and b[1] < a[2] for a, b in pairwise(ordered))


def _memory(tensor: KitTensor) -> tuple[int, int, int]:
    """Which memory a tensor shows, and from which byte to which."""
    spec = tensor.spec
    start = spec.offset * spec.dtype.itemsize
    return id(tensor.ref.base), start, start + spec.reach * spec.dtype.itemsize


def _counted(recipe: Recipe) -> Recipe:
    """Torch counts the writes of an op, but leaves those of a list of tensors to its kernels."""

    def counted(tape: Tape, args: Any, *rest: Any) -> Any:
        result = recipe(tape, args, *rest)
        torch.autograd.graph.increment_version(args[0])
        return result

    return counted


def _uncounted(tape: Tape, func: Any, args: Any, kwargs: Any) -> Recipe:
    name = str(func)
    call = _Call(tape, func, name, args, kwargs)
    if (refuse := REFUSED.get(name)) is not None:
        return lambda tape, args, kwargs, tensors, numbers: refuse(tape, func, args, kwargs)
    has_rule = tape.session.rules.find(name) is not None
    if name in SPECIAL:
        if name != "aten.copy_.default":  # it asks when it knows more
            check_sessions(tape, name, (*args, *kwargs.values()))
        if "batch_norm" in name:  # others ask elsewhere, or take tensors of the host
            check_devices(tape, name, args, kwargs)
        check_types(func, args, kwargs)
        check_numbers(func, args, kwargs)
        check_fit(name, args)
        special = SPECIAL[name]
        return lambda tape, args, kwargs, tensors, numbers: special(tape, func, args, kwargs)
    if func.namespace == "c10d":
        return collective_recipe(func)
    schema = func._schema
    writes = write_slots(func)
    if has_rule or writes or not func._can_decompose():  # else, in inference mode, its parts do
        check_devices(tape, name, args, kwargs)
    if name.startswith("aten.index") and _has_mask(args):  # what it shows, no shape says
        return masked_write(func, args) or _host_recipe(func)
    check_types(func, args, kwargs)
    check_numbers(func, args, kwargs)
    check_fit(name, args)
    if any(a.is_out for a in schema.arguments):
        return out_recipe(func, args, kwargs) or _host_recipe(func)
    if any(a.alias_info and not a.alias_info.is_write for a in schema.arguments):
        return _view_recipe(call)
    if has_rule:
        return _inplace_recipe(call) if writes else _compute_recipe(call)
    if writes and (recipe := inplace_by_functional(func)) is not None:
        return recipe
    return _host_recipe(func) if decomposition_of(func) is None else _decomposed(func)


def _decomposed(func: Any) -> Recipe:
    keeps_type = func in _KEEPING

    def recipe(tape: Tape, args: Any, kwargs: Any, tensors: Any, numbers: Any) -> Any:
        result = decomposed(tape, func, *args, **kwargs)
        return result.to(args[0].dtype) if keeps_type else result

    return recipe


# Their result is of their first tensor's type; torch's decompositions promote it.
_KEEPING = (torch.ops.aten.slice_scatter.default, torch.ops.aten.huber_loss.default)


def _host_recipe(func: Any) -> Recipe:
    return lambda tape, args, kwargs, tensors, numbers: run_on_host(tape, func, args, kwargs)


def _has_mask(args: Any) -> bool:
    """Boolean indices make shapes that depend on data, which XLA cannot have."""
    masks = (torch.bool, torch.uint8)
    return any(
        isinstance(x, torch.Tensor) and x.dtype in masks
        for arg in args
        if isinstance(arg, list | tuple)
        for x in arg
    )


class _Template:
    """Builds an op's template from a call's arguments: tensors and lifted floats leave holes."""

    def __init__(self, number_dtype: str, *, static: bool) -> None:
        self.avals: list[Aval] = []  # of the tensors
        self.numbers = 0  # lifted floats
        self.has_host = False  # a CPU tensor is among the arguments
        self._number_dtype, self._static = number_dtype, static

    def of(self, value: Any) -> Any:
        """The static half of an argument."""
        kind = value.__class__
        if kind is KitTensor:
            self.avals.append(value.spec.aval)
            return HOLE
        if isinstance(value, torch.Tensor):
            self.avals.append(Aval(tuple(value.shape), dtype_name(value.dtype)))
            self.has_host = True
            return HOLE
        if kind is float and not self._static and is_lifted(value):
            self.numbers += 1
            return Scalar(self._number_dtype)
        if kind in (list, tuple, torch.Size):
            return [self.of(v) for v in value]
        return dtype_name(value) if kind is torch.dtype else value


def _make_op(
    call: _Call,
    outputs: tuple[Aval, ...],
    *,
    is_view: bool = False,
    written: Sequence[KitTensor] = (),
) -> tuple[Op, bool]:
    """The op that calls of this kind record; and whether CPU tensors are among its inputs."""
    func, args, kwargs = call.func, call.args, call.kwargs
    made_exact = any(aval.dtype in ("float64", "complex128") for aval in outputs)
    wide = made_exact or any(t.dtype in _EXACT for t in flat_tensors(args))
    exact = wide or call.name.startswith("aten._fused_")
    template = _Template("float64" if exact else "float32", static=has_static_floats(func))
    names = [a.name for a in func._schema.arguments]
    positional = tuple(
        template.of(a) for n, a in zip(names, args, strict=False) if n not in DROPPED
    )
    named = {k: template.of(v) for k, v in kwargs.items() if k not in DROPPED}
    op = call.tape.session.intern(
        functional_name(call.name),
        (positional, named),
        tuple(template.avals),
        outputs,
        template.numbers,
        is_view=is_view,
        writes=_positions(written, args, kwargs),
    )
    return op, template.has_host


def _positions(written: Sequence[KitTensor], args: Any, kwargs: Any) -> tuple[int, ...]:
    """For each written tensor, which of the op's inputs it is."""
    ids = list(map(id, flat_tensors([*args, *kwargs.values()])))
    return tuple(ids.index(id(tensor)) for tensor in written)


def _inputs(tape: Tape, tensors: list[KitTensor]) -> list[Value]:
    return [tensor.ref.read(tape) for tensor in tensors]


def _collect_with_hosts(tape: Tape, args: Any, kwargs: Any) -> list[Value]:
    """Like `_inputs`, for the rare call that has CPU tensors among its arguments."""
    return [
        tensor.ref.read(tape)
        if isinstance(tensor, KitTensor)
        else tape.from_host(tensor, tensor.dtype)
        for tensor in flat_tensors([*args, *kwargs.values()])
    ]


def _record_one(
    tape: Tape,
    op: Op,
    tensors: list[KitTensor],
    numbers: Sequence[float],
    collect: Collect | None,
) -> Value:
    """`Tape.record` for most ops: one output, not a view; `collect` gives other inputs."""
    session = tape.opened or tape.session
    stream = session.here.stream or session.streams.join()
    frame = (stream.place or tape.follow(stream)).frame()
    if collect is None:
        inputs = []
        for tensor in tensors:
            ref = tensor.ref
            value = ref.value if ref.__class__ is Buffer else None
            inputs.append(ref.read(tape, frame) if value is None else value)
    else:
        inputs = collect()
    bulk = stream.bulk
    if bulk is None:
        bulk = stream.new_bulk()
    if numbers:
        bulk.scalars.extend(numbers)
    return bulk.add_one(op, inputs, frame)


def _compute_recipe(call: _Call) -> Recipe:
    try:
        meta = infer(call.func, call.args, call.kwargs)
    except NotImplementedError:
        return _host_recipe(call.func)
    flat = list(meta) if isinstance(meta, list | tuple) else [meta]
    specs: list[Spec | None] = [
        call.tape.spec_of(m) if isinstance(m, torch.Tensor) else None for m in flat
    ]
    if call.func.namespace == "aten" and any(s and s.dtype in _EXACT for s in specs):
        given = flat_tensors([*call.args, *call.kwargs.values()])
        if not any(t.is_floating_point() or t.is_complex() for t in given):
            return _in_float64(call.func)
    outputs = tuple(s.aval for s in specs if s is not None)
    op, has_host = _make_op(call, outputs)
    if not isinstance(meta, list | tuple):
        assert specs[0] is not None
        return _single_result(op, specs[0], has_host=has_host)
    kind = type(meta) if type(meta) in (list, tuple) else tuple

    def several(
        tape: Tape, args: Any, kwargs: Any, tensors: list[KitTensor], numbers: list[float]
    ) -> Any:
        inputs = _collect_with_hosts(tape, args, kwargs) if has_host else _inputs(tape, tensors)
        values = iter(tape.record(op, inputs, numbers))
        return kind(None if s is None else wrap(tape, next(values), s) for s in specs)

    return several


def _in_float64(func: Any) -> Recipe:
    """Of integers where torch's default dtype is float64: cast first, as rules take float32."""

    def recipe(tape: Tape, args: Any, kwargs: Any, tensors: Any, numbers: Any) -> Any:
        return func(*with_tensors(args, torch.Tensor.double, "kit"), **kwargs)

    return recipe


def _single_result(op: Op, spec: Spec, *, has_host: bool) -> Recipe:
    def single(
        tape: Tape, args: Any, kwargs: Any, tensors: list[KitTensor], numbers: list[float]
    ) -> Any:
        hosts = partial(_collect_with_hosts, tape, args, kwargs) if has_host else None
        value = _record_one(tape, op, tensors, numbers, hosts)
        return KitTensor.over(tape, Buffer(spec, value), spec)

    return single


def _inplace_recipe(call: _Call) -> Recipe:
    func = call.func
    slots = write_slots(func)
    written = written_tensors(slots, call.args, call.kwargs)
    if any(isinstance(t, KitTensor) and t.spec.repeats for t in written):
        return _host_recipe(func)
    check_writable(call.name, written)
    if len(written) == 1 and not isinstance(call.args[0], list):
        _check_result_type(call)
    avals = tuple(t.spec.aval for t in written)
    op, has_host = _make_op(call, avals, written=written)
    gives_itself = len(func._schema.returns) == 1

    def several(
        tape: Tape, args: Any, kwargs: Any, tensors: list[KitTensor], numbers: list[float]
    ) -> Any:
        inputs = _collect_with_hosts(tape, args, kwargs) if has_host else _inputs(tape, tensors)
        values = tape.record(op, inputs, numbers)
        for target, value in zip(written_tensors(slots, args, kwargs), values, strict=True):
            target.ref.write(tape, value)
        return args[0] if gives_itself else None

    def single(
        tape: Tape, args: Any, kwargs: Any, tensors: list[KitTensor], numbers: list[float]
    ) -> Any:
        hosts = partial(_collect_with_hosts, tape, args, kwargs) if has_host else None
        args[0].ref.write(tape, _record_one(tape, op, tensors, numbers, hosts))
        return args[0]

    is_usual = gives_itself and len(written) == 1 and written[0] is call.args[0]
    return single if is_usual else several


def _check_result_type(call: _Call) -> None:
    """Let torch's meta kernel raise its own error for a bad shape or dtype.

    Some meta kernels do not see that a result is larger than the tensor that it is written into;
    those of their functional twins say how large it is.
    """
    try:
        infer(call.func, call.args, call.kwargs)
        if len({t.shape for t in flat_tensors(call.args)}) > 1:
            packet, _, overload = functional_name(call.name).removeprefix("aten.").partition(".")
            twin = getattr(getattr(torch.ops.aten, packet, None), overload, None)
            result = None if twin is None else infer(twin, call.args, call.kwargs)
            if isinstance(result, torch.Tensor):
                check_whole(call.args[0].shape, result.shape)
    except NotImplementedError:
        return


def _view_recipe(call: _Call) -> Recipe:
    func, rules = call.func, call.tape.session.rules
    if call.name not in rules:
        if func._can_decompose():  # `to`, `reshape`, ... in inference mode: a view or not
            return lambda tape, args, kwargs, t, n: func.decompose(*args, **kwargs)
        raise UnsupportedOp(call.name, rules, why="it is a view, so a copy would be wrong")
    spec = call.tape.spec_of(infer(func, call.args, call.kwargs))
    op, _ = _make_op(call, (spec.aval,), is_view=True)

    def recipe(
        tape: Tape, args: Any, kwargs: Any, tensors: list[KitTensor], numbers: list[float]
    ) -> Any:
        if is_inference_mode() or args[0].is_inference():
            shown = partial(KitTensor.over, tape, View(args[0].ref, op), spec)
            return of_its_kind(args[0], shown)
        return KitTensor.over(tape, View(args[0].ref, op), spec)

    return recipe
