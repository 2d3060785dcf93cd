"""Run a script that knows nothing of kit, as `python script.py` would, and watch its steps."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from kit.cli.scripts.module import before_exec, own_main, run_in
from kit.cli.scripts.outputs import Outputs
from kit.cli.scripts.script import error_text, has_step
from kit.cli.scripts.watching import WithTorch
from kit.cli.signals import Enough, Told, as_ctrl_c, ending_timers, leave
from kit.cli.terminal import INTERRUPTED, complain, open_closed_streams, said_of
from kit.errors import KitError, SettingsError, suppressed
from kit.text import safe_terminal
from kit.threads import end_at_once, exit_status, start_thread

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from kit.measure.attached.loop import LoopWatch
    from kit.runs.settings import Settings

__all__ = ["run_program"]

STEPS = 10  # measured ones, unless asked otherwise
_FINISH_S = 10.0  # for a thread that writes a checkpoint; one that makes batches never finishes
_OF_MEASURING = frozenset({"steps", "warmup"})


def run_program(
    options: argparse.Namespace,
    settings: Settings,
    named: frozenset[str],
    outputs: Outputs,
) -> int:
    """Run the script, then keep what was recorded; gives the script's exit status.

    It is saved as soon as all is recorded, too: the script may end its process in a way that
    nothing comes after.

    Raises:
        SettingsError: settings that the script could not follow.
    """
    _check_followed(options, settings, named)
    from kit.measure.attached.recording import Wanted

    steps = options.steps
    if steps is None:  # a watch counts its steps, where a run may take as many as it needs
        steps = settings.steps if settings.steps > 0 else STEPS
    skip = settings.warmup if options.skip is None and "warmup" in named else options.skip
    Wanted(steps, skip)  # what it cannot be is said before the script runs

    def begin() -> LoopWatch:
        from kit import watch

        return watch(steps, skip=skip, name=options.script.name, when_complete=complete)

    def complete() -> None:
        if outputs.are_saved:
            with suppressed(KitError, OSError):  # told at the end, which tries again
                outputs.save(watching.run)
        if options.stop:
            leave(watching.exits, options.script.name)

    watching = WithTorch(begin)
    with as_ctrl_c() as told:
        status = INTERRUPTED
        try:
            status = _run_watched(watching, options, settings, told)
            told.script_is_over()
        except KeyboardInterrupt:  # before its first line, or after its last
            if not told.number:
                raise
        if watching.is_forked:
            end_at_once(status)
        # The script has handled the signal, and ended as it wants.
        has_handled = told.number and status != INTERRUPTED and not watching.has_failed
        try:
            status = _kept(watching, options, status, outputs)
        except (KitError, OSError) as error:  # as of a terminal that is closed
            if has_handled or not told.number:
                raise
            complain(said_of(error))
        is_killed = told.number and not has_handled
        status = 128 + told.number if is_killed else status
        if is_killed:  # threads and processes of the script would go on
            _end_children()
            end_at_once(status)
        if watching.has_stopped:
            _end_later(watching, options, status)
    return status


def _end_later(watching: WithTorch, options: argparse.Namespace, status: int) -> None:
    """Let the script's threads and processes finish, for which Python waits; end the others."""

    def limit() -> None:
        threading.main_thread().join()
        time.sleep(_FINISH_S)
        if watching.has_threads or _children():
            complain(
                f"threads or processes of {options.script.name} went on for {_FINISH_S:g} s after "
                "--stop, and are ended: a file that they were writing may be incomplete"
            )
        _end_children()
        if watching.has_threads:
            end_at_once(status)

    if watching.has_threads or _children():
        start_thread(limit, "kit run --stop")


def _end_children() -> None:
    for child in _children():
        child.terminate()


def _children() -> Collection[BaseProcess]:
    """Those of multiprocessing that the script has started: Python waits for them at its end."""
    started = sys.modules.get("multiprocessing")
    return started.active_children() if started else ()


def _kept(watching: WithTorch, options: argparse.Namespace, status: int, outputs: Outputs) -> int:
    """Keep what was recorded; the exit status."""
    try:
        made = watching.run
    except SettingsError:
        if status != INTERRUPTED:
            complain(_nothing_seen(options, status, watching))
        return status or 1
    outputs.keep(made)
    return status


def _check_followed(options: argparse.Namespace, settings: Settings, named: frozenset[str]) -> None:
    """Refuse settings that the run would bear, though its script does not follow them."""
    from kit.runs.knob import knobs_of

    script = safe_terminal(options.script.name)
    if named - _OF_MEASURING and not options.on:
        raise SettingsError(
            f"{min(named - _OF_MEASURING)} cannot be set: {script} knows nothing of kit and runs "
            "natively, as it is. With --on kit it runs on device kit, under settings"
        )
    unfollowed = named & {row.name for row in knobs_of(settings) if row.is_of_builders}
    if settings.step_mode != "retrace":  # the steps of a loop are no function to call again
        unfollowed |= {"step_mode"}
    if settings.mode == "torch":
        raise SettingsError(
            f"mode 'torch' is the script as it is, without --on kit: leave that out for {script}"
        )
    if unfollowed:
        raise SettingsError(
            f"{min(unfollowed)} cannot be set: {script} knows nothing of kit, and its loop runs as "
            "it is written, every step recorded. A @kit.workload builder follows this setting: "
            "see docs/your_own_model.md"
        )


