"""Which IPython or notebook kernel this code runs in; IPython is not loaded to find out."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["in_kernel", "notebook_events", "notebook_shell"]


def notebook_shell() -> Any:
    """IPython's shell; None elsewhere."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def in_kernel() -> bool:
    """Whether this is a Jupyter kernel, and not a terminal's IPython."""
    return hasattr(notebook_shell(), "kernel")


def notebook_events() -> Any:
    """The shell's event manager, with "pre_run_cell" and "post_run_cell"; None elsewhere."""
    return getattr(notebook_shell(), "events", None)
