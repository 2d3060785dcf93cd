"""What a notebook keeps of its views: the last run of each, BokehJS once, no progress bar."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.warm import warm_kernel

pytestmark = pytest.mark.notebook
ROOT = Path(__file__).parents[3]
DEFINES_BOKEHJS = "window.kitBokehJS"

EXPLORER = """
import kit
from dataclasses import replace
from kit.runs.settings import Settings
from kit.widgets.explorer.view import Explorer
from tests.factories import make_run

def step(settings, *, progress, cancelled):
    return replace(make_run(settings), name=f"batch {settings.batch_size}")

explorer = Explorer(step, Settings(batch_size=3), auto_run=False)
explorer
"""
MOVE = "for size in (4, 5, 6):\n    explorer.set(batch_size=size)\n    explorer.wait(60)"
TIMELINE = """
view = kit.TimelineView(make_run())
view
"""
COMPILES = """
from types import SimpleNamespace
from kit.runs.compiles import Compile
source = SimpleNamespace(compiles=[])
compiles = kit.CompileView(source)
compiles
"""
COMPILED = """
source.compiles = [Compile(0, 0, "forward", "first", "nothing like it", 3, site="train.py:41")]
compiles.refresh()
"""
DIFF = """
diffs = kit.RunDiffView(kit.diff_runs(make_run(), make_run(seed=1)))
diffs
"""
DIFFED = "diffs.diff = kit.diff_runs(make_run(), make_run(Settings(batch_size=3)))"
WHAT_IF = """
what_if = kit.WhatIfView(make_run())
what_if
"""
ASKED = "what_if.speed.value = 4.0"
PLAN = """
from kit.ir.plan import OpStream
plan = kit.PlanView(OpStream(make_run().graphs[0], frozenset(range(9))))
plan
"""
PLANNED = "plan.forward.value = 1"
PARALLEL = """
from kit.runs.gradients import Backward
parallel = kit.ParallelView(Backward(8, ((4, 1_000_000),), 1e5, 1e5))
parallel
"""
TRAVELLED = "parallel.latency.value = 1000.0"
OUTLINED = """
view.below = replace(make_run(seed=7), name="the run below")
"""
# Each move restarts the wait for the next one; only a change of the last cell is stored at its end.
DRAGGED = """
import asyncio
published = []
what_if._publish_stored = lambda update: published.append(what_if.host_speed.value)
async def drag():
    for value in (0.5, 1.0, 2.0):
        what_if.host_speed.value = value
        await asyncio.sleep(0.05)
dragging = asyncio.get_running_loop().create_task(drag())
"""
RESTED = """
for _ in range(200):
    await asyncio.sleep(0.05)
    if 2.0 in published: break
del what_if._publish_stored
published
"""
SHOWN = """
gone = Explorer(step, Settings(batch_size=3))
display(gone)
gone.wait(60)
"""
PROGRESS = """
from kit.widgets.base.progress import progress_bar
with progress_bar("sweep") as report:
    report("run 1 of 3", 0.3)
"""
FAILED = """
try:
    with progress_bar("sweep") as report:
        report("run 1 of 3", 0.3)
        raise MemoryError("no room")
