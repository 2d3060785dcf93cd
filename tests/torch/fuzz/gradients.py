"""Lines of autograd, and lines that read."""

from __future__ import annotations

from collections.abc import Callable

from tests.torch.fuzz.draw import Draw, forms

__all__ = ["GRADIENTS", "READS"]


def _graph(d: Draw) -> str:
    return d.tensor(lambda t: t.requires_grad and not t.is_leaf)


def _leaf(d: Draw) -> str:
    return d.tensor(lambda t: t.requires_grad and t.is_leaf)


def _wanted(d: Draw) -> str:
    x = d.tensor(lambda t: t.is_leaf and (t.is_floating_point() or t.is_complex()))
    return f"{x}.requires_grad_()"


def _scalar(d: Draw, x: str) -> str:
    text = "{x}.sum()  {x}.sum()  ({x} * {x}).sum()  {x}.mean()"
    if d.names[x].is_complex():
        text = "{x}.abs().sum()  torch.view_as_real({x}.resolve_conj()).sum()"
    return d.random.choice(forms(text)).format(x=x)


def _backward(d: Draw) -> str:
    x = _graph(d)
    hows = ["", "", "retain_graph=True", "create_graph=True", f"inputs=[{_leaf(d)}]"]
    how = d.random.choice(hows)
    return f"{_scalar(d, x)}.backward({how})"


def _grad(d: Draw) -> str:
    """First or second derivatives; no strides of gradients are promised.

    What no path leads to has no gradient; where one op of a device stands for two of the CPU's,
    such as `linear`, a path may lead there that brings zeros: `materialize_grads` makes both zeros.
    """
    x, leaf = _graph(d), _leaf(d)
    unused = "allow_unused=True, materialize_grads=True"
    first = f"t = torch.autograd.grad({_scalar(d, x)}, {leaf}, create_graph=True, {unused})[0]"
    first += ".contiguous()"
    if d.random.random() < 0.5:
        return first
    again = f"torch.autograd.grad((t * t).real.sum(), {leaf}, {unused})[0]"
    return f"{first}; t = {again}.contiguous()"


def _hook(d: Draw) -> str:
    x = d.tensor(lambda t: t.requires_grad)
    how = d.random.choice(["register_hook(lambda g: g * 2)", "register_hook(lambda g: g + 1)"])
    if not d.names[x].is_leaf:
        how = d.random.choice([how, "retain_grad()"])
    elif d.random.random() < 0.3:
        how = "register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))"
    # The first half is there because torch crashes where a hook meets a view of a written leaf.
    return f"{x}.grad_fn; {x}.{how}"


def _gradient(d: Draw) -> str:
    x = d.tensor(lambda t: t.is_leaf and t.grad is not None)
    form = d.random.choice(
        forms("""
            {x}.grad = None  {x}.grad.zero_()  {x}.grad.mul_(2)  t = {x}.grad.clone()
            {x}.grad += 1  with torch.no_grad(): {x}.sub_({x}.grad)
        """)
    )
    return form.format(x=x)


def _without(d: Draw) -> str:
    form = d.random.choice(
        forms("""
            with torch.no_grad(): {x}.mul_(2)  with torch.no_grad(): {x}.add_(1)
            with torch.no_grad(): t = {x} * 2  with torch.no_grad(): t = {x}[...]
            with torch.no_grad(), torch.enable_grad(): t = {x} + 1
        """)
    )
    return form.format(x=d.number_like())


def _function(d: Draw) -> str:
    x = d.tensor(lambda t: t.is_floating_point() and t.numel() > 0 and t.dim() > 0)
    form = d.random.choice(
        forms("""
            t = Doubled.apply({x})  t = Inverted.apply({x})  t = Marked.apply({x} * 1)
            t = checkpoint(lambda v: (v * v + 1) * v, {x}, use_reentrant=False)
            t = checkpoint(lambda v: (v * v + 1) * v, {x}, use_reentrant=True)
            t = layer({last}, {x}.dtype)({x})  t = hooked({last}, {x}.dtype)({x})
        """)
    )
    return form.format(x=x, last=d.names[x].shape[-1])


def _functional(d: Draw) -> str:
    x = d.tensor(lambda t: t.is_floating_point() and not t.requires_grad and t.numel() > 0)
    return f"t = torch.func.grad(lambda v: (v * v * v).sum())({x})"


GRADIENTS: tuple[Callable[[Draw], str], ...] = (
    _wanted,
    _wanted,
    _backward,
    _backward,
    _backward,
    _grad,
    _hook,
    _gradient,
    _without,
    _function,
    _function,
    _functional,
)


def _read(text: str) -> Callable[[Draw], str]:
    def line(d: Draw) -> str:
        return d.random.choice(forms(text)).format(x=d.tensor(lambda t: t.numel() > 0))

    return line


def _item(d: Draw) -> str:
    x = d.tensor(lambda t: t.numel() == 1 and not t.is_complex())
    return d.random.choice(forms("{x}.item()  float({x})  int({x})  bool({x})")).format(x=x)


def _related(d: Draw) -> str:
    x = d.tensor(lambda t: t.numel() > 0)
    y = d.tensor(lambda t: t.shape == d.names[x].shape)
    form = d.random.choice(
        forms("""
            torch.equal({x}, {y})  {x} is {y}  torch.result_type({x}, {y})
            {x}.untyped_storage().data_ptr() == {y}.untyped_storage().data_ptr()
        """)
    )
    return form.format(x=x, y=y)


READS: tuple[Callable[[Draw], str], ...] = (
    _read("{x}.tolist()  {x}.sum().item()  bool({x}.any())  len({x})  {x}.shape  {x}.numel()"),
    _read("{x}.is_contiguous()  {x}.stride()  {x}.storage_offset()  {x}.is_leaf  {x}.dtype"),
    _read("[v.tolist() for v in {x}]  {x}.requires_grad"),
    _item,
    _related,
)