def _run_watched(
    watching: WithTorch, options: argparse.Namespace, settings: Settings, told: Told
) -> int:
    """The script's exit status."""
    with contextlib.ExitStack() as around:
        mapped, session, drop = None, None, _nothing
        if options.on:
            from kit.measure.attached.slow import telling
            from kit.torch.device import open_session
            from kit.torch.mapping import named_devices
            from kit.torch.trainers import ACCELERATE_DEVICE

            session = around.enter_context(open_session(settings))
            drop = session.drop_pending
            around.enter_context(telling(session, complain))
            mapped = around.enter_context(named_devices())
            if ACCELERATE_DEVICE not in os.environ:
                around.callback(os.environ.pop, ACCELERATE_DEVICE, None)
                os.environ[ACCELERATE_DEVICE] = "kit"
        around.enter_context(_as_python(options))
        around.enter_context(before_exec(lambda: _tell_of_exec(watching, options)))
        around.enter_context(ending_timers())
        status = _ended(watching, options, drop, told)
        # A library, or torch.accelerator, brings a script there that names no device itself.
        has_come = session is not None and session.streams.ops_recorded() > 0
    # Not of one that fails at once.
    if mapped is not None and (mapped.is_used or (watching.has_run and not has_come)):
        complain(mapped.said)
    return status


def _tell_of_exec(watching: WithTorch, options: argparse.Namespace) -> None:
    """The script starts itself anew, or another program: nothing of ours goes along."""
    if not watching.is_forked:
        complain(
            f"{options.script.name} replaces this process (os.exec*): what comes is not watched, "
            "and its steps are not recorded. Set the variables that it sets before `kit run`"
        )


def _nothing() -> None:
    """Where no session is open, nothing is pending."""


def _ended(
    watching: WithTorch, options: argparse.Namespace, drop: Callable[[], None], told: Told
) -> int:
    """Run the script to its end, whichever that is.

    Args:
        drop: called after Ctrl-C; what is pending may have to be compiled first, which takes long.
    """
    try:
        with watching.exits, own_main(lambda: watching.has_threads) as main:
            watching.begin()
            try:
                asked = _run_script(main, options)
            except KeyboardInterrupt:
                with suppressed(Exception):  # what cannot be dropped runs, as ever
                    drop()
                raise
            watching.wait_for_threads()
            if asked is not None:
                raise asked
    except Enough:
        watching.has_stopped = True
        return 0
    except SystemExit as error:
        return exit_status(error.code)
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - the script's own
        if told.number and _is_of_a_worker(error):
            complain("interrupted")
            return INTERRUPTED
        watching.tell(error)
        complain(error_text(error, options.file, full=options.traceback))
        watching.has_failed = True
        return 1
    return 0


def _is_of_a_worker(error: BaseException) -> bool:
    """The loader's workers are of the group that was told to end, and torch hears of that first."""
    from kit.measure.attached.recording import is_of_a_worker

    return is_of_a_worker(error)


def _run_script(main: ModuleType, options: argparse.Namespace) -> SystemExit | None:
    """Run the script to its last line; gives the exit that it has asked for."""
    try:
        run_in(main, str(options.file), options.module)
    except SystemExit as asked:
        return asked
    return None


@contextlib.contextmanager
def _as_python(options: argparse.Namespace) -> Iterator[None]:
    """`sys.argv` and `sys.path` as Python would set them for the script, or for the module.

    After it, the streams are ours again, whatever the script has put in their places.
    """
    before = sys.argv, sys.path[:], sys.stdout, sys.stderr, sys.excepthook
    try:
        sys.argv = [str(options.script), *options.arguments]
        if not sys.flags.safe_path:
            here = options.script.resolve().parent
            sys.path[0] = os.getcwd() if options.module else str(here)
        yield
    finally:
        left = sys.stdout, sys.stderr
        sys.argv, sys.path[:], sys.stdout, sys.stderr, sys.excepthook = before
        open_closed_streams()
        for stream in left:
            with contextlib.suppress(Exception):  # a full disk, a closed one, the script's own kind
                stream.flush()


def _nothing_seen(options: argparse.Namespace, status: int, watching: WithTorch) -> str:
    name = safe_terminal(options.script.name)
    if watching.has_failed:
        return f"{name} had made no step to record until that error"
    if status == 2:  # as of a command line that the script does not understand
        return (
            f"{name} ended with status 2, and there was no step to record. The script's own "
            "arguments stand after --, as in `kit run train.py -- --lr 0.1`"
        )
    if watching.failed:
        what = watching.failed
    elif "torch" not in sys.modules:
        what = "it has not loaded torch"
    elif watching.has_threads:
        what = "a pool of threads, which is watched until the last line only, was not shut down"
    else:
        what = "no optimizer of torch.optim has made two steps that are watched"
    ended = f"ended with status {status}" if status else "ran"
    hint = ""
    if not options.module and has_step(options.file):
        hint = (
            ". Its step() is measured by itself if it needs no argument, returns its loss, and "
            'nothing stands under `if __name__ == "__main__":`'
        )
    page = "jax" if "jax" in sys.modules and "torch" not in sys.modules else "your_own_model"
    return (
        f"{name} {ended}, and there was no step to record: {what}. "
        "kit run watches `optimizer.step()` in the process that it starts: not in workers or ranks "
        "that the script starts, not a loop of jax, nor what kit measures itself. A step of "
        "another kind wants watch.step(loss) at its end, in a `with kit.watch() as watch:` around "
        f"the loop (docs/attach.md), or a @kit.workload: see docs/{page}.md{hint}"
    )
