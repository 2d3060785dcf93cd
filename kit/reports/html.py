"""One self-contained HTML file in which sliders move over recorded runs.

No network, no kernel: bokeh's scripts are in the file, each run is a gzipped JSON block that the
page unpacks when it is chosen, and the figures are redrawn by the same code as the live views.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from bokeh.embed import components
from numpy.typing import NDArray

from kit.errors import SettingsError
from kit.files import write_whole
from kit.reports.grid import Axis, axes_of, baselines
from kit.reports.markdown import report_markdown
from kit.reports.target import is_markdown
from kit.runs.analysis.diff import diff_runs
from kit.runs.analysis.headline import Headlines
from kit.runs.analysis.sentence import change_sentence, is_told
from kit.runs.analysis.story import best_of, story_of
from kit.runs.change import told_interval
from kit.runs.labels import device_of, has_other_samples
from kit.runs.run import Run
from kit.text import safe_html
from kit.widgets.base.cards import headline_changes
from kit.widgets.base.listing import LISTING_CSS
from kit.widgets.base.page import POLICY, no_scripts, packed, page_scripts, unwarned
from kit.widgets.base.scripts import asset, script
from kit.widgets.numbers.run_diff import run_diff_html
from kit.widgets.timeline.columns import end_ns
from kit.widgets.views import PLACES, VIEWS, Figure, ViewRow

__all__ = ["report_html", "write_report"]

_NO_SCRIPTS = (
    "No script runs here, so nothing below is drawn. Open this file in a browser that runs "
    "scripts; it needs no network. kit.report(runs, path='report.md') writes the numbers as text."
)
_DIFF = "diff"  # the section that says what changed since another run
MOST_PAIRS = 4000  # of runs, compared in full; where there are more, by their step times
MAX_SPANS = 200_000  # of all timelines; beyond, the shortest are joined, and the page says so


def write_report(
    runs: Sequence[Run],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    current: Run | None = None,
) -> Path:
    """Write a report of the runs; the file appears whole or not at all.

    A path that ends in `.md` becomes Markdown: the tables, without the pictures.

    Args:
        title: heading of the page; the workload's name if not given.
        current: the run to show first; if not given, the one that loses most device time to
            waits. It stands beside the fastest. Of runs before and after a change, the last one.
            Markdown shows this one in full, and if it is not given, always the last one.

    Raises:
        SettingsError: there are no runs, or the path ends in neither .html nor .md.
        OSError: the folder cannot be written to.
    """
    target = Path(path)
    make = report_markdown if is_markdown(target) else report_html
    text = make(runs, title=title, current=current)
    write_whole(target, text.encode(errors="backslashreplace"))
    return target


def report_html(
    runs: Sequence[Run],
    *,
    title: str | None = None,
    current: Run | None = None,
    views: Sequence[ViewRow] = VIEWS,
) -> str:
    """The page as text; see `write_report`. `views` are the rows that the page shows."""
    runs = list(runs)
    if not runs:
        raise SettingsError("there is nothing to report: no runs")
    axes = axes_of(runs)
    compared = baselines(axes)
    opening = _opening(runs, current, compared)
    title = title or f"Where does the step go? {_shared_name(runs)}".strip()
    figures = _Figures(views)
    index = {
        "axes": [a.as_dict() for a in axes],
        "cells": [_cell(run, i, axes) for i, run in enumerate(runs)],
        **opening,
        "parts": [_DIFF, *(row.key for row in views if row.html is not None)],
        "models": figures.models,
    }
    parts = {
        "NO_SCRIPTS": no_scripts(_NO_SCRIPTS),
        "POLICY": POLICY,
        "TITLE": safe_html(title, 200),
        "INTRO": _intro(runs, axes),
        "CSS": asset("reports/page.css") + LISTING_CSS,
        **{place.upper(): _sections(views, place, figures, runs) for place in PLACES},
        "SCRIPTS": page_scripts(figures.script),
        "INDEX": _json_for_html(index),
        "RUNS": "\n".join(_run_blocks(runs, views, compared)),
        "JS": f"{script('reports/js/page.js')}.startReport();",
    }
    page = asset("reports/page.html")
    pieces = page.split("@@")  # text, NAME, text, NAME, ...: substituted text is never scanned
    return "".join(parts[p] if i % 2 else p for i, p in enumerate(pieces))


class _Figures:
    """The bokeh figures of a page: their elements, their script, and what the page's script asks.

    They are made without a run: the page draws the one that it shows in them, from its block.
    """

    def __init__(self, views: Sequence[ViewRow]) -> None:
        self.models: dict[str, dict[str, str]] = {}  # a view's key -> its models' ids by name
        plots = {}
        for row in views:
            if row.figure is not None:
                plot, sources = row.figure.model(row.figure.payload(None))
                plot.name = row.key
                models = row.figure.js_args(plot, sources)
                self.models[row.key] = {name: model.id for name, model in models.items()}
                plots[row.key] = plot
        with unwarned():
            self.script, self.elements = components(plots, wrap_script=False)


def _sections(views: Sequence[ViewRow], place: str, figures: _Figures, runs: Sequence[Run]) -> str:
    return "\n".join(
        _figure_section(row, row.figure, figures.elements[row.key], runs)
        if row.figure is not None
        else f'<section id="{row.key}" aria-label="{safe_html(row.title)}"></section>'
        for row in views
        if row.place == place and (row.html is not None or row.figure is not None)
    )


def _figure_section(row: ViewRow, drawn: Figure, element: str, runs: Sequence[Run]) -> str:
    hidden = "" if any(map(drawn.shows, runs)) else " hidden"  # the page's script still finds it
    return (
        f'<section aria-label="{safe_html(row.title)}"{hidden}><div class="plot">{element}</div>'
        f'<p class="hint">{drawn.hint}</p></section>'
    )


def _shared_name(runs: Sequence[Run]) -> str:
    """The words with which the names of all runs begin; of one run its name."""
    words = zip(*(run.name.split() for run in runs), strict=False)
    return " ".join(w[0] for w in takewhile(lambda same: len(set(same)) == 1, words)).rstrip(",:")


def _opening(
    runs: Sequence[Run], current: Run | None, compared: Sequence[int | None]
) -> dict[str, Any]:
    """The run to show first, and the one beside it: what it is compared with, and what that is."""
    wanted = [i for i, run in enumerate(runs) if run is current]
    if not wanted and any(old is not None for old in compared):
        wanted = [len(runs) - 1]  # after the change
    story = story_of(runs)
    first = wanted[0] if wanted else len(runs) - 1 if story is None else story
    beside = compared[first] if first < len(compared) else None
    said = "the run to compare with"
    if beside is None:
        disturbed = [bool(run.doubt) for run in runs]
        calm = "undisturbed " * (any(disturbed) and not all(disturbed))
        beside, said = best_of(runs, runs[first]), f"the fastest {calm}run"
        if any(has_other_samples(run, runs[first]) for run in runs):
            said += " with as many samples a step"
        if beside == first:
            beside, said = best_of(runs), f"the fastest {calm}run by the sample"
    return {"first": first, "beside": None if beside == first else beside, "besideName": said}


def _cell(run: Run, number: int, axes: Sequence[Axis]) -> dict[str, Any]:
    h = run.headline()
    low, high = told_interval(run)
    numbers = {"step": run.step_ms, "low": low, "high": high, "busy": h.device_busy_fraction,
               "wait": h.sync_wait_ms}  # fmt: skip
    return {
        "at": [axis.places[number] for axis in axes],
        **{k: round(v, 4) if np.isfinite(v) else None for k, v in numbers.items()},
        "doubt": run.doubt,
    }


def _run_blocks(
    runs: Sequence[Run], views: Sequence[ViewRow], compared: Sequence[int | None]
) -> Iterator[str]:
    """A packed block of each run, and one of the columns that graphs of several runs share."""
    pool: dict[str, int] = {}
    most = max(MAX_SPANS // len(runs), 2500)
    headlines = Headlines(runs)
    axis_ns = max(end_ns(run.timeline) for run in runs)
    for i, run in enumerate(runs):
        old = compared[i] if i < len(compared) else None
        shown: dict[str, Any] = {row.key: row.text(run) for row in views if row.html is not None}
        shown[_DIFF] = "" if old is None else run_diff_html(diff_runs(runs[old], run))
        for row in views:
            if row.figure is not None:
                shown[row.key] = _figure_block(row.key, row.figure, run, pool, (most, axis_ns))
        changes = [_change(runs, headlines, other, i) for other in range(len(runs))]
        yield packed(f"run-{i}", _json({"views": shown, "changes": changes}))
    yield packed("pool", _json([json.loads(column) for column in pool]))


def _change(runs: Sequence[Run], headlines: Headlines, old: int, new: int) -> dict[str, Any]:
    """What the page says if it showed `old` before: a sentence, and the change of each card."""
    if old == new:
        return {}
    if len(runs) ** 2 > MOST_PAIRS:
        step = headlines.steps.difference(old, new)
        return {"said": headlines.steps.text(old, new, step), "told": step.is_changed, "cards": {}}
    found = headlines.differences(old, new)
    by_sample = has_other_samples(runs[old], runs[new])
    unit = "sample" if by_sample else "step"
    said = change_sentence(found, unit=unit, known_doubt=runs[new].doubt)
    cards = headline_changes(found, is_by_sample=by_sample)
    return {"said": said, "told": is_told(found), "cards": cards}


def _figure_block(
    key: str, figure: Figure, run: Run, pool: dict[str, int], size: tuple[int, float]
) -> Any:
    """What the page's script draws of a run: spans joined, columns of graphs shared.

    Args:
        size: the most spans of a timeline, and how far the axis of all of them reaches.
    """
    if key == "timeline":
        return _plain(figure.payload(run, max_spans=size[0], axis_ns=size[1]))
    if key == "graph":
        return _graph_block(figure.payload(run), pool)
    return _plain(figure.payload(run))


def _graph_block(payload: dict[str, Any], pool: dict[str, int]) -> dict[str, Any]:
    """The scene of a run's graph: every group laid out; the page's script opens and closes them."""
    scene = _plain(payload, digits=1)
    parts = {name: scene.pop(name) for name in ("strings", "shapes", "sources", "targets", "theme")}
    scene["dots"] = []  # a report brings no graphviz along: what Python laid out is shown
    return {name: _shared(value, pool) for name, value in (scene | {"parts": parts}).items()}


def _shared(columns: Any, pool: dict[str, int]) -> Any:
    """Columns as numbers into the pool: the graphs of most runs differ in a few columns."""
    if not isinstance(columns, dict):
        return columns
    return {
        name: pool.setdefault(json.dumps(column, separators=(",", ":")), len(pool))
        for name, column in columns.items()
    }


def _plain(value: Any, *, digits: int = 4) -> Any:
    """Numpy to JSON. No screen shows more: 4 digits of a millisecond, 1 of a graph's pixel."""
    if isinstance(value, dict):
        return {str(k): _plain(v, digits=digits) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return _plain_column(value, digits)
    if isinstance(value, list | tuple):
        return [_plain(v, digits=digits) for v in value]
    if isinstance(value, np.generic):
        return _plain(value.item(), digits=digits)
    if isinstance(value, float):
        return round(value, digits) if np.isfinite(value) else None
    return value


def _plain_column(values: NDArray[Any], digits: int) -> list[Any]:
    """`_plain` of numbers, all at once."""
    if values.dtype.kind in "biu":
        whole: list[Any] = values.tolist()
        return whole
    if values.dtype.kind != "f":
        return [_plain(x, digits=digits) for x in values.tolist()]
    with np.errstate(over="ignore"):
        rounded = np.round(values.astype(np.float64), digits)
    found = rounded.astype(object)
    found[~np.isfinite(rounded)] = None
    kept: list[Any] = found.tolist()
    return kept


def _json(block: Any) -> bytes:
    return json.dumps(block, separators=(",", ":")).encode()


def _json_for_html(value: Any) -> str:
    """JSON that cannot end its script element, whatever the strings in it say."""
    return json.dumps(value).replace("<", "\\u003c").replace(">", "\\u003e")


def _intro(runs: Sequence[Run], axes: Sequence[Axis]) -> str:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    devices = dict.fromkeys(device_of(run, "an unnamed device") for run in runs)
    device = safe_html(", ".join(devices), 200)
    moved = "; ".join(safe_html(a.label) for a in axes)  # names have commas
    how = f" Move a control to see what changes: {moved}." if moved else ""
    many = f"{len(runs)} recorded runs" if len(runs) > 1 else "One recorded run"
    return f"{many} on {device}, written {today}.{how} Nothing is measured while you look."
