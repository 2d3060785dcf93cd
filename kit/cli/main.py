"""`kit` and `python -m kit`: measure a step, look at traces, write reports, open notebooks.

Results go to standard output, everything else to standard error. The exit status is 0 if all went
well, 1 if not, 2 for a command line that cannot be, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import cleandoc
from pathlib import Path
from typing import Any

from kit import __version__
from kit.cli.diff import diff, fraction
from kit.cli.doctor import doctor
from kit.cli.host import leave_a_core
from kit.cli.lab import FIRST_NOTEBOOK, lab, port_number
from kit.cli.query import query
from kit.cli.scripts.run import run
from kit.cli.terminal import (
    INTERRUPTED,
    Parser,
    complain,
    kept_aside,
    open_closed_streams,
    said_of,
    say,
    say_now,
    written,
)
from kit.cli.view import open_page, opened, view
from kit.cores import usable_cores
from kit.errors import KitError, SettingsError
from kit.files import as_path
from kit.formats.readers import readers_text
from kit.reports.target import check_report_target
from kit.text import WHOLE, capital, format_count, safe_terminal, write_plainly

__all__ = ["main", "report_main"]

PIPE_CLOSED = 141  # 128 and the signal's number, as a shell says it
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
    rest: str = ""  # whose the arguments after -- are


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; gives the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    failed = next((verb.failed for verb in VERBS if [verb.name] == given[:1]), 1)
    return _written(lambda: _main(given), failed)


def _main(given: list[str]) -> int:
    given, after_dashes = _split(given)
    if not given:
        _parser().print_help()
        return 0
    options, unknown = _parser().parse_known_args(given)
    if unknown:
        cure = _cure(options.act, unknown)
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{cure}")
    if after_dashes and not options.rest:
        options.parser.error(
            "arguments after -- are for the script of `kit run`, or for JupyterLab"
        )
    options.arguments = after_dashes
    return _guarded(options.act, options, options.failed)


def _cure(act: Callable[[argparse.Namespace], int], unknown: Sequence[str]) -> str:
    """What may have been meant by arguments that a command does not have."""
    (verb,) = (verb for verb in VERBS if verb.act is act)
    names = [name for argument in verb.arguments for name in argument.names if name[:2] == "--"]
    given = next((text.partition("=")[0] for text in unknown if text.startswith("--")), "")
    own = f"{verb.rest} own arguments stand after --" if verb.rest else ""
    if close := get_close_matches(given, names, n=1, cutoff=0.75):
        return f"; did you mean {close[0]}? {capital(own)}".rstrip()
    return f"; {own}" if own else ""


def report_main() -> int:
    """`python -m kit.reports`: the same as `kit report`."""
    parser = Parser(prog="python -m kit.reports", description=_report.__doc__)
    _add_arguments(parser, _REPORT)
    return _written(lambda: _guarded(_report, parser.parse_args()))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
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
            allow_abbrev=False,  # `--device 1` may be the script's own
        )
        made.set_defaults(act=verb.act, failed=verb.failed, rest=verb.rest, parser=made)
        _add_arguments(made, verb.arguments)
    return parser


def _add_arguments(parser: argparse.ArgumentParser, arguments: Sequence[Argument]) -> None:
    for argument in arguments:
        parser.add_argument(*argument.names, **argument.how)


def _written(act: Callable[[], int], failed: int = 1) -> int:
    """The exit status of a command, whose text any terminal, pipe or closed stream takes."""
    open_closed_streams()
    write_plainly(sys.stdout, sys.stderr)
    try:
        try:
            return act()
        finally:
            sys.stdout.flush()
    except OSError as error:
        status = PIPE_CLOSED
        if not _is_closed_pipe(error):
            complain(f"standard output could not be written: {error.strerror}")
            status = failed
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())  # for the flush at exit
        return status


def _is_closed_pipe(error: OSError) -> bool:
    """Is the program gone that read what is written? Windows has no error of its own for that."""
    is_windows = sys.platform == "win32" and error.errno == errno.EINVAL and not error.filename
    return isinstance(error, BrokenPipeError) or is_windows


def _guarded(
    act: Callable[[argparse.Namespace], int], options: argparse.Namespace, failed: int = 1
) -> int:
    """Errors as one message, and an interrupt without a traceback."""
    try:
        return act(options)
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except (KitError, OSError) as error:
        if isinstance(error, OSError) and _is_closed_pipe(error):
            raise
        complain(said_of(error))
        return failed


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _report(options: argparse.Namespace) -> int:
    """Write one HTML file whose sliders move over recorded runs; it needs no kernel, no network.

    Of a folder with a trace for each rank: the page that `kit view FOLDER -o` writes.
    """
    import kit

    if options.runs:
        if options.fast:
            raise SettingsError("--fast is of the sweep over BERT; these runs are finished")
        check_report_target(options.output)
        say(written(opened(options.runs), options.output))
        return 0
    if said := leave_a_core(os.environ, usable_cores()):
        complain(said)
    from kit.api import DEFAULT_SWEEP
    from kit.widgets.base.progress import progress_bar
    from kit.workloads import bert

    sweep, settings = DEFAULT_SWEEP, None
    if options.fast:
        sweep = {"loss_scaling": ["none", "dynamic, on device"], "batch_size": [2]}
        settings = kit.Settings(steps=3, warmup=2)
    count = math.prod(map(len, sweep.values()))
    say_now(
        f"No runs are given: the kit's BERT is measured under {format_count(count, 'setting')} "
        "(Ctrl-C ends it). `kit report RUN...` takes finished ones."
    )
    with kept_aside(), progress_bar("kit report") as progress:
        path = kit.report(bert, sweep, options.output, settings=settings, progress=progress)
    say(f"wrote {safe_terminal(path, WHOLE)}")
    return 0


def _demo(options: argparse.Namespace) -> int:
    """Show what the kit is for in about a minute: a step that waits, why, and the cure."""
    from kit.cli.demo import demo

    if said := leave_a_core(os.environ, usable_cores()):
        complain(said)
    return demo(say_now)


def _doctor(options: argparse.Namespace) -> int:
    """Say which versions are installed, which devices there are, and what is missing."""
    text, is_well = doctor(full=options.full)
    say(text)
    return 0 if is_well else 1


def _path(text: str) -> Path:
    """A file or a folder that the command line names; for argparse."""
    try:
        return as_path(text)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_RUN = (
    Argument(
        "script", type=_path, metavar="SCRIPT.py", help="its own arguments may follow after --"
    ),
    Argument(
        "-m",
        dest="is_module",
        action="store_true",
        help="SCRIPT.py is the name of a module instead, such as package.train, as of python -m",
    ),
    Argument("--steps", type=int, metavar="N", help="how many to measure; default: 10"),
    Argument(
        "--skip", type=int, metavar="N", help="how many go before; default: until they are steady"
    ),
    Argument(
        "--stop",
        action="store_true",
        help="end a script that is watched once its steps are recorded",
    ),
    Argument(
        "--on",
        default="",
        choices=("kit",),
        help="run a script that is watched on device kit, where it names cuda, mps or cpu",
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
    Argument("--save", type=_path, metavar="RUN.kitrun", help="keep the run in a file"),
    Argument("--report", type=_path, metavar="PAGE.html", help="write an HTML page of it"),
    Argument("--traceback", action="store_true", help="show an error's whole traceback"),
)
_VIEW = (
    Argument(
        "trace",
        type=_path,
        metavar="TRACE",
        help=f"{readers_text()}; or a folder with one of these for each rank",
    ),
    Argument("-o", "--output", type=_path, metavar="PAGE.html", help="also write an HTML page"),
    Argument(
        "--step-by",
        default="",
        metavar="NAME",
        help="what a step of torch's trace is: an annotation or function that repeats, or a range "
        "of milliseconds, 12.5..80",
    ),
    Argument(
        "--by",
        default="",
        choices=("module", "kind", "annotation", "op", "line"),
        help="print the device's time by what launched it instead; kind: modules of one class "
        "together",
    ),
)
_QUERY = (
    _VIEW[0],
    Argument("sql", nargs="?", default="", metavar="SQL", help="one select; none: the tables"),
    Argument("--csv", action="store_true", help="all rows, for a spreadsheet"),
    Argument("--json", action="store_true", help="all rows, as a list of objects; not with --csv"),
    Argument("--rows", type=int, default=50, metavar="N", help="how many to print; default: 50"),
    _VIEW[2],
)
_DIFF = (
    Argument("old", type=_path, metavar="OLD", help="a saved run, a trace, or a folder of runs"),
    Argument("new", type=_path, metavar="NEW", help="the same, measured after a change"),
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
        type=_path,
        metavar="RUN",
        help="saved runs (*.kitrun), folders of these, or traces; or a folder with a trace for "
        "each rank; none: run BERT and sweep",
    ),
    Argument(
        "-o",
        "--output",
        type=_path,
        default=Path("report.html"),
        help="default: report.html",
    ),
    Argument("--fast", action="store_true", help="a small sweep with few steps"),
)
_OPEN = (
    Argument(
        "runs",
        nargs="+",
        type=_path,
        metavar="RUN",
        help="saved runs (*.kitrun), folders of these, or traces; or a folder with a trace for "
        "each rank",
    ),
    Argument("--port", type=port_number, default=0, help="default: one that is free"),
    Argument("--no-browser", action="store_true", help="only print the URL"),
)
_LAB = (
    Argument(
        "notebook",
        nargs="?",
        type=_path,
        metavar="NOTEBOOK",
        help=f"default: {FIRST_NOTEBOOK}, if it is here",
    ),
    Argument("--port", type=port_number, help="default: 8888, or the next that is free"),
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
    Verb("run", "run a script, and measure its steps", run, _RUN, rest="the script's"),
    Verb("view", "what a trace or a saved run says", view, _VIEW),
    Verb("open", "a trace or saved runs in the browser", open_page, _OPEN),
    Verb("query", "ask a trace or a saved run in SQL", query, _QUERY),
    Verb("diff", "what changed between two runs, folders or traces", diff, _DIFF, failed=2),
    Verb("report", "one HTML file of saved runs", _report, _REPORT),
    Verb("demo", "what the kit is for, in a minute", _demo),
    Verb("lab", "JupyterLab on the tutorial notebooks", lab, _LAB, rest="JupyterLab's"),
    Verb("doctor", "what is installed, what is missing, how to get it", _doctor, _DOCTOR),
)
