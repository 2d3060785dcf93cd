"""`kit.watch(when=..., save=...)`: a job that runs is asked from outside, and writes its runs."""

from __future__ import annotations

import faulthandler
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch.optim.optimizer as of_optimizers

import kit
from kit.errors import SettingsError
from kit.measure.attached import capture, signals
from kit.measure.attached.recorder import Recorded
from kit.runs.steady import MOST_WARMUP
from kit.torch.optimizers import FOLLOWED
from tests.measure.attached.loops import Loop, python_calls

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(autouse=True)
def look_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "LOOK_S", 0.0)


def test_a_file_that_is_written_begins_a_recording_each_time_and_runs_are_saved(tmp_path: Path):
    ask, save = tmp_path / "capture.now", tmp_path / "runs" / "step.kitrun"
    loop = Loop()
    with kit.watch(2, skip=1, when=ask, save=save) as watch:
        loop.train(20)
        assert not watch.runs
        ask.touch()
        loop.train(20)
        assert len(watch.runs) == 1
        ask.touch()
        os.utime(ask, ns=(2**62, 2**62))  # a file system whose clock is coarse sees it too
        loop.train(20)
        os.utime(ask, ns=(10**18, 10**18))  # the clock was wrong, and is set back
        loop.train(20)
    names = ["step.kitrun", "step_2.kitrun", "step_3.kitrun"]
    assert [file.name for file in sorted(save.parent.iterdir())] == names
    saved = kit.Run.load(save)
    assert len(saved.step_times_ns) == 2
    assert saved.timeline.where(kind="kernel").any()


def test_a_watch_that_is_used_again_waits_again_for_what_begins_it(tmp_path: Path):
    ask, loop = tmp_path / "now", Loop()
    watch = kit.watch(1, skip=0, when=ask)
    for number in (1, 2):
        with watch:
            ask.touch()
            os.utime(ask, ns=(number, number))
            loop.train(10)
        assert len(watch.runs) == number


def test_a_file_that_was_there_before_begins_nothing(tmp_path: Path):
    (tmp_path / "old").touch()
    with kit.watch(2, skip=1, when=tmp_path / "old") as watch:
        Loop().train(20)
    assert not watch.runs


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals for users")
def test_a_signal_begins_a_recording_and_the_handler_before_is_called_and_put_back(tmp_path: Path):
    heard: list[int] = []

    def own(number: int, frame: object) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGUSR1, own)
    try:
        with kit.watch(2, skip=1, when=signal.SIGUSR1, save=tmp_path / "step.kitrun") as watch:
            loop = Loop()
            loop.train(5)
            assert not watch.is_recording
            os.kill(os.getpid(), signal.SIGUSR1)
            loop.train(20)
        assert heard == [signal.SIGUSR1]
        assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (tmp_path / "step.kitrun").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals for users")
def test_an_interrupt_at_any_line_of_the_opening_leaves_no_handler():
    def interrupted(line: int) -> bool:
        """Open and close one with an interrupt at this line of it; was there such a line?"""
        seen = 0

        def each(frame: FrameType, event: str, _: object) -> Any:
            nonlocal seen
            if frame.f_code.co_filename not in (capture.__file__, signals.__file__):
                return None
            if event == "line":
                seen += 1
                if seen == line:
                    raise KeyboardInterrupt
            return each

        asked, before = capture.Capture(signal.SIGUSR1), sys.gettrace()
        sys.settrace(each)
        try:
            asked.open(lambda: None)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
            asked.close()
        return False

    before = signal.getsignal(signal.SIGUSR1)
    try:
        for line in itertools.count(1):
            is_line = interrupted(line)
            assert signal.getsignal(signal.SIGUSR1) is before, line
            if not is_line:
                break
        assert line > 8
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals for users")
def test_a_second_signal_does_not_begin_a_recording_again():
    with kit.watch(3, skip=1, when=signal.SIGUSR1) as watch:
        loop = Loop()
        os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(20):
            loop.train(1)
            if watch.is_recording:
                os.kill(os.getpid(), signal.SIGUSR1)
    assert watch.ended.startswith("complete")
    assert len(watch.runs) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals for users")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_watches_of_one_signal_end_in_any_order_and_give_it_back(order: tuple[int, int]):
    heard: list[int] = []

    def own(number: int, frame: object) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGUSR1, own)
    try:
        watches = [kit.watch(when=signal.SIGUSR1).__enter__() for _ in range(2)]
        first, last = (watches[i] for i in order)
        first.close()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
        assert (first.is_recording, last.is_recording) == (False, True)
        last.close()
        assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals for users")
