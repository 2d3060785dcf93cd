"""`kit run`: measure the step of a script that has a builder, or watch the steps of any script."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.cli.scripts.module import find_module
from kit.cli.scripts.outputs import Outputs
from kit.cli.scripts.program import run_program
from kit.cli.scripts.script import (
    ScriptError,
    check_script,
    error_text,
    is_of_script,
    knows_kit,
    load_step,
    load_workload,
)
from kit.cli.signals import leaving_nothing
from kit.cli.terminal import INTERRUPTED, complain
from kit.errors import Cancelled, SettingsError, is_a
from kit.text import WHOLE, safe_terminal

if TYPE_CHECKING:
    from kit.runs.knob import OwnKnob
    from kit.runs.run import Run
    from kit.runs.settings import Settings

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Run a script, measure its steps, and print where the time goes.

    A script that marks a builder with @kit.workload has its step measured under the settings. One
    with a function `step()` that returns its loss, and nothing under `if __name__ == "__main__":`,
    has that measured, in mode "torch": natively, as it is. Any other is run as `python SCRIPT.py`
    would run it, and some of the steps of its optimizer are watched.
    """
    if options.rank is not None and options.processes is None:
        raise SettingsError("--rank needs --processes: how many there are, on all hosts")
    options.processes = 1 if options.processes is None else options.processes
    outputs = Outputs(options)
    options.module = ""
    if options.is_module:
        options.module, options.script = find_module(str(options.script))
    check_script(options.script)
    options.file = Path(os.path.abspath(options.script))
    if not options.workload and not knows_kit(options.script):
        _refuse_many(options, "a script that is watched runs in one process, on one device")
        settings, named = _settings(options.changes)
        return run_program(options, settings, named, outputs)
    if options.module:
        raise SettingsError(
            f"{safe_terminal(options.module)} has a step for kit, which is measured in its file: "
            f"kit run {safe_terminal(os.path.relpath(options.script), WHOLE)}"
        )
    if options.on or options.stop:
        name = "--on" if options.on else "--stop"
        raise SettingsError(
            f"{name} is for scripts without a step for kit; this one has a builder, or imports "
            "kit: one that opens a kit.Session itself is run by python"
        )
    return _run_step(options, outputs)


def _run_step(options: argparse.Namespace, outputs: Outputs) -> int:
    """Measure the step that a script has for kit."""
    _check_early(options.changes)
    try:
        if options.coordinator and options.rank is None:
            raise SettingsError("--coordinator needs --rank: the number of this host's process")
        step, is_plain = load_step(options.script, options.workload, options.arguments)
        settings, named = _settings(options.changes, () if is_plain else step.knobs)
        given = {"steps": options.steps, "warmup": options.skip}
        settings = settings.replace(**{k: n for k, n in given.items() if n is not None})
        if is_plain:
            settings = _for_plain_step(settings, named)
            _refuse_many(options, "several devices need a @kit.workload: `step` has no device")
        made = _measured(step, settings, is_plain, options, outputs.folder)
    except SettingsError:
        raise
    except Cancelled:
        return INTERRUPTED
    except Exception as error:  # it is the user's, who shall see their line
        shown = error.error if is_a(error, ScriptError) else error
        if is_a(shown, OSError) and not is_of_script(shown, options.file):
            raise
        complain(error_text(shown, options.file, full=options.traceback))
        return 1
    outputs.keep(made)
    return 0


def _refuse_many(options: argparse.Namespace, why: str) -> None:
    if options.processes != 1 or options.devices != 1 or options.rank is not None:
        raise SettingsError(why)


def _settings(
    changes: Sequence[str], own: tuple[OwnKnob, ...] = ()
) -> tuple[Settings, frozenset[str]]:
    """The settings of `--set name=value`, and the names that were given.

    Args:
        own: the knobs of the script's builder.
    """
    from kit.runs.knob import knobs_of
    from kit.runs.settings import Settings
    from kit.runs.text_form import read_text

    settings = Settings(own=own)
    values = read_text(knobs_of(settings), "&".join(changes))
    return settings.replace(**values), frozenset(values)


def _check_early(changes: Sequence[str]) -> None:
    """Refuse what kit's own settings cannot be, before the script runs for seconds."""
    from kit.runs.knob import knobs_of
    from kit.runs.settings import Settings

    names = {row.name for row in knobs_of(Settings)}
    parts = "&".join(changes).split("&")  # one --set may have several
    _settings([x for x in parts if x.partition("=")[0].strip() in names or "=" not in x])


def _for_plain_step(settings: Settings, named: frozenset[str]) -> Settings:
    if "mode" in named and settings.mode != "torch":
        raise SettingsError(
            f"mode={settings.mode!r} needs a builder that takes a context, because its tensors are "
            "made on device kit; a plain `step` runs in mode 'torch'. See docs/your_own_model.md"
        )
    complain("no @kit.workload there: measuring `step` as it is, in mode 'torch'")
    return settings.replace(mode="torch")


def _measured(
    step: Any, settings: Settings, is_plain: bool, options: argparse.Namespace, folder: str
) -> Run:
    """The run of a step; `folder`: in which its processes begin."""
    import kit
    from kit.widgets.base.progress import progress_bar

    with progress_bar("kit run") as progress, _asked_to_stop() as cancelled:
        if options.processes != 1 or options.rank is not None:
            from kit.measure.many.launch import Team, run_processes

            team = Team(
                options.processes,
                options.devices,
                options.rank,
                options.coordinator,
                options.timeout,
                Path(options.script).name,
            )
            load = partial(load_workload, options.file, options.workload, options.arguments)
            with leaving_nothing(), contextlib.chdir(folder):
                return run_processes(load, settings, team, progress=progress, cancelled=cancelled)
        parallel = {"timeout_s": options.timeout} if options.devices != 1 else {}

        def measured(workload: Any) -> Run:
            return kit.run(workload, settings, devices=options.devices, progress=progress,
                           cancelled=cancelled, **parallel)  # fmt: skip

        return _of_its_framework(step, measured) if is_plain else measured(step)


class _OfJaxError(Exception):
    """What a step has returned first is an array of jax's, though the script has loaded torch."""

    def __init__(self, result: Any) -> None:
        super().__init__("the step returned an array of jax's")
        self.result = result


def _of_its_framework(step: Callable[[], Any], measured: Callable[[Any], Run]) -> Run:
    """Measure a plain step by torch or by jax: the script has run, and loaded what it needs."""
    import kit

    results: list[Any] = []
    again = wraps(step)(lambda: results.pop() if results else step())
    if "jax" not in sys.modules:
        return measured(kit.Workload("step", lambda ctx: step))
    if "torch" in sys.modules:
        try:
            return measured(kit.Workload("step", lambda ctx: wraps(step)(partial(_torchs, step))))
        except _OfJaxError as found:
            results.append(found.result)
    return measured(kit.Workload("step", lambda ctx: again, "", "jax"))


def _torchs(step: Callable[[], Any]) -> Any:
    """What a step returns that may be of either framework.

    Raises:
        _OfJaxError: it is an array of jax's.
    """
    result = step()
    if hasattr(result, "block_until_ready"):
        raise _OfJaxError(result)
    return result


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Ctrl-C stops between two steps, a second one at once.

    Python raises it anywhere, and in the middle of a backward pass that can end the process.
    """
    asked = threading.Event()

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        os.write(2, b"\nkit: interrupted: stopping after this step; Ctrl-C again stops at once\n")

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
