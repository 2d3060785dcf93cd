"""Only plain files are read and written; a file is written whole and stays private."""

from __future__ import annotations

import inspect
import os
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.cli.main import main
from kit.errors import RunFileError, SettingsError
from kit.files import check_target, is_no_users, write_whole
from kit.runs.run import Run
from kit.workloads import mlp
from tests.factories import make_run


def test_a_file_that_is_written_again_stays_as_private_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "mine.kitrun"
    write_whole(file, b"one")
    file.chmod(0o600)
    write_whole(file, b"two")
    assert file.read_bytes() == b"two"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_name_as_long_as_a_name_can_be_is_written(tmp_path: Path) -> None:
    longest = os.pathconf(tmp_path, "PC_NAME_MAX")
    file = tmp_path / ("x" * (longest - len(".kitrun")) + ".kitrun")
    write_whole(file, b"one")
    write_whole(file, b"two")
    assert file.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_killed_saver_has_left_goes_with_the_next_save(tmp_path: Path) -> None:
    """Hidden files of megabytes stayed for ever."""
    kill = "import os, signal; os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n"
    write = f"{kill}from kit.files import write_whole; write_whole({str(tmp_path / 'a')!r}, b'a')"
    subprocess.run([sys.executable, "-c", write], check=False)
    left = [*tmp_path.iterdir()]
    assert len(left) == 1
    os.utime(left[0], (1, 1))
    others = {".0123456789abcdef.tmp", ".kit-mine.tmp", "x.kit-0123456789abcdef.tmp"}
    for name in others:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ".kit-0123456789abcdef.tmp").touch()  # another process writes it now
    write_whole(tmp_path / "b", b"b")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {*others, ".kit-0123456789abcdef.tmp", "b"}


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in use stays")
def test_a_folder_that_is_gone_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        write_whole("mine.kitrun", b"one")
    assert caught.value.filename == "mine.kitrun"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.kitrun"
    write_whole(file, b"older")
    write = """
import resource, signal, sys
from kit.files import check_target, write_whole
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # as if the disk had no more
try:
    write_whole(sys.argv[1], bytes(5000))
except OSError as error:
    print(error)
"""
    said = subprocess.check_output([sys.executable, "-c", write, str(file)], text=True)
    assert f"it was not written, and what was there is as before: {str(file)!r}" in said
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [
        ("mine.kitrun", b"older")
    ]


# What opens a path to read it, with each suffix that chooses another reader.
READERS: dict[str, Callable[[Path], object]] = {
    "load": Run.load,
    "open_trace": kit.open_trace,
    "open_trace.kitrun": kit.open_trace,
    "open_trace.json": kit.open_trace,
    "open_trace.json.gz": kit.open_trace,
    "open_trace.xplane.pb": kit.open_trace,
}
WRITERS: dict[str, Callable[[Path], object]] = {
    "save": lambda path: make_run().save(path),
    "report": lambda path: kit.report([make_run()], path=path),
    "export_trace.json": lambda path: kit.export_trace(make_run(), path),
    "export_trace.md": lambda path: kit.export_trace(make_run(), path),
}


