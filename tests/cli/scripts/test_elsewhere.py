"""`kit run` of scripts that go to another folder, are ranks of a job, or have their own hooks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kit.runs.run import Run
from tests.cli.calls import Kit

LOOP = """
import os, sys, torch

{before}
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(12):
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    {each}
"""
SHORT = ("--steps", 2, "--skip", 1, "--save", "a.kitrun", "--report", "a.html")
SPLIT = """
import os
os.chdir("data")
import kit, torch

@kit.workload
def mine(ctx):
    assert os.path.basename(os.getcwd()) == "data"
    model = torch.nn.Linear(4, 2).to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = ctx.loader(torch.utils.data.TensorDataset(torch.ones(8, 4)))

    def step():
        (x,) = next(batches)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step
"""


def written(text: str) -> str:
    Path("train.py").write_text(text, "utf-8")
    return "train.py"


def loop(before: str = "", each: str = "pass") -> str:
    return written(LOOP.format(before=before, each=each))


@pytest.fixture(autouse=True)
def same_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # and back, wherever a script has gone
    (tmp_path / "data").mkdir()


def test_files_are_written_where_the_command_was_given(kit_run: Kit, tmp_path: Path) -> None:
    status, said, wrong = kit_run(loop('os.chdir("data")'), *SHORT)
    assert (status, wrong) == (0, "")
    assert "saved a.kitrun\n" in said
    assert "wrote a.html\n" in said
    assert len(Run.load(tmp_path / "a.kitrun").step_times_ns) == 2
    assert (tmp_path / "a.html").exists()
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.usefixtures("warm_processes")
def test_processes_find_the_script_and_begin_where_it_began(kit: Kit, tmp_path: Path) -> None:
    status, _, wrong = kit(
        *("run", written(SPLIT), "--processes", 2, "--steps", 1, "--skip", 1, "--save", "a.kitrun"),
        *("--set", "batch_size=4"),
    )
    assert status == 0, wrong
    assert Run.load(tmp_path / "a.kitrun").metrics["parallel.devices"] == 2


def test_each_rank_of_a_job_writes_its_own_files(
    kit_run: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, said, _ = kit_run(loop(), *SHORT)
    assert status == 0
    assert "saved a_rank1.kitrun" in said
    made = sorted(file.name for file in tmp_path.iterdir() if file.name.startswith("a"))
    assert made == ["a_rank1.html", "a_rank1.kitrun"]


def test_a_hook_of_the_scripts_own_hears_of_its_error_first(kit_run: Kit) -> None:
    hook = "def told(kind, error, trace):\n    print('told of', error)\nsys.excepthook = told"
    before = sys.excepthook
    status, said, wrong = kit_run(loop(hook, "if i == 5: raise ValueError('diverged')"), *SHORT)
    assert status == 1
    assert said.startswith("told of diverged\n")
    assert "train.py:12" in wrong
    assert "ValueError: diverged" in wrong
    assert sys.excepthook is before
    failing = "def told(*_):\n    1 / 0\nsys.excepthook = told"
    status, said, wrong = kit_run(loop(failing, "if i == 5: raise ValueError('diverged')"), *SHORT)
    assert status == 1
    assert "ValueError: diverged" in wrong


def test_a_recording_that_fails_says_why_and_not_that_there_was_no_step(kit_run: Kit) -> None:
    text = LOOP.format(before="", each="pass")
    text = text.replace("4, 2)", "4, 2, device='meta')").replace("3, 4)", "3, 4, device='meta')")
    status, _, wrong = kit_run(written(text))
    assert status == 1
    assert "the recording failed: SettingsError" in wrong
    assert "the loop trains on 'meta'" in wrong
    assert "has made two steps" not in wrong


def test_a_script_that_replaces_its_process_is_told_that_it_is_not_watched(kit_run: Kit) -> None:
    """`os.execv` with OMP_NUM_THREADS set: exit status 0, no file, no word."""
    before = os.execv, os.execve
    text = (
        "import os, pathlib\npathlib.Path('it').write_text('no program')\nos.chmod('it', 0o700)\n"
        "try:\n    os.execl('./it', 'it')\nexcept OSError:\n    print('went on')\n"
    )
    _, said, wrong = kit_run(written(text))
    assert said == "went on\n"
    assert "train.py replaces this process (os.exec*): what comes is not watched" in wrong
    assert (os.execv, os.execve) == before
    assert "replaces" not in kit_run(written("import os\n"))[2]
    sought = text.replace("'./it'", "'no/such'")  # as in each folder of PATH but the last
    assert "replaces" not in kit_run(written(sought))[2]
