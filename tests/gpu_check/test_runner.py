"""The parts run in processes of their own, and whatever ends one, the next starts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

from kit.gpu_check import runner
from kit.gpu_check.__main__ import _signals_interrupt, main
from kit.gpu_check.base.checks import Check, Table
from kit.gpu_check.base.journal import MAX_FILE_BYTES, Journal
from kit.gpu_check.runner import LOG, run_parts
from kit.gpu_check.summary import JSON, MARKDOWN, Summary
from kit.gpu_check.table import PARTS, part_of
from kit.runs.run import Run
from tests.factories import make_run
from tests.waiting import until

NAP = "import time; time.sleep(600)"
FIRST, SECOND = PARTS[0], PARTS[1]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the first parts a body of a test's own, which their real processes find first."""

    def make(*bodies: str) -> list[Any]:
        folder = tmp_path / "parts"
        folder.mkdir()
        start = f"import kit.gpu_check.parts as p; p.__path__.insert(0, {str(folder)!r})\n"
        (tmp_path / "sitecustomize.py").write_text(start)
        root = Path(__file__).parents[2]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(root)]))
        monkeypatch.setattr(runner, "LEAST_S", 0.5)
        monkeypatch.setattr(runner, "GRACE_S", 0.2)
        found = []
        for number, body in enumerate(bodies):
            made = "def run(journal):\n" + textwrap.indent(body, "    ")
            (folder / f"{PARTS[number].module}.py").write_text(made)
            found.append(replace(PARTS[number], share=0.5))
        return found

    return make


def checks_of(folder: Path, letter: str) -> dict[str, dict[str, Any]]:
    summary = json.loads((folder / JSON).read_text())
    part = next(p for p in summary["parts"] if p["part"] == letter)
    return {check["name"]: check for check in part["checks"]}


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("import os; os.abort()", "ended by signal 6"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by signal 11"),
        ("raise SystemExit(3)", "exit status 3"),
        ("raise RuntimeError('no such thing')", "exit status 1"),
        ("import time; time.sleep(600)", "its part of the budget"),
    ],
)
def test_what_a_part_wrote_stays_and_the_next_one_starts(
    parts: Any, out: Path, end: str, said: str
):
    chosen = parts(
        f"journal.check('before', 1.0, at_least=1)\njournal.doing('the end')\n{end}",
        "journal.check('after', 2.0)",
    )
    if "sleep" in end:
        chosen[0] = replace(chosen[0], share=0.01)  # the other one has plenty of time
    run_parts(chosen, out, budget_s=600, is_tiny=True)
    first = checks_of(out, FIRST.letter)
    assert first["before"]["state"] == "ok"
    problem = first[f"part {FIRST.letter} ends by itself"]
    assert problem["state"] == "not ok"
    assert said in problem["why"]
    assert "the end" in problem["why"]
    assert checks_of(out, SECOND.letter)["after"]["number"] == 2.0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends a process no interrupt")
def test_an_interrupt_keeps_what_the_part_has_found_and_said(parts: Any, out: Path):
    body = "print('a word', flush=True)\njournal.check('before', 1.0, at_least=1)\n"
    body += "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        run_parts(parts(body, "pass"), out, budget_s=600, is_tiny=True)
    found = checks_of(out, FIRST.letter)
    assert found["before"]["state"] == "ok"
    ended = found[f"part {FIRST.letter} ends by itself"]
    assert (ended["state"], ended["why"][:12]) == ("not run", "interrupted,")  # it found no fault
    later = checks_of(out, SECOND.letter)[f"part {SECOND.letter}"]
    assert (later["state"], later["why"]) == ("not run", "not begun")
    assert "a word" in (out / LOG).read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has none of these signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGKILL"])
