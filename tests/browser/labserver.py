"""A private JupyterLab on 127.0.0.1, and a Chromium that can reach nothing else.

Every Jupyter directory is a throw-away one, so no configuration, workspace or dialog of the person
who runs the tests can change them. Chromium finds no other host; who is asked is written down.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser as Process
from playwright.sync_api import ConsoleMessage, Error, Locator, Page, Request, sync_playwright

from kit.runtime.profiling.heap import ONE_HEAP

__all__ = [
    "Browser",
    "Lab",
    "Opener",
    "chromium",
    "open_browser",
    "open_page",
    "start_chromium",
    "start_lab",
]

CHROMIUM_ARGS = (
    "--no-sandbox",  # Chromium refuses its sandbox to root, which CI is
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no other host can be reached
)
LOCAL = ("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "file:", "about:")
NEWS = "@jupyterlab/apputils-extension:announcements"  # its toast would cover the plots

RUN_ALL = """async (path) => {
  const app = window.jupyterapp;
  await app.restored;
  const panel = await app.commands.execute('docmanager:open', {path, factory: 'Notebook'});
  await panel.context.ready;
  await panel.sessionContext.ready;
  await app.commands.execute('notebook:run-all-cells');
  return panel.content.widgets.length;
}"""

# Text of every error output of the open notebook: empty when each cell ran.
ERRORS = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  const cells = panel.context.model.toJSON().cells;
  return cells.flatMap(c => c.outputs || []).filter(o => o.output_type === 'error')
              .map(o => `${o.ename}: ${o.evalue}`);
}"""

# Without a question whether to save: closes all documents, and forgets what bokeh knows of them.
CLOSE_ALL = """() => {
  for (const one of [...(window.jupyterapp?.shell.widgets('main') ?? [])]) one.dispose();
  window.Bokeh?.documents.splice(0);
}"""
AXE = Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"
# Of each serious finding: the rule, and the element with what is wrong with it.
BARRIERS = """async (within) => (await axe.run(within, {resultTypes: ["violations"]})).violations
  .filter(found => ["serious", "critical"].includes(found.impact))
  .flatMap(found => found.nodes.map(
    node => `${found.id}: ${node.html.slice(0, 160)}: ${node.failureSummary}`))"""
# Canvases with at least one pixel drawn, those inside bokeh's shadow roots included.
CANVASES = """() => {
  const drawn = (c) => {
    if (!c.width || !c.height) return false;
    const context = c.getContext('2d');
    if (!context) return true;  // a WebGL canvas
    return context.getImageData(0, 0, c.width, c.height).data.some(v => v !== 0);
  };
  const walk = (root) => {
    let n = 0;
    for (const e of root.querySelectorAll('*')) {
      if (e.tagName === 'CANVAS' && drawn(e)) n += 1;
      if (e.shadowRoot) n += walk(e.shadowRoot);
    }
    return n;
  };
  return walk(document);
}"""


def chromium() -> str:
    """Path of a Chromium: $CHROMIUM, or the first one on the PATH.

    The headless shell, as Playwright has it, draws no window and takes two thirds of the processor.
    """
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome",
             "google-chrome-stable")  # fmt: skip
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise RuntimeError(
            "the browser tests need Chromium. Install it (Debian: sudo apt-get install "
            "chromium-headless-shell), or name one: CHROMIUM=/path/to/chromium make test"
        )
    return found


@dataclass
class Browser:
    """One page, what it asked of other hosts, and what it said on the console."""

    page: Page
    outside: list[str] = field(default_factory=list)  # URLs of other hosts, which it cannot find
    console: list[str] = field(default_factory=list)  # "error: ...", "warning: ...", "log: ..."

    @contextlib.contextmanager
    def used(self, *, width: int = 1400, height: int = 1000) -> Iterator[Browser]:
        """Be as a new page of JupyterLab is, and close in the end what was opened."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.set_default_timeout(30_000)  # Playwright's own
        self.outside.clear()
        self.console.clear()
        try:
            yield self
        finally:
            try:
                self.page.evaluate(CLOSE_ALL)
            except Error:  # the next one loads it anew
                self.page.goto("about:blank")

    def errors(self) -> list[str]:
        """Console errors and uncaught exceptions; JupyterLab 4.6 by itself makes none."""
        return [line for line in self.console if line.startswith(("error: ", "pageerror: "))]

    def canvases(self) -> int:
        """How many canvases have something drawn on them."""
        return int(self.page.evaluate(CANVASES))

    def wait_for_canvases(self, least: int = 1, *, seconds: float = 60) -> int:
        """Wait until `least` canvases are drawn, and say how many there are."""
        end = time.monotonic() + seconds
        while (n := self.canvases()) < least:
            if time.monotonic() > end:
                raise AssertionError(f"{n} canvases drawn after {seconds} s, expected {least}")
            self.page.wait_for_timeout(200)
        return n

    def click_until(self, click: Callable[[], object], said: Locator) -> None:
        """Click, and again if nothing is said: JupyterLab may draw its outputs anew meanwhile."""
        for _ in range(10):
            with contextlib.suppress(Error):
                click()
                said.wait_for(timeout=3000)
                break
        said.wait_for()

    def barriers(self, within: str = "html") -> list[str]:
        """What keeps people with a keyboard, a screen reader or weak eyes out, as axe-core finds.

        `make check` installs axe-core, by npm.
        """
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found: list[str] = self.page.evaluate(BARRIERS, within)
        return found


Opener = Callable[..., contextlib.AbstractContextManager[Browser]]  # `open_page` in one Chromium


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab, and one folder of it, `root`."""

    url: str
    root: Path
    log: Path
    folder: str = ""  # of `root`, as JupyterLab calls it

    def within(self, folder: str) -> Lab:
        """The same server with a new, empty folder below this one."""
        (self.root / folder).mkdir()
        return replace(self, root=self.root / folder, folder=f"{self.folder}{folder}/")

    def open_and_run(self, browser: Browser, notebook: str, *, seconds: float = 120) -> list[str]:
        """Open a notebook of `root`, run all its cells, and give back the errors they raised."""
        page = browser.page
        page.set_default_timeout(seconds * 1000)
        if not page.evaluate("'jupyterapp' in window"):
            page.goto(f"{self.url}/lab?reset", wait_until="domcontentloaded")
            page.wait_for_function("window.jupyterapp && window.jupyterapp.restored")
        page.evaluate(RUN_ALL, f"{self.folder}{notebook}")
        return list(page.evaluate(ERRORS))

    def open_again(self, browser: Browser, notebook: str) -> None:
        """Open a notebook of `root` in a page that is loaded anew, and run nothing."""
        page = browser.page
        page.goto(
            f"{self.url}/lab/tree/{self.folder}{notebook}?reset", wait_until="domcontentloaded"
        )
        page.wait_for_function("window.jupyterapp && window.jupyterapp.restored")

    def save(self, browser: Browser) -> None:
        """Save the open notebook, as a person would."""
        browser.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    def end_kernels(self) -> None:
        """End all kernels of the server: nothing of one test runs beside the next."""
        with urllib.request.urlopen(f"{self.url}/api/kernels", timeout=30) as answer:
            kernels = json.load(answer)
        for kernel in kernels:
            gone = urllib.request.Request(f"{self.url}/api/kernels/{kernel['id']}", method="DELETE")
            with contextlib.suppress(urllib.error.HTTPError):  # it has ended by itself
                urllib.request.urlopen(gone, timeout=30).close()


