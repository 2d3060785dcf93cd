"""Views in a layout of one's own, as docs/compose.md shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.widgets.base.selection import Selection
from tests.factories import make_run

PAGE = Path(__file__).parents[2] / "docs" / "compose.md"


def test_the_example_of_the_page_runs_and_its_views_are_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = make_run(kernels=4, steps=1)
    run.save(tmp_path / "mine.kitrun")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        exec(compile(block, PAGE.name, "exec"), names)
    timeline, graph, source = (names[name] for name in ("timeline", "graph", "source"))
    graph.selection = Selection(frozenset([1]), frozenset(), "%1")
    assert timeline.selection == source.selection == graph.selection
    timeline.selection = Selection(frozenset([2]), frozenset(), "%2")
    assert graph.selection.nodes == source.selection.nodes == {2}
    assert "<script" not in names["frame"]  # the document is a value of the frame's attribute
    names["app"].close()


@pytest.mark.parametrize("table", [kit.kernel_table, kit.line_costs, kit.segment_costs])
def test_tables_show_themselves_in_a_terminal_and_in_a_notebook(table: Any):
    rows = table(make_run(kernels=4, steps=1))
    assert isinstance(rows, tuple)
    assert len(repr(rows).splitlines()) > 2
    assert "<table" in rows._repr_html_()
