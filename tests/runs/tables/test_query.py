"""A run asked in SQL: what it says is what the run says, and a question can do nothing but read."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import re
import signal
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.cli.main import main
from kit.errors import QueryError
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.tables import query as asked
from kit.runs.tables.columns import TABLES
from kit.runs.tables.query import Answer, named_tables, query, tables_text
from kit.trace import Span, SyncPoint, Timeline, idle_gaps
from kit.workloads.made_ranks import Job, write_ranks
from tests.factories import HOSTILE, empty_run, make_run
from tests.formats.chrome.traces import cuda_trace

PAGE = Path(__file__).parents[3] / "docs" / "query.md"
PUBLISHED = Path(__file__).parents[2] / "data" / "published"
QUESTIONS = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a GPU, as torch.profiler writes them."""
    file = tmp_path_factory.mktemp("query") / "trace.json"
    file.write_text(json.dumps(cuda_trace()))
    return file


@pytest.fixture(scope="module")
def run(trace: Path) -> Run:
    """The same, read."""
    return kit.open_trace(trace)


@pytest.fixture(scope="module")
def runs(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, ...]:
    """With one that has shapes, and one that has collectives."""
    folder = tmp_path_factory.mktemp("ranks")
    write_ranks(folder, Job(ranks=2, steps=2))
    return (
        run,
        kit.open_trace(PUBLISHED / "h100_bert.json.gz"),
        kit.open_trace(next(folder.iterdir())),
    )


def test_the_page_has_eight_questions() -> None:
    assert len(QUESTIONS) == 8


@pytest.mark.parametrize("sql", QUESTIONS, ids=lambda sql: sql.split("\n")[0][:40])
def test_a_question_of_the_page_has_an_answer(runs: tuple[Run, ...], sql: str) -> None:
    answer = max((run.query(sql) for run in runs), key=len)
    assert len(answer) > 0
    assert all(any(cell is not None for cell in row) for row in answer)


def test_the_answers_are_those_of_the_file(run: Run) -> None:
    kernels = run.query(
        "select name, count(*), sum(length_ns) from spans where kind = 'kernel' "
        "and name like 'sgemm%' group by name order by name"
    )
    assert kernels.rows == (("sgemm_128x64<float>", 2, 400_000), ("sgemm_64x64<float>", 2, 400_000))
    between = run.query(QUESTIONS[4]).rows
    assert ("sgemm_128x64<float>", 2, 20.0, 20.0) in between  # 110 to 130 us in both steps
    assert run.query("select step, length_ns from steps").rows == ((0, 900_000), (1, 900_000))
    assert run.query("select count(*) from syncs").rows == ((len(run.timeline.syncs),),)


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("select 'spans', 1 as kernels", []),
        ("select count(*) from SPANS s", ["spans"]),
        ("with k as (select name from kernels) select * from k join steps", ["kernels", "steps"]),
        ("select step from gaps where exists (select 1 from syncs) -- lines", ["gaps", "syncs"]),
    ],
)
def test_the_tables_of_a_question_are_those_that_it_reads(sql: str, tables: list[str]) -> None:
    assert [table.name for table in named_tables(sql, TABLES)] == tables


def test_gaps_add_up_to_those_of_the_timeline(run: Run) -> None:
    ((total, count),) = run.query("select sum(length_ns), count(*) from gaps").rows
    gaps = idle_gaps(run.timeline)
    assert (total, count) == (sum(g.length_ns for g in gaps), len(gaps))


spans_of_a_run = st.lists(
    st.builds(
        lambda lane, name, kind, at, length, segment, node: Span(
            lane, name, kind, at, at + length, segment, node
        ),
        st.sampled_from(["host/main", "host/other", "device/0 a"]),
        st.sampled_from(["f", "", "step 0"]),
        st.sampled_from(["step", "step", "record", "dispatch", "kernel"]),
        st.integers(-9, 30),
        st.integers(0, 20),
        st.integers(-4, 2),
        st.integers(-1, 3),
    ),
    max_size=8,
)
syncs_of_a_run = st.lists(
    st.builds(SyncPoint, st.integers(-9, 40), st.integers(0, 9), st.sampled_from(["item", ""])),
    max_size=3,
)


