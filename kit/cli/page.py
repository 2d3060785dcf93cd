"""`kit open`: a page of runs, served on this machine's own address until Ctrl-C."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import webbrowser
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kit.cli.lab import is_headless
from kit.cli.terminal import INTERRUPTED

__all__ = ["serve"]

_GO = """<!doctype html><meta charset="utf-8"><title>overlap-kit</title>
<meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0;url={url}">
<a href="{url}">the page</a>
"""


def serve(page: Path, port: int, browser: bool, tell: Callable[[str], None]) -> int:
    """Answer requests for one page, whose address holds a random token, until Ctrl-C: status 130.

    Args:
        page: its file, read once.
        port: 0: one that is free.
        browser: open one, if there is a screen.
        tell: takes a line for the user.

    Raises:
        OSError: the port is taken.
    """
    path = f"/{secrets.token_urlsafe(24)}/"
    body = page.read_bytes()

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # seconds for a request that does not come

        def handle(self) -> None:
            """Requests of one connection; a browser that was closed or reloads ends it early."""
            with contextlib.suppress(ConnectionError):
                super().handle()

        def do_GET(self) -> None:
            """The page; nothing else is there, and the token is not guessed letter by letter."""
            if not secrets.compare_digest(self.path.encode(), path.encode()):
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A request is no news."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        url = f"http://127.0.0.1:{server.server_port}{path}"
        tell(f"{url}\nCtrl-C ends it")
        with tempfile.TemporaryDirectory(prefix="kit-open-", ignore_cleanup_errors=True) as folder:
            if browser and not is_headless():
                # A file that only its owner reads: arguments of programs are seen by everybody.
                go = Path(folder) / "go.html"
                go.write_text(_GO.format(url=url), encoding="utf-8")
                webbrowser.open(go.as_uri())
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                tell("closed")
    return INTERRUPTED
