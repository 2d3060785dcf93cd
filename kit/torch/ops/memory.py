"""Ops that are about memory, the host, or random numbers: each handled by a few lines here."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from kit.runtime.recording.bulk import Value, twin
from kit.runtime.recording.sites import format_site, here
from kit.runtime.recording.template import HOLE, Scalar
from kit.torch.ops.attention import ATTENTION
from kit.torch.ops.host import made_elsewhere, run_on_host
from kit.torch.ops.linalg import LINALG
from kit.torch.ops.losses import LOSSES
from kit.torch.ops.out import resize, resized, write_out
from kit.torch.ops.random import RANDOM
from kit.torch.ops.recurrent import RECURRENT_LAYERS
from kit.torch.ops.schema import Special, decomposed, recorded
from kit.torch.ops.sequences import SEQUENCES
from kit.torch.tensors.buffer import Buffer, View, part_of, shows_memory
from kit.torch.tensors.checks import check_sessions, check_writable
from kit.torch.tensors.inference import is_inference_mode, of_its_kind
from kit.torch.tensors.spec import Spec
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor, strided, to_host, unwritten, wrap

__all__ = ["SPECIAL"]


def _same_memory(tape: Tape, func: Any, args: Any, kwargs: Any) -> KitTensor:
    tensor = args[0]
    if is_inference_mode() or tensor.is_inference():
        return of_its_kind(tensor, partial(KitTensor.over, tape, tensor.ref, tensor.spec))
    return KitTensor.over(tape, tensor.ref, tensor.spec)


def _item(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    return to_host(args[0], cause="item").item()


def _clone(tape: Tape, func: Any, args: Any, kwargs: Any) -> KitTensor:
    """Arrays are immutable, so a clone of a whole buffer shares its value until one is written."""
    source = args[0]
    layout = kwargs.get("memory_format") or torch.preserve_format
    spec = tape.cached_spec(
        ("clone", source.spec.kind, layout),
        lambda: torch.clone(source.spec.meta(), memory_format=layout),
    )
    return wrap(tape, _apart(tape, source.kit_value()), spec)


def _apart(tape: Tape, value: Value) -> Value:
    """The value for a second holder.

    Where steps are replayed, each holder has one of its own: a replayed step gives what the first
    one holds a new array, and only a value that is gone tells that its tensor was written since.
    In a step, a copy is an op: the next step makes it anew. So it is while what was written may be
    taken back: then each segment that has read it is issued again.
    """
    stepper, redo = tape.session.stepper, tape.session.redo
    if stepper.mode != "replay":
        value.is_shared = True
        return value
    may_share = stepper.is_between and not (redo.is_on or tape.is_tracing)
    cell = value.cell if may_share else None
    second = tape.copy(value) if cell is None else twin(value, cell)
    if hasattr(value, "number"):
        second.number = value.number
    return second


def _copy(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    target, source = args[0], args[1]
    if not isinstance(target, KitTensor):
        target.copy_(to_host(source, cause="copy to host"))
        return target
    if isinstance(source, KitTensor) and target.shows_what(source):
        return target
    check_writable("aten.copy_", [target])
    if (number := _number_of(source, target)) is not None:  # `x[:] = 0` makes a tensor of the 0
        target.ref.write(tape, tape.full(target.spec, number))
        return target
    check_sessions(tape, "aten.copy_", (source,))
    if target.spec.repeats:  # which of several numbers a place keeps, torch knows
        return run_on_host(tape, func, args, kwargs)
    if not isinstance(source, KitTensor):
        value = tape.from_host(source.expand(target.shape), target.dtype)
    elif source.spec.aval == target.spec.aval:
        value = _apart(tape, source.kit_value())
    else:
        value = _cast(tape, source, target.spec)
    target.ref.write(tape, value)
    return target


def _number_of(source: Any, target: KitTensor) -> Any:
    """The number that every element of the source is, if we made it from one and it fits."""
    if not isinstance(source, KitTensor) or source.dtype is not target.dtype:
        return None
    tape, base = target.tape, source.ref.base
    value = base.value
    if base.spec.dtype is not source.dtype or not shows_memory(source.ref):
        return None  # a view that shows it as another number
    if tape.is_tracing and (value is None or value.bulk is not tape.session.stream.bulk):
        return None  # a hybridized function's argument: another number the next time
    if tape.session.stepper.is_given(value):
        return None
    return getattr(value, "number", None)


def _cast(tape: Tape, source: KitTensor, spec: Spec) -> Any:
    like = (HOLE, HOLE) if source.spec.shape != spec.shape else (HOLE,)
    name = "aten.copy.default" if len(like) == 2 else "aten._to_copy.default"
    value = source.ref.read(tape)
    inputs = [tape.full(spec, 0), value] if len(like) == 2 else [value]
    op = tape.session.intern(name, (like, {}), tuple(v.aval for v in inputs), (spec.aval,), 0)
    return tape.record(op, inputs, [])[0]


def _to_copy(tape: Tape, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    source = args[0]
    dtype = kwargs.get("dtype") or source.dtype
    device = kwargs.get("device")
    layout = kwargs.get("memory_format") or torch.preserve_format
    if device is not None and torch.device(device).type != "kit":
        host = to_host(source, cause="copy to host")
        if layout is not torch.preserve_format or not source.is_contiguous():
            geometry = torch.empty_like(source.spec.meta(), memory_format=layout)
            laid_out = torch.empty_strided(host.shape, geometry.stride(), dtype=host.dtype)
            host = laid_out.copy_(host)
        return host.to(device=device, dtype=dtype)
    spec = tape.spec_like(source.spec, dtype, layout)
    if dtype is source.dtype:
        return wrap(tape, _apart(tape, source.kit_value()), spec)
    return wrap(tape, _cast(tape, source, spec), spec)


def _contiguous(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """The tensor's own memory, or a copy: by the schema it would be a view in either case."""
    layout = kwargs.get("memory_format", torch.contiguous_format)
    if args[0].is_contiguous(memory_format=layout):
        return _same_memory(tape, func, args[:1], {})
    return _clone(tape, torch.ops.aten.clone.default, args[:1], {"memory_format": layout})


