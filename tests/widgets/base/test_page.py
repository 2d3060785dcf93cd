"""Views as pages of their own: what stays of them without a kernel."""

from __future__ import annotations

import asyncio
import gc
import gzip
import re
import weakref
from base64 import b64decode
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest
from bokeh.embed import components
from bokeh.plotting import figure
from ipywidgets import (
    HTML,
    Button,
    Dropdown,
    HBox,
    IntSlider,
    SelectionSlider,
    Text,
    ToggleButtons,
    VBox,
    Widget,
)

from kit.ir.plan import OpStream
from kit.runs.compiles import Compile
from kit.widgets.base.controls import labelled
from kit.widgets.base.live_plot import LivePlot
from kit.widgets.base.page import View, framed, packed, static_page
from kit.widgets.base.stored import LEFT_OUT, Follower, set_to
from kit.widgets.numbers.compiles import CompileView
from kit.widgets.numbers.gaps import GapView
from kit.widgets.numbers.plan import PlanView
from kit.widgets.numbers.source import SourceView
from kit.widgets.numbers.whatif import WhatIfView
from kit.widgets.timeline.view import TimelineView
from tests.factories import HOSTILE, make_run
from tests.reliability.growth import alive
from tests.waiting import freed

WIDGET = "application/vnd.jupyter.widget-view+json"


def unpacked(page: str) -> dict[str, str]:
    """The blocks of a page by their id."""
    return {
        name: gzip.decompress(b64decode(text)).decode()
        for name, text in re.findall(r'octet-stream" id="(\w+)">([^<]*)<', page)
    }


def test_texts_stay_and_controls_go_with_their_labels():
    unnamed = VBox([HTML("batch size"), IntSlider()])
    bar = HBox([Button(description="Run again"), HTML("not run yet")])
    page = static_page(VBox([HTML("<b>a heading</b>"), unnamed, bar]))
    assert "<b>a heading</b>" in page
    assert "batch size" not in page
    assert "Run again" not in page


def test_a_page_says_that_controls_are_left_out_and_what_they_are_set_to():
    view = WhatIfView(make_run())
    view.speed.value = 2.0
    view.without[0].value = True
    page = unescape(view.page())
    for said in ("device speed: 2 x", "bulk size, forward: 15", view.without[0].description):
        assert f"<b>{said}</b>" in page
    assert view.is_loading_ahead.description not in page  # it is not ticked
    assert page.count(LEFT_OUT) == 1
    assert LEFT_OUT in PlanView(OpStream(make_run().graphs[0], frozenset(range(9)))).page()


@pytest.mark.parametrize("make", [SelectionSlider, Dropdown, ToggleButtons])
def test_a_page_says_what_a_choice_is_set_to_that_stands_at_its_first_value(make: Any):
    control = make(options=[("one of two", 1), ("two of two", 2)], value=1)
    page = static_page(View([labelled("devices", control), HTML("text")]))
    assert "Set to: <b>devices: one of two</b>." in page
    control.value = 2
    assert "devices: two of two" in static_page(View([labelled("devices", control)]))


def test_a_page_of_a_view_without_controls_says_nothing_of_them():
    for view in (GapView(make_run()), TimelineView(make_run()), SourceView(make_run())):
        assert LEFT_OUT not in view.page()


def test_what_controls_are_set_to_is_no_markup():
    control = Dropdown(options=[(HOSTILE, 1)], value=1)
    said = set_to(VBox([labelled(HOSTILE, control), labelled("text", Text(HOSTILE))]))
    assert "<script" not in said
    assert said.count("<b>") == 1  # a field for text is none of the picture's


def test_a_control_that_has_no_effect_or_is_not_shown_is_not_named():
    still, hidden = IntSlider(disabled=True), labelled("hidden", IntSlider())
    hidden.layout.display = "none"
    assert "Set to" not in set_to(VBox([labelled("still", still), hidden]))
    assert set_to(hidden) == ""


def widgets_of(widget: Widget) -> list[Widget]:
    children = [w for child in getattr(widget, "children", ()) for w in widgets_of(child)]
    return [widget, *children]


