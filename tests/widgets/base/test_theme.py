"""The look: colours that stay apart, text that is safe to draw."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from bokeh.plotting import figure
from hypothesis import given
from hypothesis import strategies as st

from kit.text import format_bytes, format_ns, safe_label
from kit.trace import KINDS
from kit.widgets.base.theme import (
    BACKGROUND,
    COLORS,
    DARK,
    DEVICE_TIME,
    GRID,
    HELD,
    INK,
    LABELS,
    MUTED,
    hover_card,
    kind_color,
    on_color,
    page_js,
    style_figure,
    tint,
)

# Machado, Oliveira, Fernandes, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency", IEEE TVCG 2009, severity 1.0; applied to linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                   [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def _lab(color: str, vision: str) -> np.ndarray:
    srgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_any_two_kinds_can_be_told_apart_and_from_the_dark_ground(vision):
    shown = {**COLORS, "dark ground": DARK[BACKGROUND]}
    labs = {kind: _lab(color, vision) for kind, color in shown.items()}
    close = {
        (a, b): round(float(np.linalg.norm(labs[a] - labs[b])), 1)
        for a, b in itertools.combinations(labs, 2)
    }
    assert min(close.values()) > 13, min(close.items(), key=lambda x: x[1])


def _contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    lights = []
    for color in (one, other):
        srgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
        lights.append(float(linear @ np.array([0.2126, 0.7152, 0.0722])) + 0.05)
    return max(lights) / min(lights)


def test_text_can_be_read_and_kernels_be_seen_in_both_themes():
    for text in (INK, MUTED):
        assert _contrast(text, BACKGROUND) > 4.5
        assert _contrast(DARK[text], DARK[BACKGROUND]) > 4.5
    for ground in (BACKGROUND, DARK[BACKGROUND]):
        assert _contrast(COLORS["kernel"], ground) > 3
        assert _contrast(COLORS["compile"], ground) > 3
    for box, bar in (("#fdf0d5", DEVICE_TIME), ("#4d4229", DARK[DEVICE_TIME])):
        assert _contrast(box, bar) > 4  # on the box of a backward group, the least of all


@pytest.mark.parametrize("kind", COLORS)
def test_each_kind_is_seen_on_a_dark_page(kind):
    """Of own code, dark blue at 1.3, hardly an edge was."""
    assert _contrast(COLORS[kind], DARK[BACKGROUND]) > 3


def test_a_bar_of_memory_is_lighter_than_its_track_on_a_dark_page():
    """Darker than the track it looked like the rest of the bar, 63% of 37%."""
    assert _contrast(DARK[HELD], DARK[GRID]) > 2
    assert _contrast(DARK[HELD], "#000000") > _contrast(DARK[GRID], "#000000")


def test_the_devices_steps_are_seen_on_a_dark_page_and_apart_from_each_other():
    even, odd = (kind_color("device step", f"step {i}") for i in (0, 1))
    assert _contrast(DARK[even], DARK[BACKGROUND]) > 1.5
    assert _contrast(DARK[odd], DARK[even]) > 1.25
    assert _contrast(DARK[INK], DARK[odd]) > 4.5
    assert _contrast(INK, odd) > 4.5


def test_every_kind_has_a_colour_and_recording_has_the_one_of_its_phase():
    drawn = [kind for kind in KINDS if kind not in ("step", "record", "device step")]
    assert {kind_color(kind) for kind in drawn} == {COLORS[kind] for kind in drawn}
    assert kind_color("record", "backward") == COLORS["backward"]
    assert set(LABELS) == set(COLORS)
    assert kind_color("device step", "step 0") != kind_color("device step", "step 1")


def test_an_unknown_kind_or_phase_still_has_a_colour():
    assert kind_color("record", "<b>").startswith("#")
    assert kind_color("no such kind").startswith("#")


def test_text_on_a_bar_contrasts_with_it():
    assert on_color(COLORS["kernel"]) == BACKGROUND
    assert on_color(COLORS["backward"]) != BACKGROUND
    for color in COLORS.values():
        other = BACKGROUND if on_color(color) == INK else INK
        assert _contrast(on_color(color), color) >= _contrast(other, color)
        assert _contrast(on_color(color), color) > 3.9


def test_tint_goes_from_the_colour_to_white():
    assert tint("#336699", 0) == "#336699"
    assert tint("#336699", 1) == "#ffffff"


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (850, "850 ns"), (12_340, "12.3 µs"), (4_560_000, "4.56 ms"),
     (1.234e9, "1.23 s"), (5e12, "5,000 s")],
)  # fmt: skip
def test_times_have_the_unit_that_reads_best(ns, text):
    assert format_ns(ns) == text


def test_sizes_have_the_unit_that_reads_best():
    assert [format_bytes(x) for x in (0, 1500, 12e6)] == ["0 B", "1.5 kB", "12 MB"]


@given(st.text())
def test_plain_text_is_one_short_line_that_can_be_written_and_is_not_tex(text):
    safe = safe_label(text + "$$x$$\\[y\\]", 50)
    assert len(safe) <= 50
    assert safe.isprintable() or "\u200b" in safe
    safe.encode("utf-8")
    assert "$$" not in safe
    assert "\\[" not in safe


def test_plain_text_keeps_ordinary_names():
    assert safe_label("Bert.layers.0 · train.py:41") == "Bert.layers.0 · train.py:41"


def test_a_hover_card_never_asks_bokeh_for_unescaped_text():
    assert "safe}" not in hover_card("@name", (("a", "@b"),), swatch="@color")


def test_figures_are_opaque_and_have_no_logo():
    plot = style_figure(figure(title="x"))
    assert plot.background_fill_color == plot.border_fill_color == BACKGROUND
    assert plot.toolbar.logo is None


def test_a_figure_carries_what_makes_it_follow_the_theme_of_its_page():
    plot = style_figure(figure(title="x"))
    (paint,) = plot.js_property_callbacks["change:inner_width"]
    assert paint.code.startswith(page_js())
    assert paint.args["figure"] is plot
    assert "</script" not in page_js()
