"""Tables and lines that show themselves: as text at a prompt, as HTML in a notebook.

And what shows how far something is, `Progress`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, SupportsIndex, TypeVar, overload

from kit.text import WHOLE, format_count, safe_html, safe_terminal, terminal_table

__all__ = ["Column", "Lines", "Progress", "Rows"]

T = TypeVar("T")
Progress = Callable[[str, float], None]  # takes what is done now, and which part is over

_MOST_ROWS = 30  # that a table shows of itself


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of `Rows`: its heading, and what it says of a row."""

    head: str
    cell: Callable[[T], str]
    is_number: bool = True


class Rows(tuple[T, ...], Generic[T]):
    """A tuple that shows itself as a table: as text in a terminal, as HTML in a notebook.

    A slice of it is such a table, too. Cells may have a stranger's text: they are made safe here.

    Attributes:
        note: what is said beside the number of rows, such as why the others may be off.
    """

    note: str = ""
    noun: ClassVar[str] = "row"
    columns: ClassVar[tuple[Column[Any], ...]] = ()
    widest: ClassVar[int] = 60  # letters of a cell

    @overload
    def __getitem__(self, at: SupportsIndex, /) -> T: ...
    @overload
    def __getitem__(self, at: slice, /) -> Self: ...
    def __getitem__(self, at: SupportsIndex | slice, /) -> T | Self:
        if isinstance(at, slice):
            return type(self)(super().__getitem__(at)).with_note(self.note)
        return super().__getitem__(at)

    def with_note(self, note: str) -> Self:
        """The same rows, shown with this note."""
        made = type(self)(self)
        made.note = note
        return made

    def __repr__(self) -> str:
        shown, rest = self._cells(safe_terminal)
        left = [i for i, column in enumerate(self.columns) if not column.is_number]
        table = terminal_table(shown[0], shown[1:], left)
        return "\n".join([self._heading(safe_terminal), table, *rest])

    def _repr_html_(self) -> str:
        (head, *body), rest = self._cells(safe_html)
        sides = ["right;white-space:nowrap" if c.is_number else "left" for c in self.columns]

        def row(cells: Sequence[str], tag: str) -> str:
            made = (
                f'<{tag} style="text-align:{side};font-variant-numeric:tabular-nums">{cell}</{tag}>'
                for cell, side in zip(cells, sides, strict=True)
            )
            return f"<tr>{''.join(made)}</tr>"

        lines = "".join(row(cells, "td") for cells in body)
        more = "".join(f"<p>{line}</p>" for line in rest)
        return (
            f"<table><caption>{self._heading(safe_html)}</caption><thead>"
            f"{row(head, 'th')}</thead><tbody>{lines}</tbody></table>{more}"
        )

    def _heading(self, safe: Callable[[object, int], str]) -> str:
        count = format_count(len(self), self.noun)
        return f"{count}; {safe(self.note, WHOLE)}" if self.note else count

    def _cells(self, safe: Callable[[object, int], str]) -> tuple[list[list[str]], list[str]]:
        """The headings and the first rows, and what is said of the others."""
        heads = [column.head for column in self.columns]
        rows = [[safe(c.cell(row), self.widest) for c in self.columns] for row in self[:_MOST_ROWS]]
        left = len(self) - _MOST_ROWS
        more = f"and {format_count(left, 'more ' + self.noun)}: slice to see others"
        return [heads, *rows], [more] if left > 0 else []


class Lines(str):
    """Lines of text that a prompt and a notebook show as lines, and not as one quoted string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        look = "font-family:monospace;font-size:12px;white-space:pre-wrap"
        return f'<div style="{look}">{safe_html(self, WHOLE)}</div>'
