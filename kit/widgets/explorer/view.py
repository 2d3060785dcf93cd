"""The explorer: move a control, the step runs again, every view shows the new run.

    a control moves ──► a model's picture, in tens of milliseconds, marked "modelled"
                    ──► once it rests: the step runs, programs compile ──► the measured picture
                    ──► idle: what the neighbouring settings would need is compiled ahead

The step runs on a background thread (`Reruns`), the model on another, so the cell stays alive; the
newest request wins. Views are changed by these, by the cell's thread and by the thread that handles
the page's messages, so every change is made under one lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import traitlets
from ipywidgets import HTML, Box, Button, FloatProgress, HBox, Layout, Tab, VBox

from kit.errors import KitError, SessionError
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.predict import Prediction
from kit.text import safe_html
from kit.trace import Timeline
from kit.widgets.base.controls import Controls
from kit.widgets.base.page import View
from kit.widgets.base.tables import (
    FONT,
    INK,
    MUTED,
    breakdown_html,
    failure_html,
    headline_html,
    run_notes_html,
    unlowered_html,
)
from kit.widgets.compare.view import comparison_markdown
from kit.widgets.explorer.ahead import AheadLine
from kit.widgets.explorer.foresight import Foresight, modelled_html, modelled_run
from kit.widgets.explorer.history import HistoryBar
from kit.widgets.explorer.linked import (
    SelectionBar,
    kernel_listing,
    link_selections,
    memory_listing,
    sync_listing,
)
from kit.widgets.explorer.rerun import Newest, PrepareStep, Reruns, RunStep
from kit.widgets.graph.view import GraphView
from kit.widgets.numbers.advice import AdviceView
from kit.widgets.numbers.compiles import recompiles_html
from kit.widgets.numbers.gaps import gaps_html
from kit.widgets.numbers.segments import folded_segments_html
from kit.widgets.numbers.source import SourceView
from kit.widgets.timeline.view import TimelineView

__all__ = ["MAX_RUNS", "Explorer"]

MAX_RUNS = 200  # kept for the report; a run is some hundred kilobytes
REST_S = 0.15  # a control that moves on within it starts nothing; a model's picture takes less
_MODEL_S = 5.0  # a run waits no longer for the model, which should not disturb its clock


class Explorer(View):
    """Runs a step under the settings of its controls, and shows where the time went.

    `run` is the newest run, `runs` all of them in order; `settings` are those of the controls.
    Changing `settings`, by a control or by `set`, starts a run; a newer one replaces an older one.
    `write_report(runs, path, *, title, current)` is what `save` calls, and `prepare` is what
    compiles ahead while nothing else is to be done: views know neither reports nor programs.
    """

    run = traitlets.Instance(Run, allow_none=True)
    settings = traitlets.Instance(Settings)

    def __init__(
        self,
        run_step: RunStep,
        settings: Settings | None = None,
        *,
        name: str = "",
        title: str | None = None,
        auto_run: bool = True,
        write_report: Callable[..., Any] | None = None,
        prepare: PrepareStep | None = None,
    ) -> None:
        settings = settings if settings is not None else Settings()
        self._lock = threading.RLock()
        self.controls = Controls(settings, on_invalid=self._refuse)
        self.ahead = AheadLine(prepare, self.controls.neighbours, on_change=self._ahead_changed)
        self._reruns = Reruns(partial(self._measure, run_step), on_progress=self._show_progress,
                              on_result=self._take, on_error=self._show_failure,
                              on_idle=self._rest, spare=self.ahead.work)  # fmt: skip
        self._foresight, self._newest = Foresight(), Newest(self._foresee, "kit model")
        self._started_s = 0.0
        self._prediction: Prediction | None = None  # what the model has said last
        self._is_modelled = False  # what the timeline shows now
        self._is_ready = False
        self._is_answered = True  # by a result or an error: what is neither was cancelled
        self.name = name
        self.title = title if title is not None else name or "step explorer"
        self._write_report = write_report
        self.runs: list[Run] = []
        self.history = HistoryBar(settings, on_invalid=self._refuse)
        self._build()
        super().__init__(
            self._rows(), settings=settings, layout=Layout(width="auto", padding="0 6px 0 8px")
        )
        self.add_class("kit-explorer")
        traitlets.link((self, "settings"), (self.controls, "settings"))
        traitlets.link((self, "settings"), (self.history, "settings"))
        self._is_ready = True
        self.ahead.watch_cells(self._reruns.pause, self._reruns.resume)
        if auto_run:
            self.rerun()

    def set(self, **changes: Any) -> None:
        """Change settings from code, as a control would: `explorer.set(batch_size=16)`.

        Raises:
            SettingsError: a name or a value is not possible; nothing is changed or run.
        """
        self.settings = self.settings.replace(**changes)

    def rerun(self, *, rest_s: float = 0.0) -> None:
        """Run the current settings, again if they were run before.

        Args:
            rest_s: start only if the settings have not changed again within that time.
        """
        with self._lock:
            self._started_s, self._is_answered = time.perf_counter(), False
            self._newest.put(self.settings)
            self._reruns.request(self.settings, rest_s=rest_s)
            self._say("starting")
            self.progress.value, self.progress.layout.display = 0.0, ""
            self.cancel_button.disabled = False

    def undo(self) -> bool:
        """Go back to the settings before, and run them; false if there are none."""
        return self.history.move(-1)

    def redo(self) -> bool:
        """Go forth to the settings that were undone, and run them; false if there are none."""
        return self.history.move(1)

    def add_view(self, title: str, view: Any) -> None:
        """Put a view in a tab beside the graph's: `explorer.add_view("source", source_view)`."""
        with self._lock:
            shown = self._left.children
            tabs = shown[0] if shown and isinstance(shown[0], Tab) else Tab([self.graph])
            tabs.children = (*tabs.children, view)
            tabs.titles = (*(tabs.titles[:-1] if len(tabs.children) > 2 else ("IR graph",)), title)
            self._left.children = [tabs, self.source]

    def cancel(self) -> None:
        """Stop the run in progress; the picture stays as it is."""
        with self._lock:
            if self._reruns.is_busy:
                self._say("cancelling: the step stops at its next checkpoint")
            self._reruns.cancel()

    def wait(self, timeout_s: float | None = None) -> Run:
        """Block until the newest run is done and drawn, and return it.

        Interrupting the wait cancels the run.

        Raises:
            Cancelled: the run was cancelled.
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
        with self._lock:
            runs, current = list(self.runs), self.run
        if self._write_report is None:
            raise SessionError("this explorer was made without a report writer: use kit.Explorer")
        if current is None:
            raise SessionError("there is no run to report yet: wait for the first one")
        self._write_report(runs, path, title=self.title, current=current)
        self._say(f"saved {len(runs)} run{'s' * (len(runs) != 1)} to {os.path.abspath(path)}")

    def to_markdown(self) -> str:
        """The newest run as Markdown tables, and all runs side by side if there are several.

        Raises:
            SessionError: nothing has been run yet.
        """
        with self._lock:
            runs, run = list(self.runs), self.run
        if run is None:
            raise SessionError("there is no run to report yet: wait for the first one")
        return run.to_markdown() + (f"\n{comparison_markdown(runs)}\n" if len(runs) > 1 else "")

    def close(self) -> None:
        """Stop running and remove the view from the page."""
        reruns = getattr(self, "_reruns", None)  # `close` also follows an `__init__` that failed
        if reruns is not None:
            self.ahead.stop()
            self._newest.close()
            reruns.close()
        super().close()

    def __repr__(self) -> str:
        return f"Explorer({self.run!r})" if self.run is not None else "Explorer(no run yet)"

    def page(self) -> str:
        """The newest run as one HTML document; `save` writes all of them, with their sliders."""
        with self._lock:
            return super().page()

    def _build(self) -> None:
        self.headline = HTML(layout=Layout(width="auto", margin="2px 2px 10px"))
        self.advice = AdviceView(self._try)
        self.timeline = TimelineView()
        self.graph = GraphView()
        self.source, self.syncs = SourceView(), sync_listing()
        self.kernels, self.memory = kernel_listing(), memory_listing()
        self.breakdown, self.gaps, self.unlowered, self.segments, self.notes = (
            HTML(layout=Layout(width="auto")) for _ in range(5)
        )
        linked = (self.timeline, self.graph, self.source, self.syncs, self.kernels, self.memory)
        link_selections(linked)
        self.selected = SelectionBar(linked)
        self.failure = HTML(layout=Layout(width="auto"))
        self.rerun_button = _button("Run again", "measure the current settings once more", "info")
        self.cancel_button = _button("Cancel", "stop the run in progress; the picture stays")
        self.save_button = _button("Save report", "write all runs so far to report.html")
        self.progress = FloatProgress(min=0.0, max=1.0, layout=Layout(width="140px", margin="0"))
        self.progress.layout.display = "none"
        self.cancel_button.disabled = True
        self.status = HTML(layout=Layout(flex="1 1 240px", min_width="0", margin="0"))
        self.announcer = HTML()  # the same for screen readers, but not each step of the way
        self.announcer.add_class("kit-announce")
        self.announcer.add_class("kit-unseen")
        self.rerun_button.on_click(lambda _: self._guarded(self.rerun))
        self.cancel_button.on_click(lambda _: self._guarded(self.cancel))
        self.save_button.on_click(lambda _: self._guarded(self.save))
        self._say("not run yet")

    def _rows(self) -> list[Any]:
        heading = HTML(
            f'<div role="heading" aria-level="2" style="font:600 17px/1.3 {FONT};color:{INK};'
            f'overflow-wrap:anywhere">{safe_html(self.title, 120)}</div>'
        )
        actions = [self.rerun_button, self.cancel_button, self.save_button, self.progress]
        bar = HBox([*actions, self.status, self.announcer], layout=Layout(flex_flow="row wrap",
                   align_items="center", grid_gap="8px", margin="2px 0 0"))  # fmt: skip
        bar.add_class("kit-actions")
        self._left = VBox([self.graph, self.source], layout=Layout(flex="3 1 460px", min_width="0",
                          overflow="auto"))  # fmt: skip
        right = VBox([self.syncs, self.gaps, self.breakdown, self.unlowered],
                     layout=Layout(flex="2 1 340px", min_width="0"))  # fmt: skip
        columns = Box([self._left, right], layout=Layout(display="flex", flex_flow="row wrap",
                      width="auto", grid_gap="24px", align_items="flex-start",
                      margin="8px 0 0"))  # fmt: skip
        self.timeline.layout.width = "auto"
        self._measured_parts = [self.advice, columns, self.segments, self.kernels, self.memory,
                                self.notes]  # fmt: skip
        return [heading, self.controls, self.history, bar, self.ahead, self.failure, self.headline,
                self.advice, self.selected, self.timeline, columns, self.segments, self.kernels,
                self.memory, self.notes]  # fmt: skip

    @traitlets.observe("settings")
    def _settings_changed(self, _: dict[str, Any]) -> None:
        if self._is_ready:
            self._guarded(partial(self.rerun, rest_s=REST_S))

    def _foresee(self, asked: Settings | Run) -> None:
        """Draw what the model expects of settings; or get ready to, from a new run."""
        try:
            if isinstance(asked, Run):
                self._foresight.warm(asked)
                return
            with self._lock:
                runs, measured = list(self.runs), self.run
            if measured is None:
                return
            prediction = self._foresight.predict(runs, asked)
            modelled = modelled_run(prediction, measured)
            headline = modelled_html(prediction, modelled, measured)
        except KitError:  # another dtype, a run of native torch: only a measurement can say
            with self._lock:
                if not isinstance(asked, Run) and not self._is_answered:
                    self._say("no model can tell from the runs so far: it will be measured")
            return
        with self._lock:
            self._prediction = prediction
            if self._is_answered or asked != self.settings:
                return  # it has been measured meanwhile, or something else is wanted
            self._mark(is_modelled=True)
            self.headline.value = headline
            self._draw(modelled)
            self._say(f"modelled: {prediction.step_ms:.3g} ms a step", is_news=True)

    def _expected(self, settings: Settings) -> Prediction | None:
        """What the model has said of these settings, if it was asked of them last."""
        last = self._prediction
        return last if last is not None and last.settings == settings else None

    def _draw(self, run: Run, outline: Timeline | None = None) -> None:
        """Show a run, over what the model had expected of it."""
        with self.timeline.hold_trait_notifications():  # one picture, not two
            self.timeline.run, self.timeline.outline = run, outline

    def _mark(self, *, is_modelled: bool) -> None:
        """Show what is of a model, and what is of an older run."""
        self._is_modelled = is_modelled
        change = "add_class" if is_modelled else "remove_class"
        getattr(self.timeline, change)("kit-modelled")
        for part in self._measured_parts:
            getattr(part, change)("kit-stale")

    def _measure(self, run_step: RunStep, settings: Settings, **options: Any) -> Run:
        """The step, with what the model had said of it; called by the worker."""
        self._newest.wait(_MODEL_S)
        expected = self._expected(settings)  # before another request asks anew
        run = run_step(settings, **options)
        if expected is None or not isinstance(run, Run):
            return run
        return replace(run, predicted_ms=expected.step_ms)

    def _take(self, run: Run) -> None:
        """Show a new run and keep it; called by the worker."""
        with self._lock:
            self._is_answered, previous = True, self.run
            took_s = time.perf_counter() - self._started_s
            self.runs = [*self.runs, run][-MAX_RUNS:]
            self.headline.value = headline_html(run, previous)
            self.advice.run = run
            expected = self._expected(run.settings)
            self._draw(run, None if expected is None else expected.timeline)
            self.graph.run = run
            for view in (self.source, self.syncs, self.kernels, self.memory):
                view.run = run
            self.breakdown.value = breakdown_html(run)
            self.unlowered.value = unlowered_html(run) + recompiles_html(run.compiles)
            self.gaps.value = gaps_html(run)
            self.segments.value = folded_segments_html(run)
            self.notes.value = run_notes_html(run)
            self.failure.value = ""
            self._mark(is_modelled=False)
            self._say(f"measured in {took_s:.1f} s{_off(run)}{_compiled(run)}", is_news=True)
            self.ahead.note(run.settings)
            self.run = run
            self._newest.put(run)

    def _show_progress(self, text: str, fraction: float) -> None:
        with self._lock:
            self.progress.value = min(max(float(fraction), 0.0), 1.0)
            expected = self._expected(self.settings)
            known = "" if expected is None else f"modelled: {expected.step_ms:.3g} ms a step; "
            self._say(known + text)

    def _show_failure(self, error: BaseException, trace: str) -> None:
        with self._lock:
            self._is_answered = True
            self.failure.value = failure_html(error, trace)
            self._go_back()
            self._say("the run failed; the picture below is of the run before it"
                      if self.run is not None else "the run failed", is_news=True)  # fmt: skip

    def _go_back(self) -> None:
        """The model's picture was not confirmed: show the last measured one."""
        if self._is_modelled and self.run is not None:
            before = self.runs[-2] if len(self.runs) > 1 else None
            self.headline.value = headline_html(self.run, before)
            self._draw(self.run)
            self._mark(is_modelled=False)

    def _ahead_changed(self, is_on: bool) -> None:
        if is_on:
            self._reruns.resume()
        else:
            self._reruns.pause()

    def _refuse(self, error: Exception) -> None:
        with self._lock:
            self.failure.value = failure_html(error)

    def _rest(self) -> None:
        with self._lock:
            self.progress.layout.display = "none"
            self.cancel_button.disabled = True
            if not self._is_answered:
                self._is_answered = True
                self._go_back()
                self._say("cancelled; the picture is of the run before" if self.run
                          else "cancelled", is_news=True)  # fmt: skip

    def _try(self, change: Mapping[str, Any]) -> None:
        self._guarded(partial(self.set, **change))

    def _guarded(self, act: Any) -> None:
        """Do what a control asks for; an exception is shown under the controls."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a message's handler has nobody to raise to
            self._refuse(error)

    def _say(self, text: str, *, is_news: bool = False) -> None:
        """Show a status; one that is news is also announced."""
        line = f'<div style="font:12px/1.4 {FONT};color:{MUTED}">{safe_html(text, 1000)}</div>'
        self.status.value = line
        if is_news or not self.announcer.value:
            self.announcer.value = safe_html(text, 1000)


def _off(run: Run) -> str:
    """How wrong the model was; nothing if it was not asked."""
    if not run.predicted_ms or not run.step_ms > 0:
        return ""
    error = run.predicted_ms / run.step_ms - 1
    return f"; the model had said {run.predicted_ms:.3g} ms a step, {error:+.0%} off"


def _compiled(run: Run) -> str:
    """What the run had to compile; nothing for a run of native torch."""
    if not run.metrics.get("segment.count"):
        return ""
    count, disk = (int(run.metrics.get(f"compile.{x}", 0)) for x in ("count", "from_disk"))
    if not count:
        return "; every program was in the cache"
    read = f", {disk} of them read from disk" if disk else ""
    seconds = run.metrics.get("compile.ns", 0) / 1e9
    return f"; {count} program{'s' * (count != 1)} compiled in {seconds:.1f} s{read}"


def _button(text: str, tip: str, style: str = "") -> Button:
    return Button(description=text, tooltip=tip, button_style=style, layout=Layout(width="auto"))