def test_whoever_ends_the_command_ends_the_part_and_can_read_on(parts: Any, out: Path, name: str):
    pid = out / "pid"
    body = "journal.check('before', 1.0, at_least=1)\nimport os, pathlib, subprocess, sys, time\n"
    body += f"new = subprocess.Popen([sys.executable, '-c', {NAP!r}])\n"
    body += f"pathlib.Path({str(pid)!r}).write_text(f'{{os.getpid()}} {{new.pid}}')\n{NAP}"
    parts(body, "pass")
    (out / JSON).write_text("of an earlier run")
    command = [sys.executable, "-m", "kit.gpu_check", "--tiny", "--parts", "ab", "--out", str(out)]
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    there = {**os.environ, "TMPDIR": str(out)}  # what is killed leaves its folder
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=there) as process:
        signal.signal(signal.SIGHUP, hangup)
        until(lambda: pid.exists() and len(pid.read_text().split()) == 2)
        until(lambda: "before" in checks_of(out, FIRST.letter))
        number = signal.Signals[name]
        process.send_signal(number)
        _, said = process.communicate()
    is_killed = name == "SIGKILL"
    assert process.returncode == (-number if is_killed else 128 + number)
    assert said.count("\n") == (0 if is_killed else 1)
    until(lambda: not any(map(is_running, map(int, pid.read_text().split()))))
    first = checks_of(out, FIRST.letter)
    assert first["before"]["state"] == "ok"
    assert first[f"part {FIRST.letter} ends by itself"]["state"] == "not run"
    assert checks_of(out, SECOND.letter)[f"part {SECOND.letter}"]["state"] == "not run"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        with _signals_interrupt():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def is_running(pid: int) -> bool:
    """Is it there, and not only because nobody has asked how it ended?"""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_without_a_gpu_for_both_libraries_the_title_says_tiny(parts: Any, out: Path, library: str):
    facts = {"jax runs on": "gpu", "torch runs on": "cuda", f"{library} runs on": "cpu"}
    chosen = parts(
        f"journal.facts({facts})",
        "journal.check('tiny', float(journal.is_tiny), at_least=1)",
    )
    run_parts(chosen, out, budget_s=600, is_tiny=False)
    assert checks_of(out, SECOND.letter)["tiny"]["state"] == "ok"
    title = (out / MARKDOWN).read_text().splitlines()[0]
    assert f"no GPU for {library}: after part a tiny" in title
    assert "whose times say nothing" in title
    assert "## d)" not in (out / MARKDOWN).read_text()  # it was not asked for


def test_what_a_part_says_on_the_terminal_is_in_the_log(parts: Any, out: Path):
    run_parts(parts("print('a word')"), out, budget_s=600, is_tiny=True)
    assert "a word" in (out / LOG).read_text()


def test_a_failed_attempt_is_a_check_and_the_part_goes_on(tmp_path: Path):
    journal = Journal(tmp_path / "lines", tmp_path, seconds=60, is_tiny=True)
    with journal.attempt("division"):
        _ = 1 / 0
    journal.check("next", 1.0)
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    checks = [line["check"] for line in lines if "check" in line]
    assert [c["state"] for c in checks] == ["not ok", "measured"]
    assert checks[0]["why"].startswith("ZeroDivisionError: division by zero (test_runner.py:")


def test_what_needs_a_package_that_is_missing_was_not_run(tmp_path: Path):
    journal = Journal(tmp_path / "lines", tmp_path, seconds=60, is_tiny=True)
    with journal.attempt("a model"):
        import_module("transformers_of_nobody")
    check = json.loads((tmp_path / "lines").read_text().splitlines()[-1])["check"]
    assert check["state"] == "not run"
    assert "No module named 'transformers_of_nobody'" in check["why"]
    with pytest.raises(ModuleNotFoundError), journal.attempt("a part"):
        import_module("kit.gpu_check.nothing")  # the kit's own fault is no missing package


def test_what_the_time_is_too_short_for_is_named(tmp_path: Path):
    journal = Journal(tmp_path / "lines", tmp_path, seconds=5, is_tiny=True)
    assert journal.has_time("short", 1.0)
    assert not journal.has_time("long", 60.0)
    line = json.loads((tmp_path / "lines").read_text())
    assert line["check"]["state"] == "not run"
    assert "needs about 60 s" in line["check"]["why"]


def test_without_a_budget_every_part_is_named_as_not_run(tmp_path: Path, capsys: Any):
    out = tmp_path / "out"
    assert main(["--tiny", "--budget", "1", "--out", str(out)]) == 1
    for part in PARTS:
        assert checks_of(out, part.letter)[f"part {part.letter}"]["state"] == "not run"
    assert f"{len(PARTS)} not run" in capsys.readouterr().out


