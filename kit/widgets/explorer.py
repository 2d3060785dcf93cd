"""The explorer: move a control, the step runs again, every view shows the new run.

The step runs on a background thread (`Reruns`), so the cell stays alive; the newest request wins.
Views are changed by that thread, by the cell's thread and by the thread that handles the page's
messages, so every change is made under one lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any

import traitlets
from ipywidgets import HTML, Box, Button, FloatProgress, HBox, Layout, VBox

from kit.errors import KitError, SessionError
from kit.run import Run, Settings
from kit.run_whatif import predict
from kit.widgets.advice import AdviceView
from kit.widgets.bokehjs import load_bokehjs
from kit.widgets.compiles import recompiles_html
from kit.widgets.controls import Controls
from kit.widgets.gaps import gaps_html
from kit.widgets.graph import GraphView
from kit.widgets.kernels import folded_kernels_html
from kit.widgets.rerun import Reruns, RunStep
from kit.widgets.segments import folded_segments_html
from kit.widgets.tables import (
    FONT,
    INK,
    MUTED,
    breakdown_html,
    failure_html,
    headline_html,
    run_notes_html,
    safe_text,
    sync_table_html,
    unlowered_html,
)
from kit.widgets.timeline import TimelineView

__all__ = ["MAX_RUNS", "Explorer"]

MAX_RUNS = 200  # kept for the report; a run is some hundred kilobytes


class Explorer(VBox):
    """Runs a step under the settings of its controls, and shows where the time went.

    `run` is the newest run, `runs` all of them in order; `settings` are those of the controls.
    Changing `settings`, by a control or by `set`, starts a run; a newer one replaces an older one.
    `write_report(runs, path, *, title, current)` is what `save` calls: views know no reports.
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
    ) -> None:
        settings = settings if settings is not None else Settings()
        self._lock = threading.RLock()
        measure = partial(self._measure, run_step)
        self._reruns = Reruns(measure, on_progress=self._show_progress, on_result=self._take,
                              on_error=self._show_failure, on_idle=self._rest)  # fmt: skip
        self._started_s = 0.0
        self._predicted_ms = 0.0  # of the settings that are being measured; 0: not known
        self._is_ready = False
        self._is_answered = True  # by a result or an error: what is neither was cancelled
        self.name = name
        self.title = title if title is not None else name or "step explorer"
        self._write_report = write_report
        self.runs: list[Run] = []
        self.controls = Controls(settings, on_invalid=self._refuse)
        self._build()
        super().__init__(
            self._rows(), settings=settings, layout=Layout(width="auto", padding="0 6px 0 0")
        )
        self.add_class("kit-explorer")
        traitlets.link((self, "settings"), (self.controls, "settings"))
        self._is_ready = True
        if auto_run:
            self.rerun()

    def set(self, **changes: Any) -> None:
        """Change settings from code, as a control would: `explorer.set(batch_size=16)`.

        Raises:
            SettingsError: a name or a value is not possible; nothing is changed or run.
        """
        self.settings = self.settings.replace(**changes)

    def rerun(self) -> None:
        """Run the current settings, again if they were run before."""
        with self._lock:
            self._started_s, self._is_answered = time.perf_counter(), False
            self._predicted_ms = self._predict()
            self._reruns.request(self.settings)
            self._show_progress("starting", 0.0)
            self.progress.layout.display = ""
            self.cancel_button.disabled = False

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

    def close(self) -> None:
        """Stop running and remove the view from the page."""
        reruns = getattr(self, "_reruns", None)  # `close` also follows an `__init__` that failed
        if reruns is not None:
            reruns.close()
        super().close()

    def __repr__(self) -> str:
        return f"Explorer({self.run!r})" if self.run is not None else "Explorer(no run yet)"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        load_bokehjs()
        bundle = super()._repr_mimebundle_(**options)
        return {**bundle, "text/plain": repr(self)} if isinstance(bundle, dict) else bundle

    def _build(self) -> None:
        self.headline = HTML(layout=Layout(width="auto", margin="2px 2px 10px"))
        self.advice = AdviceView(self._try)
        self.timeline = TimelineView()
        self.graph = GraphView()
        self.syncs, self.breakdown, self.gaps, self.unlowered, self.segments, self.notes = (
            HTML(layout=Layout(width="auto")) for _ in range(6)
        )
        self.failure = HTML(layout=Layout(width="auto"))
        self.rerun_button = _button("Run again", "measure the current settings once more", "info")
        self.cancel_button = _button("Cancel", "stop the run in progress; the picture stays")
        self.save_button = _button("Save report", "write all runs so far to report.html")
        self.progress = FloatProgress(min=0.0, max=1.0, layout=Layout(width="140px", margin="0"))
        self.progress.layout.display = "none"
        self.cancel_button.disabled = True
        self.status = HTML(layout=Layout(flex="1 1 240px", margin="0"))
        self.rerun_button.on_click(lambda _: self._guarded(self.rerun))
        self.cancel_button.on_click(lambda _: self._guarded(self.cancel))
        self.save_button.on_click(lambda _: self._guarded(self.save))
        self._say("not run yet")

    def _rows(self) -> list[Any]:
        heading = HTML(
            f'<div style="font:600 17px/1.3 {FONT};color:{INK};overflow-wrap:anywhere">'
            f"{safe_text(self.title, 120)}</div>"
        )
        actions = [self.rerun_button, self.cancel_button, self.save_button, self.progress]
        bar = HBox([*actions, self.status], layout=Layout(flex_flow="row wrap",
                   align_items="center", grid_gap="8px", margin="2px 0 6px"))  # fmt: skip
        left = VBox([self.graph], layout=Layout(flex="3 1 460px", min_width="0", overflow="auto"))
        right = VBox([self.syncs, self.gaps, self.breakdown, self.unlowered],
                     layout=Layout(flex="2 1 340px", min_width="0"))  # fmt: skip
        columns = Box([left, right], layout=Layout(display="flex", flex_flow="row wrap",
                      width="auto", grid_gap="24px", align_items="flex-start",
                      margin="8px 0 0"))  # fmt: skip
        self.timeline.layout.width = "auto"
        return [heading, self.controls, bar, self.failure, self.headline, self.advice,
                self.timeline, columns, self.segments, self.notes]  # fmt: skip

    @traitlets.observe("settings")
    def _settings_changed(self, _: dict[str, Any]) -> None:
        if self._is_ready:
            self._guarded(self.rerun)

    def _predict(self) -> float:
        """Milliseconds a step that the model expects of the settings; 0 if it cannot tell."""
        if self.run is None:
            return 0.0
        size = self.run.settings.batch_size
        other = next((r for r in reversed(self.runs) if r.settings.batch_size != size), None)
        runs = [self.run] if other is None else [self.run, other]
        try:
            return predict(runs, self.settings).step_ms
        except KitError:  # another dtype, a run of native torch: only a measurement can say
            return 0.0

    def _measure(self, run_step: RunStep, settings: Settings, **options: Any) -> Run:
        """The step, with what the model had said of it; called by the worker."""
        predicted_ms = self._predicted_ms  # before another request asks anew
        run = run_step(settings, **options)
        known = isinstance(run, Run) and predicted_ms > 0
        return replace(run, predicted_ms=predicted_ms) if known else run

    def _take(self, run: Run) -> None:
        """Show a new run and keep it; called by the worker."""
        with self._lock:
            self._is_answered, previous = True, self.run
            took_s = time.perf_counter() - self._started_s
            self.runs = [*self.runs, run][-MAX_RUNS:]
            self.headline.value = headline_html(run, previous)
            self.advice.run = run
            self.timeline.run = run
            self.graph.run = run
            self.syncs.value = sync_table_html(run)
            self.breakdown.value = breakdown_html(run)
            self.unlowered.value = unlowered_html(run) + recompiles_html(run.compiles)
            self.gaps.value = gaps_html(run)
            self.segments.value = folded_segments_html(run) + folded_kernels_html(run)
            self.notes.value = run_notes_html(run)
            self.failure.value = ""
            self._say(f"measured in {took_s:.1f} s{_off(run)}")
            self.run = run

    def _show_progress(self, text: str, fraction: float) -> None:
        with self._lock:
            self.progress.value = min(max(float(fraction), 0.0), 1.0)
            known = self._predicted_ms > 0
            self._say(f"modelled: {self._predicted_ms:.3g} ms a step; {text}" if known else text)

    def _show_failure(self, error: BaseException, trace: str) -> None:
        with self._lock:
            self._is_answered = True
            self.failure.value = failure_html(error, trace)
            self._say("the run failed; the picture below is of the run before it"
                      if self.run is not None else "the run failed")  # fmt: skip

    def _refuse(self, error: Exception) -> None:
        with self._lock:
            self.failure.value = failure_html(error)

    def _rest(self) -> None:
        with self._lock:
            self.progress.layout.display = "none"
            self.cancel_button.disabled = True
            if not self._is_answered:
                self._say(
                    "cancelled; the picture is of the run before" if self.run else "cancelled"
                )

    def _try(self, change: Mapping[str, Any]) -> None:
        self._guarded(partial(self.set, **change))

    def _guarded(self, act: Any) -> None:
        """Do what a control asks for; an exception is shown under the controls."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a message's handler has nobody to raise to
            self._refuse(error)

    def _say(self, text: str) -> None:
        self.status.value = (
            f'<span role="status" style="font:12px/1.4 {FONT};color:{MUTED}">{escape(text)}</span>'
        )


def _off(run: Run) -> str:
    """How wrong the model was; nothing if it was not asked."""
    if not run.predicted_ms or not run.step_ms > 0:
        return ""
    error = run.predicted_ms / run.step_ms - 1
    return f"; the model had said {run.predicted_ms:.3g} ms a step, {error:+.0%} off"


def _button(text: str, tip: str, style: str = "") -> Button:
    return Button(description=text, tooltip=tip, button_style=style, layout=Layout(width="auto"))
