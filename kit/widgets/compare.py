"""Several runs side by side: a table of their numbers, and their timelines on one time axis.

`kit.compare` gives a `Comparison`. It holds finished runs and draws them; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ipywidgets import HTML, Layout, VBox

from kit.run import Run
from kit.widgets.bokehjs import load_bokehjs
from kit.widgets.compare_data import (
    COLUMNS,
    Cell,
    ComparisonRow,
    check_runs,
    comparison_cells,
    comparison_rows,
    verdict,
)
from kit.widgets.compare_strips import comparison_columns, comparison_figure
from kit.widgets.live_plot import LivePlot
from kit.widgets.tables import FONT, INK, MUTED, safe_text, section, sentence, table

__all__ = [
    "Comparison",
    "ComparisonRow",
    "comparison_columns",
    "comparison_figure",
    "comparison_html",
    "comparison_markdown",
    "comparison_text",
]

_STAR = "★"
_WIDTHS = (25, 11, 9, 8, 7, 10, 8, 8, 8, 6)
_LEAST_PX = 660  # narrower, the table scrolls
_NOTE = (
    f"{_STAR} best of its column. Step: median of the untraced steps, quartiles below. A sample: "
    "the step over batch size and micro-batches. Recording hidden: the part of the host's "
    "recording that went on while the device worked. Busy, hidden and idle come from traced steps, "
    "which may take longer than untraced ones."
)


def comparison_html(runs: Sequence[Run], baseline: int = 0) -> str:
    """The numbers of the runs as a table, and which one is the quickest.

    Raises:
        SettingsError: there are no runs, or no run has the number `baseline`.
    """
    rows = comparison_rows(runs, baseline)
    body = [
        [_label(i, row, i == baseline), *map(_cell, cells)]
        for i, (row, cells) in enumerate(zip(rows, comparison_cells(rows), strict=True))
    ]
    heads = ("run", *(c.head for c in COLUMNS))
    made = table(heads, body, "l" + "r" * len(COLUMNS), widths=_WIDTHS)
    wide = f'<div style="overflow-x:auto"><div style="min-width:{_LEAST_PX}px">{made}</div></div>'
    lead = f'<div style="margin-bottom:4px">{safe_text(verdict(rows, baseline), 400)}</div>'
    return section("Comparison", lead + wide + sentence(_NOTE))


def _label(i: int, row: ComparisonRow, is_baseline: bool) -> str:
    tag = f'<div style="color:{MUTED};font-size:12px">baseline</div>' if is_baseline else ""
    return (
        f'<div style="overflow-wrap:anywhere"><b>{i + 1}</b>&ensp;{safe_text(row.label)}</div>{tag}'
    )


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.is_best:
        text = f'<b title="best of its column">{_STAR}&thinsp;{text}</b>'
    if cell.note:
        text += f'<div style="color:{MUTED};font-size:11px">{escape(cell.note)}</div>'
    return f'<div style="white-space:nowrap">{text}</div>'


def comparison_markdown(runs: Sequence[Run], baseline: int = 0) -> str:
    """The table as Markdown, the best of each column in bold; nothing in it is HTML."""
    rows = comparison_rows(runs, baseline)
    lines = [["run", *(c.head for c in COLUMNS)], ["---", *["---:"] * len(COLUMNS)]]
    for i, (row, cells) in enumerate(zip(rows, comparison_cells(rows), strict=True)):
        tag = " (baseline)" if i == baseline else ""
        texts = [_plain_cell(c) for c in cells]
        lines.append(
            [f"{i + 1}: {_markdown(row.label)}{tag}"]
            + [f"**{t}**" if c.is_best else t for t, c in zip(texts, cells, strict=True)]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is: no cell ends, no HTML, no links, no emphasis."""
    for mark in "\\`*_[]|":
        text = text.replace(mark, "\\" + mark)
    return escape(text, quote=False)


def _plain_cell(cell: Cell) -> str:
    text = f"{cell.text} ({cell.note})" if cell.note else cell.text
    return text.replace("<", "&lt;")


def comparison_text(runs: Sequence[Run], baseline: int = 0) -> str:
    """The table for a terminal: aligned, the best of each column with a `*`."""
    rows = comparison_rows(runs, baseline)
    lines = [["run", *(c.head for c in COLUMNS)]]
    for i, (row, cells) in enumerate(zip(rows, comparison_cells(rows), strict=True)):
        tag = " (baseline)" if i == baseline else ""
        lines.append([f"{i + 1}  {row.label}{tag}", *map(_text_cell, cells)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = ["  ".join(_aligned(line, widths)).rstrip() for line in lines]
    marks = ["* best of its column"] if len(runs) > 1 else []
    return "\n".join([*aligned, *marks, *filter(None, [verdict(rows, baseline)])])


def _text_cell(cell: Cell) -> str:
    note = f" ({cell.note})" if cell.note else ""
    return f"{cell.text}{note}{'*' if cell.is_best else ' '}"


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The first text to the left, numbers to the right."""
    return [
        line[0].ljust(widths[0]),
        *(t.rjust(w) for t, w in zip(line[1:], widths[1:], strict=True)),
    ]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Finished runs side by side: shown as a table and timelines in a notebook, as text elsewhere.

    Args:
        runs: one or more; a dozen can be read at once.
        baseline: the place of the run that the others are compared with.

    Raises:
        SettingsError: there are no runs, or no run has the number `baseline`.
    """

    runs: tuple[Run, ...]
    baseline: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))
        check_runs(self.runs, self.baseline)

    def rows(self) -> tuple[ComparisonRow, ...]:
        """The numbers of each run, in the order of `runs`."""
        return comparison_rows(self.runs, self.baseline)

    def to_markdown(self) -> str:
        """The table as Markdown, for a report or an issue."""
        return comparison_markdown(self.runs, self.baseline)

    def view(self) -> VBox:
        """A widget of the table and the timelines; displaying the comparison shows one."""
        figure = comparison_figure(self.runs, self.baseline)
        text = HTML(comparison_html(self.runs, self.baseline), layout=Layout(width="auto"))
        return VBox([text, LivePlot(figure)])

    def __repr__(self) -> str:
        return comparison_text(self.runs, self.baseline)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        load_bokehjs()
        bundle: Any = self.view()._repr_mimebundle_(**options)
        # a page that knows no widgets, such as a notebook on GitHub, still gets the table
        return {**bundle, "text/plain": repr(self), "text/html": _page(self)}


def _page(comparison: Comparison) -> str:
    html = comparison_html(comparison.runs, comparison.baseline)
    return f'<div style="font-family:{FONT};color:{INK}">{html}</div>'
