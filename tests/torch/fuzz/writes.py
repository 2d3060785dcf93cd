"""Lines that write into tensors that exist."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.torch.fuzz.draw import Draw, NoLine, forms, shares_memory, undefined_overlap

__all__ = ["WRITES"]


def _number(text: str) -> Callable[[Draw], str]:
    def line(d: Draw) -> str:
        x = d.tensor()
        return d.random.choice(forms(text)).format(x=x, n=d.number(x))

    return line


def _tensor(text: str) -> Callable[[Draw], str]:
    def line(d: Draw) -> str:
        x = d.tensor()
        return d.random.choice(forms(text)).format(x=x, y=d.source(x), n=d.number(x))

    return line


def _two_tensors(d: Draw) -> str:
    x = d.floating()
    form = d.random.choice(["addcmul_({y}, {z})", "lerp_({y}, 0.5)", "addcmul_({y}, {z}, value=2)"])
    return f"{x}." + form.format(y=d.source(x), z=d.source(x))


def _set_slice(d: Draw) -> str:
    x = d.with_dims(1, 4)
    place = d.random.choice(["0", "-1", "..., 0", ":1", "1:", "::2", ":", "..., 1:", "...", "None"])
    if d.random.random() < 0.6:
        return f"{x}[{place}] {d.random.choice(['=', '=', '+=', '*='])} {d.number(x)}"
    target = _shown(d, x, place)
    y = d.tensor(lambda t: _fits(t, target) and not undefined_overlap(t, target))
    return f"{x}[{place}] = {y}"


def _shown(d: Draw, x: str, place: str) -> torch.Tensor:
    with torch.no_grad():
        return eval(f"x[{place}]", {"x": d.names[x]})  # type: ignore[no-any-return]


def _fits(t: torch.Tensor, target: torch.Tensor) -> bool:
    try:
        return torch.broadcast_shapes(t.shape, target.shape) == target.shape
    except RuntimeError:
        return False


def _set_indexed(d: Draw) -> str:
    x = d.with_dims(1, 3)
    dim = d.random.randrange(min(2, d.names[x].dim()))
    places = d.places(d.names[x].shape[dim], distinct=True)
    index = d.random.choice([f"torch.tensor({places}).to(device)", f"{places}"])
    front = ":, " if dim else ""
    return f"{x}[{front}{index}] {d.random.choice(['=', '=', '+='])} {d.number(x)}"


def _set_masked(d: Draw) -> str:
    x = d.with_dims(0, 3, real=True)
    mask = d.random.choice([f"{x} > 0", f"{x} == 1", f"{x} < 5"])
    form = d.random.choice(
        ["{x}[{m}] = {n}", "{x}.masked_fill_({m}, {n})", "{x}[{m}] *= 2", "{x}[{m}] = {x}[{m}] + 1"]
    )
    return form.format(x=x, m=mask, n=d.number(x))


def _index_op(d: Draw) -> str:
    x = d.with_dims(1, 3)
    shown = d.names[x]
    dim = d.random.randrange(shown.dim())
    places = d.places(shown.shape[dim], distinct=True)
    index = f"torch.tensor({places}).to(device)"
    if d.random.random() < 0.4:
        return f"{x}.index_fill_({dim}, {index}, {d.number(x)})"
    shape = list(shown.shape)
    shape[dim] = len(places)
    values = f"torch.ones({tuple(shape)}, dtype={shown.dtype}, device=device)"
    how = d.random.choice(["index_add_", "index_copy_"])
    return f"{x}.{how}({dim}, {index}, {values})"


def _scatter(d: Draw) -> str:
    x = d.with_dims(1, 2)
    shown = d.names[x]
    dim = d.random.randrange(shown.dim())
    shape = [1] * shown.dim()
    shape[dim] = d.random.randint(1, shown.shape[dim])
    places = d.random.sample(range(shown.shape[dim]), shape[dim])
    index = f"torch.tensor({places}).reshape({tuple(shape)}).to(device)"
    if d.random.random() < 0.4:
        return f"{x}.scatter_({dim}, {index}, {d.number(x)})"
    values = f"torch.full({tuple(shape)}, 2, dtype={shown.dtype}, device=device)"
    return f"{x}.{d.random.choice(['scatter_', 'scatter_add_'])}({dim}, {index}, {values})"


def _index_put(d: Draw) -> str:
    x = d.with_dims(1, 3)
    places = d.places(d.names[x].shape[0])
    value = f"torch.tensor({d.number(x)}, dtype={d.names[x].dtype}).to(device)"
    index = f"(torch.tensor({places}).to(device),)"
    return f"{x}.index_put_({index}, {value}, accumulate={d.random.choice(['True', 'False'])})"


def _unary(d: Draw) -> str:
    x = d.tensor()
    names = [
        "neg",
        "abs",
        "zero",
        "relu",
        "square",
        "sign",
        "logical_not",
        "bitwise_not",
        "floor",
        "trunc",
        "ceil",
        "round",
    ]
    return f"{x}.{d.random.choice(names)}_()"


def _triangle(d: Draw) -> str:
    x = d.tensor(lambda t: t.dim() >= 2)
    how = d.random.choice(["tril_(-1)", "tril_()", "triu_(1)", "triu_()", "fill_diagonal_(2)"])
    return f"{x}.{how}"


def _turned(d: Draw) -> str:
    x = d.with_dims(1, 3)
    form = d.random.choice(
        forms("""
            {x}.unsqueeze_(0)  {x}.squeeze_()  {x}.transpose_(0, -1)  {x}.unsqueeze_(-1)
            {x}.swapaxes_(0, -1)  {x}.detach_()  {x}.requires_grad_(False)
        """)
    )
    if "grad_" in form or "detach_" in form:
        x = d.tensor(lambda t: not _has_views(d, t))
    return form.format(x=x)


def _has_views(d: Draw, base: torch.Tensor) -> bool:
    """Do others show its memory and learn? Torch itself fails an assertion when such a view is
    used after its base was cut off and written, on all devices that are written in Python.
    """
    return any(t is not base and t.requires_grad and shares_memory(t, base)
               for t in d.names.values())  # fmt: skip


def _data(d: Draw) -> str:
    x = d.tensor(lambda t: t.is_leaf)
    y = d.tensor(lambda t: t.dtype is d.names[x].dtype)
    form = d.random.choice(forms("{x}.data = {y}.clone()  {x}.data = {y}  {x}.data += {n}"))
    return form.format(x=x, y=y, n=d.number(x))


def _out(d: Draw) -> str:
    x = d.number_like()
    y = d.partner(x)
    shape = torch.broadcast_shapes(d.names[x].shape, d.names[y].shape)

    def fits(t: torch.Tensor) -> bool:
        pairs = (d.names[x], d.names[y])
        same = t.shape == shape or (d.random.random() < 0.1 and t.numel() == 0)
        return same and not any(undefined_overlap(source, t) for source in pairs)

    z = d.tensor(fits)
    form = d.random.choice(
        forms("""
            torch.add({x}, {y}, out={z})  torch.mul({x}, {y}, out={z})
            torch.sub({x}, {y}, out={z})  torch.maximum({x}, {y}, out={z})
            torch.eq({x}, {y}, out={z})  torch.neg({x}, out={z})  torch.clamp({x}, -1, 1, out={z})
        """)
    )
    if "{y}" not in form and d.names[x].shape != shape:
        raise NoLine
    return form.format(x=x, y=y, z=z)


def _out_reduced(d: Draw) -> str:
    x = d.with_dims(1, 3)
    dim = d.random.randrange(d.names[x].dim())
    shape = [n for i, n in enumerate(d.names[x].shape) if i != dim]
    z = d.tensor(lambda t: list(t.shape) == shape and not shares_memory(d.names[x], t))
    how = d.random.choice(["sum", "amax", "prod", "select_copy"])
    return f"torch.{how}({x}, {dim}{', 0' if how == 'select_copy' else ''}, out={z})"


def _many(d: Draw) -> str:
    x = d.floating()
    form = d.random.choice(
        forms("""
            torch._foreach_add_([{x}], {n})  torch._foreach_mul_([{x}], 2.0)
            torch._foreach_add_([{x}], [{y}], alpha=2)  torch._foreach_zero_([{x}])
        """)
    )
    y = d.tensor(lambda t: t.shape == d.names[x].shape and not undefined_overlap(t, d.names[x]))
    return form.format(x=x, y=y, n=d.number(x))


WRITES: tuple[Callable[[Draw], str], ...] = (
    _number("{x}.add_({n})  {x}.mul_({n})  {x} += {n}  {x} -= {n}  {x}.sub_({n})"),
    _number("{x}.fill_({n})  {x}.clamp_(-1, 1)  {x}.clamp_(min={n})  {x}.fill_({n})"),
    _number("{x}.pow_(2)  {x}.eq_({n})  {x}.gt_({n})  {x}.remainder_(2)  {x} //= 2"),
    _number("{x}.bitwise_and_(1)  {x} |= 1  {x} ^= True  {x} <<= 1  {x}.fmod_(2)"),
    _tensor("{x}.copy_({y})  {x}.add_({y})  {x}.mul_({y})  {x} -= {y}"),
    _tensor("{x}.copy_({y})  {x}.add_({y}, alpha=2)  {x}.logical_and_({y})  {x}[...] = {y}"),
    _two_tensors,
    _set_slice,
    _set_slice,
    _set_slice,
    _set_indexed,
    _set_masked,
    _index_op,
    _scatter,
    _index_put,
    _unary,
    _triangle,
    _turned,
    _data,
    _out,
    _out_reduced,
    _many,
)
