"""Which rank of a job is this process? By torch.distributed, or by what a launcher has set."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["has_siblings", "rank_of_job", "ranks_of_job"]

# Of torchrun, srun and mpirun. What a batch job of Slurm asks for is set without srun, too: only
# the names with STEP say that srun has started this process.
_COUNTS = "WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"
_RANKS = "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"
_ON_THIS_HOST = "LOCAL_WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"


def ranks_of_job() -> int:
    """How many processes the job has; 1 of one that no launcher has started."""
    joined = _joined()
    return _number(_COUNTS) or 1 if joined is None else int(joined.get_world_size())


def rank_of_job() -> int | None:
    """The number of this one; None where nobody says."""
    joined = _joined()
    return _number(_RANKS) if joined is None else int(joined.get_rank())


def has_siblings() -> bool:
    """Are further ranks on this host, started by the process that has started this one?"""
    if multiprocessing.parent_process() is not None:  # as `torch.multiprocessing.spawn` does
        return ranks_of_job() > 1
    return (_number(_ON_THIS_HOST) or 1) > 1


def _joined() -> Any:
    """torch.distributed, where the program has loaded it and joined a group; else None."""
    found = sys.modules.get("torch.distributed")
    is_joined = found is not None and found.is_available() and found.is_initialized()
    return found if is_joined else None


def _number(names: Sequence[str]) -> int | None:
    """The number with which the first of these begins that is set, as in `4(x2)`."""
    found = (re.match(r"\d+", os.environ.get(name, "")) for name in names)
    return next((int(number[0]) for number in found if number), None)
