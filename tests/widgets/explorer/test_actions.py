"""What the explorer says of a run that failed."""

from __future__ import annotations

from kit.widgets.explorer.actions import failure_html
from tests.factories import HOSTILE
from tests.widgets.read import Reader


def test_a_failure_shows_its_first_line_and_folds_the_traceback_away():
    html = failure_html(ValueError(f"bad {HOSTILE}\nline two"), "Traceback <b>\n")
    page = Reader(html)
    assert "ValueError bad" in str(page)
    assert "script" not in page.tags
    assert html.index("</b>") < html.index("<details")
    assert "Traceback <b>" in str(page)
    assert "details" not in failure_html(ValueError("bad"))


def test_a_failure_says_where_in_the_users_program_it_was():
    error = ValueError("bad")
    error.add_note("kit: in the workload 'mine', mode 'lazy', at train.py:25")
    assert "in the workload 'mine', mode 'lazy', at train.py:25" in str(Reader(failure_html(error)))