except MemoryError:
    pass
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The outputs of each cell after all have run."""
    cells = {"explorer": EXPLORER, "move": MOVE, "timeline": TIMELINE, "comparison":
             "kit.compare([make_run(hostile=True), make_run(Settings(mode='lazy'))])",
             "compiles": COMPILES, "compiled": COMPILED, "diff": DIFF,
             "diffed": DIFFED, "what if": WHAT_IF, "asked": ASKED, "plan": PLAN,
             "planned": PLANNED, "parallel": PARALLEL, "travelled": TRAVELLED,
             "outlined": OUTLINED, "dragged": DRAGGED, "rested": RESTED,
             "progress": PROGRESS, "failed": FAILED, "shown": SHOWN,
             "closed": "gone.close()", "after": "1"}  # fmt: skip
    book = new_notebook(cells=[new_code_cell(source) for source in cells.values()])
    folder = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(folder / name))
        patch.setenv("JUPYTER_PATH", warm_kernel(folder / "kernels"))
        patch.setenv("PYTHONPATH", str(ROOT))
        NotebookClient(book, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return {name: cell.outputs for name, cell in zip(cells, book.cells, strict=True)}


def stored(outputs: list[Any], mime: str = "text/html") -> str:
    """What the outputs of a cell are where there is neither kernel nor script."""
    return "".join(
        output.data[mime]
        for output in outputs
        if mime in output.data and "application/javascript" not in output.data
    )


def test_the_stored_page_of_an_explorer_is_of_its_last_run(outputs: dict[str, list[Any]]):
    text = stored(outputs["explorer"], "text/plain")
    assert text.startswith("Explorer(Run('batch 6'")
    page = unescape(stored(outputs["explorer"]))
    assert "no run yet" not in page
    assert "measured in" not in page  # of the controls, only what they are set to
    assert "<b>batch size: 6</b>" in page
    assert "step time" in page


def test_an_explorer_that_moves_keeps_its_live_widget(outputs: dict[str, list[Any]]):
    """An update of the output with the widget would draw it anew, and the focus would be lost."""
    live, page = outputs["explorer"][-2:]
    assert list(live.data) == ["text/plain", "application/vnd.jupyter.widget-view+json"]
    assert "application/vnd.jupyter.widget-view+json" not in page.data
    assert outputs["move"] == []


def test_bokehjs_is_stored_once(outputs: dict[str, list[Any]]):
    assert json.dumps(outputs).count(DEFINES_BOKEHJS) == json.dumps(outputs["explorer"]).count(
        DEFINES_BOKEHJS
    )
    scripts = [o for o in outputs["explorer"] if "application/javascript" in o.data]
    assert len(scripts) == 1
    others = [o for name, cell in outputs.items() if name not in ("explorer", "shown")
              for o in cell]  # fmt: skip
    assert all(len(json.dumps(output)) < 200_000 for output in others)
    for name in ("timeline", "comparison"):
        assert 'id="models"' in unescape(stored(outputs[name]))
        assert 'id="bokehjs"' not in unescape(stored(outputs[name]))


def test_a_comparison_is_a_page_beside_its_widget_and_no_error(outputs: dict[str, list[Any]]):
    assert not [o for o in outputs["comparison"] if o.output_type in ("error", "stream")]
    (page,) = (o.data for o in outputs["comparison"] if "text/html" in o.data)
    assert "application/vnd.jupyter.widget-view+json" not in page  # which alone would be shown
    assert "<iframe srcdoc=" in page["text/html"]
    assert "run" in page["text/plain"]
    assert "<script" not in page["text/html"]


def test_the_page_of_compiles_is_not_empty(outputs: dict[str, list[Any]]):
    page = stored(outputs["compiles"])
    assert "Nothing was compiled" not in page
    assert "train.py:41" in page


def test_the_page_of_a_diff_is_of_the_last_one(outputs: dict[str, list[Any]]):
    assert "batch_size" in stored(outputs["diff"])


@pytest.mark.parametrize(
    ("cell", "said"),
    [("what if", "device speed: 4 x"), ("plan", "bulk size, forward: 1"),
     ("parallel", "link: latency: 1000 µs")],
)  # fmt: skip
def test_the_page_of_a_view_is_of_the_last_move(
    outputs: dict[str, list[Any]], cell: str, said: str
):
    page = unescape(stored(outputs[cell]))
    assert f"<b>{said}</b>" in page


def test_a_view_is_stored_again_when_a_trait_of_its_own_changed(outputs: dict[str, list[Any]]):
    page = unescape(stored(outputs["timeline"]))
    [models] = re.findall(r'id="models">([^<]*)<', page)
    assert "the run below" in gzip.decompress(b64decode(models)).decode()


def test_many_moves_are_stored_once_when_they_rest(outputs: dict[str, list[Any]]):
    published = json.loads(stored(outputs["rested"], "text/plain"))
    assert published[-1] == 2.0
    assert len(published) < 3  # one, if the machine lets the drag go on without a rest


def test_no_progress_bar_is_left_as_text(outputs: dict[str, list[Any]]):
    assert stored(outputs["progress"], "text/plain") == ""
    failed = stored(outputs["failed"], "text/plain")
    assert re.fullmatch(r"sweep: MemoryError: no room \[after \d+ s\]", failed)
    texts = [stored(cell, "text/plain") for cell in outputs.values()]
    assert not [text for text in texts if "Box(" in text]


def test_a_view_that_is_closed_is_not_stored_and_says_nothing(outputs: dict[str, list[Any]]):
    assert [output.output_type for output in outputs["closed"]] == []
    assert [output.data["text/plain"] for output in outputs["after"]] == ["1"]