@settings(max_examples=40, deadline=None)
@given(spans_of_a_run, syncs_of_a_run)
def test_rows_are_the_spans_and_waits_one_by_one(spans: list[Span], syncs: list[SyncPoint]) -> None:
    """Also where steps lie in each other, as of two threads: the step is the one begun last."""
    t = Timeline.of(spans, syncs)
    alone = Run(Settings(mode="torch"), (), (), t, sync_points=t.syncs)
    steps = [s for s in t.spans if s.kind == "step"]

    def step_at(now: int) -> int | None:
        return max((i for i, s in enumerate(steps) if s.start_ns <= now < s.stop_ns), default=None)

    rows = alone.query(
        "select span, lane, kind, name, start_ns, stop_ns, length_ns, step, segment, launch, node, "
        "op, caller from spans order by span"
    ).rows
    assert rows == tuple(
        (i, s.lane, s.kind, s.name, s.start_ns, s.stop_ns, s.stop_ns - s.start_ns,
         step_at(s.start_ns), s.segment if s.segment >= 0 else None,
         -2 - s.segment if s.segment < -1 else None, None, None, None)
        for i, s in enumerate(t.spans)
    )  # fmt: skip
    assert alone.query("select step, lane, start_ns, length_ns from steps order by step").rows == (
        *((i, s.lane, s.start_ns, s.stop_ns - s.start_ns) for i, s in enumerate(steps)),
    )
    assert alone.query("select at_ns, wait_ns, step, cause from syncs order by rowid").rows == (
        *((s.at_ns, s.wait_ns, step_at(s.at_ns), s.cause or None) for s in t.syncs),
    )
    gaps = alone.query("select device, start_ns, stop_ns, step, cause, before from gaps").rows
    assert gaps == tuple(
        (g.lane, g.start_ns, g.stop_ns, step_at(g.start_ns), g.cause,
         g.before if g.before >= 0 else None)
        for g in idle_gaps(t)
    )  # fmt: skip


def test_a_run_of_kits_own_has_ops_modules_and_lines() -> None:
    own = make_run()
    rows = own.query("select span, node, op, scope, site from spans where node is not null").rows
    assert rows
    for span, node, *texts in rows:
        of = own.graphs[0].nodes[node]
        assert own.timeline.node[span] == node
        assert texts == [text or None for text in (of.op, of.scope, of.site)]


def test_what_is_not_known_is_null() -> None:
    spans = [Span("host/main", "step", "step", -1, 10), Span("device/0", "k", "kernel", 5, 10)]
    alone = Run(
        settings=Settings(mode="torch"),
        losses=(),
        step_times_ns=(),
        sync_points=(),
        timeline=Timeline.of(spans, [SyncPoint(-1, 1, "item")]),
    )
    rows = alone.query("select start_ns, step, segment, launch, node, site from spans").rows
    assert rows == ((-1, 0, None, None, None, None), (5, 0, None, None, None, None))
    assert alone.query("select site, at_ns from syncs").rows == ((None, -1),)
    assert alone.query("select flops from kernels").rows == ((None,),)


