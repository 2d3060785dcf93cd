"""What a closed explorer leaves behind: nothing."""

from __future__ import annotations

import gc
import weakref

import pytest
from ipywidgets import Widget

from kit.errors import SessionError
from kit.widgets.explorer.view import Explorer
from tests.reliability.growth import alive
from tests.waiting import until
from tests.widgets.explorer.steps import LONG_S, QUICK, Step


def test_a_closed_explorer_leaves_no_widget_behind_and_a_move_none_either():
    Explorer(Step(), QUICK, auto_run=False).close()  # what all of a process share is there
    before, held = alive(Widget), []
    explorer = Explorer(Step(), QUICK)
    for size in (8, 16, 32):
        explorer.set(batch_size=size)
        explorer.wait(LONG_S)
        held.append(alive(Widget))
    assert held[0] == held[1] == held[2]
    explorer.close()
    del explorer
    until(lambda: alive(Widget) <= before)


def test_a_closed_explorer_refuses_and_answers_with_no_other_settings_run():
    explorer = Explorer(Step(), QUICK)
    run = explorer.wait(LONG_S)
    explorer.close()
    assert explorer.wait(LONG_S) is run  # nothing was asked for since
    with pytest.raises(SessionError, match="is closed and reruns nothing"):
        explorer.set(batch_size=64)
    assert explorer.settings == run.settings
    explorer.settings = QUICK.replace(batch_size=64)  # as a control does; refused in its place
    with pytest.raises(SessionError, match="is closed and reruns nothing"):
        explorer.wait(LONG_S)


def test_a_closed_explorer_is_freed_at_once_with_its_runs():
    explorer = Explorer(Step(), QUICK)
    explorer.wait(LONG_S)
    explorer.close()
    held = weakref.ref(explorer)
    del explorer
    gc.collect()
    assert held() is None
