"""One quantity has one number and one name, wherever it is read.

Six runs of different origin: of kit, native, watched, a trace of torch's of a GPU, a jax profile of
eight GPUs, and a rank of a job. What the page, the explorer's cards, Markdown, the terminal's text,
the diff, the query and the tables of HTML say of them is parsed and compared. A row is a quantity.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path

import pytest
import torch
from torch import nn

import kit
from kit.measure.base.loop import TRACED_STEPS
from kit.reports.html import report_html
from kit.reports.markdown import report_markdown
from kit.runs.run import Run
from kit.runs.verdict.summary import summary
from kit.trace import count_devices
from kit.widgets.base.cards import headline_html
from kit.widgets.compare.data import comparison_rows
from kit.widgets.compare.view import comparison_markdown
from kit.widgets.numbers.advice import advice_html
from kit.widgets.numbers.gaps import gaps_html
from kit.widgets.numbers.kernels import kernels_drawn
from kit.widgets.numbers.source import source_html
from kit.widgets.numbers.step import breakdown_html
from kit.widgets.numbers.syncs import syncs_drawn
from kit.workloads.made_ranks import Job, write_ranks
from tests.formats.chrome.traces import cuda_trace
from tests.reports.test_html import blocks, index_of

PUBLISHED = Path(__file__).parents[1] / "data" / "published"
SETTINGS = kit.Settings(steps=4, warmup=1)
UNITS = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3, "%": 1e-2}
NUMBER = re.compile(r"([\d,]*\.?\d+)\s*(ns|µs|ms|s|%)?(?![\w.])")


# -- the runs --------------------------------------------------------------------------------------


def small(ctx: kit.Context) -> Callable[[], torch.Tensor]:
    """A step that reads its loss."""
    torch.manual_seed(0)
    model = nn.Linear(16, 4).to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 16).to(ctx.device)

    def step() -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert loss.item() >= 0
        return loss.detach()

    return step


def watched() -> Run:
    model, x = nn.Linear(16, 4), torch.randn(8, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with kit.watch(steps=4, skip=1) as watch:
        for _ in range(12):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return watch.run


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> kit.Ranks:
    folder: Path = tmp_path_factory.mktemp("ranks")
    write_ranks(folder, Job(ranks=2, steps=3, slow={1: 1.25}))
    return kit.open_ranks(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, ranks: kit.Ranks) -> dict[str, Run]:
    folder: Path = tmp_path_factory.mktemp("runs")
    (folder / "gpu.json").write_text(json.dumps(cuda_trace()))
    packed = PUBLISHED / "mi300_jax.xplane.pb.gz"
    (folder / "host.xplane.pb").write_bytes(gzip.decompress(packed.read_bytes()))
    return {
        "kit": kit.run(small, SETTINGS),
        "native": kit.run(small, SETTINGS.replace(mode="torch")),
        "watched": watched(),
        "torch trace": kit.open_trace(folder / "gpu.json"),
        "jax profile": kit.open_trace(folder / "host.xplane.pb"),
        "rank": kit.open_trace(ranks.traces[0].file),
    }


# -- what each surface says ------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """All texts about a run, without markup."""

    run: Run
    text: str
    markdown: str
    cards: dict[str, str]  # label -> value and note
    compared: dict[str, str]  # head -> cell
    diff: str

    @classmethod
    def of(cls, run: Run) -> Said:
        head, _, row = (
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in comparison_markdown(comparison_rows([run])).strip().split("\n")
        )
        return cls(
            run,
            summary(run),
            report_markdown([run]),
            cards_of(headline_html(run)),
            dict(zip(head, [c.replace("?", "unknown") for c in row], strict=True)),
            kit.diff_runs(run, run).text(),
        )

    def line(self, start: str) -> str:
        """The first line of the terminal's text that begins so."""
        return next((x for x in self.text.split("\n") if x.startswith(start)), "")

    @property
    def summary_line(self) -> str:
        """The cards as one line."""
        return next(x for x in self.text.split("\n") if re.match("step |device busy |nothing ", x))


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", html))).strip()


def cards_of(html: str) -> dict[str, str]:
    found = re.findall(r">([\w ]+)</div><div style=\"font-size:clamp[^>]*>(.*?)</div>", html)
    return {label: plain(value) for label, value in found}


