"""What a comparison of runs draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kit.runs.run import Run
from kit.widgets.compare.data import comparison_rows
from kit.widgets.compare.strips import comparison_columns

__all__ = ["columns_of"]


def columns_of(runs: Sequence[Run], **options: Any) -> dict[str, Any]:
    """The columns of the figure."""
    return comparison_columns(runs, comparison_rows(runs, **options))
