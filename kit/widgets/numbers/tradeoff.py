"""What a faster step costs: step time against compile time for each setting that was tried.

Pure functions of the rows of `Tuned.tried`: `tradeoff_columns` makes the plot's columns,
`tradeoff_figure` draws them, `tradeoff_html` makes the table. `TradeoffView` shows all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.core.properties import value
from bokeh.models import (
    ColumnDataSource,
    HoverTool,
    NumeralTickFormatter,
    PanTool,
    Range1d,
    ResetTool,
    WheelZoomTool,
)
from bokeh.plotting import figure
from ipywidgets import HTML, Layout

from kit.text import format_bytes, format_count, format_ms, safe_html, safe_label
from kit.widgets.base.live_plot import LivePlot
from kit.widgets.base.page import View
from kit.widgets.base.tables import BETTER, FONT, INK, MUTED, section, sentence, table
from kit.widgets.base.theme import BACKGROUND, COLORS, FAINT, hover_card, style_figure
from kit.widgets.base.theme import FONT as PLOT_FONT
from kit.widgets.base.theme import INK as PLOT_INK
from kit.widgets.base.theme import MUTED as PLOT_MUTED

__all__ = ["TradeoffView", "pareto_front", "tradeoff_columns", "tradeoff_figure", "tradeoff_html"]

Row = Mapping[str, Any]
MAX_ROWS = 30
_WIDEST = 1.0  # times the step: a spread beyond says nothing, see `told_interval`
_LOG_FROM = 8.0  # largest over smallest step time
_BEST, _GIVEN, _FRONT = COLORS["update"], COLORS["backward"], COLORS["forward"]
_CARD = (("step", "@step"), ("a sample", "@sample"), ("compiling", "@compile"),
         ("paid back", "@payoff"), ("memory", "@memory"), ("measured", "@measured"),
         ("note", "@note"))  # fmt: skip


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points that no other one beats in one coordinate without losing in the other.

    Sorted by the first coordinate; of equal points the first is kept. Points with nan have no
    place in it.
    """
    known = [i for i, p in enumerate(points) if not math.isnan(p[0]) and not math.isnan(p[1])]
    front: list[int] = []
    least = math.inf
    for i in sorted(known, key=lambda i: (points[i], i)):
        if points[i][1] < least:
            front.append(i)
            least = points[i][1]
    return front


def tradeoff_columns(rows: Sequence[Row]) -> dict[str, Any]:
    """`points`, `front` and `labels` as columns, and `y_label`, `is_log`, `x_end`, `y_range`.

    Units:
        compile time in seconds, step time in milliseconds (a sample's, if batch sizes differ).
    """
    measured = [r for r in rows if not math.isnan(r["step_ms"])]
    shown = sorted(measured, key=lambda r: (r["is_best"], r["is_start"]))  # these two on top
    by_sample = _by_sample(shown)
    name = "ms_per_sample" if by_sample else "step_ms"
    xs = [r["compile_ms"] / 1e3 for r in shown]
    ys = [r[name] for r in shown]
    spread = [
        r["spread_ms"] * (r[name] / r["step_ms"] if r["step_ms"] else 1.0)
        if r["spread_ms"] <= _WIDEST * r["step_ms"]
        else 0.0  # "± unknown" in the table: no whisker, which would leave no room for the points
        for r in shown
    ]
    possible = [i for i, r in enumerate(shown) if r["is_possible"]]
    front = [possible[k] for k in pareto_front([(xs[i], ys[i]) for i in possible])]
    x_end = max(xs, default=0.0) * 1.06 or 1.0
    low, high = min(ys, default=0.0), max(ys, default=1.0)
    is_log = low > 0 and high / low > _LOG_FROM
    looks = [_look(r, i in front) for i, r in enumerate(shown)]
    floor = low / 2 if is_log else 0.0
    points = {
        "x": np.array(xs),
        "y": np.array(ys),
        "low": np.maximum(np.array(ys) - np.array(spread), floor),
        "high": np.array(ys) + np.array(spread),
        "color": [look[0] for look in looks],
        "size": [look[1] for look in looks],
        "edge": [look[2] for look in looks],
        **{key: [text[key] for text in map(_texts, shown)] for key in _TEXTS},
    }
    top = max([*points["high"], high], default=1.0)
    return {
        "points": points,
        "front": {"x": [xs[i] for i in front], "y": [ys[i] for i in front]},
        "labels": _labels(shown, xs, ys, x_end),
        "y_label": "time of a sample (ms)" if by_sample else "time of a step (ms)",
        "is_log": is_log,
        "x_end": x_end,
        "y_range": (low / 1.5, top * 1.3) if is_log else (0.0, top * 1.12 or 1.0),
    }


