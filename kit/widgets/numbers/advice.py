"""What to change: the run's limit in one sentence, and its advice, with buttons that try it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import traitlets
from ipywidgets import HTML, Button, HBox, Layout

from kit.runs.analysis.advice import Advice
from kit.runs.run import Run
from kit.text import safe_html
from kit.widgets.base.page import View
from kit.widgets.base.tables import FONT, INK, LINE, MONO, MUTED, PANEL, section, sentence
from kit.widgets.base.theme import COLORS

__all__ = ["AdviceView", "advice_html", "change_text"]

MOST = 4  # sentences that a reader will read
_SAID = {
    "device": "The device has work for most of the step: only less work or a faster one would help",
    "recording": "The device waits for Python to record",
    "sync": "The device has nothing to do after a value was read, until the host has recorded more",
    "input": "The step waits for its batches",
    "dispatch": "The time goes into issuing segments",
    "compile": "The time goes into compiling",
    "reduction": "Gradients are on their way while the device has nothing else to do: other "
    "buckets, or segments that end where one is full, could hide them",
    "dependency": "The next kernel had been issued, and waits on the device for others",
    "program": "The device pauses between the kernels of its own programs: fewer, larger kernels "
    "would help",
    "unknown": "Most of the step is neither the device's nor known work of the host",
}


def change_text(change: Mapping[str, Any]) -> str:
    """Settings as Python would write them: `step_mode='replay'`."""
    return ", ".join(f"{name}={value!r}" for name, value in change.items())


def advice_html(run: Run) -> str:
    """The section as static HTML: the limit, then what costs time and what would remove it."""
    return _html(run, run.advice())


def _html(run: Run, advices: Sequence[Advice]) -> str:
    rows = "".join(_row(advice) for advice in advices[:MOST])
    return section("What limits this step", _limit(run) + rows)


def _limit(run: Run) -> str:
    if not run.breakdown():
        return sentence("No step was traced.")
    limit = run.limited_by()
    return (
        f'<div style="margin:0 0 4px"><b>{safe_html(limit)}.</b> '
        f'<span style="color:{MUTED}">{safe_html(_SAID[limit.what])}.</span></div>'
    )


def _row(advice: Advice) -> str:
    ms = "" if advice.ms != advice.ms else f"{advice.ms:.3g} ms"
    return (
        f'<div style="display:flex;gap:10px;align-items:baseline;border-left:3px solid '
        f'{COLORS["wait"]};background:{PANEL};padding:3px 8px;margin:3px 0;overflow-wrap:anywhere">'
        f'<span style="flex:none;font-weight:600;white-space:nowrap;min-width:58px;'
        f'font-variant-numeric:tabular-nums">{ms}</span>'
        f'<span style="font-size:12.5px">{safe_html(advice.text, 900)}{_chip(advice)}</span></div>'
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

    `on_try(change)` is called with the settings of the button that was pressed.
    """

    run = traitlets.Instance(Run, allow_none=True)

    def __init__(self, on_try: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self._on_try = on_try
        self._text = HTML(layout=Layout(width="auto"))
        self.buttons = HBox(layout=Layout(flex_flow="row wrap", grid_gap="6px"))
        super().__init__([self._text, self.buttons], layout=Layout(width="auto"))

    @traitlets.observe("run")
    def _redraw(self, change: dict[str, Any]) -> None:
        run = change["new"]
        advices = () if run is None else run.advice()
        self._text.value = "" if run is None else _html(run, advices)
        offered = () if self._on_try is None else advices[:MOST]
        texts = {change_text(a.change): a.change for a in offered if a.change}
        self.buttons.children = [self._button(text, change) for text, change in texts.items()]

    def _button(self, text: str, change: Mapping[str, Any]) -> Button:
        button = Button(
            description=f"Try {text}",
            tooltip=f"run again with {text}",
            layout=Layout(width="auto"),
            style={"font_family": FONT},
        )
        assert self._on_try is not None, "buttons are made only with `on_try`"
        act = self._on_try
        button.on_click(lambda _: act(change))
        return button
