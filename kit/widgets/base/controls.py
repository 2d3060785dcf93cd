"""The explorer's controls: what a person may change about a run, as one `Settings`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import Any

import traitlets
from ipywidgets import (
    HTML,
    Button,
    Checkbox,
    Dropdown,
    GridBox,
    HBox,
    Layout,
    SelectionSlider,
    ToggleButtons,
    VBox,
    Widget,
)

from kit.errors import SettingsError
from kit.runs.bulk_sizes import UNLIMITED, size_text
from kit.runs.knob import Knob, knobs_of
from kit.runs.settings import BULK_STOPS, KIT_MODES, Settings
from kit.text import safe_html
from kit.widgets.base.flag import Flag
from kit.widgets.base.stored import Labelled
from kit.widgets.base.tables import FONT, MUTED

# Four columns, two where there is less room than 760 pixels, one below 400: kit's eight controls
# leave no orphan. A difference times 999 is far below 0 where there is more room, so that its
# part of the `max` is out, and far above the width where there is less.
_COLUMN = (
    "max((100% - 54px) / 4, min((100% - 18px) / 2, (760px - 100%) * 999), "
    "min(100%, (400px - 100%) * 999))"
)
_STRIP = {
    "grid_template_columns": f"repeat(auto-fill, minmax({_COLUMN}, 1fr))",
    "grid_gap": "4px 18px",
    "align_items": "flex-end",  # a label of two lines leaves the controls of a row in line
    "width": "auto",
}

_FIRST = {
    "flex_flow": "row wrap",
    "align_items": "flex-start",
    "grid_gap": "4px 24px",
    "width": "auto",
}

__all__ = [
    "Controls",
    "FittedSettings",
    "bulk_slider",
    "button",
    "labelled",
    "model_slider",
    "slider_grid",
]

Options = list[tuple[str, Any]]  # (what is shown, value)


class FittedSettings(traitlets.Instance[Settings]):
    """Settings of one workload: those that come from elsewhere get the knobs of its builder."""

    klass = Settings

    def validate(self, obj: Any, value: Any) -> Settings | None:
        """The settings with the knobs that the first ones had."""
        given = super().validate(obj, value)
        name = self.name or ""
        if given is None or not obj.trait_has_value(name):
            return given
        before: Settings = getattr(obj, name)
        return given.fit(before.plain().own, "this workload")


class Controls(VBox):
    """Sliders and menus for a `Settings`; `settings` and the controls follow each other.

    A value that a control does not offer is added to it, so every `Settings` can be shown.

    Args:
        beside: stands right of the buttons, where there is room.
    """

    settings = FittedSettings()

    def __init__(
        self,
        settings: Settings,
        *,
        on_invalid: Callable[[SettingsError], None],
        beside: Sequence[Widget] = (),
    ) -> None:
        self._on_invalid = on_invalid
        self._last = ("", 1)  # the control that was moved last, and to which side
        self._following = Flag()
        self._knobs = {knob.name: knob for knob in knobs_of(settings) if knob.widget}
        self._by_name = {
            name: _MAKERS[knob.widget](knob, getattr(settings, name))
            for name, knob in self._knobs.items()
        }
        self._labels = {name: HTML() for name in self._by_name}
        self._follow(settings)
        for name, control in self._by_name.items():
            control.observe(lambda change, name=name: self._moved(name, change["new"]), "value")
        super().__init__(self._rows(beside), settings=settings)
        self.layout.grid_gap = "8px"

    def __getitem__(self, name: str) -> Any:
        """The control of a setting: `controls["batch_size"].value = 4`."""
        return self._by_name[name]

    def neighbours(self) -> list[Settings]:
        """The settings one step of each control away that other programs are compiled for.

        Those of the control that was moved last come first, the side it went to before the other.
        """
        name, side = self._last
        compiled = [knob.name for knob in self._knobs.values() if knob.is_compiled]
        order = sorted(compiled, key=lambda other: other != name)
        found = [self._beside(other, step) for other in order for step in (side, -side)]
        return list(dict.fromkeys(s for s in found if s is not None))

    def _beside(self, name: str, step: int) -> Settings | None:
        """The settings one step of a control away; None at its end, or if that changes nothing."""
        control = self._by_name[name]
        values = _values(control)
        at = values.index(control.value) + step if control.value in values else -1
        if control.disabled or not 0 <= at < len(values) or self.settings.mode == "torch":
            return None
        made = self.settings.replace(**{name: values[at]})
        return made if made.mode != "torch" else None

    def _rows(self, beside: Sequence[Widget]) -> list[Any]:
        """The buttons, below them kit's controls in columns, then the builder's."""
        cells = {
            name: Labelled(self._labels[name], control, self._knobs[name].label)
            for name, control in self._by_name.items()
        }
        kinds = {name: k.widget == "buttons" for name, k in self._knobs.items()}
        wide = [cells[name] for name, is_wide in kinds.items() if is_wide]
        rest = {name: cells[name] for name, is_wide in kinds.items() if not is_wide}
        own = [cell for name, cell in rest.items() if self._knobs[name].is_own]
        kits = [cell for name, cell in rest.items() if not self._knobs[name].is_own]
        grids = [GridBox(group, layout=Layout(**_STRIP)) for group in (kits, own) if group]
        return [HBox([*wide, *beside], layout=Layout(**_FIRST)), *grids]

    def _moved(self, name: str, value: Any) -> None:
        if self._following:
            return
        try:
            before = self.settings
            self.settings = before.replace(**{name: value})
            self._last = (name, _side(self._by_name[name], getattr(before, name), value))
        except SettingsError as error:
            self._follow(self.settings)
            self._on_invalid(error)

    @traitlets.observe("settings")
    def _settings_changed(self, change: dict[str, Any]) -> None:
        self._follow(change["new"])

    def _follow(self, settings: Settings) -> None:
        """Set every control to these settings without taking it for a person's change."""
        with self._following:
            for name, control in self._by_name.items():
                knob, value = self._knobs[name], getattr(settings, name)
                if knob.widget == "slider":
                    _offer(control, _stops(knob, value))
                control.value = min(value, UNLIMITED) if knob.is_bulk_size else value
                control.disabled = not knob.has_effect(settings.mode)
                tip, why = _tip(knob, value), _why(knob, settings)
                self._labels[name].value = _label_html(knob.label, tip, why)


