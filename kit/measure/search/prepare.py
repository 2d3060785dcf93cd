"""Runs of one workload that share what they compile, and compiling before somebody asks.

`Prepared.run` is what an explorer reruns: it says which programs compile and which were there.
`Prepared.prepare` records a step under other settings without running it, and compiles what it
would need; it is for idle time, and gives way to whoever is in a hurry.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from kit.measure.base.context import Workload
from kit.measure.base.loop import Pace, timed_steps
from kit.measure.base.randomness import random_kept
from kit.measure.base.turns import TURNS, CancelledFn, waiting
from kit.measure.kit_run import open_workload
from kit.measure.many.placement import Placement
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import Compiling, ExecutableCache
from kit.runtime.session.ahead import Ahead, NeededProgram, PlanningExecutor
from kit.runtime.session.setup import Setup
from kit.shown import Progress

__all__ = ["Prepared"]

# By the id of a workload's builder. Programs of another one that got its id later do no harm: a key
# says all that its program depends on.
_CACHES: WeakValueDictionary[int, ExecutableCache] = WeakValueDictionary()
_STEPS = {"warmup": 2, "steps": 2}  # the first makes the optimizer's state, the others repeat


class Prepared:
    """A workload, or one that is placed, and the programs that its runs have needed so far.

    Those of one workload share their programs, as long as one of them lives: a notebook may hold
    many explorers, and a program of a whole step takes 20 MB.
    """

    def __init__(self, source: Any) -> None:
        self._placement = Placement.of(source)
        self.workload: Workload = self._placement.workload
        # the first device's
        self.cache = _CACHES.setdefault(id(self.workload.build), ExecutableCache())
        self._caches = [self.cache]
        self._ahead = Ahead(self.cache, around=TURNS.compile)

    @property
    def name(self) -> str:
        """The workload's, and on how many devices."""
        return self._placement.name

    def run(self, settings: Settings, /, *, progress: Progress, cancelled: CancelledFn) -> Run:
        """Measure the workload; see `kit.run`.

        Raises:
            Cancelled: `cancelled()` became true.
            Exception: whatever the workload raises.
        """
        last = [0.0]

        def note(text: str, fraction: float) -> None:
            last[0] = fraction
            progress(text, fraction)

        with TURNS.measure(
            f"the explorer of {self.name}",
            cancelled=cancelled,
            tell=waiting(progress),
        ):
            self.cache.watch = Compiling(lambda text: progress(text, last[0]))
            try:
                return self._placement.run(
                    settings, progress=note, cancelled=cancelled, caches=self._caches
                )
            finally:
                self.cache.watch = None

    def prepare(self, settings: Settings, /, *, progress: Progress, cancelled: CancelledFn) -> int:
        """Compile what a run under these settings would need, and give the number of programs.

        The workload's Python runs for a few steps, in this thread; what it reads is zeros.

        Raises:
            Cancelled: `cancelled()` became true.
            Exception: whatever the workload raises.
        """
        if settings.mode == "torch":
            return 0
        progress("recording", 0.0)

        def gives_way() -> bool:
            return cancelled() or TURNS.is_taken

        with TURNS.record():
            programs = self._programs(settings, gives_way)

        def tell(ready: int, needed: int) -> None:
            progress(f"{ready} of {needed} programs", ready / max(needed, 1))

        return self._ahead.compile(programs, tell=tell, cancelled=gives_way)

    def _programs(self, settings: Settings, cancelled: Callable[[], bool]) -> list[Any]:
        short = settings.replace(step_mode="retrace", prefetch=0, **_STEPS)
        programs: dict[Any, NeededProgram] = {}
        executor = partial(PlanningExecutor, programs=programs, cancelled=cancelled)
        setup = Setup(executor=executor, donates=settings.step_mode != "speculate")
        opened, context, _ = open_workload(self.workload, short, self.cache, setup)
        with random_kept(pythons=True), opened as session:
            step = self.workload(context())
            timed_steps(
                lambda: session.run_step(step),
                short,
                Pace(finish=session.wait_all),  # `run_step` ends the steps
                cancelled=cancelled,
                source=step,
            )
        return list(programs.values())
