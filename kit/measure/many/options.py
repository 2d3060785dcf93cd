"""What a run on several devices may be told, and what it is called by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kit.errors import SettingsError
from kit.measure.base.context import Workload

__all__ = ["OPTIONS", "check_options", "name_of"]

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


def name_of(workload: Workload, count: int, options: Mapping[str, Any]) -> str:
    """What a run on so many devices is called: "mlp, 2 devices, bucket_mb=4"."""
    shown = [f"{name}={options[name]}" for name in _SHOWN if name in options]
    return ", ".join([workload.name, f"{count} device{'s' * (count != 1)}", *shown])
