"""Views that are made in `torch.inference_mode`, or outside of it of a tensor from inside.

In there each new tensor is one without autograd, but for a view of a tensor from outside: torch
counts the writes of such a tensor in all its views, and refuses a view that cannot count. Outside,
a view of a tensor without autograd has none, either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["is_inference_mode", "of_its_kind"]

Made = TypeVar("Made")

is_inference_mode = torch.is_inference_mode_enabled


def of_its_kind(tensor: torch.Tensor, make: Callable[[], Made]) -> Made:
    """What `make` gives: a view of the tensor, with or without autograd as the tensor is."""
    wanted = tensor.is_inference()
    if wanted is is_inference_mode():
        return make()
    with torch.inference_mode(wanted):
        return make()