@pytest.mark.parametrize("table", [table.name for table in TABLES])
def test_every_table_of_an_empty_run_is_empty_and_has_its_columns(table: str) -> None:
    answer = empty_run().query(f"select * from {table}")
    assert len(answer) == 0
    fields = next(t.fields for t in TABLES if t.name == table)
    assert answer.heads == tuple(field.name for field in fields)
    assert all(f"  {name} " in tables_text() for name in answer.heads)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("attach 'other.db' as other", "nothing else"),
        ("pragma database_list", "nothing else"),
        ("select load_extension('x')", "nothing else"),
        ("delete from kernels", "nothing else"),
        ("insert into spans (span) select span from spans", "nothing else"),
        ("select * from spans_data", "no such table: spans_data"),
        ("create table more (x)", "nothing else"),
        ("create temp view v as select * from spans", "nothing else"),
        ("vacuum into 'stolen.db'", "nothing else"),
        ("begin", "nothing else"),
        ("select 1; select 2", "one statement"),
        ("select nix from spans", "no such column: nix. The tables are spans,"),
        ("select * from nix", "no such table: nix"),
        ("selekt", "syntax error"),
        ("", "asks for nothing"),
        ("-- nothing", "asks for nothing"),
        ("select ?", "SQL|binding"),
        ("select zeroblob(1000000000)", "too big"),
        ("select 'a\0b'", "null character"),
        ("select '\udc80'", "surrogates"),
    ],
)
def test_a_question_that_is_none_is_a_clear_error(
    tmp_path: Path, monkeypatch, sql: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QueryError, match=said):
        make_run().query(sql)
    assert not list(tmp_path.iterdir())


def test_a_question_that_never_ends_is_stopped() -> None:
    endless = "with recursive a(x) as (select 1 union all select x + 1 from a) select max(x) from a"
    with pytest.raises(QueryError, match="takes too long"):
        query(empty_run(), endless, operations=2_000_000)


def test_ctrl_c_stops_a_question(monkeypatch) -> None:
    looks = []

    class Pressed(asked.Budget):
        def spend(self) -> int:
            looks.append(1)
            signal.raise_signal(signal.SIGINT)
            return super().spend()

    monkeypatch.setattr(asked, "Budget", Pressed)
    endless = "with recursive a(x) as (select 1 union all select x + 1 from a) select max(x) from a"
    with pytest.raises(KeyboardInterrupt):
        empty_run().query(endless)
    assert looks == [1]


@pytest.mark.parametrize("name", ["interrupted", "authorized"])
def test_a_name_of_ones_own_is_no_interrupt_and_no_refusal(name: str) -> None:
    with pytest.raises(QueryError, match=f"no such column: {name}"):
        empty_run().query(f"select {name} from spans")


def test_no_two_columns_of_an_answer_have_one_name() -> None:
    answer = empty_run().query('select 1 as "a (2)", 2 as a, 3 as a, 4 as "a (2)"')
    assert answer.heads == ("a (2)", "a", "a (3)", "a (2) (2)")


def test_an_answer_is_bounded_and_says_so(monkeypatch) -> None:
    monkeypatch.setattr(asked, "MAX_ROWS", 3)
    answer = make_run().query("select span from spans")
    assert (len(answer), answer.is_cut) == (3, True)
    assert "the answer was cut" in str(answer)
    monkeypatch.setattr(asked, "MAX_CHARS", 10)
    assert len(make_run().query("select 'four' from spans")) == 2


def test_a_name_of_many_spans_is_kept_once(monkeypatch) -> None:
    spans = [Span("device/0", "n" * 50_000, "kernel", i, i + 1) for i in range(5_000)]
    many = Run(
        settings=Settings(mode="torch"),
        losses=(),
        step_times_ns=(),
        sync_points=(),
        timeline=Timeline.of(spans),
    )
    sizes = []
    fill = asked._fill

    def filled(database: sqlite3.Connection, *rest) -> None:
        fill(database, *rest)
        (pages,) = database.execute("pragma page_count").fetchone()
        (size,) = database.execute("pragma page_size").fetchone()
        sizes.append(pages * size)

    monkeypatch.setattr(asked, "_fill", filled)
    sql = "select length(name), count(*) from spans group by name"
    assert many.query(sql).rows == ((50_000, 5_000),)
    assert sizes[0] < 2_000_000  # and not 250 MB


