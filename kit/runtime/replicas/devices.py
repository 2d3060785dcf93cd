"""Which devices the replicas of this process have.

Jax is loaded only to pick them: what `kit.run` is told is checked for a native run, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from kit.errors import SettingsError, suppressed
from kit.text import format_count

__all__ = ["check_devices", "pick_devices"]

_COUNT = "--xla_force_host_platform_device_count"


def pick_devices(wanted: int | Sequence[Any], kind: str = "auto") -> list[Any]:
    """The jax devices of the replicas: so many different ones, or those that are named.

    A name is "cpu:1", or it is one of jax's devices itself; the same one may come twice, and then
    its replicas share it. If jax has not begun, it makes as many CPU devices as it takes.

    Raises:
        SettingsError: there are not that many devices, or a name is none.
    """
    import jax

    check_devices(wanted)
    if isinstance(wanted, int):
        if kind != "gpu":
            _ask_for_cpus(wanted)
        there = jax.local_devices(backend="cpu" if kind == "cpu" else None)
        if len(there) < wanted:
            raise SettingsError(_too_few(wanted, there))
        return list(there[:wanted])
    for rank, name in enumerate(wanted):
        if not isinstance(name, str | jax.Device):
            raise SettingsError(
                f"replica {rank}: a device is a name such as 'cpu:0', or one of jax.devices(), not "
                f"{name!r}; a number for all, devices={len(wanted)}, takes so many different ones"
            )
    _ask_for_cpus(max(map(_cpus_for, wanted)))
    return [_named(rank, name) for rank, name in enumerate(wanted)]


def check_devices(wanted: Any) -> None:
    """Refuse what names no devices on any machine.

    Raises:
        SettingsError: it is no number of at least 1, and no list of names.
    """
    if isinstance(wanted, str | bytes) or not isinstance(wanted, int | Sequence):
        raise SettingsError(f"devices must be a number or a list of names, not {wanted!r}")
    if isinstance(wanted, bool) or (wanted < 1 if isinstance(wanted, int) else not len(wanted)):
        raise SettingsError(f"devices must be at least 1, not {wanted!r}")


def _ask_for_cpus(count: int) -> None:
    """Have jax make so many CPU devices, unless the environment says how many, or it has begun."""
    import jax

    if count > 1 and _COUNT not in os.environ.get("XLA_FLAGS", ""):
        asked = int(getattr(jax.config, "jax_num_cpu_devices", -1))
        with suppressed(RuntimeError):  # jax has begun: it has the devices it has
            jax.config.update("jax_num_cpu_devices", max(count, asked))


def _cpus_for(name: Any) -> int:
    """How many CPU devices there must be so that one has this name."""
    kind, _, number = name.partition(":") if isinstance(name, str) else ("", "", "")
    return int(number) + 1 if kind == "cpu" and number.isdecimal() else 0


def _named(rank: int, name: Any) -> Any:
    import jax

    if not isinstance(name, str):
        return name
    kind, _, number = name.partition(":")
    there: Sequence[Any] = []
    with suppressed(RuntimeError):  # jax knows no such kind
        there = jax.local_devices(backend=kind) if kind else []
    if number.isdecimal() and int(number) < len(there):
        return there[int(number)]
    names = ", ".join(f"{d.platform}:{i}" for i, d in enumerate(there or jax.local_devices()))
    text = f"replica {rank}: there is no device {name!r}; there are: {names}"
    count = _cpus_for(name)
    raise SettingsError(f"{text}. Jax {_more_cpus(count)}" if count else text)


def _too_few(wanted: int, there: Sequence[Any]) -> str:
    kind = there[0].platform
    text = f"devices={wanted}, but jax sees {format_count(len(there), f'{kind} device')}"
    if kind != "cpu":
        return (
            f"{text}; ask for at most {len(there)}, or try it on the CPU with "
            "settings=kit.Settings(device='cpu')"
        )
    return f"{text}: it {_more_cpus(wanted)}"


def _more_cpus(count: int) -> str:
    return (
        "was told so, or began before more were asked for. Set the environment "
        f"variable XLA_FLAGS={_COUNT}={count} before Python starts (in a notebook: restart the "
        "kernel and set it in the first cell), or make the DataParallel before anything else uses "
        "device 'kit' or jax"
    )
