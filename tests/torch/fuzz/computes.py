"""Lines that make a new tensor."""

from __future__ import annotations

from collections.abc import Callable

from tests.torch.fuzz.draw import Draw, forms, is_dense

__all__ = ["COPIES", "EXACT", "SMOOTH"]


def _unary(text: str) -> Callable[[Draw], str]:
    def line(d: Draw) -> str:
        x = d.tensor()
        return d.random.choice(forms(text)).format(x=x, n=d.number(x), dtype=d.dtype())

    return line


def _binary(text: str) -> Callable[[Draw], str]:
    def line(d: Draw) -> str:
        x = d.tensor()
        return d.random.choice(forms(text)).format(x=x, y=d.partner(x))

    return line


def _along(text: str) -> Callable[[Draw], str]:
    def line(d: Draw) -> str:
        x = d.with_dims(1, 4)
        return d.random.choice(forms(text)).format(x=x, dim=d.dim(x), n=d.number(x))

    return line


def _smooth(text: str) -> Callable[[Draw], str]:
    def line(d: Draw) -> str:
        x = d.tensor(lambda t: t.is_floating_point() and t.dim() > 0 and t.numel() > 0)
        return d.random.choice(forms(text)).format(x=x, dim=d.dim(x), last=d.names[x].shape[-1])

    return line


def _joined(d: Draw) -> str:
    x = d.with_dims(1, 3)
    dim = d.dim(x)
    y = d.tensor(lambda t: t.shape == d.names[x].shape)
    return f"torch.{d.random.choice(['cat', 'stack'])}([{x}, {y}], {dim})"


def _taken(d: Draw) -> str:
    x = d.with_dims(1, 3)
    shown = d.names[x]
    dim = d.random.randrange(shown.dim())
    nested = "[" * (shown.dim() - 1) + str(d.places(shown.shape[-1])) + "]" * (shown.dim() - 1)
    form = d.random.choice(
        forms("""
            {x}[{before}{index}]
            {x}[{before}{index}, None]
            {x}.index_select({dim}, {index})
            {x}.take({flat})
            {x}.gather(-1, torch.tensor({nested}).to(device))
        """)
    )
    return form.format(
        x=x,
        dim=dim,
        before=":, " * dim,
        index=f"torch.tensor({d.places(shown.shape[dim])}).to(device)",
        flat=f"torch.tensor({d.places(shown.numel())}).to(device)",
        nested=nested,
    )


def _several_indices(d: Draw) -> str:
    x = d.with_dims(2, 3)
    first, second = (d.places(n) for n in d.names[x].shape[:2])
    size = min(len(first), len(second))
    a, b = (f"torch.tensor({p[:size]}).to(device)" for p in (first, second))
    return d.random.choice(
        [f"{x}[{a}, {b}]", f"{x}[{first}][:, {second}]", f"{x}[{a}[:, None], {b}]"]
    )


def _masked(d: Draw) -> str:
    x = d.with_dims(0, 3, real=True)
    mask = d.random.choice([f"{x} > 0", f"{x} == 1", f"{x} != 1"])
    form = d.random.choice(
        forms("""
            {x}[{m}]  {x}.masked_select({m})  torch.where({m}, {x}, {n})  ({m}).nonzero()
            {x}.masked_fill({m}, {n})  torch.where({m}, {x}, {x} + 1)  ({m}).any()
            torch.unique({x})  torch.count_nonzero({m})
        """)
    )
    return form.format(x=x, m=mask, n=d.number(x))


def _matmul(d: Draw) -> str:
    x = d.with_dims(1, 3)
    shown = d.names[x]
    y = d.tensor(
        lambda t: t.dtype is shown.dtype and t.dim() in (1, 2) and t.shape[0] == shown.shape[-1]
    )
    return f"{x} @ {y}"


_LAYOUTS = forms("""
    {x}.clone()  {x}.clone(memory_format=torch.contiguous_format)  {x}.contiguous()
    torch.zeros_like({x})  torch.ones_like({x})  torch.full_like({x}, 2)  {x}.new_ones(2)
    {x}.new_zeros((2, 3))  {x}.new_full((2,), 1)  {x}.mT.contiguous()  {x}.repeat(2, 1)
""")
_MADE = forms("""
    torch.arange(6, device=device)  torch.zeros(2, 3, dtype={dtype}, device=device)
    torch.eye(3, dtype={dtype}, device=device)  torch.tensor([1.5, -2.0], device=device)
    torch.linspace(0, 1, 5, device=device)  torch.ones(4, dtype={dtype}, device=device)
    torch.empty_strided((2, 2), (1, 3), dtype={dtype}, device=device).fill_(1)
    torch.tensor(2.0, device=device)  torch.tensor(3).to(device)  torch.tensor(0.5)
""")
_COPIED = forms("""
    copy.copy({x})  copy.deepcopy({x})  pickle.loads(pickle.dumps({x}.detach())).to(device)
    {x}.cpu().clone().to(device)  torch.tensor({x}.tolist(), device=device)  saved({x})
    torch.from_numpy({x}.detach().cpu().numpy().copy()).to(device)  {x}.to(device)
    {x}.to(device, copy=True)  copy.deepcopy([{x}, {x}.detach()])[1]
""")