@pytest.fixture(params=["a named pipe", "a socket", "a device"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A path at which reading would wait or never end, and what an error calls it."""
    path, kind = tmp_path / "special", request.param
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "a named pipe":
            os.mkfifo(path)
        elif kind == "a socket":
            listening.bind(str(path))
        else:
            path = Path("/dev/zero")
        yield path, kind


@pytest.mark.parametrize("name", [*READERS, *WRITERS])
def test_what_is_no_plain_file_is_refused_and_left_alone(
    name: str, special: tuple[Path, str], tmp_path: Path
) -> None:
    target, kind = special
    path = tmp_path / name
    path.symlink_to(target)
    before = os.stat(target)
    with pytest.raises(OSError, match=kind) as caught:
        (READERS | WRITERS)[name](path)
    assert caught.value.filename == str(path)
    after = os.stat(target)
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert path.is_symlink()
    assert list(tmp_path.glob("*.tmp")) == []


def _report_on(path: Any) -> object:
    def build(ctx: object) -> object:
        raise AssertionError("measured")

    return kit.report(kit.workload(build), path=path)


# All that takes a path; what is no path is refused before anything is measured.
TAKES_PATHS: dict[str, Callable[[Any], object]] = {
    **READERS,
    **WRITERS,
    "report of a workload": _report_on,
    "open_memory": kit.open_memory,
    "open_ranks": kit.open_ranks,
    "open_ranks, listed": lambda path: kit.open_ranks([path]),
    "sweep": lambda path: kit.sweep(mlp, {"steps": [1]}, path=path),
}


@pytest.mark.parametrize("name", TAKES_PATHS)
@pytest.mark.parametrize("path", ["", "a\0b", b"a.json", 5, 1.5], ids=repr)
def test_what_is_no_path_is_told_as_that(
    name: str, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty path was the working folder: a report was refused after minutes of measuring."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"^a path is the name of a file .* not ") as caught:
        TAKES_PATHS[name](path)
    assert len(str(caught.value)) < 200
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name in TAKES_PATHS if name != "sweep"])
def test_none_is_no_path(name: str) -> None:
    with pytest.raises(SettingsError, match=r"^a path is the name of a file .* not None"):
        TAKES_PATHS[name](None)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("is_there", [True, False])
def test_what_is_written_to_a_link_is_where_the_link_leads(
    name: str, is_there: bool, tmp_path: Path
) -> None:
    """The link was replaced, and the file that it named stayed the old one."""
    (tmp_path / "there").mkdir()
    path, target = tmp_path / name, tmp_path / "there" / name
    if is_there:
        target.write_text("older")
        target.chmod(0o600)
    path.symlink_to(Path("there", name))
    WRITERS[name](path)
    assert path.is_symlink()
    assert len(target.read_bytes()) > len("older")
    assert not is_there or target.stat().st_mode & 0o777 == 0o600
    assert sorted(tmp_path.rglob("*")) == sorted([path, target.parent, target])


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_that_leads_nowhere_is_an_error(name: str, tmp_path: Path) -> None:
    for target in ("no such folder/file", name):  # the latter leads to itself
        path = tmp_path / name
        path.symlink_to(target)
        with pytest.raises(OSError, match=r"no such folder|[Tt]oo many levels"):
            WRITERS[name](path)
        assert path.is_symlink()
        path.unlink()


def test_a_pipe_in_a_profiles_folder_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "host.xplane.pb")
    with pytest.raises(OSError, match="a named pipe"):
        kit.open_trace(tmp_path)


def test_a_report_says_so_before_anything_is_measured(tmp_path: Path) -> None:
    def build(ctx: object) -> object:
        raise AssertionError("measured")

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a named pipe"):
        kit.report(kit.workload(build), path=tmp_path / "pipe")
    for name in ("report.pdf", "report.kitrun"):
        with pytest.raises(SettingsError, match=r"a report is a page .* or Markdown"):
            kit.report(kit.workload(build), path=tmp_path / name)
        with pytest.raises(SettingsError, match=r"a report is a page .* or Markdown"):
            kit.report(make_run(), path=tmp_path / name)
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    "command", ["view PIPE", "diff PIPE PIPE", "report PIPE", "run none.py --save PIPE"]
)
def test_the_command_line_says_what_a_path_is(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(command.replace("PIPE", str(pipe)).split()) in (1, 2)
    assert "it is a named pipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["view", ""], ["open", ""], ["report", ""], ["report", "-o", ""], ["lab", ""],
                ["run", ""], ["run", "none.py", "--save", ""], ["diff", "", ""], ["query", ""]],
    ids=" ".join,
)  # fmt: skip
def test_an_empty_name_is_a_wrong_command_line(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a shell's variable that is not set; it was taken for the working folder."""
    with pytest.raises(SystemExit, match="2"):
        main(command)
    assert "a path is the name of a file or a folder" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    built = []

    def never(ctx: object) -> None:
        built.append(ctx)

    with pytest.raises(FileNotFoundError, match=r"no such folder to write to: .*/missing'"):
        kit.report(never, path=tmp_path / "missing" / "report.html")
    assert not built


@pytest.fixture
def bound_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, whose permissions hold: root is somebody else there."""
    monkeypatch.chdir(tmp_path)
    if sys.platform == "win32" or os.geteuid():
        yield tmp_path
        return
    os.chown(tmp_path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield tmp_path
    finally:
        os.seteuid(0)


def test_a_read_only_file_stays_as_it_is(bound_folder: Path) -> None:
    """A rename replaced it, without a word, where `open` and `cp` refuse."""
    file = Path("mine.kitrun")
    file.write_bytes(b"older")
    file.chmod(0o444)
    with pytest.raises(PermissionError, match=r"the file that is there is read-only: 'mine"):
        write_whole("mine.kitrun", b"newer")
    file.chmod(0o644)
    assert file.read_bytes() == b"older"
    write_whole("mine.kitrun", b"newer")
    assert file.read_bytes() == b"newer"


@pytest.mark.skipif(sys.platform == "win32", reason="a folder has no such permissions")
def test_a_folder_that_takes_no_file_is_told_before_anything_is_measured(
    bound_folder: Path,
) -> None:
    Path("closed").mkdir(mode=0o555)
    with pytest.raises(PermissionError, match="no file may be made in this folder: 'closed'"):
        check_target("closed/report.html")


@pytest.mark.parametrize("left", range(8, 30))
def test_a_program_that_recurses_too_deep_is_not_told_that_its_file_is_damaged(
    left: int, tmp_path: Path
) -> None:
    path, limit = tmp_path / "a.kitrun", sys.getrecursionlimit()
    make_run(steps=1).save(path)
    Run.load(path)
    said = ""
    try:
        sys.setrecursionlimit(len(inspect.stack(0)) + left)
        Run.load(path)
    except (RecursionError, RunFileError) as error:
        said = str(error)
    finally:
        sys.setrecursionlimit(limit)
    assert "recursion" in said or not said


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    """256 MB were asked for, whatever its size, which a container may not have."""
    make_run(steps=1).save(tmp_path / "a.kitrun")
    tracemalloc.start()
    try:
        Run.load(tmp_path / "a.kitrun")
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("/usr/lib/python3.11/copy.py", True),
        ("lib/python3.12/copy.py", True),
        ("/usr/local/lib/python3.13t/copy.py", True),
        ("python3.13t/copy.py", True),
        ("C:\\Programs\\Python312\\Lib\\copy.py", True),
        ("C:\\hostedtoolcache\\windows\\Python\\3.12.1\\x64\\Lib\\copy.py", True),
        ("C:/hostedtoolcache/windows/Python/3.12.1/x64/Lib/copy.py", True),
        ("C:\\Users\\me\\miniconda3\\Lib\\copy.py", True),
        ("C:\\ProgramData\\Anaconda3\\envs\\torch\\Lib\\copy.py", True),
        ("D:\\Miniforge3\\Lib\\asyncio\\events.py", True),
        ("C:\\uv\\python\\cpython-3.12.1-windows-x86_64-none\\Lib\\copy.py", True),
        ("/env/lib/python3.11/site-packages/flax/core.py", True),
        ("site-packages/flax/core.py", True),
        ("<frozen importlib._bootstrap>", True),
        ("/tmp/torchinductor_root/ab/cab7.py", True),
        ("/var/cache/torchinductor/ab/cab7.py", True),
        ("/home/me/python3.11/train.py", False),
        ("/home/me/library/train.py", False),
        ("/home/me/torchinductor.py", False),
        ("/home/me/torchinductor/train.py", False),
        ("/home/me/torchinductor_bench/train.py", False),
        ("/home/me/torchinductor_bench/ab/train.py", False),
        ("C:\\work\\Lib\\train.py", False),
        ("C:\\Python\\work\\Lib\\train.py", False),
        ("train.py", False),
    ],
)
def test_whose_file_it_is_stands_in_its_path(path: str, is_one: bool) -> None:
    assert is_no_users(path) == is_one


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX closes the streams")
def test_closed_streams_hold_the_null_device_until_they_are_let_go() -> None:
    code = "import os; from kit.files import keep_places; open(3, 'w').write(f'{keep_places()}')"
    shell = f'exec "{sys.executable}" -c "{code}" 3>&1 <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert done.stdout == "[0, 1, 2]"
