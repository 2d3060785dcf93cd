"""Ctrl-C at random times in the verbs that look at traces: one line, 130, and nothing left behind.

The long form: python -m tests.reliability.stops.verbs --megabytes 200 --count 10
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
ASK = "select name, total_ms from kernels"
# name -> what follows `kit`; {a} and {b} are traces, {out} the file that is written
VERBS = {
    "view": ["view", "{a}"],
    "open": ["open", "{a}", "--no-browser"],
    "query": ["query", "{a}", ASK],
    "diff": ["diff", "{a}", "{b}"],
    "report": ["report", "{a}", "{b}", "-o", "{out}"],
}
OLD = "what was there before"
PATIENCE_S = 600.0
Event = dict[str, object]


def write_trace(path: Path, megabytes: float, seed: int = 0) -> None:
    """A trace as torch.profiler writes it: ops of the host, each with a kernel, in steps."""
    chance = random.Random(seed)
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        number, at = 0, 0.0
        while file.tell() < megabytes * 1e6:
            length = chance.uniform(2, 20)
            name = f"aten::op_{chance.randrange(200)}"
            common: Event = {"ph": "X", "pid": 1, "args": {"correlation": number}}
            events: list[Event] = [
                {**common, "cat": "cpu_op", "name": name, "tid": 1, "ts": at, "dur": 5.0},
                {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1,
                 "ts": at + 1, "dur": 2.0},
                {**common, "cat": "kernel", "name": f"gpu_{name}", "pid": 0, "tid": 7,
                 "ts": at + 4, "dur": length},
            ]  # fmt: skip
            file.write(("," if number else "") + json.dumps(events)[1:-1])
            number, at = number + 1, at + length + 6
        file.write("]}")


def start(name: str, folder: Path) -> subprocess.Popen[str]:
    """The verb in a process group of its own, as a shell starts it, with a place for its files."""
    files = {"a": folder / "a.json", "b": folder / "b.json", "out": folder / "out.html"}
    files["out"].write_text(OLD)
    (folder / "temporary").mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(folder / "temporary"), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "kit", *(part.format(**files) for part in VERBS[name])],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def interrupt(name: str, folder: Path, after_s: float) -> str:
    """Ctrl-C in the verb after that time; gives what became of it.

    Raises:
        AssertionError: it said more than a line, or left something.
    """
    with start(name, folder) as running:
        time.sleep(after_s)
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGINT)  # as a terminal does: its children, too
        said, err = running.communicate(timeout=PATIENCE_S)
    what = f"kit {name}, Ctrl-C after {after_s:.3f} s: {running.returncode}\n{err}"
    left = [p.name for p in (folder / "temporary").iterdir()]
    assert not left, f"{what} left {left}"
    written = (folder / "out.html").read_text()
    assert written == OLD or written.endswith("</html>\n"), f"{what} cut its file off"
    assert {p.name for p in folder.iterdir()} == {"a.json", "b.json", "out.html", "temporary"}, what
    if not running.returncode or (name == "diff" and running.returncode == 1 and "FAILED" in said):
        return "ended"  # before
    if name.startswith("open") and said.endswith("closed\n"):
        assert (running.returncode, err) == (130, ""), what
        return "closed"  # it served its page, until Ctrl-C
    is_ours = "__main__.py" in err
    if running.returncode == -signal.SIGINT or ("KeyboardInterrupt" in err and not is_ours):
        return "not begun"  # Python was starting: no line of ours can catch that
    assert running.returncode == 130, what
    assert err.splitlines()[-1:] == ["kit: interrupted"], what
    assert "Traceback" not in err, what
    return "interrupted"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--count", type=int, default=10, help="interrupts in each verb")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_trace(folder / "a.json", given.megabytes)
        write_trace(folder / "b.json", given.megabytes, seed=1)
        for name in VERBS:
            begun = time.monotonic()
            with start(name, folder) as whole:
                if name == "open":
                    assert whole.stdout is not None
                    whole.stdout.readline()  # it serves
                    os.killpg(whole.pid, signal.SIGINT)
                whole.communicate(timeout=PATIENCE_S)
            takes = time.monotonic() - begun
            became = Counter(
                interrupt(name, folder, chance.uniform(0, takes)) for _ in range(given.count)
            )
            print(f"kit {name}, {takes:.1f} s: {dict(became)}", flush=True)


if __name__ == "__main__":
    main()
