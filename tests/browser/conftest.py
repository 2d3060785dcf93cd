"""`lab`: a private JupyterLab. `browser`: a Chromium page that is held to this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.labserver import Browser, Lab, open_browser, start_lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """JupyterLab over `lab.root`, an empty folder: write a notebook there, then open it."""
    with start_lab(tmp_path / "lab") as running:
        yield running


@pytest.fixture
def browser() -> Iterator[Browser]:
    """One page in headless Chromium; `outside` and `errors()` tell what went wrong in it."""
    with open_browser() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser) -> Page:
    """The page of `browser`."""
    return browser.page


@pytest.fixture
def offline() -> Iterator[Browser]:
    """The same with the network off: for files opened from `file://`."""
    with open_browser(offline=True) as opened:
        yield opened
