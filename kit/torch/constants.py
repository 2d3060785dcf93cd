"""What of modules and optimizers a program may change unnoticed, where no Python of a step is run.

What a recorded step has as constants; and what it leaves bound to a name, which only the step may
bind anew: gradients, buffers, an optimizer's state. A replay asks before each step, so quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from numbers import Number
from operator import attrgetter, call, is_
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any
from weakref import ref

import torch
from torch import nn

from kit.runtime.steps.recording import Watched

__all__ = ["is_scripted", "of_module", "of_optimizer", "parts_of", "settings_of"]

# Of torch's own layers: sizes are those of the weights, and whether one trains is asked by itself.
_NO_CHOICE = {
    *("training", "in_features", "out_features", "in_channels", "out_channels", "num_features"),
    *("num_embeddings", "embedding_dim", "elementwise_affine", "affine"),
    *("embed_dim", "head_dim", "kdim", "vdim"),
}
_TRAINS, _NEEDS, _GRADIENT = map(attrgetter, ("training", "requires_grad", "grad"))
_FORWARD = attrgetter("forward")
_SINGLE = (NoneType, FunctionType, BuiltinFunctionType)  # attributes that are compared by identity
_TABLES = attrgetter("_modules", "_parameters")
_BUFFERS = attrgetter("_buffers")
_HOOKS = attrgetter(
    *("_forward_pre_hooks", "_forward_hooks"), "_backward_pre_hooks", "_backward_hooks"
)
_STEP_HOOKS = attrgetter("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_THING: Callable[[ref[Any]], Any] = ref.__call__
_Attribute = tuple[int, str, Any]  # the place of its module, its name, its value


def parts_of(module: nn.Module) -> tuple[list[nn.Module], list[nn.Parameter]]:
    """All modules and parameters in it, shared ones as often as they are shared.

    By `_modules` and `_parameters`, as torch's own `named_modules` does, which takes more than
    twice as long: every step of a replica waits for this.
    """
    modules, parameters = [module], []
    for one in modules:  # grows while it is gone through
        parameters += [p for p in one._parameters.values() if p is not None]
        modules += [m for m in one._modules.values() if m is not None]
    return modules, parameters


def is_scripted(module: nn.Module) -> bool:
    """Is it TorchScript, whose numbers are in C++: what changes there nobody sees?"""
    return isinstance(module, torch.jit.ScriptModule)


def of_module(module: nn.Module) -> Watched:
    """Asks a module which tensors its buffers, attributes and gradients are; and for constants.

    These are which modules are in it and train, which parameters need or have a gradient, hooks,
    the numbers, texts and tuples of these among the modules' attributes, such as `dropout.p` and
    `conv.stride`, which attributes are None, and the functions among them, such as `forward`.
    """
    parts, trained = parts_of(module)
    if scripted := next(filter(is_scripted, parts), None):
        name = scripted.original_name
        return Watched(_none, _none, f"the step has a scripted {name}, whose numbers are in C++")
    attributes = [(i, *one) for i, part in enumerate(parts) for one in vars(part).items()]
    return Watched(_constants(parts, trained, attributes), _bound(parts, trained, attributes))


def _constants(
    parts: list[nn.Module], trained: list[nn.Parameter], attributes: list[_Attribute]
) -> Callable[[], Any]:
    known, weights = [*map(ref, parts)], [*map(ref, trained)]
    choices = [
        (i, name)
        for i, name, value in attributes
        if value is not None
        and _is_constant(value)
        and not (name in _NO_CHOICE and type(parts[i]).__module__.startswith("torch."))
    ]
    owners, names = [i for i, _ in choices], [name for _, name in choices]
    single = [one for one in attributes if isinstance(one[2], _SINGLE)]
    havers, had = [i for i, _, _ in single], [name for _, name, _ in single]
    things = [_none if value is None else ref(value) for *_, value in single]
    kinds = list({type(m): None for m in parts})

    def look() -> Any:
        modules, parameters = [*map(_THING, known)], [*map(_THING, weights)]
        if modules[0] is None:
            return None
        if None in modules or any(p is None for p in parameters):
            return "a part is gone"
        own: list[dict[str, Any]] = [m.__dict__ for m in modules]
        tables = chain.from_iterable(map(_TABLES, modules))
        hooks = chain.from_iterable(map(_HOOKS, modules))
        values = [*map(dict.get, map(own.__getitem__, owners), names)]
        return [
            *map(is_, map(dict.get, map(own.__getitem__, havers), had), map(call, things)),
            *map(type, values),  # first, since a tensor in a number's place cannot be compared
            *values,
            *map(id, chain.from_iterable(map(dict.values, tables))),  # replaced, put in, taken out
            *map(id, chain.from_iterable(filter(None, hooks))),  # of the few that have one
            *map(id, map(_FORWARD, kinds)),  # replaced for all layers of a class, or for one
            *map(id, map(dict.get, own, repeat("forward"))),
            *map(_TRAINS, modules),
            *map(_NEEDS, parameters),
            *[gradient is None for gradient in map(_GRADIENT, parameters)],
        ]

    return look


def _bound(
    parts: list[nn.Module], trained: list[nn.Parameter], attributes: list[_Attribute]
) -> Callable[[], Any]:
    known, weights = [*map(ref, parts)], [*map(ref, trained)]
    held = [(i, name) for i, name, value in attributes if isinstance(value, torch.Tensor)]

    def bound() -> Any:
        if (modules := [*map(_THING, known)])[0] is None:
            return None
        if None in modules:
            return "a part is gone"
        return [
            *(id(vars(modules[i]).get(name)) for i, name in held),
            *map(id, chain.from_iterable(map(dict.values, map(_BUFFERS, modules)))),
            *[id(p.grad) for p in map(_THING, weights) if p is not None],
        ]

    return bound


def _none() -> None:
    """Stands for a reference to what is None."""


def _is_constant(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_constant, value))
    return value is None or isinstance(value, Number | str)


def of_optimizer(optimizer: torch.optim.Optimizer) -> Watched:
    """Asks an optimizer which tensors its state and gradients are; and for constants.

    These are its parameters, hooks, the constants among its attributes, and the numbers and texts
    of its groups, such as the learning rate. One that is a tensor on the device is read by the step
    like any other; one on the host is a constant, as a number is.
    """

    known = ref(optimizer)

    def look() -> Any:
        alive, seen = known(), list[Any]()
        if alive is None:
            return None
        for hooks in _STEP_HOOKS(alive):
            seen += map(id, hooks.values())
        seen += filter(_is_constant, vars(alive).values())
        seen += _numbers_in(alive.defaults)
        for group in alive.param_groups:
            for key, value in group.items():
                if key == "params":
                    seen.append([*map(id, value)])
                elif isinstance(value, torch.Tensor):
                    is_host = value.device.type == "cpu"
                    seen.append((id(value), float(value) if is_host and value.numel() == 1 else 0))
                else:
                    seen += (value,) if type(value) is str else _numbers_in(value)
        return seen

    def bound() -> Any:
        if (alive := known()) is None:
            return None
        states = chain.from_iterable(
            state.values() if isinstance(state, dict) else (state,)
            for state in alive.state.values()
        )
        parameters = chain.from_iterable(group["params"] for group in alive.param_groups)
        return [*map(id, states), *map(id, map(_GRADIENT, parameters))]

    return Watched(look, bound)


def _numbers_in(setting: Any) -> Iterator[Any]:
    """The Python numbers in lists, tuples and dicts."""
    if isinstance(setting, Number):
        yield setting
    elif isinstance(setting, dict):
        yield from _numbers_in(list(setting.values()))
    elif isinstance(setting, list | tuple):
        for item in setting:
            yield from _numbers_in(item)


def settings_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The numbers of its groups by name; a tensor on the host, of one number, is a number too."""
    found: dict[str, Any] = {}
    groups = optimizer.param_groups
    for i, group in enumerate(groups):
        for name, value in group.items():
            if isinstance(value, torch.Tensor):
                is_number = value.device.type == "cpu" and value.numel() == 1
                numbers = [float(value)] if is_number else []
            else:
                numbers = [] if name == "params" else [*_numbers_in(value)]
            if numbers:
                where = f" of parameter group {i}" if len(groups) > 1 else ""
                found[name + where] = numbers[0] if len(numbers) == 1 else tuple(numbers)
    return found
