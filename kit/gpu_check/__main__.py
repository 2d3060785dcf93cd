"""`python -m kit.gpu_check`: run all parts, and say where the results are."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kit.cli.terminal import Parser
from kit.gpu_check.base.checks import NOT_OK, OK
from kit.gpu_check.runner import run_parts
from kit.gpu_check.summary import MARKDOWN
from kit.gpu_check.table import PARTS, part_of
from kit.text import write_plainly

BUDGET_S = 540.0


def main(arguments: list[str] | None = None) -> int:
    """0 if all that was run is ok; 1 if something is not, or nothing was run; after a signal 128
    and its number, 130 for Ctrl-C."""
    write_plainly(sys.stdout, sys.stderr)
    options = _parser().parse_args(arguments)
    if options.list:
        for part in PARTS:
            print(f"{part.letter}  {part.what}")
        return 0
    is_tiny = options.tiny or not (options.full or _has_gpu())
    try:
        parts = [part_of(letter) for letter in options.parts or [p.letter for p in PARTS]]
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        print(f"kit.gpu_check: {error}", file=sys.stderr)
        return 2
    if is_tiny and not options.tiny:
        print("no GPU was found here: tiny sizes, whose times say nothing", flush=True)
    try:
        with _signals_interrupt():
            found = run_parts(parts, folder, budget_s=options.budget, is_tiny=is_tiny)
    except KeyboardInterrupt as interrupt:
        print(f"interrupted; read {folder / MARKDOWN}: what was found until now", file=sys.stderr)
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    except OSError as error:
        print(f"kit.gpu_check: the results cannot be written: {error}", file=sys.stderr)
        return 1
    counts = found.counts()
    print(found.counted())
    for checks in found.checks.values():
        for check in checks.values():
            if check.state == NOT_OK:
                print(f"not ok: {check.name}: {check.number} (target: {check.target}) {check.why}")
    print(f"read {folder / MARKDOWN}")
    return 0 if counts[OK] and not counts[NOT_OK] else 1


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Have `kill`, `timeout` and a terminal that closes do what Ctrl-C does, but for the status."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    deaf = (signal.SIG_IGN, None)  # as `nohup` asks for
    heard = [number for number in numbers if signal.getsignal(number) not in deaf]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m kit.gpu_check",
        description="Run the kit on this machine's GPU, and write what was found as numbers with "
        "targets: at most 8 files. It needs torch, jax and numpy; transformers is used if there.",
    )
    parser.add_argument(
        "--out",
        default=os.environ.get("OUT") or "gpu_check",
        help="the folder of the results (default: $OUT, else gpu_check)",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_S,
        metavar="SECONDS",
        help="of all parts together (default: %(default)g)",
    )
    parser.add_argument("--parts", help="letters of the parts to run, such as 'af' (default: all)")
    parser.add_argument("--list", action="store_true", help="name the parts and end")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--tiny", action="store_true", help="tiny sizes, for a CPU: the default where no GPU is"
    )
    size.add_argument("--full", action="store_true", help="full sizes, whatever the machine")
    return parser


def _has_gpu() -> bool:
    """Does the driver name a GPU, or is there a device file of one?"""
    path = shutil.which("nvidia-smi")
    if path is None:
        return Path("/dev/nvidia0").exists()
    try:
        said = subprocess.run([path, "-L"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.returncode == 0 and b"GPU" in said.stdout


if __name__ == "__main__":
    sys.exit(main())
