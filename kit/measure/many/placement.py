"""`Placement`: a workload, and on which devices of which processes it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from kit.errors import SettingsError
from kit.measure.base.context import Workload, as_workload
from kit.measure.base.provenance import provenance
from kit.measure.base.turns import CancelledFn
from kit.measure.experiment import run as run_alone
from kit.measure.many.options import OPTIONS, check_options, name_of
from kit.runs.knob import knobs_of
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.processes.join import current_processes
from kit.runtime.replicas.devices import check_devices
from kit.shown import Progress
from kit.text import check_whole_number

if TYPE_CHECKING:
    from kit.runtime.compiling.cache import ExecutableCache

__all__ = ["Placement", "placed"]


@dataclass(frozen=True)
class Placement:
    """What `kit.run` is told beside the settings; it can be sent to other processes.

    Raises:
        SettingsError: there is no such option, or it is none of this workload.
    """

    workload: Workload
    devices: int | Sequence[Any] = 1
    processes: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_devices(self.devices)
        check_whole_number(SettingsError, "processes", self.processes)
        if self.processes != 1 and not isinstance(self.devices, int):
            raise SettingsError("with processes, devices is the number that each of them has")
        if self.is_alone and self.options:
            for name in self.options:
                if name not in OPTIONS:
                    raise SettingsError(f"there is no argument {name!r}{self._close_to(name)}")
            names = ", ".join(self.options)
            raise SettingsError(f"{names}: only with several devices or processes")
        if not self.is_alone:
            check_options(self.workload, self.options)

    @classmethod
    def of(cls, workload: Any, devices: int | Sequence[Any] = 1, processes: int = 1,
           options: Mapping[str, Any] | None = None) -> Placement:  # fmt: skip
        """Of what a caller gave; one that is made already stays as it is."""
        if isinstance(workload, Placement):
            return workload
        return cls(as_workload(workload), devices, processes, dict(options or {}))

    def _close_to(self, wrong: str) -> str:
        """What may have been meant, for an error about a name that is no argument."""
        known = ["settings", *(row.name for row in knobs_of(self.workload.settings()))]
        if close := get_close_matches(wrong, known, n=1):
            return f"; did you mean {close[0]!r}?"
        names = ", ".join(knob.name for knob in self.workload.knobs)
        return f"; the knobs of {self.workload.name!r} are {names}" if names else ""

    @property
    def is_alone(self) -> bool:
        """On one device, and nobody else works at the same step."""
        return self.devices == 1 and self.processes == 1 and current_processes() is None

    @property
    def name(self) -> str:
        """What its runs are called."""
        if self.is_alone:
            return self.workload.name
        count = self.devices if isinstance(self.devices, int) else len(self.devices)
        joined = current_processes()
        processes = self.processes if joined is None else joined.count
        return name_of(self.workload, count * processes, self.options)

    def run(
        self,
        settings: Settings,
        *,
        progress: Progress | None = None,
        cancelled: CancelledFn | None = None,
        caches: list[ExecutableCache] | None = None,
    ) -> Run:
        """Run and measure it.

        Args:
            caches: runs that are given the same list compile once what they have in common; one
                for each device, made as they are needed. Other processes have their own.

        Raises:
            SettingsError: settings that cannot be.
            Cancelled: `cancelled()` became true.
            Exception: whatever the workload raises.
        """
        settings = self.workload.fit(settings)
        made = self._measured(settings, progress, cancelled, [] if caches is None else caches)
        return replace(made, environment={**made.environment, **provenance()})

    def _measured(
        self,
        settings: Settings,
        progress: Progress | None,
        cancelled: CancelledFn | None,
        caches: list[ExecutableCache],
    ) -> Run:
        if self.is_alone:
            if not caches and settings.mode != "torch":  # jax is not loaded for it
                from kit.runtime.compiling.cache import ExecutableCache

                caches.append(ExecutableCache())
            cache = caches[0] if caches else None
            return run_alone(
                self.workload, settings, progress=progress, cancelled=cancelled, cache=cache
            )
        if self.processes != 1:
            from kit.measure.many.launch import Team, run_processes

            assert isinstance(self.devices, int), "checked when it was made"
            options = dict(self.options)
            waits = {name: options.pop(name) for name in ("timeout_s",) if name in options}
            team = Team(self.processes, self.devices, **waits)
            return run_processes(
                self.workload, settings, team, progress=progress, cancelled=cancelled, **options
            )
        from kit.measure.many.replicas import run as run_replicas

        return run_replicas(self.workload, settings, devices=self.devices, progress=progress,
                            cancelled=cancelled, caches=caches, **self.options)  # fmt: skip


def placed(
    workload: Any, devices: int | Sequence[Any], processes: int, options: Mapping[str, Any]
) -> tuple[Placement, dict[str, Any]]:
    """A workload and where it runs; and those of the options that are settings of it, by name."""
    if not options:
        return Placement.of(workload, devices, processes), {}
    chosen = as_workload(workload)
    known = {knob.name for knob in knobs_of(Settings(own=chosen.knobs))}
    changes = {name: value for name, value in options.items() if name in known}
    rest = {name: value for name, value in options.items() if name not in known}
    return Placement.of(chosen, devices, processes, rest), changes
