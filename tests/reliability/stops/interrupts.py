"""Interrupt steps at random times, and look whether the next step is torch's.

The long form, all modes: python -m tests.reliability.stops.interrupts --count 400
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import random
import signal
import sys
import threading
import time

import psutil

from kit.runtime.session.session import Session
from tests.reliability.growth import alive
from tests.reliability.kinds import KINDS, Steps
from tests.reliability.training import TimeLimit

WAIT_S = 60.0  # after which a step counts as hanging
SIGNALS = [signal.SIGINT, getattr(signal, "SIGUSR1", signal.SIGINT)]


def interrupt_at_random(training: Steps, count: int, chance: random.Random) -> int:
    """Send that many signals into a loop of steps, Ctrl-C and another; gives how many were raised.

    Raises:
        AssertionError: the step after an interrupt is not torch's.
    """
    _hear_limit()
    for _ in range(training.alike_after):
        training.step()
    start = time.perf_counter()
    for _ in range(training.alike_after):
        training.step()
    usual = (time.perf_counter() - start) / training.alike_after
    main, raised = threading.main_thread().ident, 0
    assert main is not None
    for _ in range(count):
        delay, number = chance.uniform(0, 2.5 * usual), chance.choice(SIGNALS)
        sender = threading.Thread(
            target=lambda delay=delay, number=number: (
                time.sleep(delay), signal.pthread_kill(main, number)
            )
        )  # fmt: skip
        faulthandler.dump_traceback_later(WAIT_S, exit=True)
        try:
            sender.start()  # on a busy machine the interrupt comes before this returns
            while True:
                training.step()
        except (KeyboardInterrupt, TimeLimit):
            raised += 1
        sender.join()
        training.recover()
        training.check_next_step()
        faulthandler.cancel_dump_traceback_later()
    return raised


def hear_interrupts() -> None:
    """Have Python's own handler, also in a shell's background job, which ignores SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _hear_limit() -> None:
    """Have a handler of the program's own, which raises."""

    def handle(number: int, frame: object) -> None:
        raise TimeLimit

    if SIGNALS[1] != signal.SIGINT:
        signal.signal(SIGNALS[1], handle)


def main() -> None:
    """Interrupt each kind of step, and say how often that was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modes", nargs="*", default=list(KINDS))
    asked = parser.parse_args()
    hear_interrupts()
    gc.freeze()
    for mode in asked.modes:
        with KINDS[mode]() as training:
            done = interrupt_at_random(training, asked.count, random.Random(asked.seed))
        del training
        if held := alive(Session):
            raise SystemExit(f"{mode}: {held} sessions are held after they were closed")
        if left := len(psutil.Process().children(recursive=True)):
            raise SystemExit(f"{mode}: {left} processes are left")
        gc.freeze()  # the next look has less to look through
        print(f"{mode}: {done} interrupts, and each next step was torch's", flush=True)


if __name__ == "__main__":
    sys.exit(main())
