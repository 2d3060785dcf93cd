"""What a picked kernel, box, line or segment stands for in the other views."""

from __future__ import annotations

from kit.widgets.base.selection import NOTHING, Links
from tests.factories import make_run

RUN = make_run()
NODES = RUN.graphs[0].nodes


def test_nodes_bring_the_lines_that_recorded_them():
    ops = [i for i in RUN.graphs[0].ops if NODES[i].site][:2]
    picked = Links(RUN).of_nodes(ops)
    assert picked.nodes == set(ops)
    assert picked.sites == {NODES[i].site for i in ops}


def test_a_line_stands_for_every_node_that_it_recorded():
    site = NODES[RUN.graphs[0].ops[0]].site
    picked = Links(RUN).of_site(site)
    assert picked.sites == {site}
    assert picked.nodes == {i for i, n in enumerate(NODES) if n.site == site}


def test_a_line_that_recorded_nothing_is_still_a_line():
    picked = Links(RUN).of_site("elsewhere.py:1")
    assert picked
    assert not picked.nodes


def test_a_segment_stands_for_its_nodes():
    segment = RUN.segments[0]
    assert Links(RUN).of_segment(segment.index).nodes == set(segment.nodes)


def test_what_the_run_does_not_have_selects_nothing():
    assert Links(RUN).of_nodes([-1, 10**9]) == NOTHING
    assert not Links(None).of_segment(0)
