"""Several runs on one time axis: where their parts stand, and that each keeps its own names."""

from __future__ import annotations

from dataclasses import replace

from kit.widgets.timeline.payload import timeline_payload
from tests.factories import make_run
from tests.widgets.timeline.test_columns import _timeline, drawn


def test_a_second_run_lies_below_and_their_first_steps_begin_together():
    early = _timeline(
        ("host/main", "prepare", "plan", 0, 70),
        ("host/main", "x", "plan", 100, 150),
        ("host/main", "step", "step", 100, 200),
    )
    late = _timeline(("host/main", "step", "step", 0, 50), ("host/main", "y", "plan", 0, 10))
    payload = timeline_payload(early, below=late, outline=late)
    assert payload["steps"]["start"].tolist() == [100, 100, 100]
    assert payload["parts"]["outline"] == [False, True, False]
    tops = payload["lanes"]["top"].tolist()
    assert tops == sorted(tops)
    assert payload["lanes"]["part"].tolist() == [0, 1, 2]
    assert [(a, b) for _, a, b, _ in drawn(payload)] == [
        (0, 70),
        (100, 150),
        (100, 110),
        (100, 110),
    ]
    lane = [payload["lanes"]["part"][x] for x in payload["rows"]["lane"]]
    assert lane == payload["rows"]["part"].tolist()
    names = [payload["keys"]["name"][k] for *_, k in drawn(payload)]
    assert names == ["prepare", "x", "y", "y"]


def test_each_half_is_called_by_its_runs_label():
    run = make_run()
    before, after = (replace(run, label=label) for label in ("before", "after"))
    shown = timeline_payload(before, below=after, outline=run)["parts"]["label"]
    assert shown == [
        "before  ·  synthetic  ·  bulked  ·  profiled",
        "predicted  ·  bulked  ·  profiled",
        "after  ·  synthetic  ·  bulked  ·  profiled",
    ]


def test_a_second_run_with_very_many_names_keeps_its_own():
    many = 40_000  # twice as many do not fit into 16 bits
    first, second = (
        _timeline(*(("device/0 a", f"{x}{i}", "kernel", i * 10, i * 10 + 4) for i in range(many)))
        for x in "ab"
    )
    payload = timeline_payload(first, below=second)
    names, key = payload["keys"]["name"], payload["spans"]["key"]
    assert [names[k] for k in key[[0, many - 1, many, -1]]] == [
        "a0", f"a{many - 1}", "b0", f"b{many - 1}"
    ]  # fmt: skip
