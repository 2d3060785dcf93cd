"""What can go to another process and come back: workloads by their names, errors by their text."""

from __future__ import annotations

import gc
import pickle
import sys
import traceback

from kit.errors import RAISED_AT, ExecutionError, SettingsError, but_of_handlers, named, note
from kit.measure.base.context import Workload

__all__ = ["check_importable", "let_go", "portable"]


def check_importable(workload: Workload, advice: str) -> None:
    """Refuse a workload that another process cannot find by its name.

    Raises:
        SettingsError: it was defined in a notebook, or inside of a function.
    """
    home = getattr(workload.build, "__module__", "")
    file = getattr(sys.modules["__main__"], "__file__", "<none>")
    if home == "__main__" and file.startswith("<"):  # "<stdin>": no other process can read it
        raise SettingsError(
            f"the workload {workload.name!r} was defined in a notebook or a shell: {advice}"
        )
    try:
        pickle.dumps(workload)
    except but_of_handlers(Exception) as error:
        raise SettingsError(
            f"the workload {workload.name!r} cannot be sent to a process ({error}): {advice}"
        ) from error


def portable(error: BaseException) -> BaseException:
    """The same error, or its text as an `ExecutionError` if it cannot be pickled; notes stay."""
    let_go(error)
    try:
        pickle.loads(pickle.dumps(error))
    except but_of_handlers(Exception):  # whatever its constructor raises
        plain = ExecutionError(named(error))
        for said in getattr(error, "__notes__", ()):
            plain.add_note(said)
        return plain
    return error


def let_go(error: BaseException) -> None:
    """Free what the frames of an exception hold; keep their text.

    `traceback.clear_frames` would not do: a frame keeps its function, and that its closure.
    """
    chain: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and seen not in chain:
        chain.append(seen)
        if seen.__traceback__ is not None:
            note(seen, RAISED_AT + "".join(traceback.format_tb(seen.__traceback__)))
            seen.with_traceback(None)  # which also a frozen dataclass takes
        seen = seen.__cause__ or seen.__context__
    gc.collect()
