"""`lab`: a private JupyterLab. `browser`: a Chromium page that is held to this machine.

One server serves all tests of a process, and one Chromium those of a file, with one page for all
that use JupyterLab: to start and load them took more of the processor than most tests. Each test
has a folder and kernels of its own, and a browser profile where it does not use JupyterLab.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest
from playwright.sync_api import Browser as Process
from playwright.sync_api import Page

from tests.browser.labserver import (
    Browser,
    Lab,
    Opener,
    open_page,
    start_chromium,
    start_lab,
)
from tests.warm import warm_kernel


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The one JupyterLab; notebooks of the kit run in it as in the other tests of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIT_FAST", "1")
        patch.setenv("JUPYTER_PATH", warm_kernel(tmp_path_factory.mktemp("kernels")))
        with start_lab(tmp_path_factory.mktemp("lab")) as running:
            yield running


@pytest.fixture
def lab(jupyter: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """JupyterLab over `lab.root`, an empty folder: write a notebook there, then open it."""
    yield jupyter.within(re.sub(r"\W", "_", request.node.name))
    jupyter.end_kernels()


@pytest.fixture(scope="module")
def chrome() -> Iterator[Process]:
    """The one Chromium of a file."""
    with start_chromium() as process:
        yield process


@pytest.fixture(scope="module")
def lab_page(chrome: Process) -> Iterator[Browser]:
    """The page in which the tests of a file use JupyterLab, one after the other."""
    with open_page(chrome) as opened:
        yield opened


@pytest.fixture
def opening(chrome: Process, request: pytest.FixtureRequest) -> Opener:
    """Opens a page: `with opening(offline=True, width=700) as browser: ...`."""
    if "lab" not in request.fixturenames:
        return partial(open_page, chrome)
    shared: Browser = request.getfixturevalue("lab_page")

    def opened(*, offline: bool = False, **size: int) -> AbstractContextManager[Browser]:
        return open_page(chrome, offline=True, **size) if offline else shared.used(**size)

    return opened


@pytest.fixture
def browser(opening: Opener) -> Iterator[Browser]:
    """One page in headless Chromium; `outside` and `errors()` tell what went wrong in it."""
    with opening() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser) -> Page:
    """The page of `browser`."""
    return browser.page


@pytest.fixture
def offline(opening: Opener) -> Iterator[Browser]:
    """The same with the network off: for files opened from `file://`."""
    with opening(offline=True) as opened:
        yield opened