def rows_of(html: str) -> list[list[str]]:
    """The cells of the tables of a page, row by row."""
    return [
        [plain(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.S)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", html.replace("<wbr>", ""), re.S)
    ]


def markdown_rows(text: str, title: str) -> list[list[str]]:
    """The rows of the table under a heading, without its head."""
    part = text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in part.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def text_rows(text: str, start: str) -> list[list[str]]:
    """The rows of a table of the terminal's text, whose head begins so."""
    block = next((b for b in text.split("\n\n") if b.startswith(start)), "")
    rows = [line for line in block.split("\n")[2:] if "  " in line]
    return [re.split(r"\s{2,}", row.strip()) for row in rows]


def agrees(shown: str, value: float, *, where: str = "") -> None:
    """Is a number as it is shown the value, rounded? Times without a unit are milliseconds."""
    if math.isnan(value):
        assert shown in ("unknown", ""), (where, shown, value)
        return
    match = NUMBER.search(shown)
    assert match, (where, shown, value)
    digits = match[1].replace(",", "")
    scale = UNITS.get(match[2] or "", 1.0)
    decimals = len(digits.partition(".")[2])
    kept = 3 if not decimals and len(digits) > 3 else len(digits)  # `1,240` of 1,239.7
    step = scale * 10.0**-decimals * (10 ** (len(digits) - kept) if kept == 3 else 1)
    assert abs(float(digits) * scale - value) <= 0.501 * step + 1e-12, (where, shown, value)


# -- the quantities --------------------------------------------------------------------------------


def numbers_of(said: Said, word: str) -> Iterator[str]:
    """What stands behind, or before, a word in the terminal's line and in that of Markdown."""
    origin = next(x for x in said.markdown.split("\n") if x.startswith("origin of"))
    for line in (said.summary_line, origin):
        found = re.search(rf"(?:; |, |^){word} ([^,()]*)", line)
        yield found[1].strip() if found else ""


def step_times(said: Said) -> Iterator[tuple[str, float]]:
    ms = said.run.headline().step_ms
    shown = [*numbers_of(said, "step"), said.cards["step time"]]
    yield from ((text, ms) for text in shown)
    compared = said.compared["step ms"].partition(" (")[0]
    yield compared, ms
    if not math.isnan(ms):
        first = next(x for x in said.diff.split("\n") if x.startswith("step: "))
        yield first.removeprefix("step: ").partition(" -> ")[0], ms
        yield re.search(r"([\d.,]+ \S+)/step", repr(said.run))[1], ms  # type: ignore[index]
    if said.run.timeline.origin == "imported" and not math.isnan(ms):
        lengths = [row[0] for row in said.run.query("select length_ns from steps").rows]
        yield f"{sorted(lengths)[len(lengths) // 2] / 1e6:.9f}", ms


def device_busy(said: Said) -> Iterator[tuple[str, float]]:
    busy = said.run.headline().device_busy_fraction
    yield from ((text, busy) for text in numbers_of(said, "device busy"))
    yield said.cards["device busy"], busy
    yield said.compared["device busy"], busy
    yield re.search(r"device busy ([^,)]*)", repr(said.run))[1], busy  # type: ignore[index]
    for row in said.run.breakdown():
        if row.category == "device busy":
            yield f"{row.share:.6f}", busy


def recording_hidden(said: Said) -> Iterator[tuple[str, float]]:
    hidden = said.run.headline().overlap_fraction
    yield from ((text, hidden) for text in numbers_of(said, "recording hidden"))
    yield said.cards["recording hidden"], hidden
    yield said.compared["recording hidden"], hidden
    yield re.search(r"recording hidden ([^,)]*)", repr(said.run))[1], hidden  # type: ignore[index]


def waits(said: Said) -> Iterator[tuple[str, float]]:
    """The whole, and as the sum of the lines."""
    wait = said.run.headline().sync_wait_ms
    yield from ((text, wait) for text in numbers_of(said, "sync wait"))
    yield said.cards["sync wait"], wait
    yield said.compared["sync wait ms a step"], wait
    if not math.isnan(wait):
        asked = said.run.query("select coalesce(sum(wait_ms), 0.0) from lines").rows[0][0]
        yield f"{asked:.9f}", wait


def sync_points(said: Said) -> Iterator[tuple[str, float]]:
    count = said.run.headline().syncs_per_step
    for line in (said.summary_line, said.markdown):
        found = re.search(r"([\d.,]+) sync points? a step", line)
        yield found[1] if found else "", count
    yield said.cards["sync points"], count
    yield said.compared["sync points a step"], count
    if not math.isnan(count):
        asked = said.run.query("select coalesce(sum(syncs), 0.0) from lines").rows[0][0]
        yield f"{asked:.9f}", count


def waits_by_line(said: Said) -> Iterator[tuple[str, float]]:
    """Of each line: the terminal, Markdown, the table of HTML and that of the source lines."""
    asked = said.run.query("select site, wait_ms from lines where syncs > 0 order by wait_ms desc")
    of_line = {site or "": ms for site, ms in asked.rows}
    tables = (
        [(row[0], row[3]) for row in text_rows(said.text, "sync point  ")],
        [(row[0].replace("\\", ""), row[4]) for row in markdown_rows(said.markdown, "Sync points")],
        [(row[0].split(" ")[0], row[3]) for row in rows_of(syncs_drawn(said.run)[0])[1:]],
    )
    for rows in tables:
        assert bool(rows) == bool(of_line)
        found: dict[str, list[str]] = {}
        for site, shown in rows:
            found.setdefault("" if site.startswith(("unknown", "-")) else site, []).append(shown)
        for site, shown in found.items():
            if len(shown) == 1:
                yield shown[0], of_line[site]


def idle_time(said: Said) -> Iterator[tuple[str, float]]:
    """Of a device: as a whole, by cause in HTML and in the text, and as the step less busy."""
    run, t = said.run, said.run.timeline
    steps = max(int(t.where(kind="step").sum()), 1)
    parts = steps * max(count_devices(t), 1)
    asked = run.query("select coalesce(sum(length_ns), 0) / 1e6 from gaps").rows[0][0] / parts
    heads, *rows = rows_of(gaps_html(run))
    yield next(row[2] for row in rows if row[0] == "idle"), asked
    assert (heads[2] == "ms a step") == bool(t.where(kind="step").any())
    assert heads[2] in said.line("why the device was idle")
    for cause, row in zip(run.idle, rows, strict=False):
        assert row[0].startswith(cause.cause)
        yield row[2], cause.total_ms / parts
    for cause, row in zip(run.idle, text_rows(said.text, "why the device"), strict=False):
        assert row[0] == cause.cause
        yield row[-2], cause.total_ms / parts
    if run.breakdown() and count_devices(t) == 1:
        whole = sum(row.exposed_ms for row in run.breakdown())
        yield f"{asked:.6f}", whole * (1 - run.headline().device_busy_fraction)


def breakdown(said: Said) -> Iterator[tuple[str, float]]:
    """Each category in three tables."""
    rows = said.run.breakdown()
    if not rows:
        assert "No step was traced" in said.text
        assert "No step was traced" in breakdown_html(said.run)
        return
    heads, *html = rows_of(breakdown_html(said.run))
    text = text_rows(said.text, "where the mean traced step goes")
    markdown = markdown_rows(said.markdown, "Step breakdown")
    assert heads[1:] == ["in all ms", "charged ms", "share"]
    for i, row in enumerate(rows):
        assert html[i][0] == text[i][0] == markdown[i][0] == row.category
        for shown in (html[i][2], text[i][1], markdown[i][1]):
            yield shown, row.exposed_ms
        for shown in (html[i][1], text[i][3], markdown[i][3]):
            yield shown, row.total_ms
        for shown in (html[i][3], text[i][2], markdown[i][2]):
            yield shown, row.share


def kernel_time(said: Said) -> Iterator[tuple[str, float]]:
    """All kernels together, and the share of the first one."""
    steps = max(int(said.run.timeline.where(kind="step").sum()), 1)
    asked = said.run.query("select charged_ms, share from kernels order by charged_ms desc").rows
    heads, *rows = rows_of(kernels_drawn(said.run)[0])
    yield rows[-1][3], sum(row[0] for row in asked) / steps
    yield rows[0][4], asked[0][1]
    table = said.markdown.split("## Kernels\n", 1)[1].strip().split("\n")[0]
    head = [cell.strip() for cell in table.strip("|").split("|")]
    at = next(i for i, cell in enumerate(head) if cell.startswith("time"))  # maybe no segment
    for row, (charged_ms, share) in zip(
        markdown_rows(said.markdown, "Kernels"), asked, strict=False
    ):
        yield row[at], charged_ms / steps
        yield row[-1], share
    text = text_rows(said.text, "kernel  ")
    if text:  # of runs whose lines are known these stand there
        yield text[0][-1], asked[0][1]
        assert heads[3] == re.split(r"\s{2,}", said.line("kernel  "))[2]
    if not any(row.category == "communication" for row in said.run.breakdown()):
        for row in said.run.breakdown()[:1]:
            yield rows[-1][3], row.exposed_ms


def losses(said: Said) -> Iterator[tuple[str, float]]:
    if said.run.losses:
        first, last = re.match(r"loss (\S+) to (\S+) in", said.line("loss ")).groups()  # type: ignore[union-attr]
        yield first, float(f"{said.run.losses[0]:.4g}")
        yield last, float(f"{said.run.losses[-1]:.4g}")


def limit(said: Said) -> Iterator[tuple[str, float]]:
    """The verdict: the same words in three places, and the share that it names."""
    if not said.run.breakdown():
        assert "limit: " not in said.text
        return
    words = str(said.run.limited_by())
    assert said.line("limit: ").startswith(f"limit: {words}. ")
    shown = words
    if why := said.run.doubt:
        shown = f"not said. {why[0].upper()}{why[1:]}"
    assert plain(advice_html(said.run)).startswith(f"What limits this step: {shown}.")
    assert words in said.markdown.replace("\\", "")
    if not said.run.doubt:
        yield re.search(r"(\d+%) of", words)[1], said.run.limit_shares[said.run.limited_by().what]  # type: ignore[index]


QUANTITIES = (step_times, device_busy, recording_hidden, waits, sync_points, waits_by_line,
              idle_time, breakdown, kernel_time, losses, limit)  # fmt: skip
KINDS = ("kit", "native", "watched", "torch trace", "jax profile", "rank")


@pytest.fixture(scope="module")
def said(runs: dict[str, Run]) -> dict[str, Said]:
    return {kind: Said.of(run) for kind, run in runs.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda q: q.__name__)
def test_every_place_says_the_same(
    said: dict[str, Said], kind: str, quantity: Callable[[Said], Iterator[tuple[str, float]]]
) -> None:
    for place, (shown, value) in enumerate(quantity(said[kind])):
        agrees(shown, value, where=f"{quantity.__name__}, place {place}")


@pytest.fixture(scope="module")
def page(said: dict[str, Said]) -> str:
    """A report of all runs, each under its kind."""
    return report_html([replace(one.run, label=kind) for kind, one in said.items()])


def test_the_page_has_the_cards_and_the_numbers_of_the_terminal(
    said: dict[str, Said], page: str
) -> None:
    cells = index_of(page)["cells"]
    for one, block, cell in zip(said.values(), blocks(page), cells, strict=True):
        assert cards_of(block["views"]["headline"]) == one.cards
        h = one.run.headline()
        for name, value in (("step", h.step_ms), ("busy", h.device_busy_fraction),
                            ("wait", h.sync_wait_ms)):  # fmt: skip
            expected = None if math.isnan(value) else round(value, 4)
            assert cell[name] == expected


def test_every_place_says_which_steps_the_waits_are_of(said: dict[str, Said]) -> None:
    own = f"{TRACED_STEPS} traced steps"
    for kind, one in said.items():
        words = {"jax profile": "the file marks no steps", "kit": "4 untraced steps", "native": own,
                 "watched": own, "rank": "3 traced steps"}.get(kind, "2 traced steps")  # fmt: skip
        assert words in headline_html(one.run)
        assert words in syncs_drawn(one.run)[0]
        assert words in one.markdown
        if kind not in ("jax profile", "native", "watched"):  # these have no waits
            assert f"waits: mean over {words}" in one.text
        if kind in ("kit", "torch trace"):  # that know lines
            assert words in source_html(one.run)


def test_of_several_devices_it_says_that_one_is_enough_to_be_busy(said: dict[str, Said]) -> None:
    one = said["jax profile"]
    assert count_devices(one.run.timeline) == 8
    for text in (one.text, one.markdown, headline_html(one.run)):
        assert "(at least one of 8 devices)" in text
    assert "mean of 8 devices" in one.text
    assert "Means of the 8 devices" in gaps_html(one.run)
    assert "at least one" not in said["rank"].text


def test_a_foreign_trace_has_no_untraced_step(page: str) -> None:
    for kind, block in zip(KINDS, blocks(page), strict=True):
        if kind in ("torch trace", "rank"):
            assert "no other is known" in block["views"]["notes"]
            assert "untraced" not in block["views"]["notes"]


def test_the_table_of_ranks_has_the_numbers_of_each_rank(
    ranks: kit.Ranks, said: dict[str, Said]
) -> None:
    row, run = ranks.ranks[0], said["rank"].run
    part = {r.category: r for r in run.breakdown()}
    assert row.compute_ms == pytest.approx(part["device busy"].exposed_ms, abs=1e-6)
    assert row.exposed_ms == pytest.approx(part["communication"].exposed_ms, abs=1e-6)
    assert row.communication_ms == pytest.approx(part["communication"].total_ms, abs=1e-6)
    idle = sum(gap.total_ms for gap in run.idle if gap.cause != "communication") / row.steps
    assert sum(row.idle_ms.values()) == pytest.approx(idle, abs=1e-6)
    shown = markdown_rows(ranks.to_markdown(), "Ranks: means of their steps in ms")[0]
    for text, value in ((shown[1], row.step_ms), (shown[2], row.compute_ms),
                        (shown[3], row.exposed_ms), (shown[6], idle)):  # fmt: skip
        agrees(text, value, where="ranks")