def _tip(knob: Knob, value: Any) -> str:
    """What stands over a control under the pointer: what one learns by turning it."""
    if knob.asks:
        now = f" ({value}: {knob.tips[value]})" if value in knob.tips else ""
        return f"{knob.label}: {knob.asks}{now}"
    return f"{knob.name}: a parameter of {knob.where}" if knob.is_own else knob.label


def _why(knob: Knob, settings: Settings) -> str:
    """Why a control has no effect now; "" if it has."""
    if knob.has_effect(settings.mode):
        return ""
    if knob.modes == KIT_MODES:
        return f"not in mode {settings.mode}"
    return f"only in mode {' or '.join(knob.modes)}"


def _side(control: Any, before: Any, now: Any) -> int:
    values = _values(control)
    return -1 if before in values and values.index(now) < values.index(before) else 1


def _values(control: Any) -> list[Any]:
    """What a control offers, in order."""
    if isinstance(control, Checkbox):
        return [False, True]
    return [x[1] if isinstance(x, tuple) else x for x in control.options]


def _stops(knob: Knob, value: Any) -> Options:
    """Where a slider stops: the numbers that are offered, the present one, and "unlimited"."""
    if knob.is_bulk_size:
        return _bulk_stops(value)
    return [(knob.shown(x), x) for x in sorted({*knob.offered, value})]


def _bulk_stops(value: int) -> Options:
    sizes = {*BULK_STOPS, min(value, UNLIMITED), UNLIMITED}
    return [(size_text(size), size) for size in sorted(sizes)]


def _offer(slider: SelectionSlider, options: Options) -> None:
    """Add what is missing; what was offered before stays."""
    offered = dict(slider.options)
    if missing := dict(options).keys() - offered.keys():
        merged = {**offered, **{label: x for label, x in options if label in missing}}
        slider.options = sorted(merged.items(), key=lambda x: x[1])


def _buttons(knob: Knob, _: Any) -> ToggleButtons:
    return ToggleButtons(
        options=[(knob.shown(x), x) for x in knob.values],
        tooltips=[knob.tips.get(x, x) for x in knob.values],
        style={"button_width": "112px"},
        layout=Layout(width="auto"),
    )


def _menu(knob: Knob, _: Any) -> Dropdown:
    return Dropdown(options=[(knob.shown(x), x) for x in knob.values], layout=Layout(width="auto"))


def _box(knob: Knob, _: Any) -> Checkbox:
    return Checkbox(indent=False, layout=Layout(width="auto"))


def _slider(knob: Knob, value: Any) -> SelectionSlider:
    return SelectionSlider(
        options=_stops(knob, value),
        continuous_update=False,
        layout=Layout(width="auto", margin="2px 2px 2px 8px"),
    )


_MAKERS: dict[str, Callable[[Knob, Any], Any]] = {
    "box": _box,
    "buttons": _buttons,
    "menu": _menu,
    "slider": _slider,
}


def model_slider(options: Options, value: Any) -> SelectionSlider:
    """A slider that answers while it is dragged, for views that run nothing."""
    return SelectionSlider(options=options, value=value, layout=Layout(width="auto"))


def bulk_slider(value: int) -> SelectionSlider:
    """The same over the bulk sizes."""
    return model_slider(_bulk_stops(value), min(value, UNLIMITED))


def button(text: str, tip: str, **more: Any) -> Button:
    """A button as wide as its text; `more`: traits of it."""
    return Button(description=text, tooltip=tip, layout=Layout(width="auto"), **more)


def slider_grid(
    sliders: Mapping[str, Any], moved: Callable[[Any], None], *, least_px: int = 220
) -> GridBox:
    """Sliders by their labels, as many beside each other as have room; `moved` hears of each."""
    for slider in sliders.values():
        slider.observe(moved, "value")
    columns = f"repeat(auto-fit, minmax({least_px}px, 1fr))"
    layout = Layout(grid_template_columns=columns, grid_gap="4px 18px", width="auto")
    return GridBox([*starmap(labelled, sliders.items())], layout=layout)


def labelled(label: str, control: Any, tip: str = "", *, is_said: bool = True) -> Labelled:
    """A control under its label.

    Args:
        is_said: a stored page says what it is set to.
    """
    text = HTML(_label_html(label, tip and f"{label}, {tip}"))
    return Labelled(text, control, label if is_said else "")


def _label_html(label: str, tip: str, note: str = "") -> str:
    """A control's name, a tooltip, and behind the name why it has no effect now."""
    style = f"font:500 12px/1.2 {FONT};color:{MUTED}"
    beside = f' <i style="font-weight:400">· {safe_html(note)}</i>' if note else ""
    title = f' title="{safe_html(tip, 300)}"' if tip else ""
    name = f'<span class="kit-label">{safe_html(label)}</span>'
    return f'<span{title} style="{style}">{name}{beside}</span>'
