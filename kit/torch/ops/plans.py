"""What to do for one kind of torch call, decided once: a `Plan` is a closure that records it.

view       a new `View`; recorded only when somebody reads it
compute    one node, fresh buffers
in-place   one node, its results become the next versions of what it writes
special    the few ops that are about memory, the host or random numbers (`SPECIAL`)
decompose  torch's own decomposition into ops that have rules
host       none of these: run by torch on the CPU, counted, a sync point
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kit.errors import UnsupportedOp
from kit.ir import Aval
from kit.runtime.recording.bulk import Op
from kit.runtime.recording.template import HOLE, Scalar
from kit.runtime.rules.table import functional_name
from kit.runtime.session.session import Session
from kit.torch.ops.attention import ATTENTION_SHAPES
from kit.torch.ops.losses import LOSS_SHAPES
from kit.torch.ops.masks import masked_write
from kit.torch.ops.memory import SPECIAL
from kit.torch.ops.out import inplace_by_functional, out_plan
from kit.torch.ops.sequences import CELL_SHAPES
from kit.torch.tensors.tensor import (
    Buffer,
    KitTensor,
    Spec,
    View,
    check_sessions,
    check_writable,
    is_lifted,
)

if TYPE_CHECKING:
    from kit.torch.dispatch import Frontend

__all__ = ["make_plan", "write_slots", "written_tensors"]

Plan = Callable[["Frontend", Any, Any, list[KitTensor], list[float]], Any]

_DROPPED = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}
)
_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def make_plan(home: Frontend, session: Session, func: Any, args: Any, kwargs: Any) -> Plan:
    """The plan for calls of this kind; geometry and static arguments are as in `args`."""
    name = str(func)
    if name in SPECIAL:
        if name != "aten.copy_.default":  # it asks when it knows more
            check_sessions(home, name, (*args, *kwargs.values()))
        special = SPECIAL[name]
        return lambda home, args, kwargs, tensors, numbers: special(home, func, args, kwargs)
    _check_devices(home, name, args, kwargs)
    if name.startswith("aten.index") and _has_mask(args):
        return masked_write(func, args) or _host_plan(func)
    schema = func._schema
    writes = write_slots(func)
    if any(a.is_out for a in schema.arguments):
        return out_plan(func, args, kwargs) or _host_plan(func)
    views = any(a.alias_info and not a.alias_info.is_write for a in schema.arguments)
    if views and session.rules.find(name) is None and func._can_decompose():  # inference mode
        return lambda home, args, kwargs, t, n: func.decompose(*args, **kwargs)
    if views:
        return _view_plan(home, session, func, name, args, kwargs)
    if session.rules.find(name) is None:
        if writes and (plan := inplace_by_functional(func)) is not None:
            return plan
        decomposition = None if writes else home.decompositions.get(func)
        if decomposition is not None:
            return _decomposed(func, decomposition)
        if func._can_decompose():
            return _decomposed(func, func.decompose)
        return _host_plan(func)
    if writes:
        return _inplace_plan(home, session, func, name, args, kwargs)
    return _compute_plan(home, session, func, name, args, kwargs)


def _decomposed(func: Any, decomposition: Callable[..., Any]) -> Plan:
    """Torch's own decomposition; what has no rule in it is reported under the op's own name."""

    def plan(home: Frontend, args: Any, kwargs: Any, tensors: Any, numbers: Any) -> Any:
        outer, home.decomposing = home.decomposing, home.decomposing or func
        try:
            return decomposition(*args, **kwargs)
        finally:
            home.decomposing = outer

    return plan


def _host_plan(func: Any) -> Plan:
    return lambda home, args, kwargs, tensors, numbers: home.run_on_host(func, args, kwargs)


def _has_mask(args: Any) -> bool:
    """Boolean indices make shapes that depend on data, which XLA cannot have."""
    masks = (torch.bool, torch.uint8)
    return any(
        isinstance(x, torch.Tensor) and x.dtype in masks
        for arg in args
        if isinstance(arg, list | tuple)
        for x in arg
    )


def _check_devices(home: Frontend, name: str, args: Any, kwargs: Any) -> None:
    """CPU tensors do not mix with kit's, except numbers (0-d) and indices, as on any device."""
    check_sessions(home, name, (*args, *kwargs.values()))
    for arg in (*args, *kwargs.values()):
        for x in arg if isinstance(arg, list | tuple) else (arg,):
            if (
                isinstance(x, torch.Tensor)
                and not isinstance(x, KitTensor)
                and x.dim() > 0
                and "index" not in name
            ):
                frame = home.places.sync_frame()
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {home.device} and {x.device}! (in {name} at "
                    f"{frame[0][0]}:{frame[0][1]}; "
                    "move the other one with .to('kit'))"
                )


