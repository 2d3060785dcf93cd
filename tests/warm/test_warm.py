"""A warm process is as one that Python starts, but for what is loaded and who its parent is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import warm_python

ASK = """
import json, os, signal, sys, warnings
if sys.argv[1] == "end":
    os.write(1, b"here")
    os.kill(os.getpid(), signal.SIGTERM)
kit = [name for name in sys.modules if name.partition(".")[0] in ("kit", "tests")]
print(json.dumps([
    kit, __name__, sys.argv, sys.path, os.getcwd(), os.environ["MINE"], sys.stdin.read(),
    sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stderr.errors,
    warnings.filters[0][0], signal.getsignal(signal.SIGINT) is signal.default_int_handler,
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
        environment = {**os.environ, "PYTHONPATH": "/nowhere", "MINE": "ä"}
        plain, warm = (
            subprocess.run(
                [python, "-W", "error", *ways[by], "one"], cwd=tmp_path, env=environment,
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


def test_what_is_read_before_a_process_begins_is_refused() -> None:
    other = {**os.environ, "OMP_NUM_THREADS": "7"}
    command = [warm_python(), "-c", "pass"]
    asked = subprocess.run(command, env=other, capture_output=True, text=True)
    assert asked.returncode == 1
    assert asked.stderr == "OMP_NUM_THREADS: read before; start sys.executable instead\n"