def _fill(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    target, number = args[0], args[1] if len(args) > 1 else 0
    if not isinstance(target, KitTensor):
        return target.fill_(args[1].item())  # as torch reads a number of another device
    if isinstance(number, KitTensor):
        target.ref.write(tape, _cast(tape, number, target.spec))
        return target
    if isinstance(number, torch.Tensor):  # cast like an element, where a number would be refused
        number = number.to(target.dtype).item()
    target.ref.write(tape, tape.full(target.spec, number))
    return target


def _like(number: int | None) -> Special:
    def special(tape: Tape, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        if (made := made_elsewhere(func, args, kwargs)) is not None:
            return made
        kwargs = {**kwargs, "device": torch.device("meta")}
        meta = func(args[0].spec.meta(), *args[1:], **kwargs)
        spec = tape.spec_of(meta)
        if "empty" in str(func):
            return unwritten(tape, spec)
        value = args[-1] if number is None else number
        return wrap(tape, tape.full(spec, value), spec)

    return special


def _split(tape: Tape, func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    tensor, sizes = args[0], args[1]
    dim = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % tensor.dim()
    length = tensor.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, length - i) for i in range(0, length, sizes)] if sizes else []
        sizes = sizes or [0]  # torch gives one empty part of an empty tensor
    elif sum(sizes) != length:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {length} "
            f"(input tensor's size at dimension {dim}), but got {list(sizes)}"
        )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    aten = torch.ops.aten.slice.Tensor
    return [
        tape.dispatch(aten, (tensor, dim, a, a + n), {}) for a, n in zip(starts, sizes, strict=True)
    ]


