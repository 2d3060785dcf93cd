"""Errors of callbacks: what a page asks for has no caller to raise to, so the view shows them."""

from __future__ import annotations

from ipywidgets import HTML

from kit.errors import is_a, is_of_handler, words_of
from kit.text import WHOLE, safe_html
from kit.widgets.base.theme import COLORS, FONT

__all__ = ["NOT_DRAWN", "ErrorsIn"]

NOT_DRAWN = "this run cannot be drawn"  # in the place of a figure; never another run's


class ErrorsIn:
    """An error of the block `with ErrorsIn(html, "timeline"):` is shown there, and not raised.

    That of the handler of a signal, such as a time limit's, is the program's: it goes on.

    Args:
        shown: the widget; without an error, it stays as it is.
        view: what the error calls the view.
    """

    def __init__(self, shown: HTML, view: str) -> None:
        self._shown, self._view = shown, view

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not is_a(error, Exception) or is_of_handler(error):
            return False
        self._shown.value = _html(self._view, error)
        return True


def _html(view: str, error: Exception) -> str:
    return (
        f'<div role="alert" style="font:12px/1.5 {safe_html(FONT, WHOLE)};'
        f"color:var(--kit-error-ink, #8c2f1b);background:var(--kit-error-paper, #fdf1ee);"
        f'border-left:3px solid {COLORS["wait"]};padding:6px 10px;margin-top:4px">'
        f"<b>{safe_html(view)}</b>: {safe_html(type(error).__name__)}: "
        f"{safe_html(words_of(error), 600)}</div>"
    )
