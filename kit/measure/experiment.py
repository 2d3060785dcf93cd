"""`run`: one workload under one `Settings`, on one device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kit.errors import Cancelled, is_a, note
from kit.measure.base.context import as_workload
from kit.measure.base.randomness import random_kept
from kit.measure.base.turns import CancelledFn, in_turn
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.recording.sites import line_of
from kit.runtime.session.interrupts import INTERRUPTS
from kit.shown import Progress

if TYPE_CHECKING:
    from kit.runtime.compiling.cache import ExecutableCache

__all__ = ["run"]

_NOT_LAZY = (
    "kit: functions of jax, flax and the like take no LazyArray: call them in a function of "
    "kit.jax.step, use the array's own methods (x.mean()), or give them jax.device_get(x), which "
    "waits"
)


@in_turn
def run(workload: Any, settings: Settings | None = None, *, progress: Progress | None = None,
        cancelled: CancelledFn | None = None, cache: ExecutableCache | None = None,
        ) -> Run:  # fmt: skip
    """Run and measure a workload: on device "kit", or in mode "torch" by its own framework.

    That is PyTorch, or jax.jit for a workload of jax.

    Runs that are given the same `cache` compile what they have in common once. One run at a time
    is measured in a process: this one waits for those that came before.

    Raises:
        Cancelled: `cancelled()` became true between two steps, or while it waited.
        SettingsError: it is no workload, or its step returns no loss.
        Exception: whatever the workload raises, unchanged, with notes that say where it was.
    """
    chosen = as_workload(workload)
    settings = chosen.fit(settings)
    INTERRUPTS.hook()  # so that what they raise is never taken for the step's own
    try:
        with random_kept():
            if settings.mode == "torch":
                native = import_module(f"kit.measure.native.{chosen.framework}")
                made: Run = native.measure(chosen, settings, progress=progress, cancelled=cancelled)
                return made
            from kit.measure import kit_run

            return kit_run.measure(
                chosen, settings, progress=progress, cancelled=cancelled, cache=cache
            )
    except Cancelled:
        raise
    except Exception as error:
        where = f"mode {settings.mode!r}{line_of(error)}"
        note(error, f"kit: in the workload {chosen.name!r}, {where}")
        is_lazys = is_a(error, TypeError) and "LazyArray" in str(error)
        if is_lazys and "LazyArray" not in str(getattr(error, "__notes__", "")):  # of a trace's
            note(error, _NOT_LAZY)
        raise
