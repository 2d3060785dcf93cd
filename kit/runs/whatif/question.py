"""What is asked of a prediction, and whether a run can answer it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kit.errors import SettingsError
from kit.ir.plan import OpStream
from kit.runs.knob import knobs_of
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.text import check_number
from kit.trace import SyncPoint
from kit.trace.syncs import SyncRow

__all__ = ["Question", "unlike"]

_MOST_NS = 1e12  # of a launch or a wait: 1,000 s


@dataclass(frozen=True, slots=True)
class Question:
    """What to predict; the fields are the arguments of `kit.predict`, which says what they mean."""

    settings: Settings
    without: tuple[str | SyncRow | SyncPoint, ...] = ()
    device_speed: float = 1.0
    launch_ns: float | None = None
    sync_ns: float | None = None
    stream: OpStream | None = None
    host_speed: float = 1.0

    def __post_init__(self) -> None:
        Settings.checked(self.settings)

    def of(self, run: Run) -> Question:
        """The same; settings that know no knob of the run's builder have them as the run did."""
        if self.settings.own or not run.settings.own:
            return self
        return replace(self, settings=self.settings.fit(run.settings.own, run.name))

    def check(self, run: Run) -> None:
        """Accept a question that can be answered from this run.

        Raises:
            SettingsError: it cannot; the message says why, and what to measure instead.
        """
        if why := unlike(run.settings, self.settings):
            raise SettingsError(why)
        if "torch" in (run.settings.mode, self.settings.mode):
            raise SettingsError(
                "mode 'torch' runs without kit's runtime: it can only be measured. Ask a run on "
                "device kit"
            )
        self.check_numbers()
        mine, theirs = run.settings.accumulate, self.settings.accumulate
        if mine != theirs and mine != 1:
            raise SettingsError(
                f"accumulate={theirs} can be predicted from accumulate=1 only, not from {mine}"
            )

    def check_numbers(self) -> None:
        """Accept the numbers that are no settings.

        Raises:
            SettingsError: one is out of range.
        """
        for name in ("device_speed", "host_speed"):
            check_number(SettingsError, name, getattr(self, name), above=0)
        for name, value in (("launch_ns", self.launch_ns), ("sync_ns", self.sync_ns)):
            if value is not None:
                check_number(SettingsError, name, value, at_least=0, at_most=_MOST_NS,
                             unit="nanoseconds")  # fmt: skip


def unlike(mine: Settings, asked: Settings) -> str:
    """Why settings are of a step whose parts a run of these never showed; "" if they are not."""
    for knob in knobs_of(mine):
        if knob.is_modelled or knob.is_measuring or knob.is_own:
            continue
        here, there = getattr(mine, knob.name), getattr(asked, knob.name)
        if here != there:
            return (
                f"{knob.name}={there!r} cannot be predicted from a run with {here!r}, which does "
                "not show what that costs. Measure it: kit.run(workload, settings)"
            )
    return "" if mine.own == asked.own else _another_step(mine, asked)


def _another_step(mine: Settings, asked: Settings) -> str:
    """Why nothing is predicted where a builder's own knobs differ."""
    here, there = ({knob.name: knob.value for knob in x.own} for x in (mine, asked))
    changed = [f"{k}={there.get(k)!r}" for k in (here | there) if here.get(k) != there.get(k)]
    return (
        f"{', '.join(changed)} cannot be predicted: it is a parameter of the workload's builder, "
        "and the kit does not know what the builder does with it. Measure it: "
        "kit.run(workload, settings)"
    )