def test_a_strangers_text_is_shown_and_not_obeyed() -> None:
    answer = make_run(hostile=True).query("select name, lane from spans where kind = 'kernel'")
    assert "\x1b" not in str(answer) + answer.to_csv() + answer.to_json()
    assert "\u202e" not in str(answer) + answer.to_csv()
    assert "<script>" not in answer._repr_html_()
    assert len(str(answer).splitlines()) == 30 + 3
    assert all(isinstance(row["name"], str) for row in json.loads(answer.to_json()))


def test_a_name_that_is_sql_stays_a_name() -> None:
    name = "'); drop table spans_data; --"
    spans = [Span("device/0", name, "kernel", 0, 1), Span("device/0", "=1+1", "kernel", 1, 2)]
    one = Run(
        settings=Settings(mode="torch"),
        losses=(),
        step_times_ns=(),
        sync_points=(),
        timeline=Timeline.of(spans),
    )
    answer = one.query("select name from spans")
    assert answer.rows == ((name,), ("=1+1",))
    assert [row[0] for row in csv.reader(io.StringIO(answer.to_csv()))] == ["name", name, "'=1+1"]
    assert HOSTILE not in str(answer)


def test_odd_values_are_those_that_json_has() -> None:
    answer = empty_run().query("select 1e999 as a, x'00ff' as a, null as a, 0.1 as b")
    assert answer.heads == ("a", "a (2)", "a (3)", "b")
    assert answer.rows == (("inf", "00ff", None, 0.1),)
    assert json.loads(answer.to_json()) == [{"a": "inf", "a (2)": "00ff", "a (3)": None, "b": 0.1}]
    assert str(Answer(("x",), ())) == "no rows (x)"


def test_the_command_prints_a_table_csv_or_json(trace: Path, capsys) -> None:
    sql = "select name, runs from kernels where name like 'sgemm%' order by name"
    assert main(["query", str(trace), sql]) == 0
    assert "sgemm_128x64<float>     2" in capsys.readouterr().out
    assert main(["query", str(trace), sql, "--csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == '"sgemm_128x64<float>",2'
    assert main(["query", str(trace), sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1] == {"name": "sgemm_64x64<float>", "runs": 2}
    assert main(["query", str(trace), "select * from spans", "--rows", "2"]) == 0
    assert "more rows" in capsys.readouterr().out
    assert main(["query", str(trace)]) == 0
    assert capsys.readouterr().out == f"{tables_text()}\n"
    assert main(["query", str(trace), "select x from spans"]) == 1
    assert "no such column: x" in capsys.readouterr().err
    assert main(["query", str(trace), "select * from spans", "--rows", "-3"]) == 1
    assert "the number of rows to print must be a whole number" in capsys.readouterr().err
    assert main(["query", "none.json"]) == 1  # a misspelt file is no question for the tables
    assert "No such file or directory: none.json" in capsys.readouterr().err


def test_a_table_becomes_a_data_frame_or_says_what_to_install(run: Run) -> None:
    with pytest.raises(QueryError, match="there is no table 'nix'; there are: spans, kernels"):
        run.to_dataframe("nix")
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(QueryError, match=r"pip install 'overlap-kit\[tables\]'"):
            run.to_dataframe()
        return
    for table in TABLES:
        frame = run.to_dataframe(table.name)
        rows = run.query(f"select * from {table.name}").rows
        assert list(frame.columns) == [field.name for field in table.fields]
        assert len(frame) == len(rows)
        values = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
        assert values == [list(row) for row in rows]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--csv"], "put a question in SQL after the file"),
        (["--json"], "put a question in SQL after the file"),
        (["select 1", "--csv", "--json"], "two forms of one answer"),
    ],
)
def test_a_form_without_an_answer_and_two_forms_of_one_are_refused(
    trace: Path, capsys, arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["query", str(trace), *arguments])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert (told.out, said in told.err) == ("", True)