def tradeoff_figure(rows: Sequence[Row]) -> figure:
    """The scatter: down is a faster step, left is less to compile; the front is a line."""
    made = tradeoff_columns(rows)
    plot = figure(
        x_range=Range1d(-0.03 * made["x_end"], made["x_end"]),
        y_range=Range1d(*made["y_range"]),
        y_axis_type="log" if made["is_log"] else "linear",
        x_axis_label="compile time, once (s)",
        y_axis_label=made["y_label"],
        title="step time against compile time",
        sizing_mode="stretch_width",
        height=340,
        min_width=300,
        tools=[],
        name="tradeoff",
    )
    source = ColumnDataSource(made["points"])
    plot.step(x="x", y="y", mode="after", source=ColumnDataSource(made["front"]), line_width=2,
              line_color=_FRONT, line_alpha=0.55, name="front")  # fmt: skip
    plot.segment(x0="x", x1="x", y0="low", y1="high", source=source, line_color=FAINT)
    dots = plot.scatter(x="x", y="y", size="size", fill_color="color", line_color="edge",
                        line_width=1.5, source=source, name="points")  # fmt: skip
    plot.text(x="x", y="y", text="text", source=ColumnDataSource(made["labels"]),
              x_offset="x_offset", y_offset="y_offset", text_align="align", name="labels",
              text_baseline="middle", text_font=value(PLOT_FONT), text_font_size="12px",
              text_font_style="bold", text_color=PLOT_INK)  # fmt: skip
    if not len(made["points"]["x"]):
        plot.text(x=[0.5], y=[0.5], text=["nothing was measured"], text_align="center",
                  text_color=PLOT_MUTED)  # fmt: skip
    drag, wheel = PanTool(), WheelZoomTool(modifiers={"ctrl": True})
    plot.add_tools(
        drag,
        wheel,
        ResetTool(),
        HoverTool(renderers=[dots], tooltips=hover_card("@words", _CARD, swatch="@color")),
    )
    plot.toolbar.active_drag, plot.toolbar.active_scroll = drag, wheel
    style_figure(plot)
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0.[000]")  # no powers of ten
    return plot


