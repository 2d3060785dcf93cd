"""A notebook as a page: every view is there without a kernel and without a network."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from traitlets.config import Config

from tests.browser.labserver import CANVASES, Browser
from tests.warm import warm_kernel

pytestmark = pytest.mark.browser

CELLS = (
    "import kit\nfrom tests.factories import make_run\nrun = make_run()",
    "kit.TimelineView(run)",
    "kit.GraphView(run)",
    "from kit.widgets.explorer.view import Explorer\n"
    "explorer = Explorer(lambda s, *, progress, cancelled: run)\nexplorer.wait()\nexplorer",
    "kit.SourceView(run)",
)


def test_an_executed_notebook_converted_to_html_shows_its_views(
    offline: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JUPYTER_PATH", warm_kernel(tmp_path))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    # JupyterLab keeps no widget state in a file, either, unless it is told to
    NotebookClient(notebook, timeout=120, store_widget_state=False).execute()
    config = Config({"HTMLExporter": {"mathjax_url": "", "require_js_url": ""}})
    page, _ = HTMLExporter(config=config).from_notebook_node(notebook)
    path = tmp_path / "notebook.html"
    path.write_text(page, encoding="utf-8")

    offline.page.goto(path.as_uri())
    frames = offline.page.locator("iframe[srcdoc]")
    assert frames.count() == 3
    for i in range(3):
        frames.nth(i).scroll_into_view_if_needed()
        inner = frames.nth(i).element_handle().content_frame()
        assert inner is not None
        inner.wait_for_function(f"() => ({CANVASES})() > 0")
        assert frames.nth(i).bounding_box()["height"] > 150  # type: ignore[index]
    assert "sync point" in offline.page.locator("body").inner_text()  # of the source view
    assert [line for line in offline.errors() if "srcdoc" in line] == []
