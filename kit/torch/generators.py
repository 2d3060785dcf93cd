"""`torch.Generator("kit")`, which torch makes only of devices that C++ has registered."""

from __future__ import annotations

from typing import Any

import torch

from kit.torch.ops.random import KitGenerator

__all__ = ["name_random_numbers"]


def name_random_numbers() -> None:
    """Replace `torch.Generator` by a subclass that makes torch's own, but where kit is named."""
    plain: Any = torch.Generator
    kind: Any = type(plain)

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is not made:  # a class of the program's
            return kind.__call__(cls, *args, **kwargs)
        device = kwargs.get("device", args[0] if args else None)
        if isinstance(device, str | torch.device) and torch.device(device).type == "kit":
            return KitGenerator()
        return plain(*args, **kwargs)

    def has(cls: Any, item: Any) -> bool:
        return isinstance(item, plain) if cls is made else bool(kind.__instancecheck__(cls, item))

    def is_above(cls: Any, other: Any) -> bool:
        return issubclass(other, plain) if cls is made else bool(kind.__subclasscheck__(cls, other))

    methods = {"__call__": call, "__instancecheck__": has, "__subclasscheck__": is_above}
    about = {"__doc__": plain.__doc__, "__module__": "torch"}  # pickles name it
    made: Any = type("GeneratorType", (kind,), methods)("Generator", (plain,), about)
    torch.Generator = made  # type: ignore[misc]