def test_a_page_is_made_again_for_what_is_in_it_and_not_for_texts_of_its_controls(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("kit.widgets.base.stored.REST_S", 0.0)
    text, status, slider = HTML("shown"), HTML("beside a button"), IntSlider()
    view, made = View([text, HBox([Button(), status]), labelled("speed", slider)]), []

    async def made_by(widget: Any, value: Any) -> int:
        follower = Follower(view, lambda: made.append(follower.rest()))
        widget.value = value
        await asyncio.sleep(0.01)
        widget.unobserve_all()
        return len(made)

    assert asyncio.run(made_by(status, "step 2 of 3")) == 0
    assert asyncio.run(made_by(slider, 5)) == 1
    assert asyncio.run(made_by(text, "shown now")) == 2


def test_a_page_is_not_made_again_because_a_figure_is_shown(monkeypatch: pytest.MonkeyPatch):
    """Each run of an explorer was stored twice: its figures were drawn, and that was a change."""
    monkeypatch.setattr("kit.widgets.base.stored.REST_S", 0.0)
    live, made = LivePlot(figure()), []

    async def made_by_showing() -> int:
        follower = Follower(View([live]), lambda: made.append(follower.rest()))
        live.plot.title.text = "changed before it is shown"
        live._view_count = 1
        await asyncio.sleep(0.01)
        return len(made)

    assert asyncio.run(made_by_showing()) == 0


@pytest.mark.parametrize("kind", [TimelineView, GapView, CompileView, WhatIfView, SourceView])
def test_a_closed_view_keeps_no_widget_alive(kind: type[View]):
    view = kind(make_run())
    parts = [weakref.ref(part) for part in widgets_of(view)]
    view.close()
    del view
    gc.collect()
    assert [part() for part in parts if part() is not None] == []


def test_a_view_that_was_shown_is_free_once_it_is_closed():
    TimelineView()._live()  # BokehJS is there for all
    before = alive(Widget)
    view = TimelineView(make_run())
    held = weakref.ref(view)
    shown = view._live()["application/vnd.jupyter.widget-view+json"]
    assert view._live()["application/vnd.jupyter.widget-view+json"] == shown  # in a second cell
    view.close()
    del view
    assert freed(held)
    assert alive(Widget) == before


def test_what_is_hidden_stays_hidden():
    hidden = HTML("secret")
    hidden.layout.display = "none"
    assert "secret" not in static_page(VBox([hidden]))


def test_a_figure_brings_bokeh_and_its_data_along(caplog: pytest.LogCaptureFixture):
    page = static_page(WhatIfView(make_run()))
    found = unpacked(page)
    assert "Bokeh" in found["bokehjs"]
    assert "kernel timeline" in found["models"]
    assert "://" not in re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert caplog.text == ""  # no warning that callbacks in Python will not be called
    assert len(page) < 700_000


def test_a_figure_stays_in_its_document_while_its_page_is_made(monkeypatch: pytest.MonkeyPatch):
    view = TimelineView(make_run())
    mine, seen = view.figure.document, []

    def looking(plots: list[Any], **options: Any) -> Any:
        made = components(plots, **options)
        seen.extend(plot.document for plot in plots)
        return made

    with monkeypatch.context() as patch:
        patch.setattr("kit.widgets.base.page.components", looking)
        page = view.page()
    assert mine is not None
    assert view.figure.document is mine
    assert seen
    assert mine not in seen
    assert "kernel timeline" in unpacked(page)["models"]


def test_a_view_shows_its_page_where_no_widget_can_be():
    bundle = WhatIfView(make_run())._repr_mimebundle_()
    assert {WIDGET, "text/html", "text/plain"} <= set(bundle)
    assert bundle["text/html"].startswith("<iframe srcdoc=")
    assert bundle["text/plain"].startswith("WhatIfView(")
    assert bundle["text/plain"] in unescape(bundle["text/html"])  # where frames are taken out


def test_a_view_of_text_needs_no_frame():
    html = GapView(make_run())._repr_mimebundle_()["text/html"]
    assert "Why the device was idle" in html
    assert "<iframe" not in html
    assert "<script" not in html


def test_a_page_in_a_frame_cannot_leave_it():
    inside = '</iframe><script>alert(1)</script>"'
    html = framed(inside, 100, inside)
    assert html.count("<") == 2  # the frame's own tags
    assert inside in unescape(html)


def test_hostile_text_stays_text_in_a_page():
    page = static_page(GapView(make_run(hostile=True)))
    assert "<img src=x" not in page
    assert "alert('kit')</script>" not in page
    assert "</script><script>" not in packed("x", HOSTILE.encode(errors="replace"))


def test_an_empty_view_is_an_empty_page():
    assert "<body>" in static_page(View())
    assert View()._repr_mimebundle_()["text/html"] == ""


def test_a_page_of_compiles_has_its_table_though_a_menu_is_beside_it():
    compiled = Compile(0, 0, "forward", "first", "nothing like it", 3, site="train.py:41")
    assert "train.py:41" in CompileView(SimpleNamespace(compiles=[compiled])).page()


def test_a_plan_is_a_page_as_well():
    run = make_run()
    view = PlanView(OpStream.of(run.graphs[0], run.segments), 5, 5)
    assert "octet-stream" in view.page()
