"""The session of one replica: on a device of its own, with a rank, in a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from kit.errors import SettingsError
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.engine.operations import Operation
from kit.runtime.recording.bulk import Bulk, Cell, Cut, Frame, Op, Origin, Task, Value
from kit.runtime.rules.table import Rules
from kit.runtime.session.session import Session, current_session
from kit.runtime.session.setup import Setup
from kit.trace import Span

if TYPE_CHECKING:
    from kit.runtime.replicas.collectives import Exchange

__all__ = ["Place", "ReplicaSession", "note_replica", "note_turn"]

Place = tuple[str, Frame]  # the phase, and where in the program
_UNKNOWN: Frame = (("", 0), "", "")


class ReplicaSession(Session):
    """The session of one replica: on a device of its own, with a rank, in a group."""

    def __init__(
        self, rank: int, device: Any, exchange: Exchange, settings: Settings, frontend: Any,
        rules: Rules, cache: ExecutableCache | None = None,
    ) -> None:  # fmt: skip
        if settings.step_mode == "speculate" or settings.mode == "torch":
            raise SettingsError(
                "DataParallel records its steps, or replays them: it needs step_mode='retrace' or "
                "'replay', because what other replicas were sent cannot be asked for again, and a "
                f"mode other than 'torch', not {settings.step_mode!r} and {settings.mode!r}"
            )
        if settings.scaling.takes_back:
            raise SettingsError(
                f"loss_scaling={settings.loss_scaling!r} takes a step back by issuing it again, "
                "and what other replicas sent cannot be asked for again; take "
                f"{settings.scaling.native!r}"
            )
        kind = "gpu" if device.platform in ("gpu", "cuda", "rocm") else "cpu"
        setup = Setup(
            device=device,
            donates=False,  # collectives read arrays after the segments that made them
            while_waiting=exchange.group.turns.lent,
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
        self.exchange = exchange
        self.here_turn, self.here_posts = -1, 0  # collectives of this turn, counted

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

    def note_turn(self, is_mine: bool) -> None:
        """This replica's thread records from now on, or waits."""
        if is_mine:
            self.issuer.spans.resume()
        else:
            self.issuer.spans.pause()

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

    @property
    def ops_recorded(self) -> int:
        """Ops that this replica's thread has recorded since it began, without views."""
        bulk = self.streams.main.bulk
        return self.streams.ops_cut + (0 if bulk is None else bulk.size)

    def note_shared(self) -> None:
        """Count one parcel that was posted."""
        self.issuer.counts["reduction.count"] += 1

    def place_now(self, name: str) -> Place:
        """Where the program is, if somebody may look at this step or at a replay of it.

        Args:
            name: stands for the module, outside of one.
        """
        phase, places = self.stream.phase or "backward", self.stream.places
        if places is None or not (self.issuer.executor.is_tracing or self.stepper.mode == "replay"):
            return phase, _UNKNOWN
        site, via, scope = places.sync_frame()
        return phase, (site, via, scope or name)

    def arrival(
        self,
        key: tuple[Any, ...],
        leaves: Sequence[Cell],
        op: Op,
        place: Place,
        again: Callable[[list[Cell]], Any],
    ) -> tuple[Task, list[Cell]]:
        """A task that computes nothing here: the results of `op`, in these cells, are sent to it.

        Args:
            key: what it has in common with that of another step.
            leaves: what is sent for that.
            again: does the same in another step, with what is sent there.
        """
        phase, frame = place
        bulk = Bulk(self.stream.flush, phase, phase, 0)
        bulk.ops, bulk.frames = [op], [frame]
        bulk.key = [op.id, *(-1 - i for i in range(len(leaves)))]
        wanted = tuple(range(len(op.outputs)))
        cut = Cut(bulk, wanted, "reduction", key, op.avals)
        task = Task(self.issuer.next_segment(), cut, again=again)
        cells = [Cell(task, i) for i in wanted]
        task.outputs = [ref(cell) for cell in cells]
        if self.issuer.executor.is_tracing:
            task.seen.origins = tuple(map(Origin, leaves))
            self.issuer.spans.arrive(task)
        return task, cells

    def note_arrival(self, task: Task, leaves: list[Cell], made: Sequence[Value]) -> None:
        """The step has sent these `leaves`, and gets what is `made` of them."""
        task.leaves = leaves
        self.stepper.note_cut(task, made)
        task.leaves = []  # whoever keeps the task shall not keep arrays

    def send(self, cells: Sequence[Cell | None], deliver: Callable[[], None]) -> None:
        """Call `deliver` in the worker as soon as these cells have their arrays."""
        made = [c.task.variable for c in cells if c is not None and c.task is not None]
        reads = tuple(dict.fromkeys(made))
        self.issuer.executor.engine.push(deliver, reads, (), priority=1, name="send")

    def expect(self, task: Task, fill: Callable[[], None]) -> None:
        """Hold `task` until `received`; then call `fill` in the worker."""
        engine = self.issuer.executor.engine
        writes = (task.variable,)
        task.operation = engine.push(fill, (), writes, priority=1, name="receive", is_held=True)

    def received(self, operation: Operation) -> None:
        """What `expect` waited for is there."""
        self.issuer.executor.engine.release(operation)


def note_replica(error: BaseException, rank: int) -> None:
    """Say once where an error was; every reader gets the same object."""
    if not any(n.startswith("kit: this was in replica") for n in getattr(error, "__notes__", ())):
        error.add_note(f"kit: this was in replica {rank}")


def note_turn(is_mine: bool) -> None:
    """The replica whose thread this is begins to record, or stops."""
    if isinstance(session := current_session(), ReplicaSession):
        session.note_turn(is_mine)
