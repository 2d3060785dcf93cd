"""Graph diffs: aligned by structure, first divergence first, rewirings included."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kit.ir import Aval, Graph, Node

F = Aval((4,), "float32")


def graph(*ops: tuple[str, tuple[int, ...]], attr: str = "") -> Graph:
    nodes = [Node("input", (), (), (F,)), Node("input", (), (), (F,))]
    for op, inputs in ops:
        attrs = (("arg1", attr),) if attr and op == "mul" else ()
        nodes.append(Node(op, tuple((i, 0) for i in inputs), attrs, (F,), site="a.py:1"))
    return Graph(tuple(nodes))


def test_equal_graphs_have_an_empty_diff_whatever_their_sites() -> None:
    one = graph(("add", (0, 1)), ("mul", (2, 0)))
    moved = Graph(tuple(Node(n.op, n.inputs, n.attrs, n.avals, "b.py:9") for n in one.nodes))
    assert one.diff(moved).is_empty
    assert str(one.diff(moved)) == "the graphs are the same"


def test_a_pure_rewiring_shows() -> None:
    """pytorch/xla's graph diff drops operands, so x * y + z against x * z + y is empty there."""
    found = graph(("mul", (0, 1)), ("add", (2, 0))).diff(graph(("mul", (0, 1)), ("add", (2, 1))))
    assert [row.kind for row in found.rows] == ["same", "same", "same", "rewired"]
    assert found.first is not None
    assert "%2, %1" in found.first.right_text


def test_an_inserted_op_leaves_the_rest_paired() -> None:
    old = graph(("mul", (0, 1)), ("exp", (2,)), ("sum", (3,)))
    new = graph(("mul", (0, 1)), ("neg", (2,)), ("exp", (3,)), ("sum", (4,)))
    kinds = [row.kind for row in old.diff(new).rows]
    assert kinds == ["same", "same", "same", "added", "rewired", "same"]
    assert [row.kind for row in new.diff(old).rows].count("removed") == 1


def test_a_changed_constant_is_one_changed_row_and_its_users_stay_the_same() -> None:
    ops = ("mul", (0,)), ("exp", (2,))
    found = graph(*ops, attr="2").diff(graph(*ops, attr="3"))
    assert [row.kind for row in found.rows] == ["same", "same", "changed", "same"]
    assert "arg1=2" in str(found)
    assert "arg1=3" in str(found)


def test_a_long_diff_says_how_many_rows_are_left_out() -> None:
    old, new = (graph(*[(op, (0,))] * 70) for op in ("exp", "neg"))
    changed = [row for row in old.diff(new).rows if row.kind != "same"]
    assert len(changed) == 140
    lines = old.diff(new).text(context=0).splitlines()
    assert lines[0].endswith("... 2 equal rows")
    assert lines[-1] == f"... and {140 - len(lines[1:-1])} more rows"


PROGRAMS = st.lists(
    st.tuples(st.sampled_from(["add", "mul", "exp"]), st.integers(0, 30)), max_size=25
)


@given(PROGRAMS, PROGRAMS)
def test_a_diff_covers_both_graphs_in_order(
    old: list[tuple[str, int]], new: list[tuple[str, int]]
) -> None:
    a, b = (
        graph(*[(op, (i % (k + 2),)) for k, (op, i) in enumerate(program)])
        for program in (old, new)
    )
    rows = a.diff(b).rows
    assert [row.left for row in rows if row.left >= 0] == list(range(len(a)))
    assert [row.right for row in rows if row.right >= 0] == list(range(len(b)))
    assert a.diff(b).is_empty == (a.hash == b.hash)
    for row in rows:
        if row.kind in ("same", "rewired"):
            assert a.nodes[row.left].op == b.nodes[row.right].op
