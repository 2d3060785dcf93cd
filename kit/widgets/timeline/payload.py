"""Everything that a kernel timeline shows, as one dictionary: live view and report share it.

`timeline_payload` stacks what it is given on one time axis: a run; under it, if asked, what a model
had predicted, as outlines, and a second run. Each is a part, with its own steps and lanes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kit.runs.labels import device_of
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.text import format_count, format_ns, format_percent, safe_label
from kit.trace import GAP_CAUSES, KINDS, Timeline, headline
from kit.trace.kinds import CAUSES
from kit.widgets.base.theme import COLORS, FAINT, LABELS
from kit.widgets.timeline.columns import (
    Columns,
    end_ns,
    gap_columns,
    graph_columns,
    key_columns,
    knows_gaps,
    lane_columns,
    narrow,
    path_columns,
    pin_columns,
    span_columns,
    step_columns,
    sync_columns,
)
from kit.widgets.timeline.lanes import Places, place

__all__ = ["MAX_SPANS", "as_run", "flat", "timeline_payload", "timeline_title"]

MAX_SPANS = 2_000_000  # of one part; beyond, the shortest are joined, and the note says so
_CHROME_PX = 156  # title, note, overview, time axis, legend and hint
_PART_PX = 24  # the heading of a part
_MOST_PX = 560  # of lanes; what is lower is reached by scrolling
_LEAST_PX = 120
_STEP = KINDS.index("step")
_MODEL = "predicted"


def timeline_payload(
    run: Run | Timeline | None,
    *,
    below: Run | Timeline | None = None,
    outline: Run | Timeline | None = None,
    axis_ns: float = 0.0,
    max_spans: int = MAX_SPANS,
) -> Columns:
    """Everything that the view shows, as numpy columns, text and numbers; nothing of bokeh.

    Args:
        below: a second run, stacked under the first; their first steps begin together.
        outline: what a model predicts, drawn as outlines under the measured spans.
        axis_ns: how far the axis reaches that several runs share: a picture that follows another
            one with such an axis shows the same range of time. 0: as far as the spans.
        max_spans: of each part; beyond, the shortest spans are joined, and `note` says so.
    """
    first = as_run(run)
    shown = [("", False, first)]
    if outline is not None:
        shown.append((_MODEL, True, as_run(outline)))
    if below is not None:
        shown.append(("", False, as_run(below)))
    leads = [_lead_ns(r.timeline) for _, _, r in shown]
    parts, y = [], 0.0
    for (label, is_outline, one), lead in zip(shown, leads, strict=True):
        asked = first if is_outline and isinstance(outline, Timeline) else one
        head = _heading(one, label, asked) if len(shown) > 1 else ""
        part = _part(one, y, head, is_outline, max(leads) - lead, max_spans)
        parts.append(part)
        y = part["bottom"]
    end = max((p["end_ns"] for p in parts), default=0)
    # An outline's notes stand with the prediction itself: here they would be taken for the run's.
    notes = [text for p in parts if not p["outline"] for text in p["notes"]]
    return {
        **_joined(parts),
        "graph": graph_columns(first),
        "path": path_columns(first.timeline, parts[0]["places"], max(leads) - leads[0]),
        "parts": {key: [p[key] for p in parts] for key in ("label", "top", "bottom", "outline",
                                                           "steps_top", "syncs_top", "gaps_known",
                                                           "shift_ns")},
        "colors": {"kind": list(COLORS), "color": list(COLORS.values()),
                   "label": [LABELS[k] for k in COLORS], "causes": list(GAP_CAUSES),
                   "said": [row.said for row in CAUSES],
                   "cause_color": [COLORS.get(row.color, FAINT) for row in CAUSES]},
        "title": timeline_title(None if run is None else first),
        "note": "  ·  ".join(safe_label(x) for x in dict.fromkeys(notes) if x),
        "summary": _summary(first),
        "message": "no run yet" if run is None else _message(first),
        "end_ns": float(max(end, 1)) if len(first.timeline) else 1e6,
        "axis_ns": float(axis_ns),
        "content_px": y,
        "height": int(min(max(y, _LEAST_PX), _MOST_PX)) + _CHROME_PX,
    }  # fmt: skip


def timeline_title(run: Run | None) -> str:
    """What the plot shows and where its numbers come from."""
    if run is None:
        return "kernel timeline"
    named = (x for x in (run.name, device_of(run)) if x and x != "auto")
    what = ", ".join(safe_label(x, 48) for x in named)
    return f"kernel timeline{what and f': {what}'} ({run.timeline.origin})"


def as_run(given: Run | Timeline | None) -> Run:
    """A timeline alone, or nothing, in the form of a run."""
    empty = Run(settings=Settings(), losses=(), step_times_ns=(), timeline=Timeline.of([]))
    if isinstance(given, Run):
        return given
    return empty if given is None else replace(empty, timeline=given)


def flat(payload: Mapping[str, Any]) -> dict[str, list[Any]]:
    """A payload as the one row of a bokeh source, whose columns may be arrays: `spans.key`, ..."""
    row: dict[str, list[Any]] = {}
    for name, value in payload.items():
        if isinstance(value, Mapping):
            row |= {f"{name}.{key}": [column] for key, column in value.items()}
        else:
            row[name] = [value]
    return row


def _lead_ns(timeline: Timeline) -> int:
    """From the first span to the first step."""
    steps = timeline.start_ns[timeline.kind == _STEP]
    return int(steps.min()) - timeline.begin_ns if len(steps) else 0


def _heading(run: Run, label: str, asked: Run) -> str:
    """What stands over one of several runs.

    Args:
        asked: the run whose settings these are; a timeline alone has none, and so no mode.
    """
    mode = asked.settings.mode if asked.step_times_ns else ""
    named = [label] if label else [safe_label(x, 40) for x in (run.label, run.name)]
    names = [*dict.fromkeys(named), mode, run.timeline.origin]
    return "  ·  ".join(x for x in names if x)


def _part(run: Run, y: float, label: str, is_outline: bool, shift: int, max_spans: int) -> Columns:
    """One run's columns, from `y` on."""
    timeline = run.timeline
    places = place(timeline, top=y + (_PART_PX if label else 0))
    lanes, headings = lane_columns(places)
    keys, key, is_whole = key_columns(run, _lane_of(timeline, places))
    spans, first, shown = span_columns(timeline, places, key, max_spans=max_spans, shift_ns=shift)
    syncs = sync_columns(timeline, shift)
    notes = list(timeline.notes)
    idle = Timeline.of([]) if is_outline else timeline  # a model's idle times have no causes
    if len(spans["count"]):
        notes.append(
            f"{len(places.order):,} spans drawn as {len(shown):,}: the shortest are "
            "joined with their neighbours"
        )
    if places.is_crowded.any():
        notes.append("more spans lie over each other than there are rows: some cover others")
    return {
        "spans": {**spans, "count": spans["count"] if len(spans["count"])
                  else np.ones(len(shown), np.uint8)},
        "rows": {"first": first[:-1], "top": places.top, "height": places.height,
                 "lane": places.lane, "crowded": places.is_crowded.astype(np.uint8)},
        "lanes": lanes,
        "headings": headings,
        "keys": keys,
        "is_whole": is_whole,
        "places": places,
        "steps": step_columns(timeline, shift),
        "syncs": syncs,
        "pins": pin_columns(run, shift),
        "gaps": gap_columns(idle, shift, max_spans=max_spans),
        "gaps_known": knows_gaps(timeline, max_spans) and not is_outline,
        "label": label,
        "top": y,
        "bottom": places.bottom,
        "outline": is_outline,
        "shift_ns": shift,
        "steps_top": places.steps_top,
        "syncs_top": places.syncs_top,
        "notes": notes,
        "end_ns": end_ns(timeline) + shift if len(timeline) else 0.0,
    }  # fmt: skip