def _template(home: Frontend, value: Any, number_dtype: str, static: bool, found: _Found) -> Any:
    """The static half of an argument; tensors and lifted floats leave holes."""
    kind = value.__class__
    if kind is KitTensor:
        found.avals.append(value.spec.aval)
        return HOLE
    if isinstance(value, torch.Tensor):
        found.avals.append(Aval(tuple(value.shape), str(value.dtype).removeprefix("torch.")))
        found.has_host = True
        return HOLE
    if kind is float and not static and is_lifted(value):
        found.numbers += 1
        return Scalar(number_dtype)
    if kind in (list, tuple, torch.Size):
        return [_template(home, v, number_dtype, static, found) for v in value]
    if kind is torch.dtype:
        return str(value).removeprefix("torch.")
    return value


class _Found:
    def __init__(self) -> None:
        self.avals: list[Aval] = []
        self.numbers = 0
        self.has_host = False


def _make_op(
    home: Frontend,
    session: Session,
    func: Any,
    name: str,
    args: Any,
    kwargs: Any,
    outputs: tuple[Aval, ...],
    *,
    is_view: bool = False,
    written: Sequence[KitTensor] = (),
) -> tuple[Op, _Found]:
    dtypes = [t.dtype for t in _tensors(args) if t.dtype in _FLOATING]
    wide = torch.float64 in dtypes
    exact = wide or name.startswith("aten._fused_")
    number_dtype = "float64" if exact else "float32"
    static = home.is_static(func)
    found = _Found()
    names = [a.name for a in func._schema.arguments]
    template_args = tuple(
        _template(home, a, number_dtype, static, found)
        for n, a in zip(names, args, strict=False)
        if n not in _DROPPED
    )
    template_kwargs = {
        k: _template(home, v, number_dtype, static, found)
        for k, v in kwargs.items()
        if k not in _DROPPED
    }
    op = session.intern(
        functional_name(name),
        (template_args, template_kwargs),
        tuple(found.avals),
        outputs,
        found.numbers,
        is_view=is_view,
        writes=_positions(written, args, kwargs),
    )
    return op, found


def _positions(written: Sequence[KitTensor], args: Any, kwargs: Any) -> tuple[int, ...]:
    """For each written tensor, which of the op's inputs it is."""
    ids = list(map(id, _tensors([*args, *kwargs.values()])))
    return tuple(ids.index(id(tensor)) for tensor in written)


def _tensors(args: Any) -> list[torch.Tensor]:
    flat: list[torch.Tensor] = []
    for a in args:
        if isinstance(a, torch.Tensor):
            flat.append(a)
        elif isinstance(a, list | tuple):
            flat.extend(_tensors(a))
    return flat


def _to_meta(value: Any) -> Any:
    if value.__class__ is KitTensor:
        return value.spec.meta()
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if value.__class__ in (list, tuple):
        return type(value)(_to_meta(v) for v in value)
    return torch.device("meta") if isinstance(value, torch.device) else value


def _linear_backward(x: Any, grad: Any, weight: Any, mask: Any) -> Any:
    shapes = (tuple(x.shape), tuple(weight.shape), tuple(weight.shape[:1]))
    return tuple(
        grad.new_empty(shape) if wanted else None
        for shape, wanted in zip(shapes, mask, strict=True)
    )


# what ops return that have no meta kernel in torch
_META: dict[str, Callable[..., Any]] = {
    "aten.linear_backward.default": _linear_backward,
    **CELL_SHAPES,
    **ATTENTION_SHAPES,
    **LOSS_SHAPES,
}


def _infer(func: Any, args: Any, kwargs: Any) -> Any:
    func = _META.get(str(func), func)
    return func(*[_to_meta(a) for a in args], **{k: _to_meta(v) for k, v in kwargs.items()})


def _inputs(home: Frontend, tensors: list[KitTensor]) -> list[Any]:
    return [tensor.ref.read(home) for tensor in tensors]


