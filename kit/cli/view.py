"""`kit view` and `kit open`: traces and saved runs, printed or in the browser."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from kit.cli.signals import leaving_nothing
from kit.cli.terminal import (
    bar_of_reading,
    callers_of,
    file_of,
    runs_of,
    say,
    say_and_keep,
    say_now,
    summary_of,
    written,
)
from kit.errors import TraceFileError
from kit.reports.target import is_markdown

__all__ = ["open_page", "opened", "view"]


def view(options: argparse.Namespace) -> int:
    """Print what a trace or a saved run says; nothing of it is executed.

    Of a folder with a trace for each rank: the ranks side by side, and who kept the others waiting.
    """
    import kit
    from kit.formats.memory_snapshot import SNAPSHOT_SUFFIXES
    from kit.formats.ranks.files import is_folder_of_ranks

    if options.output:
        is_markdown(options.output)  # another format is refused before minutes of reading
    if options.trace.suffix in SNAPSHOT_SUFFIXES:
        if options.output or options.step_by or options.by:
            raise TraceFileError("a snapshot of memory has no steps, and is printed only: no -o")
        say(kit.open_memory(options.trace).to_text())
        return 0
    are_ranks = is_folder_of_ranks(options.trace)
    if are_ranks and options.by:
        raise TraceFileError("--by is for one trace: give the file of one rank")
    with ExitStack() as bar:
        told: dict[str, Any] = {
            "step_by": options.step_by,
            "progress": bar.enter_context(bar_of_reading("kit view")),
        }
        if are_ranks:
            ranks = kit.open_ranks(options.trace, **told)
            return _told(ranks.to_text, ranks, options.output, bar)
        run = kit.open_trace(file_of(options.trace), **told)
        text = partial(callers_of, run, options.by) if options.by else partial(summary_of, run)
        return _told(text, [run], options.output, bar)


def _told(text: Callable[[], str], drawn: Any, page: Path | None, bar: ExitStack) -> int:
    """Say the text, once the bar that is shown while it is made has gone."""

    def made() -> str:
        with bar:
            return text()

    say_and_keep(made, lambda: [written(drawn, page)] if page else [])
    return 0


def open_page(options: argparse.Namespace) -> int:
    """Show runs and traces in the browser, by a page that only this machine can ask for.

    The page is served on 127.0.0.1, at an address with a random token in it, until Ctrl-C. Nothing
    of a trace is executed, and the page asks for nothing from outside.
    """
    import kit
    from kit.cli.page import serve

    found = opened(options.runs)
    with (
        leaving_nothing(),
        tempfile.TemporaryDirectory(prefix="kit-open-", ignore_cleanup_errors=True) as folder,
    ):
        page = kit.report(found, path=Path(folder) / "page.html")
        return serve(page, options.port, not options.no_browser, say_now)


def opened(paths: Sequence[Path]) -> Any:
    """The runs of files and folders; or the ranks of a job, if a folder of them stands alone."""
    import kit
    from kit.formats.ranks.files import is_folder_of_ranks

    if not any(map(is_folder_of_ranks, paths)):
        return [run for path in paths for run in runs_of(path)]
    if len(paths) > 1:
        raise TraceFileError("a folder of ranks has a page of its own: give it alone")
    with bar_of_reading(paths[0].name) as tell:
        return kit.open_ranks(paths[0], progress=tell)
