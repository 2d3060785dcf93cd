"""The compile table and the graph diff: reasons, storms, hostile text, a menu of diffs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kit.errors import RunFileError
from kit.ir import Aval, Graph, Node
from kit.ir.graph import GraphDiff
from kit.runs.compiles import Compile, change_of
from kit.runs.run import Run
from kit.widgets.base.selection import NOTHING, Selection
from kit.widgets.numbers.compiles import (
    MAX_DIFF_ROWS,
    CompileView,
    GraphPair,
    changes_html,
    compiles_html,
    diff_html,
    recompiles_html,
)
from tests.factories import make_run

F = Aval((4,), "float32")
EVIL = "<script>alert(1)</script>"


def note(step: int, kind: str = "constant", site: str = "train.py:41") -> Compile:
    return Compile(step=step, segment=0, phase="forward", kind=kind, sentence=f"now {step}", ops=3,
                   site=site, before=str(step - 1), now=str(step), compile_ms=5.0)  # fmt: skip


def graph(op: str, attr: str) -> Graph:
    leaf = Node("input", (), (), (F,))
    return Graph((leaf, Node(op, ((0, 0),), (("arg1", attr),), (F,), site=EVIL)))


class Source:
    def __init__(self, *compiles: Compile) -> None:
        self.compiles = compiles

    def compile_diff(self, i: int) -> GraphDiff:
        return graph("aten.add", str(i)).diff(graph("aten.add", "9"))


def test_nothing_compiled_says_so() -> None:
    assert "Nothing was compiled" in compiles_html([])
    assert recompiles_html([]) == recompiles_html([note(0, "first")]) == ""


def test_a_table_has_a_row_for_each_compile_and_names_the_storm() -> None:
    slow = [replace(note(i), compile_ms=250.0) for i in range(1, 6)]
    html = compiles_html([note(0, "first"), *slow])
    assert html.count('<tr style="border-top') == 6
    assert "recompile storm at train.py:41: 5 compiles in 5 steps, 1.25 s, because" in html
    assert "4 → 5" in html


def test_a_compile_reads_as_a_sentence() -> None:
    shown = repr(replace(note(2), sentence="now\x1b[2J", is_from_disk=True))
    assert shown == "Compile(step 2, forward, 3 ops, 5 ms from disk: now\ufffd[2J)"


def test_what_one_step_compiles_repeatedly_is_named_below_the_table() -> None:
    within = [replace(note(0, site=EVIL), segment=k) for k in range(4)]
    html = compiles_html(within)
    assert "4 compiles took" in html
    assert "4 of them, " in html
    assert "<script" not in html


def test_text_from_the_program_is_escaped() -> None:
    html = compiles_html([note(1, site=EVIL)]) + diff_html(graph("a", EVIL).diff(graph("b", EVIL)))
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_a_diff_shows_both_sides_and_equal_graphs_say_so() -> None:
    html = diff_html(graph("aten.add", "1").diff(graph("aten.add", "2")))
    assert "arg1=1" in html
    assert "arg1=2" in html
    assert ">changed</td>" in html  # the colour alone would tell nobody, and not all see it
    assert "the same" in diff_html(graph("a", "1").diff(graph("a", "1")))


def test_a_diff_that_is_cut_says_how_many_nodes_are_not_shown() -> None:
    leaf = Node("input", (), (), (F,))

    def diff(ops: int) -> GraphDiff:
        """Of two graphs whose ops all differ; the leaf is shown, too."""
        old, new = (
            Graph((leaf, *(replace(leaf, op="aten.add", inputs=((0, 0),),
                                   attrs=(("arg1", f"{i}{x}"),)) for i in range(ops))))
            for x in "ab"
        )  # fmt: skip
        return old.diff(new)

    assert "9 more differing nodes are not shown" in diff_html(diff(MAX_DIFF_ROWS + 8))
    assert "1 more differing node is not shown" in diff_html(diff(MAX_DIFF_ROWS))
    assert "not shown" not in diff_html(diff(MAX_DIFF_ROWS - 1))


def test_the_view_offers_the_diff_of_each_recompile_and_follows_the_session() -> None:
    view = CompileView(Source(note(0, "first")))
    assert view.choice.layout.display == "none"
    view._source = Source(note(0, "first"), note(1), note(2))
    view.refresh()
    assert [value for _, value in view.choice.options] == [2, 1]
    assert "arg1=2" in view.diff.value
    view.choice.value = 1
    assert "arg1=1" in view.diff.value


def test_both_graphs_stand_beside_each_other_with_what_differs_marked() -> None:
    view = CompileView(Source(note(0, "first"), note(1), note(2)))
    assert view.graphs is not None
    sides = ((view.graphs.before, "before", "2"), (view.graphs.now, "now", "9"))
    page = view.page()
    for graph_view, name, attr in sides:
        assert graph_view.run.graphs[0].nodes[1].attrs == (("arg1", attr),)
        assert graph_view.marks == {1: "changed"}
        scene = graph_view.sources["scene"].tags[0]
        assert scene["has_changes"]
        assert scene["title"] == f"Graph {name}: 1 op"
        assert scene["note"] == (
            "1 parameter, state or input is not drawn  ·  against the other graph: 1 changed"
        )
    assert page.count('class="plot"') == 2  # both are in the page without a kernel
    assert "<script>alert" not in page
    view.close()


def test_graphs_that_cannot_be_shown_leave_no_others_in_their_place() -> None:
    class Forgetful(Source):
        def compile_diff(self, i: int) -> GraphDiff:
            return [None, None, super().compile_diff(i)][i] or {}[i]

    view = CompileView(Forgetful(note(0, "first"), note(1), note(2)))
    assert view.graphs is not None
    view.choice.value = 1
    assert "compiles</b>: KeyError: 1" in view.diff.value
    assert view.graphs.layout.display == "none"
    view.choice.value = 2
    assert "arg1=2" in view.diff.value
    assert view.graphs.layout.display == ""
    view.close()


def test_what_is_added_is_marked_on_its_side_and_its_group_is_open() -> None:
    leaf = Node("input", (), (), (F,))
    x, y, z = (Node(f"aten.{op}", ((i, 0),), (), (F,), scope="Net.a") for i, op in enumerate("xyz"))
    pair = GraphPair()
    pair.show(Graph((leaf, x, replace(z, inputs=((1, 0),)))).diff(Graph((leaf, x, y, z))))
    assert pair.before.marks == {1: "same", 2: "rewired"}
    assert pair.now.marks == {1: "same", 2: "added", 3: "rewired"}
    scene = pair.now.sources["scene"].tags[0]
    texts = json.loads(scene["strings"])
    groups = {texts[key] for key in scene["rows"]["key"] if key} - {"forward"}
    assert pair.now.expanded == groups != set()
    pair.close()


def test_an_op_picked_in_one_graph_is_picked_in_the_other() -> None:
    view = CompileView(Source(note(0, "first"), note(1)))
    assert view.graphs is not None
    before, now = view.graphs.before, view.graphs.now
    now.selection = Selection(frozenset([1]), frozenset(["train.py:41"]), "%1 add")
    assert (before.selection.nodes, before.selection.label) == (frozenset([1]), "%1 add")
    before.selection = NOTHING
    assert now.selection.nodes == frozenset()
    view.close()


def test_a_run_has_compiles_but_no_diffs() -> None:
    view = CompileView(make_run())
    assert view.choice.layout.display == "none"
    assert view.diff.value == ""
    assert view.graphs is None


def chain(ops: int, other: int, extra: str = "relu") -> Graph:
    """Ops that each read the one before and the first; at place `other` stands another op."""
    nodes = [Node("input", (), (), (F,))]
    for i in range(ops):
        op = extra if i == other else "aten.add"
        nodes.append(Node(op, ((i, 0), (min(i, 1), 0)), (("arg1", str(i)),), (F,), site=EVIL))
    return Graph(tuple(nodes))


def test_the_graphs_of_a_recompile_are_cut_to_what_differs() -> None:
    change = change_of(0, chain(200, 100, "relu").diff(chain(200, 100, "gelu")))
    ops = [node.op for node in change.now.check() if not node.is_variable]
    assert ops == ["aten.add", "aten.add", "gelu", *["aten.add"] * 3]  # one reads gelu: it differs
    assert change.left_out == 201 - 7  # what is gone and what is new have a row each
    kinds = [row.kind for row in change.before.check().diff(change.now).rows]
    assert sorted(kind for kind in kinds if kind != "same") == ["added", "removed", "rewired"]


def test_a_report_shows_the_graphs_of_a_recompile_and_a_file_keeps_them(tmp_path: Path) -> None:
    change = change_of(1, graph("a", EVIL).diff(graph("b", EVIL)))
    run = replace(make_run(), compiles=(note(0, "first"), note(1, site=EVIL)), changes=(change,))
    html = changes_html(run)
    assert html.count("<svg") == 1
    assert "the graph now: scroll to the right" in html  # on a phone it is out of sight
    assert "the graph before and now: 1 added, 1 removed" in html
    assert html.count("<title>added: ") == html.count("<title>removed: ") == 1
    assert html.count("forced-color-adjust:none") == 2  # of the swatches
    assert "<script" not in html
    run.save(tmp_path / "a.kitrun")
    assert Run.load(tmp_path / "a.kitrun").changes == (change,)
    for wrong in (replace(change, compile=2), replace(change, left_out=-1)):
        with pytest.raises(RunFileError, match="is not in"):
            replace(run, changes=(wrong,)).save(tmp_path / "b.kitrun")
    with pytest.raises(
        RunFileError, match="larger than the kit writes"
    ):  # 64 MB of them took minutes
        replace(run, changes=(replace(change, now=chain(41, 0)),)).save(tmp_path / "b.kitrun")
    with pytest.raises(RunFileError, match="more than 4 pairs"):
        replace(run, changes=(change,) * 5).save(tmp_path / "b.kitrun")
    assert changes_html(make_run()) == ""