def test_after_an_interrupt_the_command_says_where_the_results_are(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("kit.gpu_check.__main__.run_parts", interrupted)
    assert main(["--tiny", "--out", str(tmp_path)]) == 130
    assert "interrupted; read" in capsys.readouterr().err


def test_an_unknown_part_is_a_clear_error(tmp_path: Path, capsys: Any):
    assert main(["--parts", "z", "--out", str(tmp_path)]) == 2
    assert "no part is called 'z'; there are: a, b" in capsys.readouterr().err


def test_the_shares_of_all_parts_are_one_budget():
    assert sum(part.share for part in PARTS) == pytest.approx(1.0)
    assert len({part.letter for part in PARTS}) == len(PARTS)
    assert all(part_of(part.letter) is part for part in PARTS)


def test_a_run_that_is_too_large_keeps_its_first_step(tmp_path: Path, monkeypatch: Any):
    run = make_run()
    assert int(run.timeline.where(kind="step").sum()) > 1
    run.save(tmp_path / "whole.kitrun")
    whole = (tmp_path / "whole.kitrun").stat().st_size
    monkeypatch.setattr("kit.gpu_check.base.journal.MAX_FILE_BYTES", whole - 1)
    Journal(tmp_path / "lines", tmp_path, seconds=60, is_tiny=True).keep(run, "cut")
    assert int(Run.load(tmp_path / "cut.kitrun").timeline.where(kind="step").sum()) == 1
    monkeypatch.setattr("kit.gpu_check.base.journal.MAX_FILE_BYTES", 10)
    Journal(tmp_path / "more", tmp_path, seconds=60, is_tiny=True).keep(run, "none")
    assert not (tmp_path / "none.kitrun").exists()
    assert "not run" in (tmp_path / "more").read_text()
    assert MAX_FILE_BYTES == 16 * 2**20


def test_a_run_that_does_not_fit_a_file_is_cut_and_else_named(tmp_path: Path, monkeypatch: Any):
    run = make_run()
    run.save(tmp_path / "whole.kitrun")
    whole = (tmp_path / "whole.kitrun").stat().st_size
    monkeypatch.setattr("kit.runs.saved.file.MAX_FILE_BYTES", whole - 1)
    Journal(tmp_path / "lines", tmp_path, seconds=60, is_tiny=True).keep(run, "cut")
    assert "the first traced step only" in (tmp_path / "lines").read_text()
    monkeypatch.setattr("kit.runs.saved.file.MAX_FILE_BYTES", 10)
    Journal(tmp_path / "more", tmp_path, seconds=60, is_tiny=True).keep(run, "none")
    check = json.loads((tmp_path / "more").read_text())["check"]
    assert (check["state"], "bytes, more than 10" in check["why"]) == ("not run", True)


@pytest.mark.parametrize(
    ("number", "targets", "state"),
    [
        (0.98, {"at_least": 0.98}, "ok"),
        (0.97, {"at_least": 0.98}, "not ok"),
        (1.2, {"at_least": 0.9, "at_most": 1.1}, "not ok"),
        (float("nan"), {}, "not ok"),
        (float("inf"), {"at_least": 1}, "not ok"),
        (3.0, {}, "measured"),
    ],
)
def test_a_number_is_compared_with_its_target(number: float, targets: dict[str, float], state: str):
    assert Check.of("it", number, **targets).state == state


def test_the_page_of_hostile_text_has_no_markup(tmp_path: Path):
    summary = Summary(tmp_path, title="a")
    summary.add(FIRST, Check("<script>|", "not ok", why="| <b>\x1b[31m"))
    summary.take(FIRST, {"table": asdict(Table.of("<i>", [{"a|b": "<u>", "n": None}]))})
    summary.take(FIRST, {"facts": {"<p>": "<q>"}})
    summary.write()
    page = (tmp_path / MARKDOWN).read_text()
    assert not {"<script", "<b>", "<i>", "<u>", "<p>", "<q>", "\x1b"} & {
        part for part in ("<script", "<b>", "<i>", "<u>", "<p>", "<q>", "\x1b") if part in page
    }