@pytest.mark.parametrize("is_earlier", [True, False])
def test_a_handler_that_is_none_of_pythons_is_left_as_it_was(tmp_path: Path, is_earlier: bool):
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    watch = kit.watch(when=signal.SIGUSR1)
    with (tmp_path / "lines").open("w+") as file:
        try:
            if not is_earlier:
                watch.__enter__()
            faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
            if is_earlier:
                watch.__enter__()
            watch.close()
            os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, before)
        file.seek(0)
        assert "test_capture.py" in file.read()


def test_a_watch_that_another_thread_has_closed_begins_nothing_more(tmp_path: Path):
    ask, loop = tmp_path / "now", Loop()
    hooks = len(FOLLOWED)

    def elsewhere(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    watch = kit.watch(50, skip=0, when=ask).__enter__()
    ask.touch()
    loop.train(3)
    assert watch.is_recording
    elsewhere(watch.close)
    loop.train(1)
    assert len(watch.runs) == 1  # what was recorded until then
    os.utime(ask, ns=(2**62, 2**62))
    loop.train(3)
    watch.step()
    assert not watch.is_recording
    assert len(watch.runs) == 1
    watch.close()
    assert len(FOLLOWED) == hooks

    explicit = kit.watch(50, when=ask).__enter__()
    explicit.start()
    elsewhere(explicit.close)
    os.utime(ask, ns=(2**62 + 10**9, 2**62 + 10**9))
    explicit.step()
    assert not explicit.is_recording
    assert len(FOLLOWED) == hooks


def test_a_watch_may_be_closed_when_it_is_complete_beside_other_hooks():
    loop = Loop()
    with kit.watch(1, skip=0, when_complete=lambda: watch.close()) as watch:
        other = of_optimizers.register_optimizer_step_post_hook(lambda *_: None)
        try:
            loop.train(10)
        finally:
            other.remove()
    assert len(loop.losses) == 10
    assert len(watch.runs) == 1


def test_a_thread_may_close_and_start_watches_while_the_loop_is_in_a_hook():
    """Torch goes through its hooks in the loop's thread: one more, or less, was its error."""
    loop, hooks = Loop(), len(FOLLOWED)
    later = kit.watch(1, skip=0)

    def elsewhere() -> None:
        for act in (watch.close, later.start):
            thread = threading.Thread(target=act)
            thread.start()
            thread.join()

    watch = kit.watch(1, skip=0, when_complete=elsewhere)
    watch.start()
    other = of_optimizers.register_optimizer_step_post_hook(lambda *_: None)
    try:
        loop.train(20)
    finally:
        other.remove()
        watch.close()
        later.close()
    assert len(watch.runs) == len(later.runs) == 1
    assert len(FOLLOWED) == hooks


def test_watches_come_and_go_while_another_thread_steps():
    """Torch goes through its hooks there: one more, or less, was an error of that thread."""
    table = of_optimizers._global_optimizer_post_hooks
    with kit.watch(1):
        going = iter(table.values())  # as in a thread that steps
        next(going)
        kit.watch(1).__enter__().close()
    assert [*going] == [*table.values()][1:]


def test_a_watch_may_start_and_close_others_in_its_hook():
    """Torch goes through its hooks there: one more, or less, was an error of the loop."""
    loop, hooks = Loop(), len(FOLLOWED)
    before = kit.watch(1, skip=0).__enter__()
    before.stop()
    after = kit.watch(2, skip=0)

    def turn() -> None:
        after.start()
        before.close()

    other = of_optimizers.register_optimizer_step_post_hook(lambda *_: None)
    with kit.watch(1, skip=0, when_complete=turn) as first:
        loop.train(20)
    other.remove()
    assert (len(first.runs), len(before.runs), len(after.runs)) == (1, 0, 1)
    assert len(after.run.step_times_ns) == 2
    for watch in (before, after):
        watch.close()
    assert len(FOLLOWED) == hooks


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals for users")
def test_while_none_asks_a_signal_costs_what_an_idle_watch_does_and_a_file_one_call_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(capture, "LOOK_S", 3600.0)
    loop = Loop()
    loop.train(2)
    with kit.watch(1, skip=1) as idle:
        idle.stop()
        nothing = python_calls(lambda: loop.train(8))
    with kit.watch(when=signal.SIGUSR1):
        by_signal = python_calls(lambda: loop.train(8))
    with kit.watch(when=tmp_path / "now") as watch:
        loop.train(1)
        by_file = python_calls(lambda: loop.train(8))
        assert not watch.is_recording
    assert by_signal == nothing
    assert by_file <= nothing + 8 * 3  # is_recording, its generator, and the look at the clock


@pytest.mark.parametrize(
    ("rank", "ranks"),
    [
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ],
)
def test_each_of_several_ranks_writes_a_file_of_its_own(
    rank: str, ranks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(rank, "3")
    monkeypatch.setenv(ranks, "8")
    with kit.watch(2, skip=1, save=tmp_path / "step.kitrun"):
        Loop().train(20)
    assert [file.name for file in tmp_path.iterdir()] == ["step_rank3.kitrun"]


def test_ranks_of_a_job_begin_at_one_step_after_a_warm_up_of_one_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each looks at another moment: so they begin some time after the file was written."""
    monkeypatch.setattr(capture, "LOOK_S", 1.0)
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    ask = tmp_path / "now"

    def begins(first_look_s: float) -> list[float]:
        """When a rank is asked whose steps end each 0.3 s, and which looks from then on."""
        now[0] = 1000.0
        ask.unlink(missing_ok=True)
        asked = capture.Capture(ask)
        asked.open(lambda: None)
        ask.touch()
        os.utime(ask, (1000.0, 1000.0))
        found = []
        for step in range(20):
            now[0] = 1000.1 + 0.3 * step
            if now[0] >= first_look_s and asked.is_asked():
                found.append(now[0])
        return found

    alone = [begins(look)[0] for look in (1000.1, 1000.7)]
    assert alone == [1000.1, 1000.7]
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert begins(1000.1) == begins(1000.7) == [pytest.approx(1002.2)]
    with kit.watch(2) as watch:
        Loop().train(40)
    assert watch.run.settings.warmup == MOST_WARMUP


def test_files_lie_where_the_watch_was_made_though_the_loop_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    with kit.watch(2, skip=1, when="now", save="step.kitrun") as watch:
        os.chdir("data")
        (tmp_path / "now").touch()
        Loop().train(20)
    assert len(watch.runs) == 1
    assert (tmp_path / "step.kitrun").exists()


def test_a_run_that_cannot_be_written_ends_no_loop_and_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    loop = Loop()
    with kit.watch(2, skip=1, save=tmp_path / "folder" / "step.kitrun") as watch:
        (tmp_path / "folder").write_text("not a folder")
        loop.train(20)
    assert len(loop.losses) == 20
    assert "not saved" in watch.ended
    assert len(watch.run.step_times_ns) == 2
    assert capsys.readouterr().err.count("kit: the run was not saved: ") == 1  # nobody may look


def test_a_folder_that_takes_no_file_is_told_before_a_job_of_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("kit.files._is_allowed", lambda *_: False)  # root may write everywhere
    with pytest.raises(PermissionError, match="no file may be made in this folder"):
        kit.watch(save=tmp_path / "folder" / "step.kitrun")


def test_a_recording_that_failed_is_not_said_to_have_ended_with_the_loop():
    early = Recorded("mine", warming=[1, 2], ended="the loop ended, in step 3: measured 0")
    assert early.all_notes == [
        "the loop ended before its steps were steady: these times are of its warm-up"
    ]
    failed = replace(early, ended="the recording failed: NoSuchProcess: measured 0 of 10 steps")
    assert failed.all_notes == [failed.ended, "these times are of its warm-up"]
    assert replace(failed, times=[1]).all_notes == [failed.ended]


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("capture.now", "the file 'capture.now' has to be written"),
        (signal.SIGINT, "after signal 2"),
    ],
)
def test_a_loop_that_nobody_asked_to_record_says_what_begins_a_recording(
    when: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with kit.watch(1, when=when) as watch:
        Loop().train(5)
    with pytest.raises(SettingsError, match=f"nothing was recorded: .*{said}"):
        _ = watch.run


def test_what_cannot_ask_is_a_clear_error(tmp_path: Path):
    with pytest.raises(SettingsError, match="a signal or the path"):
        kit.watch(when=1.5)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="folder"):
        kit.watch(save=tmp_path)
    raised: list[BaseException] = []

    def in_a_thread() -> None:
        try:
            kit.watch(when=signal.SIGINT).__enter__()
        except SettingsError as error:
            raised.append(error)

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])
