"""Lines that show memory in another way."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.torch.fuzz.draw import Draw, NoLine, forms

__all__ = ["VIEWS"]


def _expand(d: Draw) -> str:
    x = d.with_dims(0, 3)
    shape = [d.random.choice([2, 3]) if n == 1 else n for n in d.names[x].shape]
    if d.random.random() < 0.5 or not shape:
        shape.insert(0, 2)
    return f"{x}.{d.random.choice(['expand', 'expand', 'broadcast_to'])}({tuple(shape)})"


def _as_strided(d: Draw) -> str:
    x = d.tensor(lambda t: t.numel() > 0)
    memory = d.names[x].untyped_storage().nbytes() // d.names[x].element_size()
    offset = d.random.choice(["", "", ", 0", ", 1"])
    r = d.random
    for _ in range(8):
        size = [r.randint(1, 3) for _ in range(r.randint(1, 2))]
        stride = [r.choice([1, 1, 2, 3, 0]) for _ in size]
        start = int(offset[2:]) if offset else d.names[x].storage_offset()
        last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if last < memory or r.random() < 0.03:
            return f"{x}.as_strided({tuple(size)}, {tuple(stride)}{offset})"
    raise NoLine


def _unfold(d: Draw) -> str:
    x = d.with_dims(1, 3)
    dim = d.dim(x)
    size = d.random.randint(1, d.names[x].shape[dim])
    return f"{x}.unfold({dim}, {size}, {d.random.randint(1, 2)})"


def _two_dims(text: str) -> Callable[[Draw], str]:
    def line(d: Draw) -> str:
        x = d.tensor(lambda t: t.dim() >= 2)
        first, second = d.random.sample(range(d.names[x].dim()), 2)
        return d.random.choice(forms(text)).format(x=x, a=first, b=second)

    return line


def _diagonal(d: Draw) -> str:
    x = d.tensor(lambda t: t.dim() >= 2)
    first, second = d.random.sample(range(d.names[x].dim()), 2)
    return f"{x}.diagonal({d.random.choice([0, 0, 1, -1])}, {first}, {second})"


def _permute(d: Draw) -> str:
    x = d.with_dims(2, 4)
    dims = list(range(d.names[x].dim()))
    d.random.shuffle(dims)
    return f"{x}.permute({tuple(dims)})"


def _reshape(d: Draw) -> str:
    x = d.with_dims(0, 4)
    how = d.random.choice(["view", "reshape", "reshape"])
    return f"{x}.{how}({d.shape_of(d.names[x].numel())})"


def _select(d: Draw) -> str:
    x = d.with_dims(1, 4)
    dim = d.dim(x)
    return f"{x}.select({dim}, {d.random.randrange(-d.names[x].shape[dim], d.names[x].shape[dim])})"


def _narrow(d: Draw) -> str:
    x = d.with_dims(1, 4)
    dim = d.dim(x)
    start = d.random.randrange(d.names[x].shape[dim])
    return f"{x}.narrow({dim}, {start}, {d.random.randint(0, d.names[x].shape[dim] - start)})"


def _slice(d: Draw) -> str:
    x = d.with_dims(1, 4)
    choices = ["1:", ":1", ":-1", "::2", "1::2", ":", "0:2", "-2:", "None", "..."]
    parts = [d.random.choice(choices) for _ in range(d.random.randint(1, d.names[x].dim()))]
    if parts.count("...") > 1:
        parts = [p for p in parts if p != "..."]
    return f"{x}[{', '.join(parts) or '...'}]"


def _item(d: Draw) -> str:
    x = d.with_dims(1, 4)
    first = d.random.randrange(d.names[x].shape[0])
    last = d.random.randrange(d.names[x].shape[-1])
    return d.random.choice([f"{x}[{first}]", f"{x}[..., {last}]", f"{x}[{first} - 1, None]"])


def _part(d: Draw) -> str:
    x = d.with_dims(1, 4)
    dim = d.dim(x)
    length = d.names[x].shape[dim]
    first = d.random.randint(0, length)
    form = d.random.choice(
        forms("""
            {x}.chunk(2, {dim})[0]  {x}.split(1, {dim})[-1]  {x}.split(2, {dim})[0]
            {x}.unbind({dim})[0]  {x}.split({parts}, {dim})[1]  {x}.tensor_split(2, {dim})[-1]
        """)
    )
    return form.format(x=x, dim=dim, parts=[first, length - first])


def _recast(d: Draw) -> str:
    x = d.tensor(lambda t: t.numel() > 0 and t.dtype is not torch.bool)
    size = d.names[x].element_size()
    wanted = {1: ["int8", "uint8"], 2: ["int16", "float16", "bfloat16"], 8: ["int64", "float64"]}
    same = wanted.get(size, ["int32", "float32"])
    other = ["int16", "int32", "uint8"]
    return f"{x}.view(torch.{d.random.choice(same if d.random.random() < 0.7 else other)})"


def _complex(d: Draw) -> str:
    x = d.tensor(lambda t: t.is_complex())
    return d.random.choice(forms("{x}.real  {x}.imag  {x}.conj()  {x}.mH")).format(x=x)


def _as_complex(d: Draw) -> str:
    if d.random.random() < 0.5:
        return f"torch.view_as_real({d.tensor(lambda t: t.is_complex())})"
    kinds = (torch.float32, torch.float64)
    x = d.tensor(lambda t: t.dim() > 0 and t.shape[-1] == 2 and t.dtype in kinds)
    return f"torch.view_as_complex({x})"


def _plain(text: str) -> Callable[[Draw], str]:
    def line(d: Draw) -> str:
        return d.random.choice(forms(text)).format(x=d.tensor())

    return line


def _along(text: str) -> Callable[[Draw], str]:
    def line(d: Draw) -> str:
        x = d.tensor(lambda t: t.dim() > 0)
        return d.random.choice(forms(text)).format(x=x, dim=d.dim(x))

    return line


VIEWS: tuple[Callable[[Draw], str], ...] = (
    _expand,
    _expand,
    _as_strided,
    _unfold,
    _diagonal,
    _permute,
    _reshape,
    _reshape,
    _select,
    _narrow,
    _slice,
    _slice,
    _item,
    _part,
    _part,
    _recast,
    _complex,
    _complex,
    _as_complex,
    _two_dims("{x}.transpose({a}, {b})  {x}.movedim({a}, {b})  {x}.swapaxes({a}, {b})  {x}.mT"),
    lambda d: f"{d.tensor(lambda t: t.dim() <= 2)}.t()",
    _plain("{x}.detach()  {x}.data  {x}.view_as({x})  {x}.squeeze()  {x}.flatten()"),
    _plain("{x}.ravel()  {x}[...]  {x}[None]  torch.atleast_2d({x})  {x}.contiguous()"),
    _along("{x}.unsqueeze({dim})  {x}.squeeze({dim})  {x}.flatten({dim})"),
    lambda d: f"{d.with_dims(1, 2)}.unsqueeze(-1)",
)
