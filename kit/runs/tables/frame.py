"""A table of a run as a `pandas.DataFrame`; pandas is not needed by anything else."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from kit.errors import QueryError
from kit.runs.run import Run
from kit.runs.tables.columns import TABLES, Texts

__all__ = ["dataframe"]


def dataframe(run: Run, name: str) -> Any:
    """The table of this name as a pandas.DataFrame; see `Run.to_dataframe`.

    Raises:
        QueryError: there is no such table, or no pandas.
    """
    table = next((table for table in TABLES if table.name == name), None)
    if table is None:
        names = ", ".join(table.name for table in TABLES)
        raise QueryError(f"there is no table {name!r}; there are: {names}")
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        raise QueryError(
            "pandas is not installed: pip install 'overlap-kit[tables]'. "
            "run.query('select ...') works without it"
        ) from None
    columns = {}
    for field, values in zip(table.fields, table.columns(run), strict=True):
        if isinstance(values, Texts):
            texts = np.array([*values.texts, None], object)
            columns[field.name] = texts[values.numbers]
        elif field.is_signed or values.dtype.kind == "f":
            columns[field.name] = values
        else:  # whole numbers, some of which are not known
            columns[field.name] = pandas.array(values, dtype="Int64").copy()
            columns[field.name][values == -1] = pandas.NA
    return pandas.DataFrame(columns)
