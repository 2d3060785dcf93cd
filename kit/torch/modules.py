"""`model.to("kit")` keeps shared parameters shared, as `model.to("cuda")` does.

torch moves a module to a device of another tensor class by making new parameters, one for each
place that a parameter is used in: an embedding and the head tied to it would part, and train apart.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from kit.torch.tensors.tensor import KitTensor

__all__ = ["keep_shared_parameters"]


def keep_shared_parameters() -> None:
    """Make `nn.Module` share, after a move to or from device kit, what was shared before."""
    original: Any = nn.Module._apply

    @functools.wraps(original)
    def _apply(self: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
        modules = list(self.modules()) if recurse else [self]
        before: list[tuple[nn.Module, dict[str, Any]]]
        before = [(m, {**m._parameters}) for m in modules]
        result: nn.Module = original(self, fn, recurse)
        moved: dict[int, Any] = {}
        for module, parameters in before:
            for name, old in parameters.items():
                new: Any = module._parameters[name]
                if new is not old and (isinstance(new, KitTensor) or isinstance(old, KitTensor)):
                    setattr(module, name, moved.setdefault(id(old), new))
        return result

    nn.Module._apply = _apply  # type: ignore[method-assign]