def tradeoff_html(rows: Sequence[Row]) -> str:
    """A row a setting, the fastest first: step time, compile time, when it is paid back."""
    if not rows:
        return section("Settings tried", sentence("Nothing was measured."))
    by_sample = _by_sample(rows)
    has_bytes = any(_peak(r) for r in rows)
    heads = ["settings", "step", *(["a sample"] if by_sample else []), "against given",
             "compiling", "paid back after", *(["peak memory"] if has_bytes else [])]  # fmt: skip
    start = next((r for r in rows if r["is_start"]), None)
    cells = [_cells(r, start, by_sample=by_sample, has_bytes=has_bytes) for r in rows[:MAX_ROWS]]
    rest = 100 - 40
    widths = [40, *[rest // (len(heads) - 1)] * (len(heads) - 1)]
    note = (
        "Line: no other settings are better in both. "
        "Compiling counts everything that a run under these settings alone would compile. "
        "Paid back: steps after which the faster step has won back what it compiled longer "
        "than the given settings."
    )
    if any(r["compiles_from_disk"] for r in rows):
        note += " Programs that were on disk already count with the time to load them."
    if has_bytes:
        note += (
            " Memory is the peak of the whole process on one device; ≤: what was used before the "
            "run, which it did not go beyond."
        )
    if len(rows) > MAX_ROWS:
        note += f" The first {MAX_ROWS} of {len(rows)} are shown."
    least_px = 150 + 80 * (len(heads) - 1)
    body = table(heads, cells, "l" + "r" * (len(heads) - 1), widths=widths, least_px=least_px)
    return section("Settings tried", body + sentence(note))


class TradeoffView(View):
    """The summary, the scatter and the table of an `autotune`.

    Args:
        rows: `Tuned.tried`.
        summary: `Tuned.summary()`.
    """

    def __init__(self, rows: Sequence[Row], summary: str = "") -> None:
        self.figure = tradeoff_figure(rows)
        lines = "".join(f"<div>{safe_html(line, 2000)}</div>" for line in summary.splitlines())
        self.summary = HTML(f'<div style="font:14px/1.5 {FONT};color:{INK}">{lines}</div>')
        self.table = HTML(tradeoff_html(rows))
        super().__init__(
            [self.summary, LivePlot(self.figure), self.table], layout=Layout(max_width="900px")
        )
        self.add_class("kit-tradeoff")


def _by_sample(rows: Sequence[Row]) -> bool:
    return len({(r["settings"].batch_size, r["settings"].accumulate) for r in rows}) > 1


def _look(row: Row, is_front: bool) -> tuple[str, int, str]:
    """Fill colour, size and edge colour: never colour alone, the two that count are labelled."""
    if row["is_best"]:
        return _BEST, 15, PLOT_INK
    if row["is_start"]:
        return _GIVEN, 15, PLOT_INK
    if not row["is_possible"]:
        return BACKGROUND, 9, COLORS["wait"]
    return (_FRONT, 10, BACKGROUND) if is_front else ("#c3ccd6", 9, BACKGROUND)


_TEXTS = ("words", "step", "sample", "compile", "payoff", "memory", "measured", "note")


def _texts(row: Row) -> dict[str, str]:
    disk = f", {row['compiles_from_disk']} from disk" if row["compiles_from_disk"] else ""
    programs = f"{format_count(row['compiles'], 'program')}{disk}"
    role = " (given)" if row["is_start"] else " (best)" if row["is_best"] else ""
    return {
        "words": safe_label(row["words"]) + role,
        "step": _give_or_take(row["step_ms"], row["spread_ms"]),
        "sample": _sample(row),
        "compile": f"{format_ms(row['compile_ms'])}: {programs}",
        "payoff": _payoff(row),
        "memory": _peak(row) or "not measured",
        "measured": f"{format_count(row['steps'], 'step')} in {format_count(row['runs'], 'run')}",
        "note": safe_label(row["note"]) or "-",
    }


def _labels(rows: Sequence[Row], xs: list[float], ys: list[float], x_end: float) -> dict[str, Any]:
    """The given and the best settings, named beside their points."""
    columns: dict[str, list[Any]] = {
        key: [] for key in ("x", "y", "text", "align", "x_offset", "y_offset")
    }
    for i, row in enumerate(rows):
        if not (row["is_start"] or row["is_best"]):
            continue
        text = "best" if row["is_best"] else "as given"  # its words are in the table
        if row["is_start"] and row["is_best"]:
            text = "as given, the best"
        is_right = xs[i] > 0.5 * x_end
        values = (xs[i], ys[i], text, "right" if is_right else "left", -12 if is_right else 12,
                  14 if row["is_best"] else -14)  # fmt: skip
        for key, cell in zip(columns, values, strict=True):
            columns[key].append(cell)
    return columns


def _cells(row: Row, start: Row | None, *, by_sample: bool, has_bytes: bool) -> list[str]:
    words = safe_html(row["words"], 200)
    if row["is_best"]:
        words = f'<b>{words}</b> <span style="color:{BETTER};font-weight:600">best</span>'
    elif row["is_start"]:
        words = f"<b>{words}</b>"
    if row["note"]:
        words += f'<div style="color:{MUTED}">not chosen, {safe_html(row["note"], 300)}</div>'
    return [
        words,
        _give_or_take(row["step_ms"], row["spread_ms"]),
        *([_sample(row)] if by_sample else []),
        _against(row, start),
        format_ms(row["compile_ms"]),
        _payoff(row),
        *([_peak(row) or "not measured"] if has_bytes else []),
    ]


def _peak(row: Row) -> str:
    """`3 GB`; `≤ 3 GB` where something before has used as much; "" if nothing counted."""
    if not math.isnan(row["peak_bytes"]):
        return format_bytes(row["peak_bytes"])
    bound = row.get("peak_bound", math.nan)
    return "" if math.isnan(bound) else f"≤ {format_bytes(bound)}"


def _against(row: Row, start: Row | None) -> str:
    """How many times as fast as the given settings; in words whether that is beyond the spread."""
    if start is None or row["is_start"] or not row["ms_per_sample"] > 0:
        return "-" if row["is_start"] else "?"
    times = f"{start['ms_per_sample'] / row['ms_per_sample']:.2f}x as fast"
    change = row.get("change")
    if change is None or math.isnan(change.spread):
        return f"maybe {times}"
    said = {"same": "no change", "unclear": "maybe"}.get(change.kind, "")
    margin = change.margin()
    note = f"{said}, {margin}" if said else margin
    return f'{times}<div style="color:{MUTED};font-size:11px">{note}</div>'


def _sample(row: Row) -> str:
    """A sample's part of the step, as sure as the step is."""
    part = row["ms_per_sample"] / row["step_ms"] if row["step_ms"] else math.nan
    return _give_or_take(row["ms_per_sample"], row["spread_ms"] * part)


def _give_or_take(ms: float, spread_ms: float) -> str:
    """`4.88 ± 0.63 ms`: a time and its spread in one unit."""
    if math.isnan(ms):
        return "unknown"
    unit, scale = next(((u, s) for u, s in (("s", 1e-3), ("ms", 1.0)) if ms * s >= 1), ("µs", 1e3))
    decimals = 2 if ms * scale < 10 else 1 if ms * scale < 100 else 0
    time = f"{ms * scale:,.{decimals}f}"
    if not spread_ms <= _WIDEST * ms:
        return f"{time} {unit} ± unknown"
    return f"{time} ± {spread_ms * scale:,.{decimals}f} {unit}"


def _payoff(row: Row) -> str:
    after = row["pays_off_after"]
    if row["is_start"]:
        return "-"
    if math.isnan(after):
        return "unknown"
    if math.isinf(after):
        return "never"
    return format_count(math.ceil(after), "step") if after else "at once"
