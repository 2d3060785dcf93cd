"""How kit's plots look: one colour for each kind of work, one font, one quiet figure style.

The same kind has the same colour in every view, live or in a report. The colours stay apart for
the three common kinds of colour blindness; `tests/widgets/base/test_theme.py` measures that.

Figures are made in light colours, and the page turns them dark where its theme is: `page.js`, which
every styled figure carries, knows the dark twin of each colour here. Kinds keep theirs. A column
named `ink` is the colour of text on the fill in the column `color`; the page picks a readable one.
In other columns of text colours only MUTED has a twin: it stands on the ground, the rest on fills.
A view with a script of its own asks `window.kitPage.twin(color)`, again at each "kit-theme" event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from bokeh.models import CustomJS, Legend, LegendItem, Plot, SaveTool, Title

from kit.text import WHOLE, safe_html
from kit.trace.kinds import LEGEND
from kit.widgets.base.scripts import script

__all__ = [
    "BACKGROUND",
    "COLORS",
    "DARK",
    "DEVICE_TIME",
    "FAINT",
    "FOCUS",
    "FONT",
    "GRID",
    "HELD",
    "INK",
    "KEPT",
    "LABELS",
    "MODEL",
    "MODEL_EDGE",
    "MUTED",
    "OTHER",
    "PALE",
    "PICKED",
    "PICKED_EDGE",
    "SEGMENT_COLORS",
    "add_legend",
    "add_note",
    "hover_card",
    "kind_color",
    "on_color",
    "page_js",
    "style_figure",
    "tint",
]

FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK = "#1f2933"  # text
MUTED = "#66727f"  # secondary text
FAINT = "#9aa5b1"  # edges, ticks
GRID = "#eceff3"
HELD = "#d0d7db"  # memory of variables; where it is dark, lighter than the track of its bar
PALE = "#f4f6f8"  # ground of a band of a figure
BACKGROUND = "#ffffff"
DEVICE_TIME = "#57707f"  # a bar on the coloured box of an op; where it is dark, a pale one
FOCUS = "#2f6db5"  # where the keyboard is
# A style: where the reader has chosen all colours, as in Windows' high contrast, a colour that says
# something stays. Text and its ground take the reader's.
KEPT = "forced-color-adjust:none"
PICKED, PICKED_EDGE = "#f5b12e44", "#c98a12"  # what belongs to the selection
_STEP_COLORS = ("#eaeef3", "#dde3ea")  # in turn
MODEL, MODEL_EDGE = "#8a6109", "#b07d12"  # what a model says: a mark with white text, a frame

# What the neutral colours are where the page is dark; the ground is the page's own where its theme
# names one. Everything pale that is not here becomes as faint on the dark ground as it was on
# white; `DarkTwins` in js/colors.js works it out.
DARK = MappingProxyType(
    {
        INK: "#e6eaf0",
        MUTED: "#9aa7b5",
        FAINT: "#6b7784",
        GRID: "#2b323b",
        BACKGROUND: "#171b21",
        DEVICE_TIME: "#a9c0ce",
        HELD: "#5a6874",
        _STEP_COLORS[0]: "#343e4a",  # as far apart, and from the ground, as in light
        _STEP_COLORS[1]: "#485463",
    }
)

# Least distance under simulated protanopia, deuteranopia and tritanopia, also from the dark ground:
# 13 (CIE76); least contrast with the dark ground: 3. Both are measured by the test. Recording has
# its phase's colour; warm red is kept for waiting.
_PALETTE = {
    "forward": "#5674d8",
    "backward": "#f5b12e",
    "update": "#2f9e8f",
    "input": "#f0e28c",
    "plan": "#b4bcc0",
    "lower": "#c3a2ef",
    "compile": "#9148ad",
    "dispatch": "#a4e8fb",
    "wait": "#dd5a3c",
    "elsewhere": "#96544e",
    "own": "#187812",
    "ahead": "#dfe8d3",
    "kernel": "#587080",
    "reduction": "#db57ba",
    "communication": "#8232f0",
    "callback": "#87c387",
}

# Of each entry of a legend, in the palette's order: `kit.trace.kinds` says which there are.
_KEYS = sorted(LEGEND, key=lambda key: list(_PALETTE).index(key.color))
COLORS = MappingProxyType({key.name: _PALETTE[key.color] for key in _KEYS})
LABELS = MappingProxyType({key.name: key.title for key in _KEYS})
# Neighbouring segments only have to differ from each other, so a short cycle is enough.
SEGMENT_COLORS = ("#8da2e8", "#f3c877", "#7fc4ba", "#c9b3ee", "#e79a86", "#9fb0ba", "#d8cf86")
OTHER = "#8b97a3"
_INK, _MUTED = f"var(--kit-ink, {INK})", f"var(--kit-muted, {MUTED})"  # the same in HTML
_CARD = f"var(--kit-card, {BACKGROUND})"


def kind_color(kind: str, name: str = "") -> str:
    """The colour of a span: a `record` span has the colour of the phase that it is named after."""
    if kind == "device step":
        return _STEP_COLORS[name[-1:] in "13579"]
    if kind == "record":
        return COLORS.get(name, COLORS["forward"])
    return COLORS.get(kind, OTHER)


def tint(color: str, amount: float) -> str:
    """The colour mixed with white: `tint(c, 0)` is `c`, `tint(c, 1)` is white."""
    parts = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(p + (255 - p) * amount):02x}" for p in parts)


def on_color(color: str) -> str:
    """The text colour, dark or white, with the larger contrast on this background.

    Source:
        https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
    """
    ground, dark, white = (_luminance(x) + 0.05 for x in (color, INK, BACKGROUND))
    return INK if ground / dark > white / ground else BACKGROUND


def _luminance(color: str) -> float:
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def hover_card(title: str, rows: tuple[tuple[str, str], ...], *, swatch: str = "") -> str:
    """A bokeh hover template; `@{column}` in it is replaced, and escaped, by bokeh.

    `title`, `rows` and `swatch` are templates written by kit, never text from a program or trace.
    """
    mark = (
        f'<span style="display:inline-block;width:10px;height:10px;border-radius:3px;'
        f'margin-right:7px;background:{swatch};{KEPT}"></span>'
        if swatch
        else ""
    )
    lines = "".join(
        f'<div style="display:flex;gap:10px"><span style="color:{_MUTED};min-width:62px">{name}'
        f'</span><span style="white-space:pre-wrap;overflow-wrap:anywhere">{value}</span></div>'
        for name, value in rows
    )
    return (
        f'<div style="font:12px/1.5 {safe_html(FONT, WHOLE)};color:{_INK};background:{_CARD};'
        f'max-width:380px;margin:-5px;padding:7px 9px">'
        f'<div style="font-weight:600;margin-bottom:3px;overflow-wrap:anywhere">{mark}{title}'
        f"</div>{lines}</div>"
    )


@cache
def page_js() -> str:
    """A script for a page with views: it follows the theme, names controls, and knows undo's keys.

    It does its work once in a page, however often it runs. `window.kitPage` is what it offers:
    `isDark()`, `twin(color)`, the colour as the page's theme wants it, `paint(figure, index)`, and
    `watch(views)`, which keeps a figure's canvases as wide as it is, and lets a swipe over it
    scroll the page; `fitLegends(figure)`; `sendNoEchoes(document)`: a figure then tells the kernel
    only what was done in the page. The window gets a "kit-theme" event when the theme changes, also
    for print: who draws then draws at once.
    """
    colors = {
        "twins": {**DARK, "ink": INK, "muted": MUTED},
        "kept": [*COLORS.values(), *SEGMENT_COLORS, OTHER],
        "ground": DARK[BACKGROUND],
    }
    made = f"({script('widgets/base/js/page.js')}).makePage({json.dumps(colors)})"
    return f"window.kitPage ??= {made};"


def add_note(plot: Plot, text: str = "") -> None:
    """Give a figure small lines of text above it, which `plot.select_one({"name": "note"})` has."""
    small: Any = {"text_font": FONT, "text_font_size": "11px", "text_font_style": "normal"}
    plot.add_layout(Title(text=text, name="note", text_color=MUTED, **small), "above")


def add_legend(
    plot: Any, colors: Mapping[str, str], lines: Mapping[str, str] | None = None
) -> None:
    """Give a figure a legend below it: words and their colours.

    Args:
        lines: words and colours of vertical lines, which come first.
    """
    out = {"line_width": 2.5, "x0": -9, "x1": -9, "y0": -9, "y1": -8}  # of what the axes show
    keys = [(x, plot.segment(line_color=color, **out)) for x, color in (lines or {}).items()]
    keys += [
        (x, plot.quad(left=-9, right=-9, top=-9, bottom=-8, color=color, line_color=None))
        for x, color in colors.items()
    ]
    items = [LegendItem(label=label, renderers=[key]) for label, key in keys]
    legend = Legend(
        items=items,
        name="keys",
        orientation="horizontal",
        location="left",
        ncols=2,  # until it is drawn
    )
    plot.add_layout(legend, "below")


def style_figure(plot: Plot) -> Plot:
    """Give a bokeh figure kit's look, light or dark as its page is, and return it."""
    code = (
        f"{page_js()}\nconst {{index}} = cb_context;"
        "window.kitPage.paint(figure, index); window.kitPage.watch(index.find(figure));"
        "window.kitPage.sendNoEchoes(figure.document); window.kitPage.fitLegends(figure);"
    )
    plot.js_on_change("inner_width", CustomJS(args={"figure": plot}, code=code))
    plot.background_fill_color = BACKGROUND
    plot.border_fill_color = BACKGROUND
    plot.outline_line_color = None
    plot.min_border_right = 14
    if not plot.select({"type": SaveTool}):
        plot.add_tools(SaveTool())
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    title: Any = plot.title
    title.text_font, title.text_font_size, title.text_color = FONT, "14px", INK
    title.text_font_style = "bold"
    for axis in plot.axis:
        axis.axis_line_color = None
        axis.major_tick_line_color = None
        axis.minor_tick_line_color = None
        axis.major_label_text_font = axis.axis_label_text_font = FONT
        axis.major_label_text_font_size = axis.axis_label_text_font_size = "11px"
        axis.major_label_text_color = axis.axis_label_text_color = MUTED
        axis.axis_label_text_font_style = "normal"
    for grid in plot.grid:
        grid.grid_line_color = GRID
    for legend in plot.legend:
        _style_legend(legend)
    return plot


def _style_legend(legend: Any) -> None:
    legend.label_text_font, legend.label_text_font_size = FONT, "11px"
    legend.label_text_color = MUTED
    legend.border_line_color = None
    legend.background_fill_alpha = 0.0
    legend.glyph_width = legend.glyph_height = 13
    legend.label_standoff, legend.spacing = 4, 12
    legend.margin, legend.padding = 0, 2
