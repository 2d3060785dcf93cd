"""An explorer's link: one text that shows the same again; a stranger's does no harm."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kit.errors import SettingsError
from kit.runs.settings import Settings
from kit.widgets.base.selection import NOTHING, Selection
from kit.widgets.explorer.view import Explorer
from tests.factories import make_run

LONG_S = 60


def explorer() -> Explorer:
    made = Explorer(lambda settings, *, progress, cancelled: make_run(settings))
    made.wait(LONG_S)
    return made


def looked(shown: Explorer) -> tuple[object, ...]:
    timeline, graph = shown.views["timeline"], shown.views["graph"]
    data = timeline.sources["shown"].data
    return (
        *(shown.settings, timeline.range_ns, timeline.selection, graph.selection, graph.expanded),
        *(list(data["start"]), list(data["stop"])),
    )


def test_a_link_shows_the_same_again_after_its_settings_were_run():
    first, second = explorer(), explorer()
    try:
        first.set(bulk_forward=5)
        first.wait(LONG_S)
        timeline, graph = first.views["timeline"], first.views["graph"]
        graph.expanded = frozenset(["forward", "forward/a&b#c"])
        timeline.selection = Selection(frozenset([2, 3, 4, 9]), frozenset(["train.py:12"]), "ops ü")
        timeline.range_ns = (100, 5000)
        timeline.sources["shown"].data = {"start": [50], "stop": [90_000]}
        link = first.link.text()
        assert link.startswith("bulk_forward=5#shown=50_90000&range=100_5000&nodes=2-4.9&")
        second.link.open(link)
        second.wait(LONG_S)
        assert looked(second) == looked(first)
        second.link.open("bulk_forward=5#")  # it is shown already: at once
        assert second.views["timeline"].selection == NOTHING
        second.history.text.value = link  # as if it were pasted
        assert looked(second) == looked(first)
    finally:
        first.close()
        second.close()


def test_what_was_to_be_seen_of_a_run_that_never_came_is_not_seen_later():
    shown = explorer()
    try:
        shown.auto_run = False
        shown.link.open("bulk_forward=5#range=100_5000")
        shown.set(bulk_forward=1)  # a control is moved before that run is there
        shown.rerun()
        shown.wait(LONG_S)
        shown.set(bulk_forward=5)
        shown.rerun()
        shown.wait(LONG_S)
        assert shown.run.settings.bulk_forward == 5
        assert shown.views["timeline"].range_ns is None
    finally:
        shown.close()


class Steps:
    """Runs that can be held back, or fail."""

    def __init__(self) -> None:
        self.go, self.fails = threading.Event(), False
        self.go.set()

    def __call__(self, settings: Settings, *, progress: Any, cancelled: Any) -> Any:
        assert self.go.wait(LONG_S)
        if self.fails:
            raise RuntimeError("no run")
        return make_run(settings)


@pytest.fixture
def steps_and_shown():
    steps = Steps()
    shown = Explorer(steps)
    shown.wait(LONG_S)
    yield steps, shown
    steps.go.set()
    shown.close()


def test_what_is_wanted_is_looked_at_again_in_a_run_of_the_same_settings(steps_and_shown):
    steps, shown = steps_and_shown
    timeline = shown.views["timeline"]
    steps.go.clear()
    shown.rerun()
    shown.link.look("range=100_5000")
    assert timeline.range_ns == (100, 5000)  # in the run before, which has the same settings
    steps.go.set()
    shown.wait(LONG_S)
    assert timeline.range_ns == (100, 5000)
    timeline.range_ns = None
    shown.rerun()
    shown.wait(LONG_S)
    assert timeline.range_ns is None  # it was wanted of one run, not of each


def test_a_link_to_settings_whose_run_failed_runs_them_again(steps_and_shown):
    steps, shown = steps_and_shown
    steps.fails = True
    shown.link.open("bulk_forward=5#range=100_5000")
    with pytest.raises(RuntimeError):
        shown.wait(LONG_S)
    steps.fails = False
    shown.link.open("bulk_forward=5#range=100_5000")
    shown.wait(LONG_S)
    assert shown.run.settings.bulk_forward == 5
    assert shown.views["timeline"].range_ns == (100, 5000)


def test_views_are_not_changed_by_a_link_while_another_thread_changes_them(steps_and_shown):
    _, shown = steps_and_shown
    timeline = shown.views["timeline"]
    looking = threading.Thread(target=shown.link.look, args=("range=100_5000",))
    with shown._lock:
        looking.start()
        looking.join(0.3)
        assert timeline.range_ns is None
    looking.join(LONG_S)
    assert timeline.range_ns == (100, 5000)


def test_a_link_sets_no_settings_while_another_thread_changes_the_explorer(steps_and_shown):
    _, shown = steps_and_shown
    opening = threading.Thread(target=shown.link.open, args=("bulk_forward=5#range=100_5000",))
    with shown._lock:
        opening.start()
        opening.join(0.3)
        assert shown.settings.bulk_forward != 5
    opening.join(LONG_S)
    assert shown.wait(LONG_S).settings.bulk_forward == 5
    assert shown.views["timeline"].range_ns == (100, 5000)


def test_what_a_link_says_is_never_more_than_what_is_read_of_it(steps_and_shown):
    _, shown = steps_and_shown
    timeline, graph = shown.views["timeline"], shown.views["graph"]
    sites = frozenset(["train.py:1", "y" * 401])
    timeline.selection = Selection(frozenset(range(0, 15_000, 2)), sites, "ü" * 500)
    graph.expanded = frozenset([f"{i:03} {'ö' * 60}" for i in range(300)])
    timeline.range_ns = (100, 5000)
    text = shown.link.text()
    assert len(text) < 20_100
    shown.link.open(text)
    assert shown.link.text() == text
    assert timeline.range_ns == (100, 5000)
    assert (timeline.selection.sites, len(timeline.selection.label)) == ({"train.py:1"}, 400)


def test_the_button_shows_the_link_of_what_is_shown(steps_and_shown):
    _, shown = steps_and_shown
    history = shown.history
    assert history.shared.layout.display == "none"
    shown.views["timeline"].range_ns = (100, 5000)
    history.copy.click()
    assert history.link.value == shown.link.text()
    assert "#range=100_5000" in history.link.value
    assert history.shared.layout.display is None


def test_of_a_text_that_is_too_long_the_first_pairs_are_seen():
    shown = explorer()
    try:
        nodes = ".".join(map(str, range(0, 10_000, 2)))
        shown.link.open(f"{shown.settings.to_string()}#range=100_5000&nodes={nodes}")
        assert shown.views["timeline"].range_ns == (100, 5000)
        assert shown.views["timeline"].selection == NOTHING
    finally:
        shown.close()


def test_what_is_not_of_its_form_is_left_out():
    shown = explorer()
    try:
        before = looked(shown)
        for text in (
            "nodes=1-99999999&range=9_1&shown=x_y&open=" + "z" * 500,
            "range=1e9_2e9&nodes=a.b&sites=" + "y" * 500,
            "%E0%A4%A&&&===&__proto__=1",
            "label=" + "x" * 30_000,
        ):
            shown.link.open(f"{shown.settings.to_string()}#{text}")
            assert looked(shown) == before
        with pytest.raises(SettingsError):
            shown.link.open("no_such_setting=1#range=1_2")
        assert shown.settings == Settings()
    finally:
        shown.close()
