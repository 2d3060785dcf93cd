"""What commands write is taken by every terminal, pipe and encoding, and stays what it means."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tqdm import tqdm

from kit.cli import main as cli
from kit.cli.terminal import complain
from kit.text import plain_text, safe_terminal
from tests.factories import make_run
from tests.formats.chrome.traces import cuda_trace, written
from tests.widgets.base.test_progress import Terminal

ROOT = Path(__file__).parents[2]
KIT = ROOT / "kit"
NO_TEXT = {"＝", "＋", "－", "＠"}  # looked for in a stranger's cells, and never written


def start(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    # Without a buffer, argparse itself passes over what cannot be written.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    options = {"env": environment, **options}
    return subprocess.run([sys.executable, "-m", "kit", *arguments], cwd=ROOT, encoding="utf-8",
                          stderr=subprocess.PIPE, check=False, **options)  # fmt: skip


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "utf-8"])
def test_units_and_signs_mean_the_same_in_every_encoding(encoding: str) -> None:
    shown = plain_text("93 µs: −4% ± 2%, ≈0 → 1.2×", encoding)
    plain = plain_text(shown, "ascii")
    assert plain == "93 us: -4% +- 2%, ~0 -> 1.2x"
    assert (shown == plain) is (encoding == "ascii")


def test_a_strangers_letter_that_cannot_be_shown_is_one_question_mark() -> None:
    assert plain_text("é日a", "ascii") == "??a"
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", "kit.plain")  # it is for writing only


def test_each_character_that_kit_writes_has_plain_letters() -> None:
    lacking: dict[str, str] = {}
    for file in KIT.rglob("*.py"):
        text = file.read_text("utf-8")
        if text.isascii() and "\\u" not in text:
            continue
        tree = ast.parse(text)
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docs = {ast.get_docstring(n, clean=False) for n in ast.walk(tree)
                if isinstance(n, documented)}  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for c in set(node.value) if node.value not in docs else ():
                    if safe_terminal(c) == c and "?" in plain_text(c, "ascii") and c != "?":
                        lacking[c] = f"{file.relative_to(ROOT)}:{node.lineno}"
    assert {c: place for c, place in lacking.items() if c not in NO_TEXT | {"\ufffd"}} == {}


def test_a_summary_keeps_its_units_where_only_ascii_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run().save(tmp_path / "a.kitrun")
    assert cli.main(["view", str(tmp_path / "a.kitrun")]) == 0
    whole = capsys.readouterr().out
    assert "µs" in whole  # or nothing is tested here
    for encoding in ("ascii", "cp1252"):
        raw = io.BytesIO()
        out = io.TextIOWrapper(raw, encoding=encoding)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(sys, "stdout", out)
            assert cli.main(["view", str(tmp_path / "a.kitrun")]) == 0
        assert raw.getvalue().decode(encoding) == plain_text(whole, encoding)


def test_a_process_without_utf_8_shows_a_run(tmp_path: Path) -> None:
    make_run().save(tmp_path / "a.kitrun")
    bare = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
            "COLUMNS": "40"}  # fmt: skip
    bare.pop("PYTHONIOENCODING", None)
    said = start("view", str(tmp_path / "a.kitrun"), stdout=subprocess.PIPE, env=bare)
    assert (said.returncode, said.stderr) == (0, "")
    assert " us" in said.stdout
    assert said.stdout.isascii()


@pytest.mark.parametrize("arguments", [[], ["run", "--help"]])
def test_the_help_into_a_closed_pipe_is_quiet(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    said = start(*arguments, stdout=writing)
    os.close(writing)
    assert (said.returncode, said.stderr) == (141, "")


def test_a_page_is_written_though_nobody_reads_the_text(tmp_path: Path) -> None:
    make_run().save(tmp_path / "a.kitrun")
    page = tmp_path / "page.html"
    reading, writing = os.pipe()
    os.close(reading)
    said = start("view", str(tmp_path / "a.kitrun"), "-o", str(page), stdout=writing,
                 env={**os.environ, "PYTHONUNBUFFERED": "1"})  # fmt: skip
    os.close(writing)
    assert (said.returncode, said.stderr) == (141, "")
    assert page.stat().st_size > 10_000


def test_a_text_is_printed_though_its_page_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run().save(tmp_path / "a.kitrun")
    assert cli.main(["view", str(tmp_path / "a.kitrun"), "-o", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "where the mean traced step goes" in out
    assert "a plain file is needed" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        said = start("--help", stdout=full)
    assert (said.returncode, said.stderr) == (
        1,
        "kit: standard output could not be written: No space left on device\n",
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
def test_a_disk_that_fills_in_the_middle_of_a_text_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run().save(tmp_path / "a.kitrun")
    with contextlib.suppress(OSError), open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(["view", str(tmp_path / "a.kitrun")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "kit: No space left on device: standard output"


def test_without_standard_output_a_command_does_what_it_does(tmp_path: Path) -> None:
    make_run().save(tmp_path / "a.kitrun")
    code = (
        "import os, sys; os.close(1); sys.stdout = None\n"
        "from kit.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "view", str(tmp_path / "a.kitrun")]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
@pytest.mark.parametrize("buffering", [1, -1])
def test_a_full_disk_is_no_slower_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffering: int
) -> None:
    """Where errors cannot be told either, `kit diff` gave 1: what it gives for a slower step."""
    make_run().save(tmp_path / "a.kitrun")
    # Each suppresses what the stream below it raises as it is closed.
    with (
        contextlib.suppress(OSError),
        open("/dev/full", "w", buffering=buffering) as out,
        contextlib.suppress(OSError),
        open("/dev/full", "w", buffering=1) as err,
    ):
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        assert cli.main(["diff", str(tmp_path / "a.kitrun"), str(tmp_path / "a.kitrun")]) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
def test_a_status_is_the_commands_own_where_errors_cannot_be_told(tmp_path: Path) -> None:
    """It was 120, Python's own for a stream that it cannot empty."""
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "kit", "view", str(tmp_path / "no.json")]
        bare = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        done = subprocess.run(command, cwd=ROOT, env=bare, stderr=full, check=False)
    assert done.returncode == 1


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    """Else what libraries write to standard error goes into a run that is being saved."""
    code = (
        "import os, sys; os.closerange(0, 3); sys.argv = ['kit']\n"
        "from kit.__main__ import main; status = main()\n"
        "sys.exit(status or os.open(os.devnull, os.O_RDONLY) < 3 or not os.get_inheritable(2))"
    )
    assert not subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode


