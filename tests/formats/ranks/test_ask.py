"""Folders of ranks asked in SQL, and reported: all ranks together say what each says alone."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

import kit
from kit.cli.main import main
from kit.errors import QueryError
from kit.formats.ranks import ask, read
from kit.runs.tables import query as asked
from kit.runs.tables.columns import TABLES
from kit.runs.tables.ranks import TABLES_OF_RANKS
from kit.trace.ranks.ranks import Ranks
from kit.workloads.made_ranks import Job, write_ranks
from tests.factories import make_run

PAGE = Path(__file__).parents[3] / "docs" / "ranks.md"
QUESTIONS = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
JOB = Job(ranks=3, steps=2, slow={2: 1.5}, clock_us={1: 350.0, 2: -90_000.0})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("ranks")
    write_ranks(made, JOB)
    return made


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Ranks:
    return kit.open_ranks(folder)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_table_of_all_ranks_is_that_of_each_rank_and_its_number(ranks: Ranks, table):
    answer = kit.query_ranks(ranks, f"select * from {table.name}")
    assert answer.heads == ("rank", *(field.name for field in table.fields))
    alone = [(row.rank, kit.open_trace(row.file)) for row in ranks.ranks]
    assert answer.rows == tuple(
        (rank, *row) for rank, run in alone for row in run.query(f"select * from {table.name}")
    )


def test_what_was_compared_is_asked_as_it_is_shown(ranks: Ranks):
    rows = kit.query_ranks(ranks, "select rank, file, step_ms, waited_ms, came_last, clock from "
                                  "ranks order by rank")  # fmt: skip
    assert rows.rows == tuple(
        (r.rank, r.file, r.step_ms, r.waited_ms, r.last, r.clock.how) for r in ranks.ranks
    )
    slowest = kit.query_ranks(ranks, "select step, rank, why, over_ms, error_ms from slowest")
    assert slowest.rows == tuple(
        (s.name, s.slowest, s.why, s.over_ms, s.error_ms) for s in ranks.steps
    )
    last = kit.query_ranks(ranks, "select last_rank, late_ns, size_bytes, process_group "
                                  "from collectives order by collective")  # fmt: skip
    assert last.rows == tuple(
        (c.last, c.late_ns, c.size_bytes, c.channel.group) for c in ranks.collectives
    )
    copies = kit.query_ranks(ranks, "select rank, what, count, size_bytes, total_ms from copies")
    assert copies.rows == tuple(
        (c.rank, c.what, c.count, c.size_bytes, c.total_ms) for c in ranks.copies
    )


def test_spans_of_all_ranks_meet_their_collectives_on_the_common_clock(ranks: Ranks):
    sql = """select count(*), sum(s.start_ns + r.begin_ns = a.start_ns) from arrivals a
             join ranks r on r.rank = a.rank
             join spans s on s.rank = a.rank and s.kind = 'communication'
              and abs(s.start_ns + r.begin_ns - a.start_ns) < 100000"""
    ((found, equal),) = kit.query_ranks(ranks, sql).rows
    assert found == equal == sum(len(c.start_ns) for c in ranks.collectives) > 0
    spread = "select max(stop_ns) - min(stop_ns) from arrivals group by collective"
    assert all(ns <= JOB.jitter_us * 2e3 for (ns,) in kit.query_ranks(ranks, spread))


@pytest.mark.parametrize("sql", QUESTIONS, ids=lambda sql: sql.split("\n")[0][:40])
def test_a_question_of_the_page_has_an_answer(ranks: Ranks, sql: str):
    assert len(kit.query_ranks(ranks, sql)) > 0
    assert len(QUESTIONS) == 2


def test_what_is_not_known_of_ranks_is_null(tmp_path: Path):
    for rank in range(2):
        make_run().save(tmp_path / f"rank{rank}.kitrun")  # saved runs have no common clock
    sql = "select begin_ns, clock_error_ns from ranks"
    assert kit.query_ranks(kit.open_ranks(tmp_path), sql).rows == ((None, None),) * 2
    assert kit.query_ranks(kit.open_ranks(tmp_path), "select rank, why from slowest").rows == (
        *[(None, None)] * 3,
    )


def test_too_many_rows_and_wrong_questions_are_said(ranks: Ranks, monkeypatch):
    with pytest.raises(QueryError, match=r"The tables are ranks, slowest, .* steps;"):
        kit.query_ranks(ranks, "select x from nix")
    with pytest.raises(QueryError, match=r"takes what kit\.open_ranks gives, and this is a str"):
        kit.query_ranks("traces/", "select 1")  # type: ignore[arg-type]
    monkeypatch.setattr(asked, "MAX_FILLED", 100)
    with pytest.raises(QueryError, match="ranks and spans of all ranks have more than 100 rows"):
        kit.query_ranks(ranks, "select * from spans, ranks")


def test_the_commands_take_a_folder(folder: Path, tmp_path: Path, capsys):
    assert main(["query", str(folder), "select rank, count(*) from steps group by rank"]) == 0
    assert capsys.readouterr().out.split()[-6:] == ["0", "2", "1", "2", "2", "2"]
    assert main(["query", str(folder)]) == 0
    listed = capsys.readouterr().out
    for table in (*TABLES_OF_RANKS, *TABLES):
        assert f"{table.name}: " in listed
    assert main(["report", str(folder), "-o", str(tmp_path / "a.html")]) == 0
    assert main(["view", str(folder), "-o", str(tmp_path / "b.html")]) == 0
    assert (tmp_path / "a.html").read_text() == (tmp_path / "b.html").read_text()
    assert "Which rank is slow?" in (tmp_path / "a.html").read_text()


def test_a_question_names_the_ranks_that_are_missing(folder: Path, tmp_path: Path, capsys):
    (tmp_path / "rank1.json").write_bytes((folder / "rank1.json").read_bytes())
    (tmp_path / "rank2.json").write_bytes((folder / "rank2.json").read_bytes()[:5_000])
    assert main(["query", str(tmp_path), "select count(*) from ranks", "--csv"]) == 0
    out, err = capsys.readouterr()
    assert out.split() == ['"count(*)"', "1"]
    assert "note: 'rank2.json' could not be read" in err
    assert "2 ranks of 3 missing: 0, 2" in err


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read, each time."""
    found: list[str] = []

    def spied(read):
        def one(file, *more, **named):
            found.append(Path(file).name)
            return read(file, *more, **named)

        return one

    monkeypatch.setattr(ask, "read_both", spied(ask.read_both))
    monkeypatch.setattr(read, "read_rank", spied(read.read_rank))
    monkeypatch.setattr(ask, "open_trace", spied(ask.open_trace))
    return found


