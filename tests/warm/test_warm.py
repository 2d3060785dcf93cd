"""A warm process is as one that Python starts, but for what is loaded and who its parent is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.warm import SERVER, warm_python

FOLDER = Path(__file__).parent
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="each Python starts as usual")

ASK = """
import json, os, signal, sys, tempfile, warnings
if sys.argv[1] == "end":
    os.write(1, b"here")
    os.kill(os.getpid(), signal.SIGTERM)
kit = [name for name in sys.modules if name.partition(".")[0] in ("kit", "tests")]
print(json.dumps([
    kit, __name__, sys.argv, sys.path, os.getcwd(), os.environ["MINE"], sys.stdin.read(),
    sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stderr.errors,
    warnings.filters[0][0], sys.warnoptions, tempfile.gettempdir(),
    signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    signal.getsignal(signal.SIGCHLD), os.get_inheritable(FILE), globals().get("__file__")]))
print("wrong", file=sys.stderr)
sys.exit(3)
"""

WAIT = """
import os, time
try:
    print(os.getpid(), flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    os._exit(130)
"""


@pytest.mark.parametrize("by", ["code", "module", "script"])
def test_a_warm_process_is_as_one_of_python(by: str, tmp_path: Path) -> None:
    with open(os.devnull) as file:
        os.set_inheritable(file.fileno(), True)
        code = ASK.replace("FILE", str(file.fileno()))
        (tmp_path / "asked.py").write_text(code, "utf-8")
        ways = {"code": ["-c", code], "module": ["-m", "asked"], "script": ["asked.py"]}
        environment = {**os.environ, "PYTHONPATH": "/nowhere", "MINE": "ä", "TMPDIR": str(tmp_path)}
        plain, warm = (
            subprocess.run(
                [python, "-Wignore", "-W", "error", *ways[by], "one"],
                cwd=tmp_path, env=environment,
                input="given", capture_output=True, encoding="utf-8", close_fds=False, check=False,
            )
            for python in (sys.executable, warm_python())
        )  # fmt: skip
    assert (plain.returncode, plain.stderr) == (warm.returncode, warm.stderr) == (3, "wrong\n")
    assert json.loads(warm.stdout) == json.loads(plain.stdout)
    assert json.loads(warm.stdout)[0] == []


def test_a_signal_to_a_warm_process_or_from_it_is_its_end() -> None:
    ended = subprocess.run([warm_python(), "-c", ASK, "end"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "here")
    for number, expected in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        with subprocess.Popen([warm_python(), "-c", WAIT], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(number)
            assert process.wait(60) == expected
            assert process.stdout.read() == b""  # until nobody has it open


@only_linux
def test_what_is_read_before_a_process_begins_is_refused() -> None:
    for name, value in (("OMP_NUM_THREADS", "7"), ("LC_PAPER", "none"), ("TORCH_LOGS", "dynamo")):
        command = [warm_python(), "-c", "pass"]
        other = {**os.environ, name: value}
        asked = subprocess.run(command, env=other, capture_output=True, text=True)
        assert asked.returncode == 1
        assert asked.stderr == f"{name}: read before; start sys.executable instead\n"


@only_linux
def test_a_server_ends_with_its_run_though_that_is_killed(tmp_path: Path) -> None:
    """Each run that was killed left one, with torch and jax in its memory."""
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import server; server.next_client"
    with subprocess.Popen(["sleep", "600"]) as run:
        command = [sys.executable, "-c", f"{code}({str(tmp_path / 'warm')!r}, {run.pid})"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            try:
                assert server.wait(60) == 0
                assert (tmp_path / "warm").exists()
            finally:
                run.kill()
            assert server.communicate(timeout=60) == (b"", None)  # until nobody has it open


@only_linux
def test_each_test_is_told_why_there_is_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the first one waited ten minutes."""
    (tmp_path / "server.py").write_text("raise SystemExit('no torch here')", "utf-8")
    monkeypatch.setattr(warm, "_HERE", tmp_path)
    monkeypatch.setenv(SERVER, str(tmp_path / "warm"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no torch here"):
            warm_python.__wrapped__()
