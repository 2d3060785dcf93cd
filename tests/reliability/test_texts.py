"""No text of a stranger does anything but be read, wherever the kit shows it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ipywidgets import HTML, HTMLMath, Widget

import kit
from kit.cli.main import VERBS, main
from kit.errors import KitError
from kit.formats.export import SUFFIXES
from kit.runs.device.callers import BY
from kit.runs.run import Run
from kit.widgets.views import VIEWS
from tests.factories import make_run
from tests.reliability.texts import (
    HOSTILE,
    MARK,
    hostile_file,
    hostile_trace,
    problems_of,
    strings_of,
)

# How an object can be asked for a text, and where that is shown.
_ASKED: dict[str, str] = {
    "__str__": "terminal",
    "__repr__": "terminal",
    "text": "terminal",
    "summary": "terminal",
    "dot": "dot",
    "to_markdown": "markdown",
    "_repr_markdown_": "markdown",
    "_repr_html_": "html",
}
_TARGETS = {".json": "json", ".csv": "csv", ".md": "markdown"}
_RUN = re.compile(r"'?(Run\b(?!Diff)|tuple\[Run,)")


_SAVED, _TRACE = "hostile.kitrun", "hostile.json"
_ALSO_AS_TRACE = ("markup", "lines", "controls")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """For a kind of text a folder with a saved run and a trace that are full of it."""

    @cache
    def folder_of(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        hostile_file(folder, HOSTILE[kind])
        hostile_trace(folder, HOSTILE[kind])
        return folder

    return folder_of


@pytest.fixture(
    scope="module",
    params=[(k, _SAVED) for k in HOSTILE] + [(k, _TRACE) for k in _ALSO_AS_TRACE],
    ids="-".join,
)
def run(folders: Callable[[str], Path], request: pytest.FixtureRequest) -> Run:
    """A run whose every text begins with one of them: saved by the kit, or imported."""
    kind, file = request.param
    return kit.open_trace(folders(kind) / file)


def check(name: str, target: str, text: str) -> list[str]:
    """What is wrong with a text that an output gives, each with the output's name."""
    return [f"{name}: {problem}" for problem in problems_of(text, target)]


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_the_loader_refuses_is_said_without_harm(kind: str, tmp_path: Path) -> None:
    _, refused = hostile_file(tmp_path, HOSTILE[kind])
    assert len(refused) > 20
    assert [p for said in refused for p in check("refused", "terminal", said)] == []


def test_each_view_of_a_report_shows_it_as_text(run: Run) -> None:
    found = []
    for row in VIEWS:
        found += check(row.key, "html", row.text(run))
        if row.figure is not None:
            for text in set(strings_of(row.figure.payload(run))):
                found += check(f"the figure of {row.key}", "label", text)
    assert found == []


def test_each_live_view_shows_it_as_text(run: Run) -> None:
    found = []
    for row in VIEWS:
        view = row.widget(lambda change: None)
        view.run = run  # type: ignore[attr-defined]
        for text in _shown_by(view):
            found += check(row.key, "html", text)
        found += check(row.key, "terminal", repr(view))
        view.close()
    assert found == []


def test_each_public_name_that_takes_a_run_gives_text_without_harm(run: Run) -> None:
    found = []
    for name, make in _takers().items():
        try:
            made = make(run)
        except KitError as error:
            found += check(f"an error of kit.{name}", "terminal", str(error))
            continue
        found += [p for text in _texts_of(f"kit.{name}", made) for p in check(*text)]
    assert found == []


def test_all_that_a_run_says_of_itself_is_without_harm(run: Run) -> None:
    found = []
    data = {field.name for field in fields(Run)} | {"save", "load", "nodes_of", "to_dataframe"}
    asked = {"query": ("select * from spans",), "caller": (0,), "pin": (0, "seen"), "unpin": (0,)}
    run = run.pin(0, "seen")  # one to take away
    for name, member in inspect.getmembers(Run):
        if name.startswith("_") or name in data:
            continue
        value = getattr(run, name)
        said = value(*asked.get(name, ())) if inspect.isfunction(member) else value
        shown = {"to_markdown": "markdown"}.get(name, "terminal")
        found += check(f"run.{name}", shown, said if isinstance(said, str) else repr(said))
        found += [p for text in _texts_of(f"run.{name}", said) for p in check(*text)]
    for graph in run.graphs:
        found += check("a graph", "terminal", str(graph))
        found += check("a diff of graphs", "terminal", str(graph.diff(make_run().graphs[0])))
    assert found == []


@pytest.mark.parametrize("suffix", sorted(set(_TARGETS)))
def test_what_is_exported_is_without_harm(run: Run, suffix: str, tmp_path: Path) -> None:
    assert {s.removesuffix(".gz") for s in SUFFIXES} == set(_TARGETS)
    text = kit.export_trace(run, tmp_path / f"out{suffix}").read_text()
    assert check(suffix, _TARGETS[suffix], text) == []


