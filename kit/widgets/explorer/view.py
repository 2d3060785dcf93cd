"""The explorer: move a control, the step runs again, every view shows the new run.

    a control moves ──► a model's picture, in tens of milliseconds, marked "modelled"
                    ──► once it rests: the step runs, programs compile ──► the measured picture
                    ──► idle: what the neighbouring settings would need is compiled ahead

The step runs on a background thread (`Reruns`), the model on another (`Foresight`), so the cell
stays alive; the newest request wins. Views are changed by these two threads, by the cell's thread
and by the thread that handles the page's messages, so every change is made under one lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import traitlets
from ipywidgets import HTML, Box, Layout

from kit.runs.change import error_of
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.predict import Prediction
from kit.text import format_count, format_ms, safe_html
from kit.widgets.base.controls import Controls, FittedSettings
from kit.widgets.base.page import View
from kit.widgets.base.progress import seldom
from kit.widgets.base.tables import FONT, INK
from kit.widgets.explorer.actions import ActionBar, FailureBox
from kit.widgets.explorer.ahead import AheadLine
from kit.widgets.explorer.foresight import Foresight
from kit.widgets.explorer.history import HistoryBar
from kit.widgets.explorer.link import Link
from kit.widgets.explorer.log import RunLog
from kit.widgets.explorer.pictures import Pictures
from kit.widgets.explorer.rerun import PrepareStep, Reruns, RunStep
from kit.widgets.numbers.advice import AGAIN
from kit.widgets.views import VIEWS, ViewRow

__all__ = ["Explorer"]

# The buttons, and what is compiled ahead, in one line where there is room.
_STATE = {
    "display": "flex",
    "flex_flow": "row wrap",
    "align_items": "center",
    "grid_gap": "2px 16px",
    "margin": "2px 0 4px",
}
REST_S = 0.15  # a control that moves on within it starts nothing; a model's picture takes less
ENDS_S = 1.0  # how long `close` waits for threads that run no step: they end in milliseconds


class Explorer(View):
    """Runs a step under the settings of its controls, and shows where the time went.

    `run` is the run that is shown, `runs` are all of them in order; `settings` are those of the
    controls. Changing `settings`, by a control or by `set`, starts a run; a newer one replaces an
    older one. Going back to settings that were measured shows their run, and starts none.
    `link.text()` is what is shown as one text, which `link.open(text)` shows again.

    Args:
        write_report: `write_report(runs, path, *, title, current)` is what `save` calls: views do
            not know reports.
        prepare: compiles ahead while nothing else is to be done: views do not know programs.
        views: the rows of the views to show; `headline` and `timeline` are among them.
    """

    run = traitlets.Instance(Run, allow_none=True)
    settings = FittedSettings()

    def __init__(
        self,
        run_step: RunStep,
        settings: Settings | None = None,
        *,
        name: str = "",
        auto_run: bool = True,
        write_report: Callable[..., Any] | None = None,
        prepare: PrepareStep | None = None,
        views: Sequence[ViewRow] = VIEWS,
    ) -> None:
        settings = settings if settings is not None else Settings()
        self._lock = threading.RLock()
        self._started_s = 0.0
        self._before: Run | None = None  # what was shown before `run`
        self._is_answered = True  # by a result or an error; a request without either was cancelled
        self.title = name or "step explorer"
        self._log = RunLog(self.title, write_report)
        self._foresight = Foresight(lambda: self._log.runs, self._show_model)
        self.failure = FailureBox(self._lock)
        self.link = Link(self, self._lock, lambda: not self._is_answered)
        self.history = HistoryBar(settings, self.failure, self.link)
        self.controls = Controls(settings, on_invalid=self.failure.refuse, beside=[self.history])
        self.ahead = AheadLine(prepare, self.controls.neighbours)
        guard = self.failure.guard
        self.actions: ActionBar = ActionBar(
            on_run=partial(guard, self.rerun),
            on_cancel=partial(guard, self.cancel),
            on_save=partial(guard, lambda: self.actions.say(self._log.save_beside(self.run))),
        )
        self.pictures = Pictures(  # advice asks for other settings, or for the same ones again
            views, lambda c: guard(partial(self.set, **c) if c else self.rerun)
        )
        self._reruns = Reruns(
            partial(self._foresight.measure, run_step),
            on_progress=seldom(self._show_progress),
            on_result=self._take,
            on_error=self._show_failure,
            on_idle=self._rest,
            spare=self.ahead.work,
        )
        state = Box([self.actions, self.ahead], layout=Layout(**_STATE))
        super().__init__(
            [_heading(self.title), self.controls, state, self.failure, *self.pictures.widgets],
            settings=settings,
            layout=Layout(width="auto", padding="0 6px 0 8px"),
        )
        self.add_class("kit-explorer")
        self._connect()
        if auto_run:
            try:
                self.rerun()
            except BaseException:  # one of its threads may run, and hold it
                self.close()
                raise

    @property
    def runs(self) -> list[Run]:
        """All runs so far, the newest last; the oldest go if there are very many."""
        return list(self._log.runs)

    @property
    def views(self) -> Mapping[str, Any]:
        """The views by their key in `kit.widgets.views`: `explorer.views["graph"].svg()`."""
        return self.pictures.views

    def set(self, **changes: Any) -> None:
        """Change settings from code, as a control would: `explorer.set(batch_size=16)`.

        Raises:
            SettingsError: a name or a value is not possible; nothing is changed or run.
            SessionError: the explorer is closed.
        """
        self._reruns.check_open()
        self.settings = self.settings.replace(**changes)

    def rerun(self, *, rest_s: float = 0.0) -> None:
        """Run the current settings, again if they were run before.

        Args:
            rest_s: start only if the settings have not changed again within that time.

        Raises:
            SessionError: the explorer is closed.
        """
        with self._lock:
            self._started_s, self._is_answered = time.perf_counter(), False
            self._foresight.ask(self.settings)
            self._reruns.request(self.settings, rest_s=rest_s)
            self.actions.start()

    def undo(self) -> bool:
        """Go back to the settings before, and show or run them; false if there are none."""
        return self.history.move(-1)

    def redo(self) -> bool:
        """Go forth to the settings that were undone, as `undo` does; false if there are none."""
        return self.history.move(1)

    def add_view(self, title: str, view: Any) -> None:
        """Put a view in a tab beside the graph's: `explorer.add_view("source", source_view)`."""
        with self._lock:
            self.pictures.add_tab(title, view)

    def cancel(self) -> None:
        """Stop the run in progress; the picture stays as it is."""
        with self._lock:
            if self._reruns.is_busy:
                self.actions.say("cancelling: the step stops at its next checkpoint")
            self._reruns.cancel()

    def wait(self, timeout_s: float | None = None) -> Run:
        """Block until the newest run is done and drawn, and return it.

        Interrupting the wait cancels the run.

        Raises:
            Cancelled: the run was cancelled.
            SessionError: the explorer was closed before it was asked for.
            TimeoutError: it is still running.
            Exception: whatever the step raised.
        """
        try:
            return self._reruns.wait(timeout_s)
        except KeyboardInterrupt:
            self.cancel()
            raise

    def save(self, path: str | os.PathLike[str] = "report.html") -> None:
        """Write all runs so far as one HTML file whose sliders work without a kernel.

        Raises:
            SessionError: nothing has been run yet.
            OSError: the file cannot be written.
        """
        self.actions.say(self._log.save(path, self.run))

    def to_markdown(self) -> str:
        """The run that is shown as Markdown tables, and all runs side by side if there are several.

        Raises:
            SessionError: nothing has been run yet.
        """
        return self._log.to_markdown(self.run)

    def close(self) -> None:
        """Stop running and remove the view from the page."""
        reruns = getattr(self, "_reruns", None)  # `close` also follows an `__init__` that failed
        if reruns is not None:
            self.ahead.stop()
            # Each thread holds the explorer, and its runs, until it has ended.
            left_s = 0.0 if reruns.is_busy else ENDS_S
            reruns.close(left_s)
            self._foresight.close(left_s)
        super().close()

    def __repr__(self) -> str:
        return f"Explorer({self.run!r})" if self.run is not None else "Explorer(no run yet)"

    def store(self) -> None:
        """Have the notebook keep what is shown now; while something runs, when that has ended."""
        if not self._reruns.is_busy:
            super().store()

    def _connect(self) -> None:
        """Let the parts follow each other, and compile ahead while no cell runs."""
        for part in (self.controls, self.history):
            traitlets.link((self, "settings"), (part, "settings"))
        self.observe(lambda _: self.link.follow(), "run")
        self.observe(lambda _: self.failure.guard(self._follow), "settings")
        self.views["timeline"].observe(partial(_keep_pins, self), "run")
        self.ahead.steer(self._reruns.pause, self._reruns.resume)

    def _follow(self) -> None:
        """The settings have changed: run them, or show their run if undo leads to measured ones."""
        known = self._log.newest_of(self.settings) if self.history.is_returning else None
        if known is None:
            self.rerun(rest_s=REST_S)
            return
        with self._lock:
            self._is_answered = True
            self._reruns.answer(known)
            self._show(known, None)
            said = f"measured before, and shown again: {AGAIN!r} measures these settings anew"
            self.actions.say(said, is_news=True, more=self.views["headline"].changed)

    def _show(self, run: Run, expected: Prediction | None) -> None:
        if run is not self.run:  # undo may lead back to it, from settings that were not measured
            self._before = self.run
        self.pictures.show(run, self._before, expected)
        self.failure.value = ""
        self.run = run

    def _show_model(self, asked: Settings, prediction: Prediction | None) -> None:
        """Draw what the model expects of settings, unless they were measured or left meanwhile."""
        with self._lock:
            if self._is_answered or asked != self.settings or self.run is None:
                return
            if prediction is None:
                said = "no model can tell from the runs so far: it will be measured"
                self.actions.say(f"{said}; the picture is of the run before")
                self.pictures.stay(self.run, self._before, asked, "is being measured")
                return
            self.pictures.show_model(prediction, self.run)
            self.actions.say(f"modelled: {prediction.step_text} a step", is_news=True)

    def _take(self, run: Run) -> None:
        """Show a new run and keep it; called by the worker."""
        with self._lock:
            self._log.add(run)
            self.ahead.note(run.settings)
            self._foresight.learn(run)
            if self._is_late():
                return
            self._is_answered = True
            took_s = time.perf_counter() - self._started_s
            said = f"measured in {took_s:.1f} s{_off(run)}{_compiled(run)}"
            try:
                self._show(run, self._foresight.expected(run.settings))
                self.actions.say(said, is_news=True, more=self.views["headline"].changed)
            except BaseException:
                self._is_answered = False  # by the failure that follows
                raise

    def _is_late(self) -> bool:
        """Has the request of what the worker brings an answer already, or has a newer one come?

        The worker may have waited for the lock while undo showed another run, or a control moved.
        """
        return self._is_answered or self._reruns.is_waiting

    def _show_progress(self, text: str, fraction: float) -> None:
        with self._lock:
            if self._is_late():
                return
            expected = self._foresight.expected(self.settings)
            known = "" if expected is None else f"modelled: {expected.step_text} a step; "
            self.actions.show_progress(known + text, fraction)

    def _show_failure(self, error: BaseException, trace: str) -> None:
        with self._lock:
            if self._is_late():
                return
            self.failure.show(error, trace)
            is_first = self.run is None
            after = "" if is_first else "; the picture below is of the run before it"
            self._give_up(f"the run failed{after}", "failed")

    def _rest(self) -> None:
        """Nothing runs any more: a request without an answer was cancelled."""
        with self._lock:
            if self._reruns.is_waiting:  # it came just now, and is followed by a rest of its own
                return
            self.actions.rest()
            if not self._is_answered:
                after = "; the picture is of the run before" if self.run is not None else ""
                self._give_up(f"cancelled{after}", "was cancelled")
        super().store()  # once for many moves: it takes longer than to draw them

    def _give_up(self, said: str, what: str) -> None:
        """The request has no run: back to the picture of the last one."""
        self._is_answered = True
        self.link.settle()
        if self.run is not None:
            self.pictures.stay(self.run, self._before, self.settings, what)
        self.actions.say(said, is_news=True)


