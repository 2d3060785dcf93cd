"""The view of a graph, alone and against another: what its page says and is told."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import kit
from kit.ir import Graph, Node
from kit.runs.run import Run
from kit.widgets.base.selection import NOTHING, Links
from kit.widgets.graph import diff as graph_diff
from kit.widgets.graph.payload import graph_payload
from kit.widgets.graph.view import GraphView, graph_wasm
from tests.factories import make_run
from tests.widgets.graph.scenes import AVAL, bert, run_of, scene_of

# -- two graphs


def test_what_changed_against_another_run_is_in_the_scene_and_what_is_gone_is_put_back():
    old = bert(2)
    at = next(i for i, n in enumerate(old.nodes) if n.scope == "Bert.layers.1.mlp")
    extra = Node("aten.gelu.default", ((at - 3, 0),), (), AVAL, "", "forward", "Bert.layers.1.mlp")
    grown = Graph((*old.nodes, extra)).check()
    same = scene_of(old, against=run_of(old))
    assert not same["rows"]["change"].any()
    assert same["note"].endswith("against the other run: no op differs")
    added = scene_of(grown, against=run_of(old))["rows"]
    assert [int(n) for n in added["node"][added["change"] == 1]] == [len(old)]
    removed = scene_of(old, against=run_of(grown))
    (i,) = (removed["rows"]["change"] == 4).nonzero()[0]
    assert removed["rows"]["node"][i] == -1
    assert removed["strings"][removed["rows"]["op"][i]] == "aten.gelu.default"
    assert "1 removed" in removed["note"]


def test_graphs_too_different_to_compare_are_said_under_the_view_and_drawn_alone(monkeypatch):
    monkeypatch.setattr(graph_diff, "_MAX_DIFFERENT", 10)
    other = replace(make_run(scopes=3), graphs=(bert(2),))
    view = GraphView(make_run(), against=other)
    assert "are not compared one by one" in view.children[-1].value
    assert not view.sources["scene"].tags[0]["has_changes"]
    view.against = replace(other, graphs=())
    assert "the run to compare with has no graph" in view.children[-1].value
    view.against = None
    assert view.children[-1].value == ""


# -- the view, as its page talks to it


def say(view, **message):
    """What the page sends."""
    view.sources["state"].tags = [json.dumps({"from": "page", **message})]


def told(view):
    return json.loads(view.sources["state"].tags[0])


def test_what_the_page_opens_is_in_expanded_and_is_not_sent_back():
    view = GraphView(make_run())
    say(view, sequence=1, open=["forward/layers.0"], color_by="time")
    assert view.expanded == {"forward/layers.0"}
    assert view.color_by == "time"
    assert (told(view)["answered"], told(view)["open"]) == (1, ["forward/layers.0"])
    view.expanded = frozenset()
    assert (told(view)["from"], told(view)["open"]) == ("kit", [])


def test_a_pick_in_the_page_sets_node_and_selection_once():
    run = make_run()
    view, seen = GraphView(run), []
    view.observe(lambda change: seen.append(change["new"]), "selection")
    node = run.graphs[0].ops[2]
    say(view, sequence=1, open=[], pick={"nodes": [node], "label": f"%{node}", "isOp": True})
    assert view.node == node
    assert view.selection == Links(run).of_nodes([node], f"%{node}")
    say(view, sequence=1, open=[], pick={"nodes": [], "label": "", "isOp": False})
    assert len(seen) == 1
    nodes = run.graphs[0].ops[:4]
    say(view, sequence=2, open=[], pick={"nodes": nodes, "label": "layers.0", "isOp": False})
    assert view.node is None
    assert view.selection.nodes == set(nodes)
    say(view, sequence=3, open=[], pick={"nodes": [], "label": "", "isOp": False})
    assert view.selection == NOTHING


def test_a_pick_in_the_run_before_picks_nothing_of_this_one():
    view = GraphView(make_run())
    before = view.sources["scene"].tags[0]["drawing"]
    view.run = make_run(seed=5, scopes=4)  # while a cell runs, the page's messages wait
    pick = {"nodes": [view.run.graphs[0].ops[2]], "label": "%2", "isOp": True}
    say(view, sequence=1, open=[], drawing=before, pick=pick)
    assert (view.node, view.selection) == (None, NOTHING)
    assert (told(view)["from"], told(view)["nodes"]) == ("kit", [])  # and a copy hears of none
    now = view.sources["scene"].tags[0]["drawing"]
    say(view, sequence=2, open=[], drawing=now, pick=pick)
    assert view.selection.nodes == set(pick["nodes"])


@pytest.mark.parametrize("counted", [1, 2])  # a copy that is being drawn is not counted yet
def test_what_is_done_in_one_of_two_copies_goes_to_the_other(counted):
    run = make_run()
    view = GraphView(run)
    node = run.graphs[0].ops[2]
    view._plot._view_count = counted
    say(view, sequence=7, open=["forward/layers.0"],
        pick={"nodes": [node], "label": "x", "isOp": True})  # fmt: skip
    message = told(view)
    assert (message["from"], message["answered"]) == ("kit", 7)
    assert (message["open"], message["nodes"]) == (["forward/layers.0"], [node])


def test_a_selection_from_elsewhere_goes_to_the_page_and_opens_nothing():
    run = make_run()
    view = GraphView(run)
    view.selection = Links(run).of_site(run.graphs[0].nodes[run.graphs[0].ops[0]].site)
    message = told(view)
    assert message["from"] == "kit"
    assert message["nodes"] == sorted(view.selection.nodes)
    assert message["label"] == view.selection.label
    assert view.expanded == frozenset()


def test_assigning_a_run_redraws_forgets_the_selection_and_keeps_what_is_open():
    run = make_run()
    view = GraphView(run)
    view.expanded = frozenset({"forward/layers.0"})
    view.selection = Links(run).of_nodes(run.graphs[0].ops[:2])
    view.run = make_run(seed=5, scopes=4)
    assert view.selection == NOTHING
    assert view.expanded == {"forward/layers.0"}
    assert view.sources["scene"].tags[0]["title"].endswith("30 ops")
    view.run = None
    assert view.sources["scene"].tags[0]["message"] == "no run yet"


def test_graphviz_for_the_page_is_sent_only_when_the_page_asks():
    view = GraphView(make_run())
    assert view.sources["engine"].tags == []
    say(view, sequence=1, open=[], need="engine")
    assert view.sources["engine"].tags[0] == graph_wasm()
    sent: list[str] = []
    view.sources["engine"].on_change("tags", lambda attr, old, new: sent.append(new[0]))
    say(view, sequence=2, open=[], need="engine")  # a new copy, which has missed the answer
    assert sent == [graph_wasm()]


def test_what_was_set_while_a_page_asked_for_graphviz_stays_and_is_said_again():
    """A copy that is drawn later reads the last message: it must have what is selected."""
    view = GraphView(make_run())
    view.expanded = frozenset({"forward/layers.0"})
    view.selection = Links(view.run).of_nodes(view.run.graphs[0].ops[:4], "four ops")
    say(view, sequence=1, open=[], color_by="phase", need="engine")  # it had not heard of that
    assert view.expanded == {"forward/layers.0"}
    assert told(view)["from"] == "kit"
    assert told(view)["open"] == ["forward/layers.0"]
    assert len(told(view)["nodes"]) == 4
    assert told(view)["label"] == "four ops"


def test_nonsense_from_a_page_is_shown_under_the_view():
    view = GraphView(make_run())
    say(view, sequence=1, open=[], pick={"nodes": ["x"], "label": "", "isOp": True})
    assert "ValueError" in view.children[-1].value


def test_a_graph_that_is_cut_elsewhere_has_lost_none_of_its_ops() -> None:
    """All of the model was "removed" and "added", as a cut's variables stand just before it."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    def scaled(is_cut: bool) -> Run:
        @kit.workload
        def build(ctx: kit.Context) -> Any:
            model = copy.deepcopy(net).to(ctx.device)
            x = torch.ones(2, 4).to(ctx.device)

            def step() -> Any:
                y = model[0](x)
                if is_cut:
                    y.sum().item()
                return model[2](model[1](y)).sum()

            return step

        return kit.run(build, kit.Settings(mode="lazy", steps=2, warmup=2))

    note = graph_payload(scaled(True), against=scaled(False))["note"]
    assert "removed" not in note
    assert note.endswith("against the other run: 1 added")