def test_what_windows_says_of_a_closed_pipe_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    invalid = OSError(22, "Invalid argument")
    assert not cli._is_closed_pipe(invalid)
    monkeypatch.setattr(sys, "platform", "win32")
    assert cli._is_closed_pipe(invalid)
    assert not cli._is_closed_pipe(OSError(22, "Invalid argument", "a.kitrun"))


def test_a_message_stands_on_a_line_of_its_own_beside_a_progress_bar(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with tqdm(total=3) as bar:
        bar.update()
        complain("words")
        assert "kit: words" in (said := capsys.readouterr().err.splitlines())
        assert "1/3" in said[-1]


def test_no_bar_keeps_a_message_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pipe may be closed (`| head`), and a worker that was killed may have tqdm's lock."""

    def of_a_closed_pipe(**_: object) -> None:
        raise BrokenPipeError

    with tqdm(total=3) as bar, monkeypatch.context() as broken:
        for fails in ("refresh", "clear"):
            broken.setattr(bar, fails, of_a_closed_pipe)
            complain(f"words, {fails}")
            assert f"kit: words, {fails}\n" in capsys.readouterr().err
    lock = threading.Lock()
    monkeypatch.setattr(tqdm, "_lock", lock)
    with lock:
        speaks = threading.Thread(target=complain, args=("words, locked",))
        speaks.start()
        speaks.join(10)
        assert "kit: words, locked\n" in capsys.readouterr().err
    speaks.join()


@pytest.mark.parametrize("after_s", [0.0, 60.0])
def test_while_a_trace_is_read_a_terminal_shows_how_far_and_what_is_quick_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    after_s: float,
) -> None:  # fmt: skip
    file, terminal = written(tmp_path, cuda_trace()), Terminal()
    monkeypatch.setattr("kit.cli.terminal._BAR_AFTER_S", after_s)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["view", str(file)]) == 0
    assert capsys.readouterr().out.startswith("trace.json: imported")
    assert ("kit view: reading" in terminal.getvalue()) is (after_s == 0)
    assert terminal.getvalue().endswith("\r\x1b[K" if after_s == 0 else "")
    assert bool(terminal.getvalue()) is (after_s == 0)