def _view_copy(tape: Tape, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """Torch's own decomposition takes the view, which there need not be."""
    return args[0].reshape(args[1]).clone()  # type: ignore[no-any-return]


def _unbind(tape: Tape, func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    tensor = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    aten = torch.ops.aten.select.int
    return [tape.dispatch(aten, (tensor, dim, i), {}) for i in range(tensor.shape[dim])]


def _as_strided(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    return of_its_kind(args[0], partial(_strided_view, tape, args, kwargs))


def _strided_view(tape: Tape, args: Any, kwargs: Any) -> Any:
    """Strides count in the memory of the whole buffer, whatever view it is called on."""
    tensor, size, stride = args[0], args[1], args[2]
    given = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    offset = tensor.spec.offset if given is None else given
    spec = tape.spec(tuple(size), tuple(stride), offset, tensor.dtype)
    base = tensor.ref.base
    if tensor.dtype is base.spec.dtype:
        shown = strided(tape, base, spec)
    else:
        flat = tape.spec((base.spec.reach,), (1,), 0, base.spec.dtype)
        memory = _recast(tape, strided(tape, base, flat), tensor.dtype)
        spec.check_inside(memory.spec)
        shown = KitTensor.over(tape, View(memory.ref, tape.strided(memory.spec, spec)), spec)
    return shown if shows_memory(tensor.ref) else _as_seen(tensor.ref, shown)


def _as_seen(ref: Any, shown: torch.Tensor) -> torch.Tensor:
    """Conjugated or negated, as the views on the way to `ref` do it."""
    while isinstance(ref, View):
        if ref.op.name == "aten._conj.default":
            if not shown.is_complex():
                raise RuntimeError(
                    "device kit has no as_strided of parts of conjugated numbers: take .clone() of "
                    "them first"
                )
            shown = torch.conj(shown)
        elif ref.op.name == "aten._neg_view.default":
            shown = torch._neg_view(shown)
        ref = ref.parent
    return shown


def _recast(tape: Tape, tensor: KitTensor, dtype: torch.dtype) -> KitTensor:
    """The same bytes as numbers of another type."""
    seen = tensor.spec
    spec = tape.cached_spec(
        ("view", seen.kind, seen.offset, dtype),
        lambda: torch.ops.aten.view.dtype(seen.meta(), dtype),
    )
    template: Any = ((HOLE, spec.aval.dtype), {})
    op = tape.session.intern(
        "aten.view.dtype", template, (tensor.spec.aval,), (spec.aval,), 0, is_view=True
    )
    return KitTensor.over(tape, View(tensor.ref, op), spec)


def _view_dtype(tape: Tape, func: Any, args: Any, kwargs: Any) -> KitTensor:
    tensor, dtype = args[0], args[1]
    if dtype is not tensor.dtype and not shows_memory(tensor.ref):
        raise RuntimeError(
            "torch.Tensor.view is not supported for conjugate view tensors when converting to a "
            "different dtype."
        )
    whole = [d for d in (dtype, tensor.dtype) if not d.is_floating_point and not d.is_complex]
    if whole and (dtype.is_complex or tensor.is_complex()):
        raise RuntimeError(
            f"device kit cannot show {tensor.dtype} as {dtype}: XLA would make zeros of the "
            "smallest numbers on the way. Go through torch.view_as_real and a float type"
        )
    return _recast(tape, tensor, dtype)


def _as_strided_scatter(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """A copy of the whole memory, with `source` written where the strides say."""
    tensor, source, *where = args
    base = tensor.ref.base
    whole: Any = KitTensor.over(tape, base, base.spec)
    twin = KitTensor.over(tape, part_of(whole.clone().ref, tensor.ref), tensor.spec)
    torch.as_strided(twin, *where, **kwargs).copy_(source)
    return twin


def _turn(tape: Tape, func: Any, args: Any, kwargs: Any) -> KitTensor:
    """`x.transpose_(0, 1)`: the same memory, from now on seen another way."""
    tensor, name = args[0], func._schema.name.removeprefix("aten::")
    fresh = None
    if name == "as_strided_" and isinstance(tensor.ref, Buffer) and not tensor.ref.version:
        fresh = tensor.ref.value  # torch's own pooling does so with what it has made
    tape.session.stepper.note_obstacle(
        f"the step turns a tensor in place, by {name} at {format_site(here()) or 'unknown'}; give "
        "it a new name",
        unless_made=fresh,
    )
    tensor.data = getattr(torch.ops.aten, name[:-1])(*args, **kwargs)
    return tensor  # type: ignore[no-any-return]


def _set(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """`x.set_(y)`: x shows the memory of y; `register_parametrization` sets a tensor to itself."""
    tensor, source = args
    if source.ref is not tensor.ref or source.spec is not tensor.spec:
        tape.session.stepper.note_obstacle("the step sets a tensor to other memory; use copy_")
        tensor.data = source
    return tensor


def _same_numel(tape: Tape, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether two memories hold as many numbers: `torch.func.jvp` asks, of shapes alone."""
    one, other = (t.ref.base.spec.reach for t in args)
    return bool(one == other)


def _tangent(tape: Tape, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """Zeros in the geometry of the second tensor, over as much memory: a tangent of a view."""
    tensor, other = args[0], args[1]
    batch = tensor.shape[: kwargs.get("self_num_batch_dims", 0)]
    memory = tensor.new_zeros((*batch, other.ref.base.spec.reach))
    strides = (*memory.stride()[: len(batch)], *other.stride())
    return memory.as_strided((*batch, *other.shape), strides, other.storage_offset())  # type: ignore[no-any-return]


def _arange(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    out: KitTensor = kwargs["out"]
    start, end = args[0], args[1]
    step = args[2] if len(args) > 2 else kwargs.get("step", 1)
    meta = torch.arange(start, end, step, dtype=out.dtype, device="meta")
    if not (out.is_floating_point() or out.is_complex()):
        start, step = int(start), int(step)
    spec = tape.spec_of(meta)
    given = (start, meta.numel(), step), {"dtype": spec.aval.dtype}
    (fresh,) = recorded(tape, "kit.arange", given, [], [], [spec])
    if out.spec is spec:
        out.ref.write(tape, fresh.ref.read(tape))
    elif out.numel() == fresh.numel():
        out.copy_(fresh.reshape(out.shape))
    elif resized(out, spec.shape) is None:  # `torch.arange(n)` has made memory for nothing
        out.data = fresh
    else:
        write_out(out, fresh)
    return out


def _batch_norm(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """Training writes the running statistics, whether the op's schema says so or not."""
    x, weight, bias, mean, var, train, momentum, eps = args
    given = [t for t in (x, weight, bias, mean, var) if t is not None]
    holes = tuple(HOLE if t is not None else None for t in (x, weight, bias, mean, var))
    spec = tape.spec_like(x.spec)
    wide = torch.promote_types(x.dtype, torch.float32)
    lifted = [float(momentum), float(eps)]
    scalar = Scalar("float32" if wide is torch.float32 else "float64")
    if not train:
        nothing = tape.spec((0,), (1,), 0, wide)
        rest = [wrap(tape, tape.full(nothing, 0), nothing) for _ in range(2)]
        template = (holes, {"eps": scalar})
        made = recorded(tape, "kit.batch_norm_eval", template, given, lifted[1:], [spec])
        return made[0], *rest
    channels = tape.spec((x.shape[1],), (1,), 0, wide)
    written = [t for t in (mean, var) if t is not None]
    avals = tuple(t.spec.aval for t in given)
    outputs = (spec.aval, channels.aval, channels.aval, *(t.spec.aval for t in written))
    template = (holes, {"momentum": scalar, "eps": scalar})
    op = tape.session.intern("kit.batch_norm_train", template, avals, outputs, 2)
    y, batch_mean, invstd, *after = tape.record(op, [t.ref.read(tape) for t in given], lifted)
    for target, value in zip(written, after, strict=True):
        target.ref.write(tape, value)
    return wrap(tape, y, spec), wrap(tape, batch_mean, channels), wrap(tape, invstd, channels)


def _linspace(tape: Tape, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """Torch's own decomposition does not cast the ends of integers first, as torch does."""
    ends, dtype = args[:2], kwargs.get("dtype") or torch.get_default_dtype()
    if not (dtype.is_floating_point or dtype.is_complex):
        ends = [x.to(dtype) if isinstance(x, torch.Tensor) else int(x) for x in ends]
    return decomposed(tape, func, *ends, *args[2:], **kwargs)  # type: ignore[no-any-return]


SPECIAL: dict[str, Special] = {
    "aten.native_batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit.default": _batch_norm,
    "aten.detach.default": _same_memory, "aten.alias.default": _same_memory,
    "aten.lift_fresh.default": _same_memory, "aten.detach_.default": lambda h, f, a, k: a[0],
    "aten._local_scalar_dense.default": _item, "aten.item.default": _item,
    "aten.clone.default": _clone, "aten.contiguous.default": _contiguous,
    "aten.copy_.default": _copy, "aten._to_copy.default": _to_copy,
    "aten.zero_.default": _fill, "aten.fill_.Scalar": _fill, "aten.fill_.Tensor": _fill,
    "aten.zeros_like.default": _like(0), "aten.ones_like.default": _like(1),
    "aten.empty_like.default": _like(0), "aten.full_like.default": _like(None),
    "aten.new_zeros.default": _like(0), "aten.new_ones.default": _like(1),
    "aten.new_empty.default": _like(0), "aten.new_empty_strided.default": _like(0),
    "aten.new_full.default": _like(None),
    "aten.view_copy.default": _view_copy,
    "aten.split.Tensor": _split, "aten.split_with_sizes.default": _split,
    "aten.unbind.int": _unbind, "aten.as_strided.default": _as_strided,
    "aten.resize_.default": resize, "aten.resize_as_.default": resize,
    "aten.set_.source_Tensor": _set,
    "aten.linspace.Tensor_Tensor": _linspace, "aten.linspace.Tensor_Scalar": _linspace,
    "aten.linspace.Scalar_Tensor": _linspace,
    "aten._has_same_storage_numel.default": _same_numel, "aten.arange.start_out": _arange,
    "aten._new_zeros_with_same_feature_meta.default": _tangent,
    "aten.as_strided_.default": _turn, "aten.as_strided_scatter.default": _as_strided_scatter,
    "aten.view.dtype": _view_dtype,
    "aten.as_strided_copy.default": lambda h, f, a, k: _as_strided(h, f, a, k).clone(),
    "aten.transpose_.default": _turn, "aten.t_.default": _turn, "aten.unsqueeze_.default": _turn,
    "aten.squeeze_.default": _turn, "aten.squeeze_.dim": _turn, "aten.squeeze_.dims": _turn,
    **SEQUENCES, **ATTENTION, **RANDOM, **RECURRENT_LAYERS, **LOSSES, **LINALG,
    "aten._has_compatible_shallow_copy_type.default":  # `model.to` in inference mode
        lambda h, f, a, k: isinstance(a[0], KitTensor) and isinstance(a[1], KitTensor),
    "aten.is_pinned.default": lambda h, f, a, k: False,
    "aten.is_set_to.default":
        lambda h, f, a, k: all(isinstance(x, KitTensor) for x in a) and a[0].shows_what(a[1]),
}  # fmt: skip
