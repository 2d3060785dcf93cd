"""The tables of PyTorch/XLA issue 3043, for any runs: pure functions from runs to Markdown.

That thread asked why a step whose device time was 49 % faster took 10 % longer; these are the
tables in which the answer shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kit.errors import SettingsError
from kit.runs.change import step_difference, step_text, traced_text
from kit.runs.labels import label_of, told_settings
from kit.runs.run import Run
from kit.runs.verdict.markdown import run_markdown
from kit.text import format_ms, format_share, markdown_table, safe_markdown
from kit.trace import CATEGORIES
from kit.widgets.compare.data import comparison_rows
from kit.widgets.compare.view import comparison_markdown

__all__ = ["breakdown_by_batch_table", "breakdown_table", "report_markdown", "step_time_table"]

_SUM = "**traced step**"


def report_markdown(
    runs: Sequence[Run], *, title: str | None = None, current: Run | None = None
) -> str:
    """A report for places that show no HTML: the runs side by side, and one run in full.

    Args:
        current: the run to show in full; the last one if not given.

    Raises:
        SettingsError: there are no runs.
    """
    if not runs:
        raise SettingsError("there is nothing to report: no runs")
    shown = current or runs[-1]
    text = run_markdown(shown, title=title or f"Where does the step go? {shown.name}".strip())
    if len(runs) > 1:
        text += f"\n## All {len(runs)} runs\n\n{comparison_markdown(comparison_rows(runs))}\n"
    return text


def breakdown_table(run: Run) -> str:
    """Where one step goes: each instant is charged once, so the rows add up to the step."""
    rows, total = [], 0.0
    for row in run.breakdown():
        total += row.share
        numbers = (
            format_ms(row.exposed_ms),
            format_share(row.share),
            format_share(total),
            format_ms(row.total_ms),
        )
        rows.append((safe_markdown(row.category), *numbers))
    step = sum(row.exposed_ms for row in run.breakdown())
    rows.append((_SUM, format_ms(step), format_share(1.0), "", ""))
    head = ("category", "charged to the step", "share", "accumulated", "in all")
    return markdown_table(head, rows)


def breakdown_by_batch_table(runs: Sequence[Run]) -> str:
    """The thread's breakdowns side by side, one pair of columns for each run's batch size.

    All of an activity, whatever it hides under, and its part of the step that nothing hides: the
    first are the thread's numbers, the second add up to the traced step. Below the table stands
    which runs are not to be believed, and why.
    """
    head = ["a step: all (not hidden)"]
    columns: list[dict[str, str]] = []
    for run in runs:
        head.append(_batch(run))
        rows = run.breakdown()
        column = {
            safe_markdown(r.category): f"{format_ms(r.total_ms)} ({format_ms(r.exposed_ms)})"
            for r in rows
            if r.total_ms or r.exposed_ms
        }
        column[_SUM] = f"**{format_ms(sum(r.exposed_ms for r in rows))}**"
        columns.append(column)
    names = (*map(safe_markdown, CATEGORIES), _SUM)
    kept = [n for n in names if any(n in column for column in columns)]
    table = markdown_table(
        head, [(name, *(column.get(name, "-") for column in columns)) for name in kept]
    )
    said = [
        f"- {_batch(run)}: {safe_markdown(why, 1000)}\n"
        for run in runs
        for why in filter(None, (run.doubt, traced_text(run)))
    ]
    return "\n\n".join([table, "".join(said)]) if said else table


def _batch(run: Run) -> str:
    size = told_settings(run).get("batch_size")  # a watched script's is not known
    return "batch not told" if size is None else f"batch {size}"


def step_time_table(runs: Iterable[Run]) -> str:
    """Step time by batch size, native torch against kit, with the speedup of kit.

    In brackets: where the median step of a rerun is to be expected.

    Raises:
        SettingsError: a batch size lacks its native or its kit run, or has two of them; or a run
            is of a watched script or a trace, whose batch size is not known.
    """
    native: dict[int, Run] = {}
    kit: dict[int, Run] = {}
    for run in runs:
        if "batch_size" not in told_settings(run):
            raise SettingsError(
                f"the batch size of {label_of(run)} is not known: measure it by kit.run, which is "
                "told one"
            )
        side, size = native if run.settings.mode == "torch" else kit, run.settings.batch_size
        if size in side:
            raise SettingsError(f"there are two runs of batch size {size} and alike in mode")
        side[size] = run
    if set(native) != set(kit):
        raise SettingsError(
            f"each batch size needs one run in mode 'torch' and one in another mode; native has "
            f"{sorted(native)}, kit has {sorted(kit)}"
        )
    rows = []
    for size in sorted(native):
        faster = step_difference(kit[size], native[size]).times_text()
        rows.append((str(size), step_text(native[size]), step_text(kit[size]), faster))
    return markdown_table(("batch size", "native torch", "kit", "speedup of kit"), rows)
