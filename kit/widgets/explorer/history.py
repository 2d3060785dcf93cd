"""Which settings were looked at: presets, undo and redo, and what is shown as a line to share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import traitlets
from ipywidgets import Dropdown, HBox, Layout, Text

from kit.errors import SettingsError
from kit.runs.bulk_sizes import DEFAULT_BULK
from kit.runs.loss_scaling import ON_DEVICE
from kit.runs.settings import Settings
from kit.widgets.base.controls import FittedSettings, button, labelled
from kit.widgets.base.flag import Flag
from kit.widgets.explorer.actions import FailureBox
from kit.widgets.explorer.link import Link

__all__ = ["PRESETS", "History", "HistoryBar", "preset"]

_CUT = {"mode": "bulked", "step_mode": "retrace"}
# name -> what it changes; all else stays as it is, so that two presets can be compared
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "native PyTorch": {**_CUT, "mode": "torch"},
    "one op at a time": {**_CUT, "mode": "imperative"},
    "MXNet's default: 15 ops": {**_CUT, "bulk_forward": DEFAULT_BULK,
                                "bulk_backward": DEFAULT_BULK},
    "lazy: one program a step": {**_CUT, "mode": "lazy"},
    "no sync: scaling on the device": {"loss_scaling": ON_DEVICE},
    "replay: without its Python": {**_CUT, "mode": "lazy", "step_mode": "replay"},
})  # fmt: skip
MOST = 100  # settings that can be gone back to
_CHOOSE = "choose …"


def preset(settings: Settings, chosen: str = "") -> str:
    """The name of the preset that these settings have in full, first the chosen; "" if of none."""
    first = {chosen: PRESETS[chosen]} if chosen in PRESETS else {}
    for name, change in {**first, **PRESETS}.items():
        if all(getattr(settings, field) == value for field, value in change.items()):
            return name
    return ""


class History:
    """Settings in the order in which they were chosen, and where among them we are."""

    def __init__(self, first: Settings) -> None:
        self._all = [first]
        self._at = 0

    def note(self, settings: Settings) -> None:
        """These are chosen now: what had been undone is forgotten."""
        if settings != self._all[self._at]:
            self._all = [*self._all[: self._at + 1], settings][-MOST:]
            self._at = len(self._all) - 1

    def move(self, step: int) -> Settings | None:
        """The settings one step back (-1) or forth (1), which are now the chosen ones; or None."""
        if not self.can(step):
            return None
        self._at += step
        return self._all[self._at]

    def can(self, step: int) -> bool:
        """True if there is something to go back or forth to."""
        return 0 <= self._at + step < len(self._all)


class HistoryBar(HBox):
    """Presets, reset, undo, redo, a link, the settings as text; `settings` follows them.

    Args:
        failure: shows the error of a text that cannot be read, and of a link that cannot be made.
            The text stays, to be mended.
        link: gives the text of what is shown, for the button that copies it, and gets what stands
            behind a # in a text: what is to be looked at in that run.
    """

    settings = FittedSettings()

    def __init__(self, settings: Settings, failure: FailureBox, link: Link) -> None:
        self._first, self._failure, self._link = settings, failure, link
        self._history = History(settings)
        self._following, self._returning = Flag(), Flag()
        self.preset = Dropdown(
            options=[_CHOOSE, *PRESETS], layout=Layout(width="auto", min_width="0")
        )
        self.text = Text(
            continuous_update=False, placeholder="the defaults", layout=Layout(width="auto")
        )
        self.reset = button("Reset", "back to the settings that the explorer began with")
        self.undo = button("Undo", "the settings before (Ctrl+Z)").add_class("kit-undo")
        said = "the settings that were undone (Ctrl+Shift+Z)"
        self.redo = button("Redo", said).add_class("kit-redo")
        said = "this view as one text: settings, range of time, selection and open groups"
        self.copy = button("Copy link", said).add_class("kit-copy-link")
        self.link = Text(disabled=False, layout=Layout(width="auto"))
        self.link.add_class("kit-link")
        self.shared = labelled("link to this view, for an explorer of the same step", self.link)
        self.shared.layout.flex, self.shared.layout.display = "1 1 100%", "none"
        buttons = HBox(
            [self.undo, self.redo, self.reset, self.copy],
            layout=Layout(grid_gap="6px", flex_flow="row wrap"),
        )
        presets = labelled("preset", self.preset, is_said=False)
        presets.layout.flex, presets.layout.min_width = "0 1 220px", "0"
        text = labelled("settings as text", self.text, "to share: paste others here, then Enter")
        text.layout.flex = "1 1 130px"
        super().__init__(
            [presets, buttons, text, self.shared],
            settings=settings,
            layout=Layout(
                flex_flow="row wrap",
                align_items="flex-end",
                grid_gap="4px 14px",
                flex="1 1 600px",
                min_width="0",
            ),
        )
        self.add_class("kit-history")
        self.undo.on_click(lambda _: self.move(-1))
        self.redo.on_click(lambda _: self.move(1))
        self.reset.on_click(lambda _: self._return_to(self._first))
        self.copy.on_click(lambda _: self._failure.guard(self._show_link))
        self.preset.observe(self._take_preset, "value")
        self.text.observe(self._take_text, "value")
        self._follow()

    def move(self, step: int) -> bool:
        """Go one step back (-1) or forth (1); false if there is none."""
        found = self._history.move(step)
        if found is not None:
            self._return_to(found)
        return found is not None

    def _show_link(self) -> None:
        """Show the text of what is shown now; the page's script copies it after a click."""
        text = self._link.text()
        self.link.value = ""  # so that the same text again is news to the page
        self.link.value = text
        self.shared.layout.display = None

    @property
    def is_returning(self) -> bool:
        """True while `settings` change by undo, redo or reset, and not by a choice."""
        return bool(self._returning)

    def _return_to(self, settings: Settings) -> None:
        with self._returning:
            self._choose(settings)

    def _choose(self, settings: Settings) -> None:
        self.settings = settings
        self._follow()

    @traitlets.observe("settings")
    def _settings_changed(self, change: dict[str, Any]) -> None:
        self._history.note(change["new"])
        self._follow()

    def _follow(self) -> None:
        if not hasattr(self, "redo"):
            return  # still being made
        with self._following:
            self.preset.value = preset(self.settings, self.preset.value) or _CHOOSE
            self.text.value = self.settings.to_string()
            self.undo.disabled, self.redo.disabled = (not self._history.can(x) for x in (-1, 1))
            self.reset.disabled = self.settings == self._first

    def _take_preset(self, change: dict[str, Any]) -> None:
        if not self._following and change["new"] in PRESETS:
            self._choose(self.settings.replace(**PRESETS[change["new"]]))

    def _take_text(self, change: dict[str, Any]) -> None:
        if self._following:
            return
        try:
            head, mark, looked = change["new"].partition("#")
            chosen = Settings.parse(head, self.settings.own)
        except SettingsError as error:
            self._failure.refuse(error)
        else:
            self._failure.forgive()  # settings that stay as they were start nothing that would
            self._choose(chosen)
            if mark:
                self._failure.guard(partial(self._link.look, looked))
