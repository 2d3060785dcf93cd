"""Predictions beside what was measured: a table, two strips on one time axis, and sliders.

`whatif_html` and `whatif_figure` are pure functions of a run and its predictions. `WhatIfView` asks
the model again at each move of a slider: nothing is run, and the answer comes in milliseconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import traitlets
from bokeh.plotting import figure
from ipywidgets import HTML, Checkbox, Layout

from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.change import Difference, error_of, step_text
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.predict import Model, Prediction
from kit.runs.whatif.question import Question
from kit.text import format_ms, format_number, format_percent, safe_html, safe_label, safe_terminal
from kit.trace import SyncPoint
from kit.trace.timeline import Place
from kit.widgets.base import tables
from kit.widgets.base.controls import bulk_slider, model_slider, slider_grid
from kit.widgets.base.errors import ErrorsIn
from kit.widgets.base.live_plot import LivePlot
from kit.widgets.base.page import View
from kit.widgets.compare.data import comparison_rows
from kit.widgets.compare.view import comparison_figure
from kit.widgets.timeline.view import apply_timeline, timeline_model, timeline_payload

__all__ = ["WhatIfView", "modelled_run", "whatif_figure", "whatif_html"]

SPEEDS = (0.5, 1.0, 2.0, 4.0, 10.0, 100.0)
MOST = 12  # places that wait, with a box for each
_AHEAD = 2  # batches
_NOT_CUT = (
    "bulk sizes stand still: this program ran natively, where ops are not cut into segments. A run "
    "on device kit (kit run --on kit) can be asked for them"
)
_NOT_COMPARED = ("steps", "warmup", "seed")  # they do not change what a step takes
_HEADS = ("settings", "predicted", "measured", "error", "segments", "syncs")


def whatif_html(run: Run, predictions: Sequence[Prediction], measured: Sequence[Run] = ()) -> str:
    """The table "Predicted against measured": a row a prediction, with what it assumed.

    Args:
        run: what the predictions were made from.
        measured: runs; those of a prediction's settings stand beside it, with the error and the
            spread of what was measured.
    """
    rows = [_row(run, p, measured) for p in predictions]
    body = tables.table(_HEADS, rows, "lrrrrr", widths=(22, 28, 12, 18, 11, 9), least_px=620)
    notes = dict.fromkeys(text for p in predictions for text in p.assumptions)
    if notes:
        each = "".join(f"<li>{safe_html(text, 400)}</li>" for text in notes)
        body += tables.sentence(f'assumed:<ul style="margin:0 0 0 18px;padding:0">{each}</ul>')
    source = f"{safe_html(run.name or 'a run', 60)} at {safe_html(step_text(run), 200)} a step"
    return tables.section(f"Predicted against measured (modelled), from {source}", body)


def _row(run: Run, p: Prediction, measured: Sequence[Run]) -> list[str]:
    found = [r for r in measured if _alike(r.settings, p.settings)]
    error = error_of(p.step_ms, found)
    return [
        safe_html(_words(run.settings, p.settings), 120),
        p.step_text,
        format_ms(error.old, ""),
        _error(error),
        f"{p.segments:,}",
        f"{p.syncs:,}",
    ]


def _error(error: Difference) -> str:
    """How wrong the model was, and whether the measured steps can tell."""
    if error.kind == "unknown":
        return ""
    amount = format_percent(error.amount, decimals=1, signed=True)
    if math.isnan(error.spread):
        return f"{amount}, spread unknown"
    right = ", within the spread" if error.kind == "same" else ""
    return f"{amount} {error.margin(partial(format_percent, decimals=1))}{right}"


def _alike(a: Settings, b: Settings) -> bool:
    same = {name: getattr(b, name) for name in _NOT_COMPARED}
    return a.replace(**same) == b


def _words(base: Settings, other: Settings) -> str:
    """What is set otherwise: `mode='lazy', batch_size=2`."""
    mine, theirs = base.as_dict(), other.as_dict()
    changed = [
        f"{k}={v!r}" for k, v in theirs.items() if v != mine.get(k) and k not in _NOT_COMPARED
    ]
    return ", ".join(changed) or "as measured"


def modelled_run(run: Run, prediction: Prediction) -> Run:
    """A prediction in the form of a run, for the views that draw runs: its steps are modelled."""
    steps = prediction.timeline.intervals(kind="step")
    return Run(
        settings=prediction.settings,
        losses=(),
        step_times_ns=tuple(int(b - a) for a, b in steps) or (round(prediction.step_ms * 1e6),),
        timeline=prediction.timeline,
        sync_points=prediction.timeline.syncs,
        environment=run.environment,
        name=run.name,
        predicted_ms=prediction.step_ms,
        sources=run.sources,
    )


def whatif_figure(run: Run, prediction: Prediction) -> figure:
    """The measured timeline and, under it and pale, the modelled one; a new figure each time."""
    predicted = replace(modelled_run(run, prediction), label="predicted")
    both = replace(run, label=run.label or "measured"), predicted
    plot = comparison_figure(both, comparison_rows(both))
    plot.title.text = (
        f"measured ({run.timeline.origin}) and below it what was predicted "
        f"({prediction.timeline.origin}) - {safe_label(run.name, 24)}"
    )
    bars = plot.select_one({"name": "bars"})
    data = bars.data_source.data
    second = max(plot.select_one({"name": "steps"}).data_source.data["top"])  # its band of steps
    data["alpha"] = [
        a * (0.45 if top >= second else 1.0)
        for a, top in zip(data["alpha"], data["top"], strict=True)
    ]
    bars.glyph.line_color = "color"  # pale bars keep their outline
    return plot


def _times_as_fast(run: Run, p: Prediction) -> str:
    """`1.3 times as fast (1.1 to 1.6)`; of what need not be so, `maybe` before it."""
    each = [run.step_ms / ms if ms > 0 else math.nan for ms in (p.step_ms, p.high_ms, p.low_ms)]
    ratio, low, high = each
    is_sure = low > 1 or high < 1
    ends = "" if math.isnan(low) else f" ({format_number(low)} to {format_number(high)})"
    return f"{'' if is_sure else 'maybe '}{format_number(ratio)} times as fast{ends}"


def _without_box(sync: SyncPoint) -> Checkbox:
    text = f"without {sync.cause} at {sync.site or sync.via or 'an unknown line'}"
    return Checkbox(
        value=False,
        indent=False,
        layout=Layout(width="auto"),
        description=safe_label(safe_terminal(text)),  # cut in the middle: it keeps its line
    )


class WhatIfView(View):
    """Sliders over the model of one run; `view.prediction` is what it says now.

    Of a native run, such as `kit.watch` gives of a script, the sliders of bulk sizes stand still,
    and a sentence says why.

    Args:
        run: a measured run with a traced step.

    Raises:
        SettingsError: nothing can be predicted from this run.
    """

    prediction = traitlets.Instance(Prediction)

    def __init__(self, run: Run) -> None:
        self.run = run
        self._model = Model(run)
        self.prediction = self._model.answer(Question(run.settings))
        forward, backward = run.settings.bulk_sizes
        self.forward, self.backward = bulk_slider(forward), bulk_slider(backward)
        stops = [(f"{s:g} x", s) for s in SPEEDS]
        self.speed, self.host_speed = model_slider(stops, 1.0), model_slider(stops, 1.0)
        self.is_loading_ahead = Checkbox(
            value=run.settings.prefetch > 0, indent=False, layout=Layout(width="auto"),
            description="batches are loaded beside the step",
        )  # fmt: skip
        for slider in (self.forward, self.backward):
            slider.disabled = self._model.native is not None
        waits: dict[Place, list[SyncPoint]] = defaultdict(list)
        for sync in self._model.syncs:
            waits[sync.place].append(sync)
        places = sorted(waits.values(), key=lambda place: -sum(s.wait_ns for s in place))
        self._syncs, self._unasked = [place[0] for place in places[:MOST]], len(places[MOST:])
        self.without = tuple(map(_without_box, self._syncs))
        self.figure, self.sources = timeline_model(timeline_payload(self._drawn()))
        self.text, self.error = HTML(), HTML()
        sliders = {
            "bulk size, forward": self.forward,
            "bulk size, backward and update": self.backward,
            "device speed": self.speed,
            "host speed": self.host_speed,
        }
        grid, boxes = slider_grid(sliders, self._moved), (self.is_loading_ahead, *self.without)
        plot = LivePlot(self.figure, [self.sources["timeline"], self.sources["ghost"]])
        super().__init__([grid, *boxes, self.text, plot, self.error])
        self._say()
        for box in boxes:
            box.observe(self._moved, "value")

    def _moved(self, change: Any) -> None:
        with ErrorsIn(self.error, "what if"):
            boxes = zip(self._syncs, self.without, strict=True)
            asked = Question(
                self._settings(),
                without=tuple(sync for sync, box in boxes if box.value),
                device_speed=self.speed.value,
                host_speed=self.host_speed.value,
            )
            self.prediction = self._model.answer(asked)
            apply_timeline(timeline_payload(self._drawn()), self.figure, self.sources)
            self._say()
            self.error.value = ""

    def _settings(self) -> Settings:
        """The run's own settings, but for what was moved."""
        sizes = self.forward.value, self.backward.value
        base = self.run.settings
        if self.is_loading_ahead.value != (base.prefetch > 0):
            base = base.replace(prefetch=_AHEAD if self.is_loading_ahead.value else 0)
        if self._model.native is not None:
            return base
        if sizes == tuple(min(n, UNLIMITED) for n in base.bulk_sizes):
            return base
        if sizes == (UNLIMITED, UNLIMITED):
            return base.replace(mode="lazy")
        return base.replace(mode="bulked", bulk_forward=sizes[0], bulk_backward=sizes[1])

    def _drawn(self) -> Run:
        """What the model says as a run; what it assumes stands above, in `text`."""
        timeline = replace(self.prediction.timeline, notes=())
        return replace(modelled_run(self.run, self.prediction), timeline=timeline)

    def _say(self) -> None:
        now = self.prediction
        lines = [f"{now.headline()}; {_times_as_fast(self.run, now)}", *now.assumptions]
        if self._model.native is not None:
            lines.insert(1, _NOT_CUT)
        if self._unasked:
            lines.append(
                f"boxes are for the {MOST} places that wait longest; "
                f"kit.predict(run, without=...) asks about the other {self._unasked:,}, too"
            )
        body = "<br>".join(safe_html(line, 400) for line in lines)
        self.text.value = tables.said_html(body)
