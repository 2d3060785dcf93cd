"""What a run on several devices may be told, and what it is called by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kit.errors import SessionError, SettingsError
from kit.measure.base.context import Workload
from kit.runs.knob import knobs_of
from kit.runs.settings import Settings
from kit.runtime.processes.join import Processes

__all__ = ["OPTIONS", "check_alike", "check_options", "name_of"]

OPTIONS = ("average", "bucket_mb", "cut", "link", "rules", "timeout_s")
_SHOWN = ("average", "bucket_mb", "cut", "link")  # part of a run's name, if they are given


def check_options(workload: Workload, options: Mapping[str, Any]) -> None:
    """Refuse what a run on several devices cannot be.

    Raises:
        SettingsError: it is no workload of torch, or an option is none.
    """
    if workload.framework != "torch":
        raise SettingsError(f"{workload.name!r} is a workload of jax; only torch's have replicas")
    for name in options:
        if name == "sync_batch_norm":
            raise SettingsError(
                "a workload makes its own model: put kit.SyncBatchNorm into it where a batch norm "
                "shall take the statistics of the whole batch, instead of giving sync_batch_norm"
            )
        if name not in OPTIONS:
            raise SettingsError(f"{name!r} is no option of several devices: {', '.join(OPTIONS)}")
    from kit.torch.parallel.reducer import check_tuning

    tuning = ("cut", "bucket_mb", "link")
    check_tuning(**{name: options[name] for name in tuning if name in options})


def check_alike(
    processes: Processes, workload: Workload, settings: Settings, options: Mapping[str, Any]
) -> None:
    """Meet; and refuse processes that were given different settings, which would run as one.

    Raises:
        SessionError: they were, or a process does not come.
    """
    mine = {row.name: row.write(getattr(settings, row.name)) for row in knobs_of(settings)}
    mine |= {name: str(options[name]) for name in _SHOWN if name in options}
    first, *others = processes.channel.meet("the settings", {"workload": workload.name, **mine})
    for process, given in enumerate(others, start=1):
        for name in {**first, **given}:
            one, other = (known.get(name, "its default") for known in (given, first))
            if one != other:
                raise SessionError(
                    f"process {process} has {name}={one}, process 0 has {other}: every process "
                    "must be given the same settings, but its own rank"
                )


def name_of(workload: Workload, count: int, options: Mapping[str, Any]) -> str:
    """What a run on so many devices is called: "mlp, 2 devices, bucket_mb=4"."""
    shown = [f"{name}={options[name]}" for name in _SHOWN if name in options]
    return ", ".join([workload.name, f"{count} device{'s' * (count != 1)}", *shown])