def _compute_plan(
    home: Frontend, session: Session, func: Any, name: str, args: Any, kwargs: Any
) -> Plan:
    try:
        meta = _infer(func, args, kwargs)
    except NotImplementedError:
        return _host_plan(func)
    flat = list(meta) if isinstance(meta, list | tuple) else [meta]
    specs: list[Spec | None] = [
        home.spec_of(m) if isinstance(m, torch.Tensor) else None for m in flat
    ]
    outputs = tuple(s.aval for s in specs if s is not None)
    op, found = _make_op(home, session, func, name, args, kwargs, outputs)
    collect = _inputs_with_hosts(args, kwargs) if found.has_host else None
    if not isinstance(meta, list | tuple):
        spec = specs[0]
        assert spec is not None

        def single(
            home: Frontend, args: Any, kwargs: Any, tensors: list[KitTensor], numbers: list[float]
        ) -> Any:
            hosts = None if collect is None else partial(collect, home, args, kwargs)
            value = home.record_one(op, tensors, numbers, hosts)
            return KitTensor.wrap(home, Buffer(spec, value), spec)

        return single
    kind = type(meta) if type(meta) in (list, tuple) else tuple

    def several(
        home: Frontend, args: Any, kwargs: Any, tensors: list[KitTensor], numbers: list[float]
    ) -> Any:
        inputs = _inputs(home, tensors) if collect is None else collect(home, args, kwargs)
        values = iter(home.record(op, inputs, numbers))
        return kind(None if s is None else home.wrap(next(values), s) for s in specs)

    return several


def _inputs_with_hosts(args: Any, kwargs: Any) -> Any:
    """Like `_inputs`, for the rare call that has CPU tensors among its arguments."""

    def collect(home: Frontend, args: Any, kwargs: Any) -> list[Any]:
        values = []
        for tensor in _tensors([*args, *kwargs.values()]):
            if isinstance(tensor, KitTensor):
                values.append(tensor.ref.read(home))
            else:
                values.append(home.from_host(tensor, tensor.dtype))
        return values

    return collect


def _inplace_plan(
    home: Frontend, session: Session, func: Any, name: str, args: Any, kwargs: Any
) -> Plan:
    slots = write_slots(func)
    written = written_tensors(slots, args, kwargs)
    check_writable(name, written)
    if len(written) == 1 and not isinstance(args[0], list):
        _check_result_type(func, args, kwargs, written[0])
    avals = tuple(t.spec.aval for t in written)
    op, found = _make_op(home, session, func, name, args, kwargs, avals, written=written)
    collect = _inputs_with_hosts(args, kwargs) if found.has_host else None
    gives_itself = len(func._schema.returns) == 1

    def several(
        home: Frontend, args: Any, kwargs: Any, tensors: list[KitTensor], numbers: list[float]
    ) -> Any:
        inputs = _inputs(home, tensors) if collect is None else collect(home, args, kwargs)
        values = home.record(op, inputs, numbers)
        for target, value in zip(written_tensors(slots, args, kwargs), values, strict=True):
            target.ref.write(home, value)
        return args[0] if gives_itself else None

    def single(
        home: Frontend, args: Any, kwargs: Any, tensors: list[KitTensor], numbers: list[float]
    ) -> Any:
        hosts = None if collect is None else partial(collect, home, args, kwargs)
        args[0].ref.write(home, home.record_one(op, tensors, numbers, hosts))
        return args[0]

    is_usual = gives_itself and len(written) == 1 and written[0] is args[0]
    return single if is_usual else several


WriteSlots = list[tuple[int, str]]


def write_slots(func: Any) -> WriteSlots:
    """Position and name of the arguments that an op writes. Slow: ask once for each plan."""
    return [
        (i, a.name)
        for i, a in enumerate(func._schema.arguments)
        if a.alias_info and a.alias_info.is_write
    ]


def written_tensors(slots: WriteSlots, args: Any, kwargs: Any) -> list[KitTensor]:
    """The tensors in these arguments, flat, in the order of the op's signature."""
    found: list[Any] = []
    for i, name in slots:
        found.extend(_tensors([args[i] if i < len(args) else kwargs.get(name)]))
    return found


def _check_result_type(func: Any, args: Any, kwargs: Any, target: KitTensor) -> None:
    """Let torch's meta kernel raise its own error for a bad shape or dtype."""
    try:
        _infer(func, args, kwargs)
    except NotImplementedError:
        return


def _view_plan(
    home: Frontend, session: Session, func: Any, name: str, args: Any, kwargs: Any
) -> Plan:
    if name not in session.rules:
        if func._can_decompose():  # `to`, `reshape`, ...: a view or not, as it comes
            return lambda home, args, kwargs, t, n: func.decompose(*args, **kwargs)
        raise UnsupportedOp(name, session.rules, why="it is a view, so a copy would be wrong")
    spec = home.spec_of(_infer(func, args, kwargs))
    op, _ = _make_op(home, session, func, name, args, kwargs, (spec.aval,), is_view=True)

    def plan(
        home: Frontend, args: Any, kwargs: Any, tensors: list[KitTensor], numbers: list[float]
    ) -> Any:
        return KitTensor.wrap(home, View(args[0].ref, op), spec)

    return plan
