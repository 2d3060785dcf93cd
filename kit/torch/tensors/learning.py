"""Changes of whether and how a tensor learns, which the data flow of a step does not show.

A replay runs none of the step's Python, so the session's stepper is told of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import ref

import torch

from kit.runtime.steps.recording import Watched

__all__ = ["NEEDS_GRADIENT", "attributes_of", "telling"]

_WHY = "the program has changed whether or how a tensor learns, between two steps"


def telling(method: Any) -> Any:
    """The same method of `torch.Tensor`, which tells the stepper what it has changed."""
    sets_hook = "hook" in method.__name__

    @wraps(method)
    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        before = tensor.requires_grad
        result = method(tensor, *args, **kwargs)
        _tell(tensor, has_changed=sets_hook or tensor.requires_grad is not before)
        if sets_hook:
            result.remove = _removal(result.remove, ref(tensor))
        return result

    return call


def _tell(tensor: Any, *, has_changed: bool) -> None:
    session = tensor.tape.opened
    if session is None or session.stepper.mode != "replay":
        return
    session.stepper.watch(tensor, _of_tensor)
    value = tensor.ref.base.value
    if has_changed and value is not None:
        session.stepper.forget(_WHY, of=value)


def _removal(remove: Callable[[], None], held: ref[Any]) -> Callable[[], None]:
    """The same `remove` of a hook's handle, which tells the stepper, too."""

    def call() -> None:
        remove()
        if (tensor := held()) is not None:
            _tell(tensor, has_changed=True)

    return call


def _of_tensor(tensor: Any) -> Watched:
    """Asks whether the program still holds the tensor, whether it needs a gradient, and which."""
    held = ref(tensor)

    def look() -> Any:
        tensor = held()
        return tensor is not None and (True, tensor.requires_grad)

    def bound() -> Any:
        if (tensor := held()) is None:
            return None
        has_grad = tensor.is_leaf or tensor.retains_grad  # torch warns who asks another one
        return id(tensor.grad) if has_grad else 0

    return Watched(look, bound)


_get: Any = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]


@telling
def _set(tensor: Any, wanted: Any) -> None:
    torch.Tensor.requires_grad.__set__(tensor, wanted)  # type: ignore[attr-defined]


NEEDS_GRADIENT = property(_get, _set)


def attributes_of(tensor: torch.Tensor) -> dict[str, Any]:
    """What the program has put on a tensor; not torch's mark that it is a parameter."""
    return {name: value for name, value in vars(tensor).items() if name != "_is_param"}
