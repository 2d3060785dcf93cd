"""How many ops one segment holds: the numbers, where they come from, and MXNet's variables.

    KIT_BULK_MAX_NODE_TRAIN       ops a segment while training; 15 if it is not set
    KIT_BULK_MAX_NODE_TRAIN_FWD   the same, forward only; falls back to the one above
    KIT_BULK_MAX_NODE_TRAIN_BWD   the same, backward and update
    KIT_BULK_TRAIN                0: no bulking while training, each op is a segment
    KIT_BULK_INFERENCE            0: nor in inference; else a network's whole forward pass is one

They are read each time that a `Settings` is made, and give its defaults: what is said in the
settings or by `kit.bulk(...)` is stronger. 0 and 1 both mean one op a segment, as in MXNet.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from kit.errors import SettingsError
from kit.text import check_whole_number

__all__ = ["DEFAULT_BULK", "UNLIMITED", "UNLIMITED_WORD", "BulkSizes", "check_bulk_size",
           "size_text", "sizes_from_environment"]  # fmt: skip

UNLIMITED, UNLIMITED_WORD = 1_000_000, "unlimited"  # a bulk size that no step reaches
DEFAULT_BULK = 15  # MXNet's

_TRAIN, _INFERENCE = "KIT_BULK_TRAIN", "KIT_BULK_INFERENCE"
_MAX = "KIT_BULK_MAX_NODE_TRAIN"


@dataclass(frozen=True)
class BulkSizes:
    """Ops a segment, by what is recorded, and who said so."""

    forward: int
    backward: int  # of the backward pass and of the update
    inference: int  # of a module's forward pass while no gradients are recorded
    origin: str = "settings"  # "settings" or "scope"; where defaults come from: see the function

    @classmethod
    def scope(cls, size: Any) -> BulkSizes:
        """For everything that a scope records: one size, or (forward, backward).

        Raises:
            SettingsError: it is not a whole number of at least 1, or two of them.
        """
        pair = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
        forward, backward = (check_bulk_size("a bulk size", n) for n in pair)
        return cls(forward, backward, forward, "scope")

    def of(self, kind: str) -> int:
        """The size for "forward", "backward", "update" or "inference"."""
        return int(getattr(self, "backward" if kind == "update" else kind))

    @property
    def pair(self) -> int | tuple[int, int]:
        """As `set_bulk_size` takes it: one number if forward and backward are the same."""
        return self.forward if self.forward == self.backward else (self.forward, self.backward)

    def __str__(self) -> str:
        names = ("forward", "backward", "inference")
        return ", ".join(f"{name} {size_text(getattr(self, name))}" for name in names)


def size_text(size: int) -> str:
    """A size for people: `1,000`, `unlimited`."""
    return UNLIMITED_WORD if size >= UNLIMITED else f"{size:,}"


def check_bulk_size(name: str, size: Any) -> int:
    """The size itself.

    Raises:
        SettingsError: it is not a whole number of at least 1.
    """
    advice = (
        "1 makes each op a segment of its own; any large number, such as "
        f"{UNLIMITED:_}, means no limit."
    )
    check_whole_number(SettingsError, name, size, advice=advice)
    return int(size)


def sizes_from_environment() -> BulkSizes:
    """The default sizes of now; `origin` names the variables that are set.

    Raises:
        SettingsError: a variable holds something that is not a number; it is named.
    """
    both = _number(_MAX, DEFAULT_BULK)
    forward, backward = _number(f"{_MAX}_FWD", both), _number(f"{_MAX}_BWD", both)
    if not _number(_TRAIN, 1):
        forward = backward = 1
    inference = UNLIMITED if _number(_INFERENCE, 1) else 1
    names = (_TRAIN, _INFERENCE, _MAX, f"{_MAX}_FWD", f"{_MAX}_BWD")
    said = ", ".join(f"{n}={os.environ[n]}" for n in names if os.environ.get(n, "").strip())
    return BulkSizes(max(forward, 1), max(backward, 1), inference, said or "defaults")


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal():
        raise SettingsError(
            f"the environment variable {name} must be a whole number of at least 0, not {text!r}"
        )
    return int(text)
