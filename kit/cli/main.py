"""`kit` and `python -m kit`: measure a step, look at traces, write reports, open notebooks.

Results go to standard output, everything else to standard error. The exit status is 0 if all went
well, 1 if not, 2 for a command line that cannot be, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit import __version__
from kit.cli.diff import diff, fraction
from kit.cli.doctor import doctor
from kit.cli.host import leave_a_core, usable_cores
from kit.cli.lab import FIRST_NOTEBOOK, lab
from kit.cli.script import ScriptError, error_text, load_step, load_workload
from kit.errors import Cancelled, KitError, SettingsError
from kit.files import check_target
from kit.formats.readers import readers_text
from kit.text import safe_terminal

if TYPE_CHECKING:
    from kit.runs.run import Run
    from kit.runs.settings import Settings

__all__ = ["main", "report_main"]

INTERRUPTED, PIPE_CLOSED = 130, 141  # 128 and the signal's number, as a shell says it
_ENVIRONMENT = """environment:
  KIT_CACHE_DIR   where compiled programs are kept; empty: nowhere
  KIT_RUN_SECRET  what the processes of one run know, with --rank
  JAX_PLATFORMS   "cpu" leaves a GPU alone"""


class Argument:
    """One argument of a verb: its names, and what `ArgumentParser.add_argument` takes beside."""

    def __init__(self, *names: str, **how: Any) -> None:
        self.names, self.how = names, how


@dataclass(frozen=True, slots=True)
class Verb:
    """One word after `kit`: a row of `VERBS`; the function's docstring is its help."""

    name: str
    line: str  # of the list of verbs
    act: Callable[[argparse.Namespace], int]  # gives the exit status
    arguments: Sequence[Argument] = ()
    failed: int = 1  # the exit status after an error


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; gives the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    given, for_script = _split(given)
    options = _parser().parse_args(given)
    if options.act is not _run and for_script:
        _parser().error("arguments after -- are for the script of `kit run`")
    options.arguments = for_script
    return _guarded(options.act, options, options.failed)