def _lane_of(timeline: Timeline, places: Places) -> Any:
    """For each lane of the timeline the lane of the plot that holds its spans."""
    found = np.full(len(timeline.lanes), -1, np.int64)
    lane = np.repeat(places.lane, np.diff(places.first))
    found[timeline.lane[places.order]] = lane
    return found


def _joined(parts: Sequence[Columns]) -> Columns:
    """The columns of all parts one after the other, what points into another one moved along."""
    moved = {
        "spans": {"key": "keys"},
        "rows": {"first": "spans", "lane": "lanes"},
        "keys": {"lane": "lanes"},
    }
    size = {"spans": "key", "lanes": "top", "keys": "name"}
    made: Columns = {}
    for table in ("spans", "rows", "lanes", "headings", "keys", "steps", "syncs", "gaps", "pins"):
        columns: dict[str, list[Any]] = {key: [] for key in parts[0][table]}
        begin = dict.fromkeys(size, 0)
        rows = []
        for part in parts:
            for key, values in part[table].items():
                to = moved.get(table, {}).get(key)
                more = begin[to] if to else 0
                columns[key].append(_moved(values, more) if more else values)
            for name, column in size.items():
                begin[name] += len(part[name][column])
            rows.append(len(next(iter(part[table].values()))))
        made[table] = {key: _concat(values) for key, values in columns.items()}
        made[table]["part"] = np.repeat(np.arange(len(parts)), rows).astype(np.uint8)
    del made["spans"]["part"]
    if made["spans"]["count"].max(initial=1) == 1:
        made["spans"]["count"] = np.zeros(0, np.uint8)  # every bar is one span
    if all(part["is_whole"] for part in parts):
        made["spans"]["segment"] = np.zeros(0, np.uint8)  # the keys say it
    return made


def _moved(values: Any, more: int) -> Any:
    """Places in a table that begins `more` rows later; a place of nothing, -1, stays."""
    wide = np.asarray(values, np.int64)  # the narrow type may not hold what comes out
    return np.where(wide >= 0, wide + more, wide)


def _concat(columns: list[Any]) -> Any:
    if isinstance(columns[0], list):
        return [x for column in columns for x in column]
    joined = np.concatenate(columns)
    return narrow(joined) if joined.dtype == np.int64 else joined


def _message(run: Run) -> str:
    """What stands in the plot's place where nothing can be drawn."""
    return "" if len(run.timeline) else "no spans were recorded"


def _summary(run: Run) -> str:
    """The picture in words, for people who cannot see it."""
    timeline = run.timeline
    if not len(timeline):
        return "An empty timeline: no spans were recorded."
    kernels = int((timeline.kind == KINDS.index("kernel")).sum())
    is_small = len(timeline) <= 200_000  # of more, it takes longer to say than to draw
    busy = headline(timeline).device_busy_fraction if is_small else math.nan
    steps = timeline.steps
    waits = [s.wait_ns for s in timeline.syncs]
    texts = [
        f"Timeline of {format_ns(timeline.duration_ns)}, {format_count(steps, 'step')}, "
        f"{format_count(kernels, 'kernel')} among {format_count(len(timeline), 'span')} on "
        f"{format_count(len(timeline.lanes), 'lane')}.",
        f"The device is busy for {format_percent(busy)} of {'the steps' if steps else 'it'}."
        if not math.isnan(busy)
        else "",
        f"{format_count(len(waits), 'sync point')}, {format_ns(sum(waits))} waited in all."
        if waits
        else "No sync points.",
    ]
    return " ".join(x for x in texts if x)