def _layout(d: Draw) -> str:
    return d.random.choice(_LAYOUTS).format(x=d.tensor())


def _made(d: Draw) -> str:
    if d.random.random() < 0.6:
        return d.start()
    return d.random.choice(_MADE).format(dtype=d.dtype())


def _copied(d: Draw) -> str:
    x = d.tensor(lambda t: is_dense(t) and str(t.dtype) != "torch.bfloat16")
    return d.random.choice(_COPIED).format(x=x)


EXACT: tuple[Callable[[Draw], str], ...] = (
    _binary("""
        {x} + {y}  {x} - {y}  {x} * {y}  torch.maximum({x}, {y})  torch.minimum({x}, {y})
    """),
    _binary("{x} == {y}  {x} < {y}  torch.logical_and({x}, {y})  {x} & {y}  {x} ^ {y}"),
    _binary("torch.where({x} == 1, {x}, {y})  torch.add({x}, {y}, alpha=2)  {x} + {y}"),
    _unary("{x} + {n}  {n} - {x}  {x} * {n}  {x} == {n}  {x} >= {n}  -{x}  {x} ** 2"),
    _unary("{x}.abs()  {x}.relu()  {x}.sign()  ~{x}  {x}.logical_not()  {x}.clamp(-1, 2)"),
    _unary("{x}.floor()  {x}.round()  {x} // 2  {x} % 2  torch.fmod({x}, 2)  {x}.square()"),
    _unary("{x}.to({dtype})  {x}.to({dtype})  {x}.float()  {x}.int()  {x}.bool()  {x}.double()"),
    _unary("{x}.sum()  {x}.any()  {x}.all()  {x}.sum(dtype={dtype})  {x}.flip(0)  {x}.nansum()"),
    _unary("{x}.tril()  {x}.triu(1)  torch.diag_embed({x})  {x} << 1  {x}.isfinite()"),
    _along("{x}.sum({dim})  {x}.sum({dim}, keepdim=True)  {x}.cumsum({dim})  {x}.amax({dim})"),
    _along("{x}.flip({dim})  {x}.roll(1, {dim})  {x}.max({dim}).values  {x}.any({dim})"),
    _along("{x}.sort({dim}, stable=True).values  {x}.argmax({dim})  {x}.diff(dim={dim})"),
    _along("""
        {x}.sort({dim}, stable=True).indices
        {x}.index_fill({dim}, torch.tensor([0]).to(device), {n})
    """),
    _joined,
    _taken,
    _several_indices,
    _masked,
    _matmul,
    _layout,
    _layout,
    _made,
)

SMOOTH: tuple[Callable[[Draw], str], ...] = (
    _binary("{x} + {y}  {x} - {y}  {x} * {y}  {x} * {y} + 1  torch.hypot({x}, {y})"),
    _unary("{x} + {n}  {n} - {x}  {x} * {n}  -{x}  {x} ** 2  {x} / 2  {x} / ({x} * {x} + 1)"),
    _smooth("{x}.tanh()  {x}.sigmoid()  {x}.sin()  {x}.exp()  F.gelu({x})  F.silu({x})"),
    _smooth("{x}.softmax({dim})  {x}.log_softmax({dim})  {x}.logsumexp({dim})  F.softplus({x})"),
    _smooth("({x} ** 2 + 1).sqrt()  ({x} ** 2 + 1).log()  ({x} ** 2 + 1).rsqrt()  {x}.atan()"),
    _smooth("F.layer_norm({x}, ({last},))  {x}.mean({dim})  {x}.var({dim}, unbiased=False)"),
    _smooth("{x}.mean()  ({x} + 3).norm(dim={dim})  F.mse_loss({x}, {x} * 0)  {x}.prod({dim})"),
    _smooth("""
        {x}.cumprod({dim})
        F.linear({x}, torch.ones(2, {last}, dtype={x}.dtype, device=device))
    """),
    _unary("{x}.sum()  {x}.to({dtype})  {x}.float()  {x}.double()  {x}.half()"),
    _along("{x}.sum({dim})  {x}.cumsum({dim})  {x}.flip({dim})"),
    _joined,
    _taken,
    _several_indices,
    _matmul,
    _layout,
    _made,
)

COPIES: tuple[Callable[[Draw], str], ...] = (_copied,)
