"""Errors of callbacks: shown in the view, not raised; what is no error of the view goes on."""

from __future__ import annotations

import pytest
from ipywidgets import HTML

from kit.errors import call_handler
from kit.widgets.base.errors import ErrorsIn
from tests.factories import HOSTILE


def test_an_error_is_shown_with_its_view_and_escaped():
    shown = HTML("before")
    with ErrorsIn(shown, "timeline"):
        raise ValueError(HOSTILE)
    assert "<b>timeline</b>: ValueError" in shown.value
    assert "<script>" not in shown.value


def test_without_an_error_nothing_is_changed_and_ctrl_c_goes_on():
    shown = HTML("before")
    with ErrorsIn(shown, "timeline"):
        pass
    with pytest.raises(KeyboardInterrupt), ErrorsIn(shown, "timeline"):
        raise KeyboardInterrupt
    assert shown.value == "before"


def test_the_time_limit_of_a_program_is_no_error_of_the_view():
    """What the handler of a signal raises while a view is drawn ends the program's wait."""

    def expire() -> None:
        raise TimeoutError

    shown = HTML("before")
    with pytest.raises(TimeoutError), ErrorsIn(shown, "timeline"):
        call_handler(expire)
    assert shown.value == "before"
