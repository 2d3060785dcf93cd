"""Only what this user has put into the folder, under this name, comes out of it. Real files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from kit.runtime.compiling import sealed
from kit.runtime.compiling.sealed import SealedFolder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_was_put_comes_out_in_every_process_of_this_user(tmp_path: Path) -> None:
    SealedFolder(str(tmp_path)).put("jit_step-ab12", b"machine code")
    again = SealedFolder(str(tmp_path))
    assert again.get("jit_step-ab12") == b"machine code"
    assert again.get("jit_step-ffff") is None
    assert names(tmp_path) == {"key", "jit_step-ab12.sealed"}
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_an_entry_in_anothers_place_is_not_given_and_is_replaced(tmp_path: Path) -> None:
    folder = SealedFolder(str(tmp_path))
    folder.put("adds", b"an addition")
    folder.put("wipes", b"rm -rf")
    os.replace(tmp_path / "wipes.sealed", tmp_path / "adds.sealed")
    assert folder.get("adds") is None
    folder.put("adds", b"an addition")
    assert folder.get("adds") == b"an addition"


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-1], lambda b: b"", lambda b: b[:20], lambda b: b[:40] + b"x" + b[41:],
     lambda b: b + b"x"],
    ids=["torn", "empty", "half a seal", "changed", "longer"],
)  # fmt: skip
def test_a_torn_or_changed_entry_is_not_given_and_is_replaced(tmp_path: Path, damage) -> None:
    folder = SealedFolder(str(tmp_path))
    folder.put("step", b"the machine code of a step")
    file = tmp_path / "step.sealed"
    file.write_bytes(damage(file.read_bytes()))
    assert folder.get("step") is None
    folder.put("step", b"the machine code of a step")
    assert folder.get("step") == b"the machine code of a step"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_what_is_no_file_in_an_entrys_place_is_never_read(tmp_path: Path) -> None:
    """A named pipe or a link to a device kept a step waiting for ever."""
    folder = SealedFolder(str(tmp_path))
    (tmp_path / "folder.sealed").mkdir()
    os.mkfifo(tmp_path / "pipe.sealed")
    (tmp_path / "device.sealed").symlink_to("/dev/zero")
    assert [folder.get(name) for name in ("folder", "pipe", "device")] == [None] * 3


def test_what_another_key_has_sealed_is_not_given(tmp_path: Path) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    for path in (theirs, mine):
        path.mkdir(mode=0o700)
    SealedFolder(str(theirs)).put("step", b"theirs")
    folder = SealedFolder(str(mine))
    os.replace(theirs / "step.sealed", mine / "step.sealed")
    assert folder.get("step") is None


def test_a_key_that_others_may_read_is_refused_and_a_torn_one_is_made_anew(tmp_path: Path) -> None:
    folder = SealedFolder(str(tmp_path))
    folder.put("step", b"x")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(PermissionError, match="is not this user's alone: `chmod 600` it"):
        SealedFolder(str(tmp_path))
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "key").write_bytes(b"short")
    again = SealedFolder(str(tmp_path))
    assert again.get("step") is None
    again.put("step", b"y")
    assert SealedFolder(str(tmp_path)).get("step") == b"y"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_what_is_no_file_in_the_keys_place_is_refused_at_once(tmp_path: Path) -> None:
    """A named pipe kept the first step of a session waiting for ever."""
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(OSError, match="it is a named pipe; here a plain file is needed"):
        SealedFolder(str(tmp_path))
    (tmp_path / "key").unlink()
    (tmp_path / "key").symlink_to(__file__)
    with pytest.raises(OSError, match="key"):
        SealedFolder(str(tmp_path))


@pytest.mark.skipif(sys.platform == "win32", reason="the bits of a mode say nothing there")
def test_that_no_more_can_be_written_is_said_once_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jax warned of each program of a full disk, by its name."""
    folder = SealedFolder(str(tmp_path))

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sealed, "write_whole", full)
    with pytest.warns(UserWarning, match="No space left on device. KIT_CACHE_DIR"):
        folder.put("a", b"1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder.put("b", b"2")
    assert folder.get("a") is None


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    for name in ("", "../step", "a/b"):
        with pytest.raises(ValueError, match="no name of an entry"):
            SealedFolder(str(tmp_path)).get(name)


def test_a_write_looks_at_no_other_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SealedFolder(str(tmp_path))
    for i in range(300):
        (tmp_path / f"{i}.sealed").write_bytes(b"an older entry")
    monkeypatch.setattr(sealed.secrets, "randbelow", lambda below: below - 1)  # not its turn
    looked: list[object] = []
    stat = os.stat

    def counted(path: object, **options: object) -> os.stat_result:
        looked.append(path)
        return stat(path, **options)  # type: ignore[arg-type, call-overload, no-any-return]

    monkeypatch.setattr(os, "stat", counted)
    for listing in ("scandir", "listdir"):
        monkeypatch.setattr(os, listing, lambda path: pytest.fail("it lists the folder"))
    folder.put("mine", b"machine code")
    assert folder.get("mine") == b"machine code"
    assert len(looked) <= 5  # its folder, what stands in its place, and itself three times


def test_room_is_made_by_the_bytes_written_and_takes_the_least_recently_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SealedFolder(str(tmp_path))
    entry = 1000 + 32
    monkeypatch.setattr(sealed, "MAX_BYTES", 10 * entry)
    monkeypatch.setattr(sealed, "_BETWEEN", 0)
    for i in range(12):
        folder.put(f"step {i}", b"x" * 1000)
        os.utime(tmp_path / f"step {i}.sealed", (i + 1, i + 1))
    assert folder.get("step 0") is not None  # used now
    (tmp_path / "left.tmp").write_bytes(b"by a kill")
    os.utime(tmp_path / "left.tmp", (1, 1))
    (tmp_path / "new.tmp").write_bytes(b"")
    (tmp_path / "mine.txt").write_bytes(b"x" * 10 * entry)  # not an entry
    folder.make_room()
    assert names(tmp_path) == {"key", "mine.txt", "new.tmp", "step 0.sealed"} | {
        f"step {i}.sealed" for i in range(4, 12)
    }
    monkeypatch.setattr(sealed, "_BETWEEN", 10)
    made: list[int] = []
    monkeypatch.setattr(SealedFolder, "make_room", lambda self: made.append(1))
    folder.put("as large as the part between", b"x" * entry)
    assert made == [1]


def test_what_a_killed_writer_left_goes_when_the_folder_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stayed until two gigabytes were full."""
    SealedFolder(str(tmp_path)).put("step", b"machine code")
    left, live, folder = (f".kit-{i:016x}.tmp" for i in range(3))
    for name, age_s in ((left, 7200), (live, 60)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    (tmp_path / folder).mkdir()
    os.utime(tmp_path / folder, (1, 1))
    assert SealedFolder(str(tmp_path)).get("step") == b"machine code"
    assert names(tmp_path) == {"key", "step.sealed", live, folder}
    (tmp_path / "key").unlink()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        SealedFolder(str(tmp_path))
    assert names(tmp_path) == {"step.sealed", live, folder}


@pytest.mark.skipif(sys.platform == "win32", reason="a link needs a right of its own there")
def test_no_key_is_written_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "key").symlink_to(tmp_path / "elsewhere")
    SealedFolder(str(tmp_path / "kept"))
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "kept" / "key").is_symlink()


def test_threads_and_a_stopped_process_do_not_keep_each_other_waiting(tmp_path: Path) -> None:
    program = (
        "import sys; from kit.runtime.compiling.sealed import SealedFolder as F\n"
        "f = F(sys.argv[1]); print('on', flush=True)\n"
        "while True: f.put('same', b'x' * 100_000); f.get('same')"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    with other.stdout:
        assert other.stdout.readline() == "on\n"
    time.sleep(0.1)
    other.send_signal(signal.SIGSTOP)
    folder = SealedFolder(str(tmp_path))
    found: list[bytes | None] = []

    def work() -> None:
        for _ in range(20):
            folder.put("same", b"x" * 100_000)
            found.append(folder.get("same"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    other.kill()
    other.wait()
    assert set(found) == {b"x" * 100_000}
    assert len(found) == 80
