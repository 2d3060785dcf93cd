"""One row a rank, on one clock if there is one: what it computed, sent, and waited for.

A row is a line of the page that opens to the rank's own lanes, by `<details>`: a saved page needs
no script for that. Each kind of work is one path of an SVG.
"""

from __future__ import annotations

import numpy as np

from kit.text import format_ms, safe_html
from kit.trace.intervals import Ints, joined
from kit.trace.ranks.one import NAMES, RankTrace, coarse
from kit.trace.ranks.ranks import Ranks
from kit.trace.ranks.tables import RankRow
from kit.widgets.base.selection import Selection
from kit.widgets.base.tables import LINE, MUTED, TRACK, keys_html, row_attributes, tab_stop
from kit.widgets.base.theme import COLORS

__all__ = ["lanes_html", "of_rank", "placed"]

WIDTH = 1_000  # units of the picture, which is as wide as the page
MAX_PIECES = 100_000  # of all rows together
_HEIGHT, _BAR = 22, 13  # of a row in pixels: compute and memory above, communication below
COLOR = {
    "compute": COLORS["kernel"],
    "memory": COLORS["input"],
    "communication": COLORS["communication"],
    "waited": COLORS["wait"],
}
_KEYS = {
    "compute": "computes",
    "memory": "copies",
    "communication": "communicates",
    "waited": "waits in a collective for ranks that have not come",
}

_UNPLACED = (
    f'<div style="font-size:11px;color:{MUTED}">clock not known: begins with the others</div>'
)


def placed(ranks: Ranks) -> str:
    """Where the rows stand, in words: "on one clock", or, without one, where each begins."""
    return "on one clock" if ranks.has_clock else "each from its first step"


def of_rank(rank: int) -> Selection:
    """What is picked by picking a rank."""
    return Selection(sites=frozenset({f"rank {rank}"}), label=f"rank {rank}")


def lanes_html(ranks: Ranks) -> str:
    """The rows of all ranks, the first of a listing."""
    picture = _Picture(ranks)
    rows = "".join(
        f'<div role="row" '
        f'style="display:grid;grid-template-columns:88px minmax(0,1fr);align-items:start">'
        f'<div role="rowheader" {tab_stop(i == 0)} {row_attributes(i, of_rank(trace.rank))} '
        f'style="padding:3px 4px;white-space:nowrap">rank {trace.rank}</div>'
        f'<div role="gridcell"><details>'
        f'<summary style="display:block;cursor:pointer" title="open its lanes">'
        f"{'' if row.clock.is_known or not ranks.has_clock else _UNPLACED}"
        f"{picture.rank(trace, row)}</summary>{picture.lanes(trace)}</details></div></div>"
        for i, (trace, row) in enumerate(zip(ranks.traces, ranks.ranks, strict=True))
    )
    keys = keys_html({said: COLOR[key] for key, said in _KEYS.items()})
    return (
        f'<div style="font-size:12px;color:{MUTED};margin-bottom:4px">{keys}</div>'
        f'{picture.axis()}<div role="grid" aria-label="ranks">{rows}</div>'
    )


