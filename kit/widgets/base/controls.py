"""The explorer's controls: what a person may change about a run, as one `Settings`."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import traitlets
from ipywidgets import HTML, Dropdown, GridBox, Layout, SelectionSlider, ToggleButtons, VBox

from kit.errors import SettingsError
from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.loss_scaling import LOSS_SCALING
from kit.runs.settings import DTYPES, MODES, STEP_MODES, Settings
from kit.widgets.base.tables import FONT, MUTED

__all__ = ["BATCH_SIZES", "BULK_SIZES", "Controls", "bulk_slider", "labelled"]

BULK_SIZES = (1, 2, 5, 10, 15, 20, 30, 50, 100, 200)  # and unlimited
BATCH_SIZES = (2, 4, 8, 16, 32)
PREFETCH = (0, 1, 2, 4, 8)
ACCUMULATE = (1, 2, 4, 8)
# what changes the programs of a step; the other controls only change who issues them, and when
_CUTS = ("bulk_forward", "bulk_backward", "batch_size", "mode", "loss_scaling", "accumulate",
         "dtype")  # fmt: skip
_MODE_LABELS = {"torch": "torch (native)"}
_MODE_TIPS = {
    "torch": "PyTorch as it is, without the kit's runtime: the baseline",
    "imperative": "every op is its own segment (bulk size 1)",
    "bulked": "ops are cut into segments by the two bulk sizes",
    "lazy": "one segment until something waits (unlimited bulk size)",
}


class Controls(VBox):
    """Sliders and menus for a `Settings`; `settings` and the controls follow each other.

    A value that a control does not offer is added to it, so every `Settings` can be shown.
    """

    settings = traitlets.Instance(Settings)

    def __init__(self, settings: Settings, *, on_invalid: Callable[[SettingsError], None]) -> None:
        self._on_invalid = on_invalid
        self._last = ("", 1)  # the control that was moved last, and to which side
        self._is_following = False
        self.mode = ToggleButtons(
            options=[(_MODE_LABELS.get(m, m), m) for m in MODES],
            tooltips=[_MODE_TIPS.get(m, m) for m in MODES],
            style={"button_width": "112px"},
            layout=Layout(width="auto"),
        )
        self.bulk_forward = _slider(_bulk_options(settings.bulk_forward))
        self.bulk_backward = _slider(_bulk_options(settings.bulk_backward))
        self.batch_size = _slider(_options(BATCH_SIZES, settings.batch_size))
        self.accumulate = _slider(_options(ACCUMULATE, settings.accumulate))
        self.prefetch = _slider(_options(PREFETCH, settings.prefetch))
        self.loss_scaling = Dropdown(options=LOSS_SCALING, layout=Layout(width="auto"))
        self.dtype = Dropdown(options=DTYPES, layout=Layout(width="auto"))
        self.step_mode = Dropdown(options=STEP_MODES, layout=Layout(width="auto"))
        self._by_name = {
            "mode": self.mode,
            "bulk_forward": self.bulk_forward,
            "bulk_backward": self.bulk_backward,
            "batch_size": self.batch_size,
            "accumulate": self.accumulate,
            "prefetch": self.prefetch,
            "loss_scaling": self.loss_scaling,
            "dtype": self.dtype,
            "step_mode": self.step_mode,
        }
        self._follow(settings)
        for name, control in self._by_name.items():
            control.observe(lambda change, name=name: self._moved(name, change["new"]), "value")
        super().__init__([labelled("run mode", self.mode), self._grid()], settings=settings)
        self.layout.grid_gap = "8px"

    def neighbours(self) -> list[Settings]:
        """The settings one step of each control away that other programs are compiled for.

        Those of the control that was moved last come first, the side it went to before the other.
        """
        name, side = self._last
        order = sorted(_CUTS, key=lambda other: other != name)
        found = [self._beside(other, step) for other in order for step in (side, -side)]
        return list(dict.fromkeys(s for s in found if s is not None))

    def _beside(self, name: str, step: int) -> Settings | None:
        """The settings one step of a control away; None at its end, or if that changes nothing."""
        control = self._by_name[name]
        values = [x[1] if isinstance(x, tuple) else x for x in control.options]
        at = control.index + step if control.index is not None else -1
        if control.disabled or not 0 <= at < len(values) or self.settings.mode == "torch":
            return None
        made = self.settings.replace(**{name: values[at]})
        return made if made.mode != "torch" else None

    def _grid(self) -> GridBox:
        cells = [
            labelled("bulk size, forward", self.bulk_forward),
            labelled("bulk size, backward", self.bulk_backward),
            labelled("batch size", self.batch_size),
            labelled("micro-batches a step", self.accumulate),
            labelled("batches prefetched", self.prefetch),
            labelled("loss scaling", self.loss_scaling),
            labelled("autocast dtype", self.dtype),
            labelled("step mode", self.step_mode),
        ]
        columns = "repeat(auto-fit, minmax(138px, 1fr))"
        return GridBox(
            cells, layout=Layout(grid_template_columns=columns, grid_gap="4px 18px", width="auto")
        )

    def _moved(self, name: str, value: Any) -> None:
        if self._is_following:
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
        self._is_following = True
        try:
            _offer(self.bulk_forward, _bulk_options(settings.bulk_forward))
            _offer(self.bulk_backward, _bulk_options(settings.bulk_backward))
            _offer(self.batch_size, _options(BATCH_SIZES, settings.batch_size))
            _offer(self.accumulate, _options(ACCUMULATE, settings.accumulate))
            _offer(self.prefetch, _options(PREFETCH, settings.prefetch))
            for name, control in self._by_name.items():
                value = getattr(settings, name)
                control.value = min(value, UNLIMITED) if name.startswith("bulk_") else value
            for slider in (self.bulk_forward, self.bulk_backward):
                slider.disabled = settings.mode != "bulked"
            self.step_mode.disabled = settings.mode == "torch"
        finally:
            self._is_following = False


def _side(control: Any, before: Any, now: Any) -> int:
    values = [x[1] if isinstance(x, tuple) else x for x in control.options]
    return -1 if before in values and values.index(now) < values.index(before) else 1


def _options(offered: tuple[int, ...], value: int) -> list[tuple[str, int]]:
    return [(f"{x:,}", x) for x in sorted({*offered, value})]


def _bulk_options(value: int) -> list[tuple[str, int]]:
    sizes = BULK_SIZES if value >= UNLIMITED else (*BULK_SIZES, value)
    return [(f"{x:,}", x) for x in sorted(set(sizes))] + [("unlimited", UNLIMITED)]


def _offer(slider: SelectionSlider, options: list[tuple[str, int]]) -> None:
    """Add what is missing; what was offered before stays."""
    offered = dict(slider.options)
    if missing := dict(options).keys() - offered.keys():
        merged = {**offered, **{label: x for label, x in options if label in missing}}
        slider.options = sorted(merged.items(), key=lambda x: x[1])


def _slider(options: list[tuple[str, int]]) -> SelectionSlider:
    return SelectionSlider(
        options=options,
        continuous_update=False,
        layout=Layout(width="auto", margin="2px 2px 2px 8px"),
    )


def bulk_slider(value: int) -> SelectionSlider:
    """A slider over the bulk sizes that answers while it is dragged, for views that run nothing."""
    return SelectionSlider(
        options=_bulk_options(value), value=min(value, UNLIMITED), layout=Layout(width="auto")
    )


def labelled(label: str, control: Any) -> VBox:
    """A control under its label, which `page.js` makes its name for screen readers."""
    style = f"font:500 12px/1.2 {FONT};color:{MUTED}"
    text = HTML(f'<span class="kit-label" style="{style}">{escape(label)}</span>')
    box = VBox([text, control], layout=Layout(overflow="visible"))
    box.add_class("kit-labelled")
    return box
