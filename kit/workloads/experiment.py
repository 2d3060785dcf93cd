"""`run`: one workload under one `Settings`; `run_on`: on any number of devices. `sweep`: a grid."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from kit.errors import Cancelled, SettingsError
from kit.run import Run, Settings
from kit.runtime.executor import ExecutableCache
from kit.workloads.context import as_workload
from kit.workloads.loop import CancelledFn, Progress
from kit.workloads.sweeps import sweep

__all__ = ["run", "run_on", "sweep"]

NATIVE = {"torch": "native", "jax": "jax_native"}  # framework -> what runs it alone


def run(workload: Any, settings: Settings | None = None, *, progress: Progress | None = None,
        cancelled: CancelledFn | None = None, cache: ExecutableCache | None = None,
        ) -> Run:  # fmt: skip
    """Run and measure a workload: on device "kit", or in mode "torch" by its own framework.

    That is PyTorch, or jax.jit for a workload of jax.

    Runs that are given the same `cache` compile what they have in common once.

    Raises:
        Cancelled: `cancelled()` became true between two steps.
        SettingsError: it is no workload, or its step returns no loss.
        Exception: whatever the workload raises, unchanged, with notes that say where it was.
    """
    settings = settings or Settings()
    chosen = as_workload(workload)
    try:
        if settings.mode == "torch":
            native = import_module(f"kit.workloads.{NATIVE[chosen.framework]}")
            made: Run = native.measure(chosen, settings, progress=progress, cancelled=cancelled)
            return made
        from kit.workloads import lazy_run

        return lazy_run.measure(chosen, settings, progress=progress, cancelled=cancelled,
                                cache=cache)  # fmt: skip
    except Cancelled:
        raise
    except Exception as error:
        error.add_note(f"kit: in the workload {chosen.name!r}, mode {settings.mode!r}")
        raise


def run_on(workload: Any, settings: Settings, *, devices: int | Sequence[str] = 1,
           processes: int = 1, progress: Progress | None = None,
           cancelled: CancelledFn | None = None, **options: Any) -> Run:  # fmt: skip
    """Run a workload on some devices of this process, or of others: see `kit.run`.

    Raises:
        SettingsError: settings or options that cannot be.
        Cancelled: `cancelled()` became true.
        Exception: whatever the workload raises.
    """
    from kit.runtime.processes import current_processes

    if processes != 1:
        from kit.workloads.launch import run_processes

        if not isinstance(devices, int):
            raise SettingsError("with processes, devices is the number that each of them has")
        return run_processes(workload, settings, processes=processes, devices=devices,
                             progress=progress, cancelled=cancelled, **options)  # fmt: skip
    if devices != 1 or current_processes() is not None:
        from kit.workloads.parallel import run as run_replicas

        return run_replicas(workload, settings, devices=devices, progress=progress,
                            cancelled=cancelled, **options)  # fmt: skip
    if options:
        raise SettingsError(f"{', '.join(options)}: only with devices= or processes= above 1")
    return run(workload, settings, progress=progress, cancelled=cancelled)
