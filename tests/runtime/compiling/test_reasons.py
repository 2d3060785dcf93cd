"""Why a program was compiled: each cause is named with its line, and storms are found."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from kit.errors import GraphError
from kit.runs.compiles import Compile, storms, worth_showing
from kit.runs.settings import Settings
from kit.runtime.compiling import reasons
from kit.runtime.recording.template import HOLE
from kit.runtime.session.session import Session
from kit.text import format_ms
from kit.torch.device import open_session


def session_of(step: Callable[[int], Any], steps: int) -> Session:
    with open_session(Settings(mode="lazy")) as session:
        for i in range(steps):
            kept = step(i)
            session.mark_step()
            del kept
        session.wait_all()
        return session


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype).to("kit")


CAUSES: dict[str, Callable[[int], Any]] = {
    "constant": lambda i: ones(4) + (i + 2),
    "shape": lambda i: ones(4 + i).cumsum(0),
    "dtype": lambda i: ones(4, dtype=(torch.float32, torch.float64)[i]) * 2,
    "op": lambda i: (ones(4) * 2).relu() if i else (ones(4) * 2).exp(),
    "inputs": lambda i: (lambda a, b: a * b + (a, b)[i])(ones(4), ones(4)),
    "cut": lambda i: (ones(4) * 2 + 1).relu() if i else ones(4) * 2 + 1,
    "kept": lambda i: (lambda a: (a, a + 1) if i else a + 1)(ones(4) * 2),
}


@pytest.mark.parametrize("kind", CAUSES)
def test_the_cause_of_a_recompile_is_named_with_its_line(kind: str) -> None:
    session = session_of(CAUSES[kind], 2)
    first, again = session.compiles
    assert first.kind == "first"
    assert again.kind == kind
    assert again.site.startswith("test_reasons.py:") or kind == "kept"
    assert again.sentence in session.explain()
    assert not session.compile_diff().is_empty or kind == "kept"


def test_a_steady_step_compiles_once() -> None:
    session = session_of(lambda i: ones(4) * (1.5 + i), 5)
    assert [c.kind for c in session.compiles] == ["first"]
    assert session.report.log.changes() == ()


def test_a_run_keeps_the_graphs_behind_one_recompile_of_a_reason() -> None:
    session = session_of(lambda i: (ones(4 + i).exp() * 2).cumsum(0), 5)
    (change,) = session.report.log.changes()
    assert change.compile == len(session.compiles) - 1
    diff = change.before.diff(change.now)
    assert [row.kind for row in diff.rows if row.kind != "same"]
    assert str(change.now.nodes[-1].avals[0]) == "float32[8]"
    assert str(change.before.nodes[-1].avals[0]) != "float32[8]"


def test_a_compile_that_comes_while_a_run_is_made_changes_no_graph_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_session(Settings(mode="lazy")) as session:
        for i in range(5):
            (ones(4 + i).exp() * 2).cumsum(0).tolist()
            session.mark_step()
        before = session.report.log.changes()

        def compiles_more(notes: Any) -> Any:
            found = worth_showing(notes)
            ones(9).sin().tolist()
            return found

        monkeypatch.setattr(reasons, "KEPT", 5)
        monkeypatch.setattr(reasons, "MOST_NOTES", 5)
        monkeypatch.setattr(reasons, "worth_showing", compiles_more)
        assert session.report.log.changes() == before != ()
        assert len(session.compiles) == 5


def test_the_reasons_of_more_compiles_are_kept_than_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reasons, "KEPT", 4)
    session = session_of(lambda i: ones(3) + (i + 2), 30)
    assert len(session.compiles) == 30
    text = session.explain()
    assert "29 compiles in 29 steps" in text
    assert "compiled for the first time: 1; compiled again: 29\n" in text
    assert "the last 20 of these 29:" in text
    assert session.compile_diff(26).rows
    with pytest.raises(GraphError, match="graphs of compile 25 are gone: the latest 4 are kept"):
        session.compile_diff(25)
    with pytest.raises(GraphError, match="there is no compile 30; their numbers: 0 to 29"):
        session.compile_diff(30)
    assert [change.compile for change in session.report.log.changes()] == [29]
    monkeypatch.setattr(reasons, "MOST_NOTES", 6)
    fewer = session_of(lambda i: ones(3) + (i + 2), 9)
    assert len(fewer.compiles) == 6
    assert "compiled again: 6; of 3 before these no reason is kept" in fewer.explain()


def test_a_storm_is_named_with_its_cure() -> None:
    session = session_of(lambda i: ones(3) + (i + 2), 6)
    text = session.explain()
    (storm,) = [line for line in text.splitlines() if line.startswith("recompile storm")]
    again = [compiled.ms for compiled in session.compiles[1:]]
    said = [line.rpartition(", ")[2] for line in text.splitlines() if line.startswith("  step ")]
    assert said == [format_ms(ms) for ms in again]
    assert f", {format_ms(sum(again))}, " in storm
    assert "test_reasons.py" in storm
    assert "5 compiles in 5 steps" in storm
    assert "(2, 3, 4, 5, 6, ...)" in storm
    assert "make it a float or a tensor" in storm
    grown = session_of(lambda i: ones(3 + i).exp(), 6).explain()
    assert "pad to a fixed size" in grown


def test_what_one_step_compiles_again_and_again_is_named_too() -> None:
    """A loop in the step whose shapes grow compiles at each turn, each time for another segment."""
    text = session_of(lambda i: [ones(3 + k).exp().tolist() for k in range(5)], 1).explain()
    assert "recompile storm" not in text
    assert re.search(r"4 of them, .*, were for test_reasons\.py:\d+, because the shape", text)


def test_a_storm_without_values_shows_none() -> None:
    def storm(kind: str, *values: str) -> str:
        pairs = pairwise(values or [""] * 4)
        notes = [
            Compile(i, 0, "forward", kind, "", 3, before=before, now=now)
            for i, (before, now) in enumerate(pairs)
        ]
        return storms(notes)[0].partition("because ")[2].partition(";")[0]

    assert storm("aliasing") == "the way in which arrays are shared or overwritten changes"
    assert storm("shape", "a", "b", "c", "d") == "the shape changes (a, b, c, d)"
    assert storm("shape", *"abcdef") == "the shape changes (a, b, c, d, e, ...)"


def test_a_hash_collision_of_pytorch_xla_gives_right_values() -> None:
    """pytorch/xla issue 8353: f1 and f2 differ in their leaves only; f2 came out wrong there.

    Here they are one program, whose leaves are numbered in the order of their use.
    """
    with open_session(Settings(mode="lazy")) as session:
        a, b, c = (torch.randn(4, 4) for _ in range(3))
        x, y, z = a.to("kit"), b.to("kit"), c.to("kit")
        first = (x.T, y.T, z.T, x * y + z)
        torch.testing.assert_close(first[3].cpu(), a * b + c)
        second = (x.T, y.T, z.T, x * z + y)
        torch.testing.assert_close(second[3].cpu(), a * c + b)
        assert len(session.compiles) == 1


def test_looking_at_a_pending_tensor_runs_nothing() -> None:
    from IPython.lib.pretty import pretty

    with open_session(Settings(mode="lazy")) as session:
        x = ones(4) * 2.5
        looks = [repr(x), pretty(x), f"{x!r}", x.shape, x.dtype, x.device, type(x), len(x), x.ndim]
        looks += [getattr(x, "_repr_html_", None), getattr(x, "_repr_mimebundle_", None), dir(x)]
        looks += [x.is_contiguous(), x.numel(), x.stride(), x.requires_grad, hash(x), id(x)]
        assert "shape=[4]" in looks[0]
        metrics = session.metrics()
        assert not {"compile.count", "sync.count"} & {k for k, v in metrics.items() if v}
        assert "2.5" in str(x)
        (sync,) = session.syncs
        assert sync.cause == "print"


def test_a_graph_that_grows_without_bound_is_cut_by_bytes() -> None:
    with open_session(Settings(mode="lazy")) as session:
        session.policy.max_pending_bytes = 1000
        kept = [ones(64)]
        x = kept[0]
        for i in range(1200):
            x = x + 1.5
            if i % 100 == 0:
                kept.append(x)
        assert x[0].item() == 1 + 1.5 * 1200
        assert session.metrics()["cut.bytes"] >= 1


def test_the_metrics_report_has_pytorch_xlas_names() -> None:
    session = session_of(lambda i: (ones(4) + 1, torch.bincount(ones(3).long())), 2)
    text = session.metrics_report()
    for name in ("CompileTime", "ExecuteTime", "OutboundData", "InboundData",
                 "UncachedCompile", "CachedCompile", "aten::bincount"):  # fmt: skip
        assert name in text
    assert text.count("a step") == 5
    assert "a step" not in session_of(lambda i: None, 0).metrics_report()


def test_a_constant_that_becomes_an_input_is_said_to() -> None:
    fixed, fed = (((HOLE, 1.0), {}), ((HOLE, HOLE), {"alpha": 2}))
    assert reasons._constant(fixed, fed) == ("1.0", "an input")
    assert reasons._constant(fixed, ((HOLE, 1.0), {"alpha": 2})) == ("nothing", "2")
    assert reasons._constant(fixed, fixed) is None


def test_inputs_are_not_compared_by_their_place_where_one_program_has_another_number_of_them() -> (
    None
):
    """What the builder makes is in the first step's program, and an input of the next one's."""
    weight = torch.randn(4, 4)

    def step(session: Any, x: Any, w: Any) -> None:
        (x @ w).relu().sum().item()
        session.mark_step()

    with open_session(Settings(mode="lazy")) as session:
        w = weight.to("kit")
        w.sum().item()
        x = torch.ones(2, 4, device="kit") * 1.5
        step(session, x, w)
        step(session, x, w)
    said = session.compiles[-1].sentence
    assert "the shape of input" not in said
    assert "became" in said
