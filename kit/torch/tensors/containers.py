"""What holds the tensors of a batch: lists, tuples, dicts and dataclasses, of any class of these.

It loads neither jax nor a session: `Context.loader` takes batches natively, too.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import fields, is_dataclass, replace
from operator import is_
from typing import Any

from torch import nn

__all__ = ["mapped", "values_of"]


def values_of(item: Any) -> Sequence[Any] | None:
    """What a container holds; None, if it is none that a batch may be."""
    if isinstance(item, nn.Module):  # also one that is a dataclass: its tensors are no batch
        return None
    if isinstance(item, dict | UserDict):
        return list(item.values())
    if isinstance(item, list | tuple):
        return item
    if is_dataclass(item) and not isinstance(item, type):
        return [getattr(item, name) for name in _fields(item)]
    return None


def _fields(item: Any) -> list[str]:
    return [one.name for one in fields(item) if one.init]


def mapped(item: Any, change: Callable[[Any], Any], *, anew: bool = False) -> Any:
    """A container like this one, of changed things; itself, if it holds nothing that changes.

    Args:
        anew: another container then, too, so that a pop() in the one does not change the other.
    """
    if (values := values_of(item)) is None:
        return item
    made = list(map(change, values))
    if all(map(is_, made, values)):
        return copy(item) if anew and not isinstance(item, tuple) else item
    if isinstance(item, dict | list):
        changed = copy(item)  # of its own class, such as a ModelOutput, with all that it is beside
        keys = range(len(item)) if isinstance(item, list) else list(item)
        for key, value in zip(keys, made, strict=True):
            changed[key] = value
        return changed
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*made)
    if isinstance(item, tuple):
        with suppress(TypeError):  # a class that takes its items one by one; torch makes a list too
            return type(item)(made)
        return made
    if isinstance(item, UserDict):  # such as a tokenizer's
        other = copy(item)
        other.data = dict(zip(item.data, made, strict=True))
        return other
    return replace(item, **dict(zip(_fields(item), made, strict=True)))
