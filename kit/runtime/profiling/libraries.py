"""Shared libraries that others have brought into this process."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from kit.errors import suppressed

__all__ = ["loaded"]


def loaded(*names: str) -> Any:
    """The first of these that is here already; None, too, where a system cannot be asked that."""
    for name in names:
        with suppressed(OSError, AttributeError):
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    return None
