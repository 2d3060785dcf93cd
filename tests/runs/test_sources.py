"""The program's lines that travel with a run: which ones, how many, and that they stay text."""

from __future__ import annotations

import json
import linecache
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import RunFileError
from kit.runs.run import Run
from kit.runs.sources import MAX_LINE, MAX_SOURCE_BYTES, Snippet, snippets_of
from tests.factories import HOSTILE, make_run

Place = tuple[str, int]


def name(place: Place) -> str:
    return f"{Path(place[0]).name}:{place[1]}"


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("".join(f"line {i}\n" for i in range(1, 101)))
    return str(path)


def shown(snippets: tuple[Snippet, ...]) -> list[tuple[str, int, int]]:
    return [(s.file, s.first, s.first + len(s.lines) - 1) for s in snippets]


def test_a_line_comes_with_some_around_it_and_near_ones_are_joined(program: str):
    found = snippets_of([(program, 20), (program, 26), (program, 60)], name)
    assert shown(found) == [("train.py", 18, 28), ("train.py", 58, 62)]
    assert found[0].lines[2] == "line 20"


def test_the_ends_of_a_file_and_lines_that_it_has_not_are_no_trouble(program: str):
    assert shown(snippets_of([(program, 1), (program, 100), (program, 500)], name)) == [
        ("train.py", 1, 3),
        ("train.py", 98, 100),
    ]
    assert snippets_of([("", 3), ("/no/such/file.py", 3), (program, 0)], name) == ()


def test_all_of_the_step_is_kept():
    def step():
        print("text")

        return 1

    code = step.__code__
    (snippet,) = snippets_of([], name, step=step)
    assert snippet.file == "test_sources.py"
    assert snippet.first == code.co_firstlineno - 2
    assert [x.strip() for x in snippet.lines[2:6]] == [
        "def step():",
        'print("text")',
        "",
        "return 1",
    ]
    assert snippets_of([], name, step=print) == ()


def test_a_cell_of_a_notebook_is_read_from_linecache():
    path = "ipykernel_7/123.py"
    linecache.cache[path] = (10, None, ["x = 1\n", "y = x\n"], path)
    assert snippets_of([(path, 2)], lambda place: f"In[3]:{place[1]}") == (
        Snippet("In[3]", 1, ("x = 1", "y = x")),
    )


def test_a_file_that_was_edited_is_read_again(program: str):
    assert snippets_of([(program, 1)], name)[0].lines[0] == "line 1"
    Path(program).write_text("another line, and a longer one\n")
    assert snippets_of([(program, 1)], name)[0].lines == ("another line, and a longer one",)


def test_two_files_of_one_name_are_left_out_because_a_site_names_both(program: str, tmp_path: Path):
    other = tmp_path / "other" / "train.py"
    other.parent.mkdir()
    other.write_text("another file\n")
    places = [(program, 3), (str(other), 1)]
    assert snippets_of(places, name) == ()


@given(places=st.lists(st.integers(1, 100), max_size=20), budget=st.integers(0, 300))
def test_no_more_than_the_budget_is_kept_and_what_is_kept_is_right(places: list[int], budget: int):
    path = "<budget>"
    text = [f"{'x' * (i % 13)} {i}\n" for i in range(1, 101)]
    linecache.cache[path] = (1, None, text, path)
    found = snippets_of([(path, n) for n in places], name, budget=budget)
    assert sum(len(line) + 1 for s in found for line in s.lines) <= budget
    for s in found:
        assert [x.rstrip() for x in text[s.first - 1 :][: len(s.lines)]] == list(s.lines)


def test_a_very_long_line_is_cut(tmp_path: Path):
    (tmp_path / "long.py").write_text("x" * 10_000)
    (snippet,) = snippets_of([(str(tmp_path / "long.py"), 1)], name)
    assert len(snippet.lines[0]) == MAX_LINE


def test_hostile_text_survives_a_file_and_an_older_file_has_none(tmp_path: Path):
    run = replace(make_run(), sources=(Snippet(HOSTILE[:200], 3, (HOSTILE, "")),))
    run.save(tmp_path / "a.kitrun")
    assert Run.load(tmp_path / "a.kitrun").sources == run.sources
    with (
        zipfile.ZipFile(tmp_path / "a.kitrun") as new,
        zipfile.ZipFile(tmp_path / "old.kitrun", "w") as old,
    ):
        for member in new.namelist():
            data = new.read(member)
            if member == "run.json":
                head = json.loads(data)
                del head["sources"], head["recorded_ns"]
                data = json.dumps(head).encode()
            old.writestr(member, data)
    assert Run.load(tmp_path / "old.kitrun") == replace(run, sources=())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sources": (Snippet("a.py", 0, ("x",)),)}, "begins before line 1"),
        (
            {"sources": (Snippet("a.py", 1, ("x" * 2 * MAX_SOURCE_BYTES,)),)},
            "source text is longer",
        ),
        ({"sources": (Snippet("a" * 2 * MAX_SOURCE_BYTES, 1, ("x",)),)}, "source text is longer"),
        ({"recorded_ns": (-2,)}, "the times at which the nodes were recorded"),
        ({"recorded_ns": (0,) * 10_000}, "the times at which the nodes were recorded"),
    ],
)
def test_what_no_run_has_is_refused(tmp_path: Path, change: dict[str, object], sentence: str):
    with pytest.raises(RunFileError, match=sentence):
        replace(make_run(), **change).save(tmp_path / "a.kitrun")
