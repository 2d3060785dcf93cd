"""What every verb says, and where: results to standard output, all else to standard error."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kit.errors import KitError, TraceFileError, suppressed
from kit.text import WHOLE, safe_terminal

if TYPE_CHECKING:
    from kit.runs.run import Run
    from kit.shown import Progress
    from kit.trace.ranks.ranks import Ranks

__all__ = [
    "INTERRUPTED",
    "Parser",
    "bar_of_reading",
    "callers_of",
    "complain",
    "file_of",
    "kept_aside",
    "open_closed_streams",
    "ranked_runs_of",
    "runs_of",
    "said_of",
    "say",
    "say_and_keep",
    "say_now",
    "summary_of",
    "written",
]

_TRACES = (".xplane.pb", ".trace.json", ".json.gz", ".sqlite")  # beside saved runs
_BAR_AFTER_S = 1.0
INTERRUPTED = 130  # 128 and the signal's number, as a shell says it


class Parser(argparse.ArgumentParser):
    """Of a command line, parts of which may come from others: a file's name, by a shell's `*`."""

    def error(self, message: str) -> NoReturn:
        """End the program, with what is wrong as text that a terminal does not obey."""
        super().error(safe_terminal(message, WHOLE))


def say(text: str) -> None:
    """To standard output."""
    with _named():
        sys.stdout.write(f"{text}\n")


def say_now(text: str) -> None:
    """To standard output, also where that is a pipe and the command goes on."""
    with _named():
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EINVAL):  # not that nobody reads any more
            error.filename = "standard output"
        raise


def say_and_keep(text: Callable[[], str], keep: Callable[[], Sequence[str]]) -> None:
    """A result to standard output, once `keep` has written the files of it; then what it says.

    Its text is made after that, too: what is long, or wrong, in it takes no file with it.

    Who reads may be gone after the first lines (`| head`), and the disk may be full: neither takes
    the other with it.
    """
    kept: Sequence[str] = ()
    try:
        kept = keep()
    finally:
        say("\n".join([text(), *kept]))


def complain(text: str) -> None:
    """To standard error, with what a terminal would obey taken out."""
    lines = "\n".join(safe_terminal(line, 10_000) for line in text.split("\n"))
    # A full disk: what was measured is kept all the same.
    with suppressed(OSError), _beside_progress_bars():
        sys.stderr.write(f"kit: {lines}\n")


@contextlib.contextmanager
def _beside_progress_bars() -> Iterator[None]:
    """Meanwhile the bars of the script's, if tqdm shows some, leave their lines.

    No bar keeps a message back: its stream may be closed, and a worker that was killed may have
    tqdm's lock, which is not asked for.
    """
    bars = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    with contextlib.ExitStack() as cleared:
        if mode := getattr(bars, "external_write_mode", None):
            with suppressed(Exception):
                cleared.enter_context(mode(file=sys.stderr, nolock=True))
        yield
        with suppressed(Exception):
            cleared.close()


def said_of(error: Exception) -> str:
    """What is wrong, and with which file."""
    if not isinstance(error, OSError):
        return str(error)
    where = f": {safe_terminal(error.filename, WHOLE)}" if error.filename else ""
    if isinstance(error, FileNotFoundError):
        try:
            os.getcwd()
        except FileNotFoundError:
            where += ". The folder that this was started in is gone: cd to one that is there"
    return f"{error.strerror or error}{where}"


def open_closed_streams() -> None:
    """Put the null device where standard output or error is closed (`2>&-`)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or getattr(stream, "closed", False):
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


