"""The session of one replica: on a device of its own, with a rank, in a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from kit.errors import SettingsError
from kit.runs.settings import GPUS, Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.recording.bulk import Task
from kit.runtime.replicas.collectives import Collectives
from kit.runtime.replicas.member import Member, note_replica
from kit.runtime.rules.table import Rules
from kit.runtime.session.session import Session, current_session
from kit.runtime.session.setup import Setup
from kit.trace import Span

__all__ = ["ReplicaSession", "note_turn"]


class ReplicaSession(Session):
    """The session of one replica: on a device of its own, with a rank, in a group."""

    def __init__(
        self, rank: int, device: Any, collectives: Collectives, settings: Settings, frontend: Any,
        rules: Rules, cache: ExecutableCache | None = None,
    ) -> None:  # fmt: skip
        if settings.mode == "torch":
            raise SettingsError("DataParallel records its steps, which mode 'torch' does not")
        if settings.step_mode == "speculate":
            raise SettingsError(
                "DataParallel records its steps, or replays them: step_mode='speculate' issues a "
                "step again, and what other replicas were sent cannot be asked for again; take "
                "step_mode='retrace' or 'replay'"
            )
        if settings.scaling.takes_back:
            raise SettingsError(
                f"loss_scaling={settings.loss_scaling!r} takes a step back by issuing it again, "
                "and what other replicas sent cannot be asked for again; take "
                f"{settings.scaling.native!r}"
            )
        kind = "gpu" if device.platform in GPUS else "cpu"
        setup = Setup(
            device=device,
            donates=False,  # collectives read arrays after the segments that made them
            while_waiting=collectives.group.turns.while_waiting,
            note_error=partial(note_replica, rank=rank),
        )
        super().__init__(
            settings.replace(device=kind),
            rules=rules,
            frontends=(frontend,),
            cache=cache,
            setup=setup,
        )
        self.rank = rank  # among the replicas of all processes
        self.collectives = collectives
        self.member = Member(self.issuer, self.stepper, self.streams)
        collectives.join(self.member)
        self._turn, self._posts = -1, 0  # collectives of this turn, counted

    @property
    def traced(self) -> list[tuple[Task, int]]:
        """What was cut while it was watched, and what came from others, each with its step."""
        return self.issuer.spans.tasks

    def lanes(self, segments: Mapping[int, int]) -> list[Span]:
        """What was recorded in `watch`, on the lanes of this replica.

        Args:
            segments: the number that a task's spans shall have, by its index.
        """
        phases = {task.index: task.cut.bulk.phase for task, _ in self.traced}
        found = []
        for span in [*self.issuer.spans.spans, *self.issuer.executor.spans]:
            lane, name, kind = f"host/replica {self.rank}", span.name, span.kind
            if span.lane == "host/worker" and kind == "dispatch":  # on a CPU it waits for the end
                lane, kind = f"device/{self.rank} compute", "kernel"
                name = f"{phases.get(span.segment, '')} {span.name}".strip()
            elif span.lane == "host/worker":
                lane = f"host/worker {self.rank}"
            if kind != "step":
                number = segments.get(span.segment, -1)
                found.append(replace(span, lane=lane, name=name, kind=kind, segment=number))
        return found

    def watch(self, is_on: bool) -> None:
        """Record spans from now on, or no more."""
        self.issuer.executor.is_tracing = is_on
        if is_on:
            self.issuer.executor.spans.clear()
            self.issuer.spans.start(0)
            self.stream.phase = ""
        else:
            self.issuer.spans.stop()

    def end_step(self) -> None:
        """One step ends here and the next begins, for the spans."""
        self.issuer.spans.end_step()

    def next_collective(self) -> int:
        """The number of the next collective that this replica asks for by name, in this turn."""
        turn = self.collectives.group.turn
        if self._turn != turn:
            self._turn, self._posts = turn, 0
        self._posts += 1
        return self._posts


def note_turn(is_mine: bool) -> None:
    """The replica whose thread this is begins to record, or stops."""
    if isinstance(session := current_session(), ReplicaSession):
        spans = session.issuer.spans
        (spans.resume if is_mine else spans.pause)()
