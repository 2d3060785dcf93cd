"""A module that moves to device "kit" trains with the optimizer that it had before.

torch moves a module to a device of another tensor class by making new parameters, one for each
place that a parameter is used in. On CUDA the objects stay the same; here an embedding and the head
tied to it would part, and an optimizer that was made before would train what nothing uses.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import warnings
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from kit.errors import words_of
from kit.runtime.recording.bulk import LISTED_REFERENCES
from kit.runtime.recording.sites import callers, level_of_user
from kit.runtime.steps.reach import HOOKS
from kit.threads import living
from kit.torch.lazy_modules import await_shapes, with_waiting
from kit.torch.tensors.learning import attributes_of
from kit.torch.tensors.private import private
from kit.torch.tensors.tensor import KitTensor

__all__ = ["keep_parameters", "name_kits_data_parallel"]


def keep_parameters() -> None:
    """Make a move of `nn.Module` to or from device kit reach all that shares its parameters."""
    original = private("torch.nn.Module._apply")
    one_at_a_time = threading.Lock()  # a thread that lists all objects holds the others' parameters

    @functools.wraps(original)
    def _apply(self: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
        modules = list(self.modules()) if recurse else [self]
        before: list[tuple[nn.Module, dict[str, Any]]]
        before = [(m, {**m._parameters}) for m in modules]
        is_lazy = any(isinstance(m, LazyModuleMixin) for m in modules)
        try:
            result: nn.Module = original(self, with_waiting(fn) if is_lazy else fn, recurse)
        except RuntimeError as error:
            if "Couldn't swap" in words_of(error):
                error.add_note(
                    "kit: a tensor cannot change places with one of device kit, which is of a "
                    "class of its own: leave torch.__future__.set_swap_module_params_on_conversion "
                    "off. Optimizers and tied layers follow a model to device kit without it"
                )
            raise
        if is_lazy:
            await_shapes(modules)
        moved = _share(before)
        before.clear()  # or the table would count as one that holds the old parameters
        if moved and _is_outermost(sys._getframe().f_code):
            with one_at_a_time:
                _follow(self, moved)
        return result

    nn.Module._apply = _apply  # type: ignore[method-assign]


def name_kits_data_parallel() -> None:
    """Have torch's own wrappers for several devices name the kit's, where they cannot work."""

    def refusing(original: Any) -> Any:
        @functools.wraps(original)
        def call(self: nn.Module, module: Any, *args: Any, **kwargs: Any) -> Any:
            parts = self if vars(self).get("_modules") else module  # in __init__ it has none yet
            if isinstance(parts, nn.Module) and any(
                isinstance(p, KitTensor) for p in parts.parameters()
            ):
                raise RuntimeError(
                    f"{type(self).__name__} does not work on device kit: use kit.DataParallel("
                    "model, devices=2), or kit.run(..., devices=2); across processes, sum the "
                    "gradients by torch.distributed.all_reduce"
                )
            return original(self, module, *args, **kwargs)

        return call

    parallel: Any = nn.parallel
    parallel.DistributedDataParallel.__init__ = refusing(parallel.DistributedDataParallel.__init__)
    parallel.DataParallel.forward = refusing(parallel.DataParallel.forward)


def _share(before: list[tuple[nn.Module, dict[str, Any]]]) -> dict[int, tuple[Any, Any]]:
    """Share again what was shared before; gives the id of each old parameter, it, the new one."""
    moved: dict[int, tuple[Any, Any]] = {}
    for module, parameters in before:
        for name, old in parameters.items():
            new: Any = module._parameters[name]
            if new is not old and (isinstance(new, KitTensor) or isinstance(old, KitTensor)):
                if id(old) not in moved:
                    _carry_over(old, new)
                setattr(module, name, moved.setdefault(id(old), (old, new))[1])
    return moved


def _carry_over(old: Any, new: Any) -> None:
    """What the program has put on a parameter: attributes, and hooks, whose handles still work."""
    vars(new).update(attributes_of(old))
    for hooks in HOOKS:
        if (found := getattr(old, hooks)) is not None:
            setattr(new, hooks, found)
    if type(old) not in (nn.Parameter, KitTensor):
        name = type(old).__name__
        warnings.warn(
            f"parameters of the class {name} become plain ones on device kit: there "
            f"isinstance(parameter, {name}) is False, and its methods are not called",
            UserWarning,
            stacklevel=level_of_user(),
        )


def _is_outermost(code: Any) -> bool:
    """torch moves a module by moving its parts: only the outermost call sees all of them."""
    moves = takewhile(lambda f: f.f_code.co_name == "_apply", callers(sys._getframe(2)))
    return all(f.f_code is not code for f in moves)


def _follow(module: nn.Module, moved: dict[int, tuple[Any, Any]]) -> None:
    """Hand the new parameters to the optimizers that hold the old ones."""
    if not _count_held(module, moved):
        return
    for other in living(torch.optim.Optimizer, nn.Module):
        if isinstance(other, torch.optim.Optimizer):
            _hand_over(other, moved)
            continue
        for name, old in vars(other).get("_parameters", {}).items():
            if id(old) in moved:  # tied to one of another module, which is moved by itself
                other._parameters[name] = moved[id(old)][1]
    # One parameter may be what is left of a loop over them; several are a list that is used again.
    if (held := _count_held(module, moved)) > 1:
        warnings.warn(
            f"{held} parameters of {type(module).__name__} have moved to or from device kit, and "
            "are held elsewhere since before: those objects still show the old memory. Take them "
            "from the model again, model.parameters(); optimizers have been given the new ones",
            UserWarning,
            stacklevel=level_of_user(),
        )


def _hand_over(optimizer: Any, moved: dict[int, tuple[Any, Any]]) -> None:
    for group in getattr(optimizer, "param_groups", ()):
        parameters = group["params"]
        for i, old in enumerate(parameters):
            if id(old) in moved:
                new = parameters[i] = moved[id(old)][1]
                if old in optimizer.state:
                    optimizer.state[new] = optimizer.state.pop(old)


def _count_held(module: nn.Module, moved: dict[int, tuple[Any, Any]]) -> int:
    """How many of the old parameters are in a list, table or tuple of the program.

    A recurrent layer keeps a list of its weights, which it makes anew after the move.
    """
    if not any(sys.getrefcount(old) > LISTED_REFERENCES for old, _ in moved.values()):
        return 0
    olds = tuple(old for old, _ in moved.values())  # Python 3.13 finds what `*olds` passes, too
    ours = {id(olds), *map(id, moved.values())}
    ours |= {id(v) for m in module.modules() for v in vars(m).values() if isinstance(v, list)}
    held: set[int] = set()
    for holder in gc.get_referrers(*olds):  # not autograd's graph, which is not Python's
        if id(holder) not in ours and isinstance(holder, list | tuple | set | dict):
            items = [*holder, *holder.values()] if isinstance(holder, dict) else holder
            held |= {id(item) for item in items} & moved.keys()
    return len(held)
