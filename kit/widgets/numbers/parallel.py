"""When do gradients travel? A step of several devices, modelled, with sliders over link and cuts.

`ParallelView` asks the model at each move: nothing is run. Above, step time against bulk size, with
what was measured if it is given; below, the lanes of the step at the chosen size and, for
comparison, of the step whose segments end where a bucket is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import traitlets
from bokeh.models import (
    BasicTickFormatter,
    ColumnDataSource,
    FactorRange,
    HoverTool,
    Legend,
    Span,
)
from bokeh.plotting import figure
from ipywidgets import HTML

from kit.errors import SettingsError
from kit.runs.gradients import Backward, Link, ParallelStep, best_buckets, predict_parallel
from kit.text import check_number, check_whole_number, format_bytes, format_count, format_ns
from kit.widgets.base.controls import model_slider, slider_grid
from kit.widgets.base.errors import ErrorsIn
from kit.widgets.base.live_plot import LivePlot
from kit.widgets.base.page import View
from kit.widgets.base.tables import MUTED, said_html
from kit.widgets.base.theme import COLORS, style_figure
from kit.widgets.base.theme import INK as DOT

__all__ = ["ParallelView", "curve_columns", "lane_columns"]

DEVICES = (2, 4, 8, 16, 64)
LATENCIES_US = (0.0, 5.0, 20.0, 50.0, 200.0, 500.0, 1000.0)
SPEEDS_GB = (0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 25.0, 50.0, 200.0)
SIZE, BUCKET, MEASURED = COLORS["forward"], COLORS["update"], DOT
_LANES = (
    "one size: compute",
    "one size: gradients",
    "cut at buckets: compute",
    "cut at buckets: gradients",
)


def curve_columns(
    step: Backward, link: Link, *, devices: int, bucket_bytes: float, measured: Mapping[int, float]
) -> dict[str, np.ndarray[Any, Any]]:
    """Bulk sizes, the `measured` ones among them, and the modelled milliseconds of each.

    nan where nothing was measured; a size beyond the whole pass is the whole pass.

    Shape:
        every column (sizes,)
    """
    seen = {min(k, step.ops): ms for k, ms in measured.items()}
    sizes = sorted({*bulk_sizes(step), *seen})
    made = [
        predict_parallel(step, bulk=k, link=link, devices=devices, bucket_bytes=bucket_bytes)
        for k in sizes
    ]
    return {
        "bulk": np.array(sizes),
        "ms": np.array([m.step_ns / 1e6 for m in made]),
        "exposed": np.array([m.exposed_ns / 1e6 for m in made]),
        "segments": np.array([m.segments for m in made]),
        "measured": np.array([seen.get(k, np.nan) for k in sizes]),
    }


def lane_columns(by_size: ParallelStep, at_buckets: ParallelStep) -> dict[str, list[Any]]:
    """The bars of two modelled steps, times in milliseconds."""
    columns: dict[str, list[Any]] = {
        k: [] for k in ("lane", "left", "right", "color", "what", "name")
    }
    for made, group in ((by_size, _LANES[:2]), (at_buckets, _LANES[2:])):
        for span in made.timeline.spans:
            if span.kind not in ("kernel", "reduction"):
                continue
            is_travel = span.kind == "reduction"
            phase = "reduction" if is_travel else span.name.partition(",")[0]
            columns["lane"].append(group[is_travel])
            columns["left"].append(span.start_ns / 1e6)
            columns["right"].append(span.stop_ns / 1e6)
            columns["color"].append(COLORS[phase])
            columns["what"].append("gradients" if is_travel else phase)
            columns["name"].append(span.name)
    return columns


def bulk_sizes(step: Backward) -> list[int]:
    """Sizes from 1 to the whole backward pass, about equally far apart on a logarithmic axis."""
    found = np.unique(np.round(np.geomspace(1, step.ops, 24)).astype(int))
    return [int(k) for k in found]


class ParallelView(View):
    """Sliders over the model of a step on several devices; `view.step` is the modelled one now.

    Args:
        backward: what one replica's step is made of:
            `kit.measure.many.replicas.measure_backward`, or numbers of your own.
        link: where the sliders begin.
        devices, bucket_mb: the same.
        measured: milliseconds of measured steps, by their backward bulk size.
    """

    step = traitlets.Instance(ParallelStep)

    def __init__(
        self, backward: Backward, link: Link | None = None, *, devices: int = 2,
        bucket_mb: float = 0.0, measured: Mapping[int, float] | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(backward, Backward):
            raise SettingsError(
                "ParallelView models what kit.measure.many.replicas.measure_backward(net, step) "
                f"gives, not {type(backward).__name__}"
            )
        check_whole_number(SettingsError, "devices", devices)
        check_number(SettingsError, "bucket_mb", bucket_mb, at_least=0)
        self.backward = backward
        self._measured = dict(measured or {})
        total = sum(size for _, size in backward.gradients) or 1
        sizes = sorted(
            {total / 2**n for n in range(8)} | ({bucket_mb * 1e6} if bucket_mb else set())
        )
        chosen = bucket_mb * 1e6 or sizes[len(sizes) // 2]
        first = link or Link()
        self._first = (first, devices, chosen)  # of what was measured
        self.bulk = model_slider([(str(k), k) for k in bulk_sizes(backward)], backward.ops)
        self.bucket = model_slider([(format_bytes(s), s) for s in sizes], chosen)
        self.latency = model_slider(
            [(f"{t:g} µs", t) for t in _with(LATENCIES_US, first.latency_us)], first.latency_us
        )
        self.speed = model_slider(
            [(f"{s:g} GB/s", s) for s in _with(SPEEDS_GB, first.gb_per_s)], first.gb_per_s
        )
        self.devices = model_slider([(str(n), n) for n in _with(DEVICES, devices)], devices)
        self.text, self.error = HTML(), HTML()
        self.curve = ColumnDataSource()
        self.lanes = ColumnDataSource(name="parallel lanes")
        self.best = ColumnDataSource()  # a line: unlike a bokeh Span, the axis makes room for it
        self._here = Span(dimension="height", line_color=SIZE, line_alpha=0.35, line_width=6)
        self._ask()
        sliders = {
            "ops a segment, backward": self.bulk,
            "bucket": self.bucket,
            "link: latency": self.latency,
            "link: speed": self.speed,
            "devices": self.devices,
        }
        grid = slider_grid(sliders, self._moved, least_px=180)
        drawn = (self.curve, self.lanes, self.best)
        plots = [LivePlot(plot, drawn) for plot in (self._draw_curve(), self._draw_lanes())]
        super().__init__([grid, self.text, *plots, self.error])

    def _moved(self, change: Any) -> None:
        with ErrorsIn(self.error, "many devices"):
            self._ask()
            self.error.value = ""

    def _ask(self) -> None:
        link = Link(self.latency.value, self.speed.value)
        devices, bucket = self.devices.value, self.bucket.value
        self.step = predict_parallel(
            self.backward, bulk=self.bulk.value, link=link, devices=devices, bucket_bytes=bucket
        )
        size, best = best_buckets(self.backward, link, devices=devices)
        is_measured = (link, devices, bucket) == self._first
        self.curve.data = curve_columns(
            self.backward,
            link,
            devices=devices,
            bucket_bytes=bucket,
            measured=self._measured if is_measured else {},
        )
        self.lanes.data = lane_columns(self.step, best)
        self.best.data = {"bulk": [1, self.backward.ops], "ms": [best.step_ns / 1e6] * 2}
        self._here.location = self.bulk.value
        now = self.step
        pieces = format_count(now.segments, "backward segment")
        ops = format_count(self.bulk.value, "op")
        travels = format_count(now.buckets, "bucket")
        shared = ", each with a part of the batch," * (devices > 1)
        told = " Modelled." + " Large dots were measured." * (is_measured and bool(self._measured))
        self.text.value = said_html(
            f"<b>When do gradients travel?</b> {format_count(devices, 'device')}{shared} "
            f"over a link of {link.latency_us:g} µs and {link.gb_per_s:g} GB/s.<br>"
            f"<b>{format_ns(now.step_ns)}</b> a step with {pieces} of {ops} and {travels} of "
            f"about {format_bytes(bucket)}; {format_ns(now.exposed_ns)} of it only wait for "
            f"gradients.<br><b>{format_ns(best.step_ns)}</b> if segments end where a "
            f"bucket of {format_bytes(size)} is full ({format_count(best.segments, 'segment')})."
            f'<span style="color:{MUTED}">{told}</span>'
        )

    def _draw_curve(self) -> figure:
        plot = figure(
            x_axis_type="log", height=310, sizing_mode="stretch_width", tools=[],
            toolbar_location=None, title="modelled step time",
            x_axis_label="ops a segment, backward", y_axis_label="ms a step",
        )  # fmt: skip
        plot.add_layout(Legend(orientation="horizontal", location="left", ncols=2), "below")
        plot.add_layout(self._here)
        line = plot.line("bulk", "ms", source=self.curve, color=SIZE, line_width=2,
                         legend_label="one size for all")  # fmt: skip
        plot.scatter("bulk", "ms", source=self.curve, color=SIZE, size=5)
        plot.scatter(
            "bulk", "measured", source=self.curve, color=MEASURED, size=9, legend_label="measured"
        )
        plot.line("bulk", "ms", source=self.best, color=BUCKET, line_width=2, line_dash="dashed",
                  legend_label="cut where a bucket is full")  # fmt: skip
        tips = [
            ("ops a segment", "@bulk"),
            ("step", "@ms{0.00} ms"),
            ("exposed", "@exposed{0.00} ms"),
            ("segments", "@segments"),
        ]
        plot.add_tools(HoverTool(renderers=[line], tooltips=tips, mode="vline"))
        plot.yaxis.formatter = BasicTickFormatter(use_scientific=False)  # no powers of ten
        ops = self.backward.ops
        plot.xaxis.ticker = sorted(
            {*(k * 10**n for n in range(7) for k in (1, 2, 5) if k * 10**n < ops * 0.75), ops}
        )
        return style_figure(plot)

    def _draw_lanes(self) -> figure:
        plot = figure(
            y_range=FactorRange(*reversed(_LANES)),
            height=250,
            sizing_mode="stretch_width",
            tools=["xpan", "xwheel_zoom", "reset"],
            x_axis_label="ms",
            title="one device, modelled",
        )
        plot.xaxis.formatter = BasicTickFormatter(use_scientific=False)  # no powers of ten
        bars = plot.hbar(y="lane", left="left", right="right", height=0.75, color="color",
                         line_color="#ffffff", source=self.lanes, legend_field="what")  # fmt: skip
        tips = [("", "@name"), ("from", "@left{0.00} ms"), ("to", "@right{0.00} ms")]
        plot.add_tools(HoverTool(renderers=[bars], tooltips=tips))
        legend = plot.legend[0]
        legend.orientation, legend.location, legend.ncols = "horizontal", "left", 2
        plot.add_layout(legend, "below")
        plot.ygrid.grid_line_color = None
        return style_figure(plot)


def _with(offered: tuple[Any, ...], value: Any) -> list[Any]:
    return sorted({*offered, value})
