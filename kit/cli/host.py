"""A core for the host: on a small machine XLA's threads take all of them, and nothing overlaps."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping

__all__ = ["leave_a_core"]

FEW = 8  # cores; with more, the one that the host needs is hardly missed


def leave_a_core(environ: MutableMapping[str, str], cores: int) -> str:
    """Have XLA leave a core to Python, if cores are few and nobody has said otherwise.

    XLA reads the number once, when jax makes its first array, so this comes before jax is loaded.

    Args:
        environ: `os.environ`.
        cores: that this process may use.

    Returns:
        What was done, in words; "" if nothing was.
    """
    if "NPROC" in environ or not 1 < cores <= FEW or "jax" in sys.modules:
        return ""
    environ["NPROC"] = str(cores - 1)
    return f"NPROC={cores - 1}: XLA leaves one of the {cores} cores to the host, to overlap with it"
