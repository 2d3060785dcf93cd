"""What a watched loop has recorded so far, and what a recorder of its steps has to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from kit.errors import but_of_handlers
from kit.measure.base.machine import Usage, conditions_of
from kit.measure.base.ready import ReadyBatches
from kit.runs.conditions import OF_OTHERS, UNKNOWN_CONDITIONS, Conditions
from kit.runs.labels import ENDS_AT, WATCHED
from kit.runs.run import Run

__all__ = ["EXPLICIT", "FAILED", "Recorded", "Recorder"]

FAILED = "the recording failed"  # so a watch says it
EXPLICIT = "watch.step()"  # of a boundary: the loop itself ends its steps


@dataclass
class Recorded:
    """The steps of one recording, filled as the loop goes on.

    Units:
        warming, times: nanoseconds
    """

    name: str
    boundary: str = ""  # what ends a step, in words
    site: tuple[str, int] = ("", 0)  # the user's line that ends a step
    warming: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)  # of the measured steps; tensors, unread
    notes: list[str] = field(default_factory=list)
    usage: Usage | None = None  # of the machine; None until the measured steps are over
    ended: str = ""  # why; "" while it goes on
    of_others: int = 0  # steps of the same loop that other threads made meanwhile

    @property
    def steps(self) -> list[int]:
        """The measured steps; of a loop that ended before them, those of its warm-up."""
        return list(self.times or self.warming)

    @property
    def conditions(self) -> Conditions:
        """What else the machine did."""
        if self.usage is None:
            return UNKNOWN_CONDITIONS
        return conditions_of([self.usage], len(self.warming))

    @property
    def environment(self) -> dict[str, str]:
        """For the run: how it was recorded."""
        said = {
            WATCHED: self.ended or "goes on",
            ENDS_AT: self.boundary,
            OF_OTHERS: f"{self.of_others or ''}",
        }
        return {name: text for name, text in said.items() if text}

    @property
    def all_notes(self) -> list[str]:
        """For the timeline: what a reader has to know of these steps."""
        failed = [self.ended] * self.ended.startswith(FAILED)
        if self.times or not self.warming:
            return [*failed, *self.notes]
        early = "the loop ended before its steps were steady: these times are of its warm-up"
        return [*failed, "these times are of its warm-up" if failed else early, *self.notes]

    def kept_losses(self) -> tuple[float, ...]:
        """The losses of the measured steps; () where the loop gave none, or not for each."""
        if not self.times or len(self.losses) < len(self.times):
            return ()
        try:
            return tuple(float(loss) for loss in self.losses[: len(self.times)])
        except but_of_handlers(Exception) as error:  # the program's, as where a segment failed
            self.notes.append(f"the losses could not be read: {error}")
            return ()


class Recorder(Protocol):
    """Records steps on one kind of device; called in the loop's thread, between two steps."""

    @property
    def trace_length(self) -> int:
        """How many steps a complete trace takes, after those that are measured."""

    def begin_clock(self) -> None:
        """The steps that are timed from here on replace those before."""

    def tick(self, is_last: bool, loss: Any) -> None:
        """A timed step has ended, perhaps the last one, with this loss, or None."""

    def begin_trace(self, ready: ReadyBatches) -> None:
        """The steps from now on are traced; `ready`: counted at the ends of those before."""

    def trace_step(self) -> bool:
        """A traced step has ended; true: no more are needed."""

    def end_trace(self) -> None:
        """Trace no more, wherever the step is; does nothing where nothing is traced."""

    def make_run(self, recorded: Recorded) -> Run:
        """All that was recorded, as a run."""
