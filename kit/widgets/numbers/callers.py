"""What launched the work of a native run or a foreign trace: modules, and the costliest lines."""

from __future__ import annotations

from kit.runs.device.callers import (
    CallerRow,
    best_view,
    caller_table,
    has_lines,
    without_callers,
)
from kit.runs.run import Run
from kit.text import format_share
from kit.trace.timeline import per_step
from kit.widgets.base.listing import Listing, under_doubt
from kit.widgets.base.selection import Links, Selection
from kit.widgets.base.tables import (
    MONO,
    amount,
    bar_html,
    not_shown,
    place_html,
    section,
    sentence,
    table,
)
from kit.widgets.base.theme import COLORS
from kit.widgets.numbers.kernels import name_html

__all__ = ["CallerView", "callers_drawn"]

MAX_ROWS = 24
_FEW = 6
_LEAST = 0.01  # of kernel time
_TITLE = "What launched the device's work"
_HEADS = ("share", "of its own", "backward", "GFLOP/s in products")
_WIDTHS = (32, 11, 11, 14, 15, 17)  # on a phone the share is seen without scrolling
_WORDS = {
    "module": "module",
    "kind": "module, by class",
    "annotation": "annotation",
    "op": "op",
    "line": "line",
}


def callers_drawn(run: Run, by: str = "") -> tuple[str, list[Selection]]:
    """A tree of what launched kernels, and the costliest lines and ops.

    With the HTML comes what each of its rows stands for: the kernels that it launched.

    Args:
        by: as of `kit.caller_table`; "" for what the trace says most of.
    """
    if not run.callers:
        return section(_TITLE, sentence(f"{without_callers(run)}.")), []
    picks: list[Selection] = []
    chosen = by or best_view(run)
    body = _table(run, chosen, MAX_ROWS, picks)
    if not by:
        is_line = chosen != "line" and any(caller.site for caller in run.callers)
        others = {"line": is_line, "op": chosen != "op"}
        body += "".join(_table(run, x, _FEW, picks) for x, is_told in others.items() if is_told)
    note = (
        "An instant in which several kernels run is divided among them: the outermost rows add up "
        "to the time in which a kernel ran. Backward: kernels that compute gradients, at "
        "the module of the op that they are of. GFLOP/s: from the shapes of matrix products, "
        "convolutions and attention, over the time that these alone took one device."
    )
    return section(_TITLE, body + sentence(note)), picks


def _table(run: Run, by: str, limit: int, picks: list[Selection]) -> str:
    """The rows that are no trifle; what each stands for is added to `picks`."""
    rows = caller_table(run, by)
    shown = [row for row in rows if row.share >= _LEAST][:limit]
    links = Links(run)
    mine = [links.of_nodes(row.nodes, row.name) for row in shown]
    cells = [_cells(row, by) for row in shown]
    _, each = per_step(run.timeline)
    is_begin = by == "line" and not has_lines(run)
    heads = (_WORDS[by] + " where its function begins" * is_begin, f"ms{each}", *_HEADS)
    numbered = enumerate(mine, len(picks))
    made = table(heads, cells, "lrrrrr", widths=_WIDTHS, picks=numbered, least_px=620)
    picks += mine
    rest = sentence(not_shown(len(rows) - len(shown), "row"))
    return f'<div style="margin-bottom:12px">{made}{rest}</div>'


def _cells(row: CallerRow, by: str) -> list[str]:
    font = f"font-family:{MONO};font-size:12px;" if by in ("line", "op") else ""
    name = (
        f'<div style="{font}padding-left:{12 * min(row.depth, 12)}px;overflow-wrap:anywhere">'
        f"{name_html(row.name) if by == 'op' else place_html(row.name, 80)}</div>"
    )
    return [
        name,
        amount(row.total_ms),
        format_share(row.share) + bar_html(row.share, COLORS["kernel"]),
        amount(row.self_ms),
        amount(row.backward_ms) if row.backward_ms else "",
        amount(row.gflop_s) if row.flops > 0 else "",
    ]


class CallerView(Listing):
    """What launched the kernels of `run`; assigning `run` redraws.

    Picking a row sets `selection` to the kernels that were launched in it.
    """

    def __init__(self, run: Run | None = None, by: str = "") -> None:
        draw = under_doubt(lambda r: callers_drawn(r, by))
        super().__init__("what launched the work", draw, run)
