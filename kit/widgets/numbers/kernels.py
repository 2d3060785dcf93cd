"""The kernels of a run as a table: what each computes and how near it comes to the ceilings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from kit.runs.analysis.kernels import KernelCost, kernel_table
from kit.runs.run import Run
from kit.text import format_bytes, format_percent, format_share, safe_html
from kit.trace.kernels import Ceilings
from kit.trace.kinds import ON_DEVICE
from kit.trace.timeline import per_step
from kit.widgets.base.listing import Listing, under_doubt
from kit.widgets.base.selection import Links, Selection
from kit.widgets.base.tables import (
    MUTED,
    amount,
    bar_html,
    code,
    folded,
    not_shown,
    place_html,
    section,
    sentence,
    table,
)
from kit.widgets.base.theme import COLORS

__all__ = ["KernelView", "folded_kernels", "kernels_drawn", "name_html"]

MAX_ROWS = 20
_WIDTHS = (20, 24, 8, 9, 9, 10, 10, 10)
_BEST_WIDTHS = (17, 21, 8, 9, 9, 9, 9, 10, 8)  # with the column of ceilings
_PARTS = re.compile(r"(?<=::|[a-z]_)(?=\w)")  # where a long name of a kernel goes on
_LEAST_PX = 700  # with less, a cell's text would lie over the next cell


def kernels_drawn(run: Run, ceilings: Ceilings | None = None) -> tuple[str, list[Selection]]:
    """The `MAX_ROWS` kernels that had most of the device's time, and the sums of all.

    With the HTML comes what each of its rows stands for: the nodes that the kernel computes.

    Args:
        ceilings: what rates are held against, `kit.measure_ceilings()`; without it there is no
            column "of best".
    """
    rows = kernel_table(run, ceilings=ceilings)
    if not rows:
        return section("Kernels", sentence("No kernel was seen.")), []
    steps, each = per_step(run.timeline)
    heads = ("kernel", "computes", "runs", f"ms{each}", "share",
             "moved", "GB/s", "GFLOP/s", "of best")  # fmt: skip
    widths = _WIDTHS if ceilings is None else _BEST_WIDTHS
    cells = [_row(row, steps, rows[0].kernel.share) for row in rows[:MAX_ROWS]]
    cells.append(_total(rows, steps))
    cells = [row[: len(widths)] for row in cells]
    note = (
        "Share of the time in which a kernel ran: where kernels run side by side an instant is "
        "divided among them, and one that communicates or calls Python counts where nothing "
        "computes, so shares add up to 100%. Bytes and arithmetic are modelled from "
        "the shapes of the graph, rates are over the time in which the kernel ran."
    )
    if len(rows) > MAX_ROWS:
        rest = sum(row.kernel.share for row in rows[MAX_ROWS:])
        note += not_shown(
            len(rows) - MAX_ROWS, "kernel", f" with {format_percent(rest)} of the time"
        )
    if ceilings is not None:
        note += (
            f" Measured at best on this device: {amount(ceilings.gb_s)} GB/s, "
            f"{amount(ceilings.gflop_s)} GFLOP/s; more than 100% is data from a cache, or "
            "a machine that was busy when the best was measured."
        )
    if any("?" in row for row in cells):
        note += " ?: not known."
    links = Links(run)
    picks = [links.of_nodes(row.nodes, f"kernel {row.kernel.name}") for row in rows[:MAX_ROWS]]
    align = "ll" + "r" * (len(widths) - 2)
    body = table(heads[: len(widths)], cells, align, widths=widths, has_total=True,
                 picks=enumerate(picks), least_px=_LEAST_PX)  # fmt: skip
    return section("Kernels", body + sentence(note)), picks


def folded_kernels(run: Run) -> tuple[str, list[Selection]]:
    """The same behind a line that a click opens; "" where no kernel was seen."""
    if not run.timeline.where(kind=ON_DEVICE).any():
        return "", []
    body, picks = kernels_drawn(run)
    return folded("Kernels: what each computes, how long it takes, what it moves", body), picks


def _row(row: KernelCost, steps: int, most: float) -> list[str]:
    kernel = row.kernel
    where = f"segment {kernel.segment}" if kernel.segment >= 0 else ""  # of native runs and traces
    name = code(f'{name_html(kernel.name)}<div style="color:{MUTED}">{where}</div>')
    best = "" if math.isnan(row.of_ceiling) else format_percent(row.of_ceiling)
    if best:
        best += f'<div style="color:{MUTED};font-size:11px">{safe_html(row.limit)}</div>'
    return [
        name,
        _computes(row),
        amount(kernel.count / steps),
        amount(kernel.charged_ms / steps),
        format_share(kernel.share) + bar_html(kernel.share / max(most, 1e-12), COLORS["kernel"]),
        format_bytes(row.bytes_read + row.bytes_written, "?"),
        amount(row.gb_s),
        amount(row.gflop_s) if row.flops > 0 else "",
        best,
    ]


def name_html(name: str) -> str:
    """A name that goes on in the next line after "::" or "_", and not amid a word."""
    return _PARTS.sub("<wbr>", safe_html(name, 60))


def _computes(row: KernelCost) -> str:
    """The first ops, and the lines and modules that they come from."""
    if not row.ops:
        return f'<span style="color:{MUTED}">unknown</span>'
    ops = _listed(
        [op.removeprefix("aten.").removesuffix(".default") for op in row.ops], 3, name_html
    )
    place = _listed(row.sites, 2, _place)
    scope = _listed(row.scopes, 1, _scope)
    where = " · ".join(x for x in (place, scope) if x)
    return (
        f'<div style="overflow-wrap:anywhere">{ops}'
        f'<div style="color:{MUTED};font-size:12px">{where}</div></div>'
    )


def _listed(texts: Sequence[str], limit: int, shown: Callable[[str], str]) -> str:
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(shown(text) for text in texts[:limit]) + more


def _place(text: str) -> str:
    return place_html(text, 60)


def _scope(text: str) -> str:
    """A module's path, which goes on in the next line after a full stop."""
    return safe_html(text, 60).replace(".", ".<wbr>")


def _total(rows: Sequence[KernelCost], steps: int) -> list[str]:
    busy = sum(row.kernel.charged_ms for row in rows) / steps
    runs = sum(row.kernel.count for row in rows) / steps
    each = [row.bytes_read + row.bytes_written for row in rows]
    known = [moved for moved in each if not math.isnan(moved)]
    moved = format_bytes(sum(known) if known else math.nan, "?")
    least = "at least " if 0 < len(known) < len(each) else ""
    return ["<b>all kernels</b>", "", f"<b>{amount(runs)}</b>", f"<b>{amount(busy)}</b>",
            "<b>100%</b>", f"<b>{least}{moved}</b>", "", "", ""]  # fmt: skip


class KernelView(Listing):
    """The kernels of `run`, against `ceilings` if they are given; assigning `run` redraws.

    Picking a row sets `selection` to the nodes that the kernel computes.
    """

    def __init__(self, run: Run | None = None, ceilings: Ceilings | None = None) -> None:
        super().__init__("kernels", under_doubt(lambda r: kernels_drawn(r, ceilings)), run)
