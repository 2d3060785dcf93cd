"""What a step has to return, its loss, and what is said of a step that returns something else."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from kit.errors import SettingsError
from kit.runtime.recording.sites import format_site, site_of

__all__ = ["check_loss", "detached", "no_loss", "told"]


def detached(loss: Any) -> Any:
    """The loss outside of autograd; an array of jax is that already.

    Raises:
        SettingsError: it is no tensor and no array.
    """
    if hasattr(loss, "detach"):
        return loss.detach()
    if hasattr(loss, "block_until_ready"):
        return loss
    raise no_loss(loss)


def told(loss: Any) -> Any:
    """The loss that a loop of the program's tells: a tensor or a number, numpy's too, or None.

    Raises:
        SettingsError: it is none of these.
    """
    if loss is None or isinstance(loss, int | float):
        return loss
    if isinstance(loss, np.generic | np.ndarray) and loss.size == 1:
        with suppress(TypeError, ValueError):
            return float(loss.item())
    try:
        return detached(loss)
    except SettingsError:
        text = f"watch.step(loss) takes a tensor or a number, not {type(loss).__name__}"
        raise SettingsError(text) from None


def no_loss(result: Any, step: Callable[..., Any] | None = None) -> SettingsError:
    """What to raise of a step that returns something else.

    Args:
        step: as its author wrote it, for the place in the message.
    """
    cure = "end it with `return loss`"
    if isinstance(result, bool | int | float | complex) or hasattr(result, "__array__"):
        cure += ", unread: without .item(), float() or .numpy()"
    return SettingsError(
        f"the step{_place(step)} must return its loss as a tensor, not {type(result).__name__}: "
        f"{cure}"
    )


def check_loss(loss: Any, step: Callable[..., Any] | None) -> None:
    """Refuse a loss that could not be told when all steps are over.

    Args:
        step: as in `no_loss`.

    Raises:
        SettingsError: it is not one number, or a complex one.
    """
    shape = tuple(getattr(loss, "shape", ()))
    if math.prod(shape) != 1:
        raise SettingsError(
            f"the step{_place(step)} must return its loss as one number, not a tensor of shape "
            f"{shape}: end it with `return loss.mean()`"
        )
    dtype = str(getattr(loss, "dtype", "")).removeprefix("torch.")
    if dtype.startswith("complex"):
        raise SettingsError(
            f"the step{_place(step)} must return its loss as a real number, not as {dtype}: end it "
            "with `return abs(loss)` or `return loss.real`"
        )


def _place(step: Callable[..., Any] | None) -> str:
    """` at train.py:12`, where a step's function begins; "" of what is no function of Python."""
    where = format_site(site_of(step))
    return f" at {where}" if where else ""