def test_a_report_has_no_tag_and_no_mark_that_a_plain_one_has_not(tmp_path: Path) -> None:
    text = HOSTILE["markup"] + HOSTILE["controls"]
    evil = kit.open_trace(hostile_file(tmp_path, text)[0])
    page, plain = (
        kit.report([run, replace(run, label="two")], path=tmp_path / "page.html").read_text()
        for run in (evil, make_run())
    )
    assert f"<{MARK}" not in page
    assert {c for c in page if not c.isprintable()} <= {c for c in plain if not c.isprintable()}


# What each verb is called with. Files: `hostile.kitrun` and `hostile.json`, two folders of runs,
# a script that fails with a hostile message, and a name of a file that is not there.
_CALLS: dict[str, list[list[str]]] = {
    "view": [["{run}"], ["{trace}"], ["{missing}"]] + [["{trace}", "--by", by] for by in BY],
    "diff": [
        ["{run}", "{trace}"],
        ["{run}", "{trace}", "--markdown"],
        ["{old}", "{new}", "--fail-over", "0.01%"],
        ["{old}", "{new}", "--markdown", "--fail-over", "0.01%"],
    ],
    "report": [["{missing}"]],
    "run": [["{script}"], ["{missing}"]],
    "lab": [["{missing}"]],
    "open": [["{missing}"]],  # of a run it shows the page, which has a test of its own
    "query": [
        ["{run}", "select * from spans"],
        ["{trace}", "select name as 'a\x1b[31m', site from spans, syncs"],
        ["{trace}", "select \x1b[31m"],
        ["{missing}", "select 1"],
    ],
    "demo": [],  # measures a step of the kit's own: nothing in it is of a stranger
    "doctor": [[]],
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_no_verb_lets_a_terminal_obey(
    verb: str,
    kind: str,
    folders: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    evil, folder = HOSTILE[kind], folders(kind)
    name = evil.translate({0: None, ord("/"): None, 0xD800: None, 0xDFFF: 0xDCFF})[:60]
    files = _files(folder, tmp_path, evil, name)
    monkeypatch.setenv("KIT_CACHE_DIR", str(tmp_path / name))
    found = []
    for call in _CALLS[verb]:
        main([verb, *(word.format(**files) for word in call)])
        said, complained = capfd.readouterr()
        target = "markdown" if "--markdown" in call else "terminal"
        found += check(f"kit {verb} {call}", target, said)
        found += check(f"kit {verb} {call}, stderr", "terminal", complained)
    assert found == []


def _files(folder: Path, tmp_path: Path, evil: str, name: str) -> dict[str, str]:
    """What the words in `_CALLS` stand for."""
    files = {"run": folder / "hostile.kitrun", "trace": folder / "hostile.json"}
    run = Run.load(files["run"])
    for side, slower in (("old", 1), ("new", 9)):
        files[side] = tmp_path / side
        files[side].mkdir()
        for batch in (1, 2, 3 if side == "old" else 4):
            cell = run.settings.replace(batch_size=batch)
            times = tuple(slower * 1_000_000 + i for i in range(50))
            replace(run, settings=cell, step_times_ns=times).save(files[side] / f"{batch}.kitrun")
    files["script"] = tmp_path / f"{name}.py"
    message = " ".join(evil.split("\n"))  # a program may say what it likes in lines of its own
    files["script"].write_text(f"raise ValueError({message!r})\n")
    files["missing"] = tmp_path / f"{name}.json"
    return {key: str(path) for key, path in files.items()}


def _takers() -> dict[str, Callable[[Run], Any]]:
    """The public names that need nothing but runs."""
    found: dict[str, Callable[[Run], Any]] = {}
    for name in kit.__all__:
        public = getattr(kit, name)
        if not callable(public):
            continue
        asked = list(inspect.signature(public).parameters.values())
        needed = [p for p in asked if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        needed = needed or asked[:1]
        if needed and all(_RUN.match(str(p.annotation)) for p in needed):
            many = "tuple" in str(needed[0].annotation)
            found[name] = _call(public, len(needed), many=many)
    assert {"kernel_table", "diff_runs", "Comparison", "TimelineView", "predict"} <= set(found)
    return found


def _call(public: Any, count: int, *, many: bool) -> Callable[[Run], Any]:
    def call(run: Run) -> Any:
        other = replace(run, label=f"{run.label}2", step_times_ns=(9_000_000,) * 9)
        return public((run, other)) if many else public(*(run, other)[:count])

    return call


def _texts_of(name: str, made: Any) -> Iterator[tuple[str, str, str]]:
    """All texts that an object gives of itself, and that those in it give."""
    for item in [made, *made] if isinstance(made, tuple | list) else [made]:
        if isinstance(item, str | dict | Run):
            continue
        for asked, target in _ASKED.items():
            method = getattr(type(item), asked, None)
            if inspect.isfunction(method):
                yield f"{name}.{asked}", target, getattr(item, asked)()
        if isinstance(item, Widget):  # how one stands in a page: the test of reports
            for text in _shown_by(item):
                yield name, "html", text
            item.close()


def _shown_by(widget: Any) -> Iterator[str]:
    """The HTML in a widget and in those inside of it."""
    if isinstance(widget, HTML | HTMLMath):
        yield widget.value
    for child in getattr(widget, "children", ()):
        yield from _shown_by(child)