class _Picture:
    """The rows on one axis, from the first to the last step."""

    def __init__(self, ranks: Ranks) -> None:
        zero = _zero(ranks)
        shift = _shifts(ranks, zero)
        edges = [t.steps + s for t, s in zip(ranks.traces, shift, strict=True)]
        edges += [
            lane.times + s
            for t, s in zip(ranks.traces, shift, strict=True)
            for lane in t.lanes
            if not len(t.steps)
        ]
        whole = np.concatenate([*edges, np.zeros((0, 2), np.int64)])
        self.low, self.high = (int(whole.min()), int(whole.max())) if len(whole) else (0, 1)
        self.places = {id(trace): s for trace, s in zip(ranks.traces, shift, strict=True)}
        lanes = sum(3 + len(trace.lanes) for trace in ranks.traces)
        self.most = max(MAX_PIECES // max(lanes, 1), 50)
        self.waits = _waits(ranks, zero)
        self.first = ranks.traces[0]

    def axis(self) -> str:
        """The steps of the first rank, by name, and how long all of it is."""
        names = []
        for name, (start, stop) in zip(self.first.step_names, self._steps(self.first), strict=True):
            left, width = self._x(start), self._x(stop) - self._x(start)
            if width > 45:
                names.append(
                    f'<span style="position:absolute;left:{left / 10:.2f}%;width:{width / 10:.2f}%;'
                    f'overflow:hidden;white-space:nowrap">{safe_html(name, 40)}</span>'
                )
        whole = format_ms((self.high - self.low) / 1e6)
        return (
            f'<div style="display:grid;grid-template-columns:88px minmax(0,1fr);font-size:12px;'
            f'color:{MUTED}"><span>{whole} wide</span><div style="position:relative;height:17px">'
            f"{''.join(names)}</div></div>"
        )

    def rank(self, trace: RankTrace, row: RankRow) -> str:
        """Compute and memory above, communication and waits below."""
        place = self.places[id(trace)]
        paths = []
        for what in NAMES:
            mine = [lane.times for lane in trace.lanes if lane.what == what]
            times = joined(np.concatenate([*mine, np.zeros((0, 2), np.int64)])) + place
            below = what == "communication"
            paths.append(self._path(times, what, *((_BAR + 1, 8) if below else (1, _BAR - 1))))
        waited = self.waits.get(trace.rank, np.zeros((0, 2), np.int64))
        paths.append(self._path(joined(waited), "waited", _BAR + 1, 8))
        ticks = "".join(f"M{self._x(at):.2f} 0v{_HEIGHT}" for at in self._steps(trace)[:, 0])
        paths.append(f'<path d="{ticks}" stroke="#8889" fill="none" stroke-width="1" '
                     'vector-effect="non-scaling-stroke"/>')  # fmt: skip
        said = (
            f"rank {trace.rank}: a step {format_ms(row.step_ms)}, compute "
            f"{format_ms(row.compute_ms)}, exposed communication {format_ms(row.exposed_ms)}"
        )
        return self._svg("".join(paths), _HEIGHT, said)

    def lanes(self, trace: RankTrace) -> str:
        """The lanes of a rank, one below the other."""
        place, by_name = self.places[id(trace)], dict[str, list[str]]()
        for lane in trace.lanes:
            path = self._path(lane.times + place, lane.what, 1, _BAR - 1)
            by_name.setdefault(lane.name, []).append(path)
        return "".join(
            f'<div style="font-size:11px;color:{MUTED};margin-top:2px">{safe_html(name, 80)}</div>'
            + self._svg("".join(paths), _BAR + 1, name)
            for name, paths in by_name.items()
        )

    def _steps(self, trace: RankTrace) -> Ints:
        return trace.steps + self.places[id(trace)]

    def _x(self, at: float) -> float:
        return (at - self.low) / max(self.high - self.low, 1) * WIDTH

    def _path(self, times: Ints, what: str, top: int, height: int) -> str:
        times = times[(times[:, 1] > self.low) & (times[:, 0] < self.high)]
        drawn = "".join(
            f"M{self._x(a):.2f} {top}h{max(self._x(b) - self._x(a), 0.05):.2f}v{height}"
            f"H{self._x(a):.2f}z"
            for a, b in coarse(times, self.most).clip(self.low, self.high).tolist()
        )
        return f'<path d="{drawn}" fill="{COLOR[what]}"/>' if drawn else ""

    def _svg(self, body: str, height: int, said: str) -> str:
        return (
            f'<svg viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" role="img" '
            f'aria-label="{safe_html(said, 200)}" style="display:block;width:100%;'
            f'height:{height}px;background:{TRACK};border-bottom:1px solid {LINE}">'
            f"<title>{safe_html(said, 200)}</title>{body}</svg>"
        )


def _zero(ranks: Ranks) -> int:
    """The picture's 0 on the reference's clock: the first step of the first rank that has it."""
    for trace, row in zip(ranks.traces, ranks.ranks, strict=True):
        if row.clock.is_known:
            return trace.zero_ns + row.clock.offset_ns + _begin(trace)
    return 0


def _begin(trace: RankTrace) -> int:
    return int(trace.steps[0, 0]) if len(trace.steps) else 0


def _shifts(ranks: Ranks, zero: int) -> list[int]:
    """From each rank's own time to that of the picture.

    A rank whose clock is not known begins where the first one does.
    """
    return [
        trace.zero_ns + row.clock.offset_ns - zero if row.clock.is_known else -_begin(trace)
        for trace, row in zip(ranks.traces, ranks.ranks, strict=True)
    ]


def _waits(ranks: Ranks, zero: int) -> dict[int, Ints]:
    """When each rank waited in a collective for the last one, on the picture's clock."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in ranks.collectives:
        last = max(row.start_ns.values())
        for rank, start in row.start_ns.items():
            found.setdefault(rank, []).append((start - zero, min(last, row.stop_ns[rank]) - zero))
    return {rank: np.array(times, np.int64) for rank, times in found.items()}