@contextlib.contextmanager
def kept_aside(unsaved: Sequence[Run] = ()) -> Iterator[None]:
    """At an error, what is measured is written to a folder of its own, which is said.

    Args:
        unsaved: the finished runs, unless the error holds them.
    """
    try:
        yield
    except BaseException as error:
        if runs := getattr(error, "runs", unsaved):
            with suppressed(KitError, OSError):  # the disk that is full may be this one
                folder = Path(tempfile.mkdtemp(prefix="kit-runs-"))
                for i, run in enumerate(runs, 1):
                    run.save(folder / f"{i:03}.kitrun")
                made = "run that is" if len(runs) == 1 else f"{len(runs):,} runs that are"
                complain(f"the {made} done: kit report {safe_terminal(folder, WHOLE)}")
        raise


def file_of(path: Path) -> Path:
    """The only saved run of a folder, or the path itself.

    Raises:
        TraceFileError: the folder holds several, which no command for one run can show.
    """
    saved = _saved_in(path)
    if len(saved) > 1:
        raise TraceFileError(
            f"{str(path)!r} holds {len(saved):,} saved runs: name one of them, or write a page of "
            "all by `kit report FOLDER`"
        )
    return saved[0] if saved else path


def runs_of(path: Path) -> list[Run]:
    """The saved runs of a folder, or the run that a file or a profile holds."""
    return [run for _, run in ranked_runs_of(path)]


def ranked_runs_of(path: Path) -> list[tuple[int, Run]]:
    """The same, each with its rank where the folder is one of a job's ranks, and -1 elsewhere."""
    import kit
    from kit.formats.ranks.files import is_folder_of_ranks, rank_in_name

    saved = _saved_in(path)
    are_ranks = bool(saved) and is_folder_of_ranks(path)
    files = saved or [path]
    with bar_of_reading(path.name) as tell:
        return [
            (rank_in_name(file) if are_ranks else -1, kit.open_trace(file, progress=tell))
            for file in files
        ]


def _saved_in(path: Path) -> list[Path]:
    saved = sorted(path.glob("*.kitrun")) if path.is_dir() else []
    if path.is_dir() and not saved:
        _check_holds_trace(path)
    left = [str(f) for f in sorted(path.rglob("*")) if f.name.endswith(_TRACES)] if saved else []
    if left:
        more = f" and {len(left) - 2:,} more" if len(left) > 2 else ""
        complain(
            f"{str(path)!r}: only the runs are taken that kit saved there (*.kitrun). Left out: "
            f"{', '.join(left[:2])}{more}; give a trace by its file"
        )
    return saved


def _check_holds_trace(folder: Path) -> None:
    """Of a folder without a saved run say where some are; it may be a profile of jax's.

    Raises:
        TraceFileError: it is empty, or saved runs are in folders of it.
    """
    if any(folder.rglob("*.xplane.pb")):
        return
    below = sorted({str(file.parent) for file in folder.rglob("*.kitrun")})
    if below or not any(file.is_file() for file in folder.rglob("*")):
        more = ", ..." if len(below) > 3 else ""
        where = f"; its folders do: {', '.join(below[:3])}{more}" if below else ", and no trace"
        raise TraceFileError(f"{str(folder)!r} holds no saved run (*.kitrun){where}")


@contextlib.contextmanager
def bar_of_reading(command: str) -> Iterator[Progress]:
    """On a terminal a bar of how far files are read, if that takes more than a second."""
    from kit.widgets.base.progress import bar_when_told

    with bar_when_told(command, _BAR_AFTER_S) as tell:
        yield tell


def summary_of(run: Run) -> str:
    """A run as text for a terminal."""
    from kit.runs.verdict.summary import summary

    return summary(run)


def callers_of(run: Run, by: str) -> str:
    """What launched the kernels of a run, as text for a terminal."""
    from kit.runs.device.callers import callers_text

    return callers_text(run, by)


def written(runs: list[Run] | Ranks, path: str | os.PathLike[str], name: str = "") -> str:
    """Write one HTML page of runs, or of the ranks of a job; what to say of it.

    Args:
        name: what the file is called where the command was given, if that is another folder.
    """
    import kit

    made = kit.report(runs, path=Path(path))
    return f"wrote {safe_terminal(name or made, WHOLE)}"
