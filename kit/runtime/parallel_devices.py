"""Which devices the replicas of this process have."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import jax

from kit.errors import SettingsError

__all__ = ["pick_devices"]

_COUNT = "--xla_force_host_platform_device_count"


def pick_devices(wanted: int | Sequence[Any], kind: str = "auto") -> list[Any]:
    """The jax devices of the replicas: so many different ones, or those that are named.

    A name is "cpu:1"; the same one may come twice, and then its replicas share it.

    Raises:
        SettingsError: there are not that many devices, or a name is none.
    """
    if isinstance(wanted, str | bytes) or not isinstance(wanted, int | Sequence):
        raise SettingsError(f"devices must be a number or a list of names, not {wanted!r}")
    if isinstance(wanted, bool) or (isinstance(wanted, int) and wanted < 1) or wanted == []:
        raise SettingsError(f"devices must be at least 1, not {wanted!r}")
    if isinstance(wanted, int):
        if wanted > 1 and kind != "gpu" and _COUNT not in os.environ.get("XLA_FLAGS", ""):
            asked = int(getattr(jax.config, "jax_num_cpu_devices", -1))
            with contextlib.suppress(RuntimeError):  # jax has begun: it has the devices it has
                jax.config.update("jax_num_cpu_devices", max(wanted, asked))
        there = jax.local_devices(backend="cpu" if kind == "cpu" else None)
        if len(there) < wanted:
            raise SettingsError(_too_few(wanted, there))
        return list(there[:wanted])
    return [_named(rank, name) for rank, name in enumerate(wanted)]


def _named(rank: int, name: Any) -> Any:
    if not isinstance(name, str):
        return name
    kind, _, number = name.partition(":")
    try:
        there = jax.local_devices(backend=kind)
    except RuntimeError:
        there = []
    if not number.isdecimal() or int(number) >= len(there):
        names = ", ".join(f"{d.platform}:{i}" for i, d in enumerate(there or jax.local_devices()))
        raise SettingsError(f"replica {rank}: there is no device {name!r}; there are: {names}")
    return there[int(number)]


def _too_few(wanted: int, there: Sequence[Any]) -> str:
    kind = there[0].platform
    text = f"devices={wanted}, but jax sees {len(there)} {kind} device{'s' * (len(there) != 1)}"
    if kind != "cpu":
        return (
            f"{text}; ask for at most {len(there)}, or try it on the CPU with "
            "settings=kit.Settings(device='cpu')"
        )
    return (
        f"{text}: it was told so, or began before more were asked for. Set the environment "
        f"variable XLA_FLAGS={_COUNT}={wanted} before Python starts (in a notebook: restart the "
        "kernel and set it in the first cell), or make the DataParallel before anything else uses "
        "device 'kit' or jax"
    )
