"""Random training loops in each mode of a step, against the plain one and against CPU torch.

    python benchmarks/loops.py [--loops 200] [--first 0]

A loop is a model, an optimizer, parts of a step, and acts between steps: a layer swapped, a buffer
bound anew, a state loaded (tests/torch/fuzz/loops.py). `replay` and `speculate` must show what
`retrace` shows, and that what torch shows, but for rounding. Exit code 1 if any differs.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.torch.device import open_session
from tests.torch.fuzz.loops import run


def faults(number: int, cache: ExecutableCache) -> list[str]:
    """In which modes this loop shows other numbers, and how."""
    found, said = {}, []
    for mode in ("retrace", "replay", "speculate"):
        try:
            with open_session(Settings(mode="lazy", step_mode=mode), cache=cache) as session:
                found[mode] = run(number, "kit", session.run_step)
        except Exception:  # noqa: BLE001 - whatever ends a loop is a fault
            said.append(f"{mode}: {traceback.format_exc(limit=-2)}")
    if said:
        return said
    plain = run(number, "cpu", lambda step: step())
    for mode, shown in found.items():
        wanted, near = (plain, 1e-3) if mode == "retrace" else (found["retrace"], 1e-5)
        try:
            torch.testing.assert_close(shown, wanted, rtol=near, atol=near, equal_nan=True)
        except AssertionError as error:
            said.append(f"{mode}: {' '.join(str(error).split())[:300]}")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--loops", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the number of the first loop")
    args = parser.parse_args()
    bad = 0
    for number in range(args.first, args.first + args.loops):
        cache = ExecutableCache()
        for said in faults(number, cache):
            bad += 1
            print(f"loop {number}, {said}", flush=True)
    print(f"{args.loops} loops: {bad} faults")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
