"""What to change: the run's limit in one sentence, and its advice, with buttons that try it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import traitlets
from ipywidgets import HTML, Button, HBox, Layout

from kit.runs.run import Run
from kit.runs.verdict.cures import Advice, change_text
from kit.runs.verdict.verdict import Verdict, verdict
from kit.text import capital, safe_html
from kit.widgets.base.closing import close_widget
from kit.widgets.base.controls import button
from kit.widgets.base.errors import ErrorsIn
from kit.widgets.base.page import View
from kit.widgets.base.tables import FONT, INK, LINE, MONO, MUTED, PANEL, section, sentence
from kit.widgets.base.theme import COLORS

__all__ = ["AGAIN", "AdviceView", "advice_html"]

AGAIN = "Measure again"
MOST = 4  # sentences that a reader will read


def advice_html(run: Run) -> str:
    """The section as static HTML: the limit, then what costs time and what would remove it."""
    return _html(verdict(run))


def _html(found: Verdict | None) -> str:
    head = "What limits this step"
    if found is None:
        return section(head, sentence("No step was traced."))
    limit, said = str(found.limit), found.said
    if why := found.limit.doubt:  # one colon is enough
        limit, said = "not said", f"{capital(why)}. {said}"
    line = (  # beside its heading: the timeline below is to be on the first screen
        f'<div style="margin:0 0 4px"><span role="heading" aria-level="3">{head}:</span> '
        f"<b>{safe_html(limit)}.</b> "
        f'<span style="color:{MUTED}">{safe_html(said, 600)}.</span></div>'
    )
    rows = "".join(_row(advice) for advice in found.advice[:MOST])
    if found.next_step:
        rows = _line("next", COLORS["plan"], safe_html(found.next_step, 600)) + rows
    return f'<div style="font:13px/1.45 {FONT};color:{INK};margin-bottom:6px">{line}{rows}</div>'


def _row(advice: Advice) -> str:
    return _line(advice.saving, COLORS["wait"], safe_html(advice.text, 900) + _chip(advice))


def _line(head: str, color: str, text: str) -> str:
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:0 10px;align-items:baseline;'
        f"border-left:3px solid {color};background:{PANEL};padding:3px 8px;margin:3px 0;"
        f'overflow-wrap:anywhere"><span style="flex:none;font-weight:600;white-space:nowrap;'
        f'min-width:92px;font-variant-numeric:tabular-nums">{head}</span>'
        f'<span style="flex:1 1 300px;min-width:0;font-size:12.5px">{text}</span></div>'
    )


def _chip(advice: Advice) -> str:
    if not advice.change:
        return ""
    return (
        f' <code style="font:11.5px {MONO};border:1px solid {LINE};border-radius:4px;'
        f'padding:0 4px;color:{INK}">{safe_html(change_text(advice.change))}</code>'
    )


class AdviceView(View):
    """Draws `run.advice()`; a button under it tries each change of settings.

    `on_try(change)` is called with the settings of the button that was pressed. Of a run whose
    verdict is withheld the only button is "Measure again", which changes none.
    """

    run = traitlets.Instance(Run, allow_none=True)

    def __init__(self, on_try: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self._on_try = on_try
        self._text = HTML(layout=Layout(flex="1 1 560px", min_width="0"))
        self.buttons = HBox(layout=Layout(flex_flow="row wrap", grid_gap="6px"))
        self.error = HTML()
        beside = {"display": "flex", "flex_flow": "row wrap", "align_items": "center"}
        super().__init__(
            [self._text, self.buttons, self.error],
            layout=Layout(width="auto", grid_gap="2px 10px", **beside),
        )

    @traitlets.observe("run")
    def _redraw(self, change: dict[str, Any]) -> None:
        run, found = change["new"], None
        self.error.value = ""
        with ErrorsIn(self._text, "advice"):
            found = None if run is None else verdict(run)
            self._text.value = "" if run is None else _html(found)
        offered = () if self._on_try is None or found is None else found.advice[:MOST]
        texts = {f"Try {change_text(a.change)}": a.change for a in offered if a.change}
        if self._on_try is not None and found is not None and found.limit.doubt:
            texts = {AGAIN: {}}
        before = self.buttons.children
        self.buttons.children = [self._button(text, change) for text, change in texts.items()]
        for old in before:
            close_widget(old)

    def _button(self, text: str, change: Mapping[str, Any]) -> Button:
        tip = f"measure with {change_text(change) or 'the same settings'}"
        made = button(text, tip, style={"font_family": FONT})
        made.on_click(lambda _: self._try(change))
        return made

    def _try(self, change: Mapping[str, Any]) -> None:
        assert self._on_try is not None, "buttons are made only with `on_try`"
        with ErrorsIn(self.error, "advice"):
            self.error.value = ""
            self._on_try(change)