@contextlib.contextmanager
def start_lab(base: Path) -> Iterator[Lab]:
    """JupyterLab on a free port, its files in `base/files`, everything else beside them."""
    root, log = base / "files", base / "lab.log"
    root.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as out:
        server = subprocess.Popen(
            _command(root, port),
            cwd=root,
            env=_private_environment(base),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_up(server, url, log)
            yield Lab(url, root, log)
        finally:
            _stop(server)


@contextlib.contextmanager
def start_chromium() -> Iterator[Process]:
    """A headless Chromium without a page. Only one at a time: Playwright takes the event loop."""
    with sync_playwright() as playwright:
        process = playwright.chromium.launch(executable_path=chromium(), args=[*CHROMIUM_ARGS])
        try:
            yield process
        finally:
            process.close()


@contextlib.contextmanager
def open_page(
    process: Process, *, offline: bool = False, width: int = 1400, height: int = 1000
) -> Iterator[Browser]:
    """An empty page with a profile of its own; `offline` cuts even the loopback network."""
    context = process.new_context(
        viewport={"width": width, "height": height}, accept_downloads=True
    )
    context.set_offline(offline)
    browser = Browser(context.new_page())

    def keep_outside(request: Request) -> None:
        if not request.url.startswith(LOCAL):
            browser.outside.append(request.url)

    def keep_message(message: ConsoleMessage) -> None:
        browser.console.append(f"{message.type}: {message.text} ({message.location['url']})")

    def keep_exception(error: Error) -> None:
        browser.console.append(f"pageerror: {error}")

    context.on("request", keep_outside)
    browser.page.on("console", keep_message)
    browser.page.on("pageerror", keep_exception)
    try:
        yield browser
    finally:
        context.close()


@contextlib.contextmanager
def open_browser(**options: Any) -> Iterator[Browser]:
    """A Chromium of its own with one page, as `open_page` opens it."""
    with start_chromium() as process, open_page(process, **options) as browser:
        yield browser


def _command(root: Path, port: int) -> list[str]:
    return [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--ServerApp.root_dir={root}",
        "--IdentityProvider.token=",  # bound to loopback, on a port that lives as long as the tests
        "--ServerApp.disable_check_xsrf=True", "--ServerApp.allow_root=True",
        "--LabApp.expose_app_in_browser=True",  # window.jupyterapp
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]  # fmt: skip


def _private_environment(base: Path) -> dict[str, str]:
    places = {
        "HOME": base / "home",
        "JUPYTER_CONFIG_DIR": base / "config",
        "JUPYTER_DATA_DIR": base / "data",
        "JUPYTER_RUNTIME_DIR": base / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": base / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": base / "workspaces",
        "IPYTHONDIR": base / "ipython",
    }
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    labconfig = base / "config" / "labconfig"
    labconfig.mkdir(exist_ok=True)
    page = {"disabledExtensions": {NEWS: True}, "buildCheck": False}  # which asks node and npm
    (labconfig / "page_config.json").write_text(json.dumps(page))
    here = Path(__file__).parents[2]
    return {
        **os.environ,
        **{name: str(place) for name, place in places.items()},
        "JUPYTER_PLATFORM_DIRS": "1",
        "JUPYTER_PREFER_ENV_PATH": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        **ONE_HEAP,  # as `kit lab` does
        "PYTHONPATH": os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")])),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(server: subprocess.Popen[Any], url: str, log: Path) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended with {server.returncode}:\n{_tail(log)}")
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{url}/api/status", timeout=2) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise TimeoutError(f"JupyterLab did not come up within 90 s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])


def _stop(server: subprocess.Popen[Any]) -> None:
    """End the server and its kernels: our own process group, and nothing else."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(15)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(15)