def _keep_pins(shown: Explorer, change: dict[str, Any]) -> None:
    """A text was pinned in the timeline: reports and files of the explorer have it, too."""
    with shown._lock:
        was, new = shown.run, change["new"]
        if was is None or new is None or new is was:
            return
        if new.timeline is was.timeline and new.pins != was.pins:
            shown._log.replace(was, new)
            shown.run = new


def _heading(title: str) -> HTML:
    return HTML(
        f'<div role="heading" aria-level="2" style="font:600 17px/1.3 {FONT};color:{INK};'
        f'overflow-wrap:anywhere">{safe_html(title, 120)}</div>',
        layout=Layout(margin="0"),
    )


def _off(run: Run) -> str:
    """How wrong the model was; nothing if it was not asked."""
    if not run.predicted_ms or not run.step_ms > 0:
        return ""
    found = error_of(run.predicted_ms, [run])
    error = found.text(more="too slow", less="too fast", says_doubt=False)  # a box says it
    return f"; the model had said {format_ms(run.predicted_ms)} a step: {error}"


def _compiled(run: Run) -> str:
    """What the run had to compile; nothing for a run of native torch."""
    if not run.metrics.get("segment.count"):
        return ""
    count, disk = (int(run.metrics.get(f"compile.{x}", 0)) for x in ("count", "from_disk"))
    if not count:
        return "; every program was in the cache"
    seconds = run.metrics.get("compile.ns", 0) / 1e9
    if disk >= count:
        return f"; {format_count(count, 'program')} read from disk in {seconds:.1f} s"
    read = f", {disk:,} more read from disk" if disk else ""
    return f"; {format_count(count - disk, 'program')} compiled{read} in {seconds:.1f} s"
