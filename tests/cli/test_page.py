"""`kit open` serves one page, to who knows its address, on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kit.cli.main import main
from tests.factories import make_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`kit open` in a process, and the address that it printed."""
    file = tmp_path_factory.mktemp("open") / "a.kitrun"
    make_run().save(file)
    command = [sys.executable, "-m", "kit", "open", str(file), "--no-browser"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_the_page_is_at_an_address_that_cannot_be_guessed(opened):
    _, url = opened
    parts = urlsplit(url)
    assert parts.hostname == "127.0.0.1"
    assert len(parts.path) > 30
    with urllib.request.urlopen(url) as answer:
        page = answer.read().decode()
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
    assert "<title>" in page
    assert "default-src 'none'" in page


@pytest.mark.parametrize("path", ["/", "/favicon.ico", "/../a.kitrun", "/%2e%2e/", "/é"])
def test_nothing_else_is_there(opened, path: str):
    parts = urlsplit(opened[1])
    other = f"http://{parts.netloc}{urllib.request.quote(path, safe='/%.')}"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(other)


def test_a_browser_that_goes_away_in_the_midst_is_no_error(opened):
    with socket.create_connection(("127.0.0.1", urlsplit(opened[1]).port)) as lost:
        lost.sendall(b"GET / HT")
        lost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    with urllib.request.urlopen(opened[1]) as answer:  # and the next is served; see stderr below
        assert answer.status == 200


@pytest.mark.parametrize("port", ["65536", "-1", "9" * 5000, "x", "²"])
def test_a_port_that_cannot_be_is_an_error_of_the_command_line(port: str, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["open", "a.kitrun", f"--port={port}"])
    assert ended.value.code == 2
    assert "a port is a number from 0 to 65535" in capsys.readouterr().err


def test_ctrl_c_is_how_it_ends(opened):
    process, _ = opened
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert out.splitlines()[-1] == "closed"


@pytest.mark.skipif(sys.platform == "win32", reason="there a process is ended without a word")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_terminal_that_is_closed_leaves_no_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each page that was open then stayed in the folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make_run().save(tmp_path / "a.kitrun")
    number = getattr(signal, name)
    monkeypatch.setattr("kit.cli.view.say_now", lambda text: os.kill(os.getpid(), number))
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["open", str(tmp_path / "a.kitrun"), "--no-browser"])
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert ended.value.code == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["a.kitrun"]


def test_a_file_that_is_no_run_is_one_line(tmp_path: Path):
    (tmp_path / "x.json").write_text("{")
    command = [sys.executable, "-m", "kit", "open", str(tmp_path / "x.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