@pytest.mark.parametrize(
    ("sql", "times"),
    [
        ("select 'spans'", 0),
        ("select nix from spans", 0),
        ("delete from ranks", 0),
        ("select rank from ranks", 1),
        ("select rank, name from kernels", 1),
        ("select r.rank, count(*) from ranks r join gaps g on g.rank = r.rank group by 1", 1),
    ],
)
def test_a_file_is_read_once_at_most(folder: Path, reads: list[str], sql: str, times: int):
    with contextlib.suppress(QueryError):
        ask.query_folder(folder, sql)
    assert sorted(reads) == [f"rank{i}.json" for i in range(JOB.ranks)] * times


@pytest.mark.parametrize("name", ["rank{}.json", "{}.json"])
def test_a_folder_answers_as_its_ranks_do(folder: Path, tmp_path: Path, name: str):
    """Also with a rank missing, one there twice, and files whose names say nothing."""
    for i in (0, 2):
        (tmp_path / name.format(i)).write_bytes((folder / f"rank{i}.json").read_bytes())
    (tmp_path / "z_copy.json").write_bytes((folder / "rank2.json").read_bytes())
    if "rank" not in name:
        for file in tmp_path.iterdir():
            made = json.loads(file.read_text())
            made.pop("distributedInfo")
            file.write_text(json.dumps(made))
    ranks = kit.open_ranks(tmp_path)
    assert ranks.problems
    for table in (*TABLES_OF_RANKS, *TABLES):
        answer, problems = ask.query_folder(tmp_path, f"select * from {table.name}")
        expected = kit.query_ranks(ranks, f"select * from {table.name}")
        assert answer.heads == expected.heads
        assert Counter(answer) == Counter(expected)  # the rows' order is that of the files
        assert problems == ranks.problems


def test_steps_are_those_that_were_asked_for(folder: Path, capsys):
    sql = "select count(*) from steps"
    assert main(["query", str(folder), sql, "--step-by", "0..2", "--csv"]) == 0
    assert capsys.readouterr().out.split() == ['"count(*)"', "3"]  # one a rank


def test_a_folder_of_ranks_is_no_run_among_others(folder: Path, capsys):
    for verb in ("report", "open"):
        assert main([verb, str(folder), str(folder / "rank0.json")]) == 1
        assert "a folder of ranks has a page of its own: give it alone" in capsys.readouterr().err