def report_main(arguments: Sequence[str] | None = None) -> int:
    """`python -m kit.reports`: the same as `kit report`."""
    parser = argparse.ArgumentParser(prog="python -m kit.reports", description=_report.__doc__)
    _add_arguments(parser, _REPORT)
    return _guarded(_report, parser.parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kit",
        description="A microscope for where a training step's time goes.",
        epilog="kit COMMAND --help says more about each.",
    )
    parser.add_argument("--version", action="version", version=f"overlap-kit {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for verb in VERBS:
        made = commands.add_parser(
            verb.name,
            help=verb.line,
            description=cleandoc(verb.act.__doc__ or ""),
            epilog=_ENVIRONMENT,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(act=verb.act, failed=verb.failed)
        _add_arguments(made, verb.arguments)
    return parser


def _add_arguments(parser: argparse.ArgumentParser, arguments: Sequence[Argument]) -> None:
    for argument in arguments:
        parser.add_argument(*argument.names, **argument.how)


def _guarded(
    act: Callable[[argparse.Namespace], int], options: argparse.Namespace, failed: int = 1
) -> int:
    """Errors as one message, an interrupt and a closed pipe without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot write "…" gets a "?"
    try:
        status = act(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return PIPE_CLOSED
    except (KitError, OSError) as error:
        where = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
        text = (error.strerror if isinstance(error, OSError) else "") or str(error)
        _complain(f"{text}{where}")
        return failed
    return status


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _run(options: argparse.Namespace) -> int:
    """Run a script, measure the step that it defines, and print where the time goes.

    The script marks a builder with @kit.workload. A script with only a function `step()` is
    measured too, in mode "torch": natively, as it is.
    """
    try:
        if options.coordinator and options.rank is None:
            raise SettingsError("--coordinator needs --rank: the number of this host's process")
        for target in filter(None, (options.save, options.report)):
            check_target(target)
        settings, named = _settings(options.changes)
        step, is_plain = load_step(options.script, options.workload, options.arguments)
        if is_plain:
            settings = _for_plain_step(settings, named)
        if options.processes != 1 or options.devices != 1 or options.rank is not None:
            if is_plain:
                raise SettingsError("several devices need a @kit.workload: `step` has no device")
            if options.processes != 1 or options.rank is not None:
                step = partial(load_workload, options.script, options.workload, options.arguments)
        run = _measured(step, settings, is_plain, options)
    except (SettingsError, OSError):
        raise
    except Cancelled:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - it is the user's, who shall see their line
        shown = error.error if isinstance(error, ScriptError) else error
        _complain(error_text(shown, options.script, full=options.traceback))
        return 1
    run = replace(run, label=options.label or run.label)
    _say(_summary(run))
    if options.save:
        run.save(options.save)
        _say(f"\nsaved {options.save}")
    if options.report:
        _write_report([run], options.report)
    return 0


def _settings(changes: Sequence[str]) -> tuple[Settings, frozenset[str]]:
    """The settings of `--set name=value`, and the names that were given."""
    from kit.runs.knob import knobs_of
    from kit.runs.settings import Settings
    from kit.runs.text_form import read_text

    values = read_text(knobs_of(Settings), "&".join(changes))
    return Settings().replace(**values), frozenset(values)


def _for_plain_step(settings: Settings, named: frozenset[str]) -> Settings:
    if "mode" in named and settings.mode != "torch":
        raise SettingsError(
            f"mode={settings.mode!r} needs a builder that takes a context, because its tensors are "
            "made on device kit; a plain `step` runs in mode 'torch'. See docs/your_own_model.md"
        )
    _complain("no @kit.workload there: measuring `step` as it is, in mode 'torch'")
    return settings.replace(mode="torch")


def _measured(step: Any, settings: Settings, is_plain: bool, options: argparse.Namespace) -> Run:
    import kit
    from kit.widgets.base.progress import progress_bar

    workload = kit.Workload("step", lambda ctx: step, "") if is_plain else step
    with progress_bar("kit run") as progress, _asked_to_stop() as cancelled:
        if isinstance(step, partial):
            from kit.measure.many.launch import Team, run_processes

            team = Team(
                options.processes,
                options.devices,
                options.rank,
                options.coordinator,
                options.timeout,
                Path(options.script).name,
            )
            return run_processes(step, settings, team, progress=progress, cancelled=cancelled)
        parallel = {"timeout_s": options.timeout} if options.devices != 1 else {}
        return kit.run(workload, settings, devices=options.devices, progress=progress,
                       cancelled=cancelled, **parallel)  # fmt: skip


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


def _view(options: argparse.Namespace) -> int:
    """Print what a trace or a saved run says; nothing of it is executed."""
    import kit

    run = kit.open_trace(options.trace, step_by=options.step_by)
    _say(_summary(run))
    if options.output:
        _write_report([run], options.output)
    return 0


def _report(options: argparse.Namespace) -> int:
    """Write one HTML file whose sliders move over recorded runs; it needs no kernel, no network."""
    import kit

    if options.runs:
        _write_report([kit.open_trace(name) for name in options.runs], options.output)
        return 0
    if said := leave_a_core(os.environ, usable_cores()):
        _complain(said)
    from kit.widgets.base.progress import progress_bar
    from kit.workloads import bert

    sweep: dict[str, list[Any]] = {
        "loss_scaling": ["none", "dynamic, on device"],
        "batch_size": [2],
    }
    settings = kit.Settings(steps=3, warmup=2) if options.fast else None
    with progress_bar("kit report") as progress:
        path = kit.report(bert, sweep if options.fast else None, options.output,
                          settings=settings, progress=progress)  # fmt: skip
    _say(f"wrote {path}")
    return 0


def _write_report(runs: list[Run], path: str | os.PathLike[str]) -> None:
    import kit

    _say(f"wrote {kit.report(runs, path=Path(path))}")


def _lab(options: argparse.Namespace) -> int:
    """Start JupyterLab on this machine's own address, with a notebook open; Ctrl-C ends it."""
    return lab(options.notebook, options.port, not options.no_browser, _complain)


def _doctor(options: argparse.Namespace) -> int:
    """Say which versions are installed, which devices there are, and what is missing."""
    text, is_well = doctor(full=options.full)
    _say(text)
    return 0 if is_well else 1


def _summary(run: Run) -> str:
    from kit.runs.analysis.summary import summary

    return summary(run)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _complain(text: str) -> None:
    """To standard error, with what a terminal would obey taken out."""
    lines = "\n".join(safe_terminal(line, 10_000) for line in text.split("\n"))
    sys.stderr.write(f"kit: {lines}\n")


_RUN = (
    Argument(
        "script", type=Path, metavar="SCRIPT.py", help="its own arguments may follow after --"
    ),
    Argument("--workload", default="", metavar="NAME", help="which one, if the script has several"),
    Argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="changes",
        help="a setting, such as bulk_forward=50; may be repeated",
    ),
    Argument(
        "--devices",
        type=int,
        default=1,
        metavar="N",
        help="split each batch over so many devices, of each process",
    ),
    Argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="in so many processes; on this machine, without --rank",
    ),
    Argument("--rank", type=int, metavar="R", help="of the only process of this host, from 0"),
    Argument(
        "--coordinator",
        default="",
        metavar="HOST:PORT",
        help="where process 0 waits for the others; with --rank",
    ),
    Argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="how long devices and processes wait for each other",
    ),
    Argument("--label", default="", metavar="TEXT", help="what reports and diffs call this run"),
    Argument("--save", type=Path, metavar="RUN.kitrun", help="keep the run in a file"),
    Argument("--report", type=Path, metavar="PAGE.html", help="write an HTML page of it"),
    Argument("--traceback", action="store_true", help="show an error's whole traceback"),
)
_VIEW = (
    Argument(
        "trace",
        type=Path,
        metavar="TRACE",
        help=readers_text(),
    ),
    Argument("-o", "--output", type=Path, metavar="PAGE.html", help="also write an HTML page"),
    Argument(
        "--step-by",
        default="",
        metavar="NAME",
        help="what a step of torch's trace is: an annotation or function that repeats, or a range "
        "of milliseconds, 12.5..80",
    ),
)
_DIFF = (
    Argument("old", type=Path, metavar="OLD", help="a saved run, a trace, or a folder of runs"),
    Argument("new", type=Path, metavar="NEW", help="the same, measured after a change"),
    Argument(
        "--fail-over",
        type=fraction,
        metavar="5%",
        help="exit with 1 if a step is slower by more than this, and by more than the spread",
    ),
    Argument("--markdown", action="store_true", help="as Markdown, for a pull request"),
)
_REPORT = (
    Argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="saved runs (*.kitrun) or traces; none: run BERT and sweep",
    ),
    Argument("-o", "--output", default="report.html", help="default: report.html"),
    Argument("--fast", action="store_true", help="a small sweep with few steps"),
)
_LAB = (
    Argument(
        "notebook",
        nargs="?",
        type=Path,
        metavar="NOTEBOOK",
        help=f"default: {FIRST_NOTEBOOK}, if it is here",
    ),
    Argument("--port", type=int, help="default: 8888, or the next that is free"),
    Argument("--no-browser", action="store_true", help="only print the URL"),
)
_DOCTOR = (
    Argument(
        "--full",
        action="store_true",
        help="also import torch and jax, and list their devices (some seconds)",
    ),
)
VERBS = (
    Verb("run", "measure the step of a script", _run, _RUN),
    Verb("view", "what a trace or a saved run says", _view, _VIEW),
    Verb("diff", "what changed between two runs, folders or traces", diff, _DIFF, failed=2),
    Verb("report", "one HTML file of saved runs", _report, _REPORT),
    Verb("lab", "JupyterLab on the tutorial notebooks", _lab, _LAB),
    Verb("doctor", "what is installed, what is missing, how to get it", _doctor, _DOCTOR),
)
