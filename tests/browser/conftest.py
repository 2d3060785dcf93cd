"""`lab`: a private JupyterLab. `browser`: a Chromium page that is held to this machine.

One server and one Chromium serve all tests of this folder, with one page for all that use
JupyterLab: to start and load them took more of the processor than most tests. Each test has a
folder and kernels of its own, and a browser profile where it does not use JupyterLab. A test that
fails may leave a dialog or another theme behind: the next one begins with all of them new.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property, partial

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

FAILED = pytest.StashKey[bool]()


class Shared:
    """What the tests share, each part started by the first that asks for it."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._started = ExitStack()

    @cached_property
    def chrome(self) -> Process:
        return self._started.enter_context(start_chromium())

    @cached_property
    def page(self) -> Browser:
        """Where JupyterLab is used, by one test after the other."""
        return self._started.enter_context(open_page(self.chrome))

    @cached_property
    def lab(self) -> Lab:
        """Notebooks of the kit run in it as in the other tests of them."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KIT_FAST", "1")
            patch.setenv("JUPYTER_PATH", warm_kernel(self._folders.mktemp("kernels")))
            return self._started.enter_context(start_lab(self._folders.mktemp("lab")))

    def end(self) -> None:
        for part in ("chrome", "page", "lab"):
            vars(self).pop(part, None)  # also where one that has crashed cannot be closed
        self._started.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep for `shared` whether a test has failed."""
    report = yield
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    return report


@pytest.fixture(scope="package")
def _shared_by_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    shared = Shared(tmp_path_factory)
    yield shared
    shared.end()


@pytest.fixture
def shared(_shared_by_all: Shared, request: pytest.FixtureRequest) -> Iterator[Shared]:
    """What the tests share; after one that failed all of it ends."""
    yield _shared_by_all
    if request.node.stash[FAILED]:
        _shared_by_all.end()


@pytest.fixture
def lab(shared: Shared, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """JupyterLab over `lab.root`, an empty folder: write a notebook there, then open it."""
    yield shared.lab.within(re.sub(r"\W", "_", request.node.name))
    shared.lab.end_kernels()


@pytest.fixture
def chrome(shared: Shared) -> Process:
    """The one Chromium."""
    return shared.chrome


@pytest.fixture
def opening(shared: Shared, chrome: Process, request: pytest.FixtureRequest) -> Opener:
    """Opens a page: `with opening(offline=True, width=700) as browser: ...`."""
    if "lab" not in request.fixturenames:
        return partial(open_page, chrome)

    def opened(*, offline: bool = False, **size: int) -> AbstractContextManager[Browser]:
        return open_page(chrome, offline=True, **size) if offline else shared.page.used(**size)

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
