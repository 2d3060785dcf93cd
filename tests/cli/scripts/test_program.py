"""`kit run` on scripts that know nothing of kit: they run as Python runs them, and are watched.

In this process: the script's `__main__` and path are put back afterwards, which is asserted.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import io
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kit as kit_itself
from kit.cli.scripts.script import knows_kit
from kit.cli.scripts.watching import WithTorch
from kit.runs.run import Run
from kit.runs.sources import code_by_site
from tests.cli.calls import Kit

TRAIN = """
import argparse
import os
import sys

import torch
from torch import nn

import beside


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    asked = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    points = torch.randn(4, 8).to(device)
    for _ in range(asked.steps):
        loss = model(points).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f} at the end, {beside.WORD}")


if __name__ == "__main__":
    assert sys.modules["__main__"].main is main
    assert os.path.isabs(__file__)
    assert sys.path[0] == os.path.dirname(os.path.realpath(__file__))
    main()
    END
"""


def write(text: str, name: str = "train.py") -> str:
    Path(name).write_text(text, "utf-8")
    return name


def test_a_script_runs_to_its_end_with_its_arguments_and_its_status(kit_run: Kit) -> None:
    script = write(TRAIN.replace("END", "sys.exit(3)"))
    asked = (
        "--steps",
        3,
        "--skip",
        1,
        "--save",
        "a.kitrun",
        "--label",
        "mine",
        "--",
        "--steps",
        12,
    )
    status, said, wrong = kit_run(script, *asked)
    assert (status, wrong) == (3, "")
    assert "at the end, beside" in said
    assert "train.py: profiled, on cpu" in said
    assert "device busy" in said
    run = Run.load("a.kitrun")
    assert (len(run.step_times_ns), run.settings.warmup, run.label) == (3, 1, "mine")
    assert run.environment["a step ends at"] == "SGD.step(), train.py:25"
    assert "optimizer.step()" in code_by_site(run.sources)["train.py:25"]
    assert "train.py:22" in {caller.site for caller in run.callers}
    replay, faster = (kit_itself.predict(run, host_speed=speed).step_ms for speed in (1, 10))
    assert replay == pytest.approx(run.step_ms, rel=1e-3)
    assert faster < replay


def test_on_kit_the_script_trains_there_and_the_run_answers_predictions(kit_run: Kit) -> None:
    script = write(TRAIN.replace("END", ""))
    native = kit_run(script, "--steps", 2, "--skip", 1, "--", "--steps", 9)
    asked = ("--steps", 2, "--skip", 1, "--on", "kit", "--set", "mode=lazy", "--save", "a.kitrun")
    status, said, wrong = kit_run(script, *asked, "--", "--steps", 9)
    assert status == 0
    assert said.split("\n")[0] == native[1].split("\n")[0]  # the loss
    assert "device kit stood in for cpu in 2 calls. Not mapped: torch.cuda's functions" in wrong
    run = Run.load("a.kitrun")
    assert run.settings.mode == "lazy"
    assert {node.site for node in run.graphs[0]} >= {"train.py:22", "train.py:25"}
    assert kit_itself.predict(run, run.settings.replace(mode="imperative")).step_ms > 0


@pytest.mark.parametrize(
    "code", ["import no_such_package\n", "import torch\nprint(torch.ones(2))\n"]
)
def test_a_script_without_a_step_is_not_told_to_name_a_device(kit_run: Kit, code: str) -> None:
    """Of one that fails at once, and of a step that is no torch's, that is not what is wrong."""
    status, _, wrong = kit_run(write(code), "--on", "kit")
    assert status == 1
    assert "no step to record" in wrong
    assert "names no device" not in wrong


def test_a_script_that_stays_on_the_cpu_has_its_own_lines_with_on_kit_too(kit_run: Kit) -> None:
    """Its reads were said to be at a line of the kit's file that maps device names."""
    script = write(
        "import torch\n"
        "net = torch.nn.Linear(4, 2)\n"
        "optimizer = torch.optim.SGD(net.parameters())\n"
        "for _ in range(9):\n"
        "    net(torch.ones(3, 4)).sum().backward()\n"
        "    net.bias.sum().item()\n"
        "    optimizer.step()\n"
    )
    put = r"trains on the CPU inside a session.* with kit run --on kit: model.to\('cuda'\)"
    with pytest.warns(UserWarning, match=put) as warned:
        status, said, wrong = kit_run(script, "--steps", 1, "--skip", 0, "--on", "kit")
    assert status == 0
    assert "names no device" in wrong
    assert "not only under torch.cuda.is_available(), which asks for a real GPU" in wrong
    assert [(Path(one.filename).name, one.lineno) for one in warned] == [("train.py", 7)]
    assert "1 read of a number a step (.item(), at train.py:6)" in said


def test_what_a_script_does_at_exit_finds_its_own_module_and_folder(
    kit_run: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To save a model of a class of the script's failed, where Python alone saves it."""
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr(
        atexit, "register", lambda call, *given: at_exit.append(partial(call, *given))
    )
    monkeypatch.setattr(atexit, "_ncallbacks", lambda: len(at_exit))
    kit_run(write("pass"))
    assert not at_exit  # nothing of a script is kept that does nothing there
    script = write(
        "import atexit, pickle\n"
        "class Net: pass\n"
        "def save():\n"
        "    import beside\n"
        "    print(pickle.loads(pickle.dumps(Net())).__class__ is Net, beside.WORD)\n"
        "atexit.register(save)\n"
    )
    kit_run(script)
    with monkeypatch.context() as after:
        after.setattr(sys, "path", sys.path[:])
        after.setitem(sys.modules, "__main__", sys.modules["__main__"])
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            for call in reversed(at_exit):
                call()
    assert said.getvalue() == "True beside\n"


def test_stop_ends_the_script_after_the_steps_that_are_wanted(kit_run: Kit) -> None:
    script = write(TRAIN.replace("END", ""))
    status, said, wrong = kit_run(script, "--steps", 2, "--skip", 0, "--stop", "--", "--steps", 50)
    assert (status, wrong) == (0, "")
    assert "at the end" not in said
    assert "step 0" not in said
    assert "device busy" in said


def test_a_script_that_catches_what_stop_ends_it_by_is_said_to_go_on(kit_run: Kit) -> None:
    """`except:` around each step, to leave out bad batches."""
    caught = "        try: optimizer.step()\n        except: pass"
    script = write(TRAIN.replace("END", "").replace("        optimizer.step()", caught))
    status, said, wrong = kit_run(script, "--steps", 2, "--skip", 0, "--stop", "--", "--steps", 30)
    assert status == 0
    assert "at the end" in said
    assert wrong.count("train.py has caught what ends it after --stop") == 1
    assert wrong.count("\n") == 1


def test_an_error_names_the_scripts_line_and_the_steps_until_then_are_kept(kit_run: Kit) -> None:
    script = write(TRAIN.replace("optimizer.zero_grad()", "optimizer.zero_grad(); 1 / (_ - 6)"))
    status, said, wrong = kit_run(script, "--skip", 1, "--save", "a.kitrun", "--", "--steps", 9)
    assert status == 1
    assert wrong.startswith("kit: train.py:23 in main\n    optimizer.zero_grad(); 1 / (_ - 6)\n")
    assert wrong.endswith("ZeroDivisionError: division by zero\n")
    assert len(Run.load("a.kitrun").step_times_ns) == 4
    assert "a.kitrun" in said


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [
        ("import torch", 1, "no optimizer of torch.optim has made two steps"),
        ("import torch", 1, "wants watch.step(loss) at its end"),  # as of fastai and Keras
        (
            "raise SystemExit(4)",
            4,
            "ended with status 4, and there was no step to record",
        ),
        ("raise SystemExit(2)", 2, "`kit run train.py -- --lr 0.1`"),
        (
            "import sys; sys.exit(200)",
            200,
            "ended with status 200, and there was no step to record",
        ),
        ("import sys; sys.exit('no data')", 1, "no data"),
    ],
)
def test_a_script_without_steps_is_told_what_was_not_found(
    kit_run: Kit, text: str, status: int, why: str
) -> None:
    found, _, wrong = kit_run(write(text))
    assert found == status
    assert why in wrong
    assert "there was no step to record" in wrong


@pytest.mark.parametrize("text", ["1 +", "1 / 0", "import torch\ntorch.ones(2) @ torch.ones(3)"])
def test_after_an_error_of_the_script_no_advice_on_steps_is_given(kit_run: Kit, text: str) -> None:
    status, _, wrong = kit_run(write(text))
    assert status == 1
    assert "Error" in wrong.splitlines()[-2]
    assert wrong.splitlines()[-1] == "kit: train.py had made no step to record until that error"


def test_torch_is_loaded_by_the_script_which_may_set_its_environment_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`OMP_NUM_THREADS`, set in the script's first line, was read before that line."""
    (tmp_path / "torch.py").write_text("import os\nTHREADS = os.environ['OMP_NUM_THREADS']\n")
    begun: list[str] = []

    def begin() -> Any:
        assert sys.path[-1] == str(tmp_path)  # a file beside the script is no module of ours
        begun.append(sys.modules["torch"].THREADS)
        return contextlib.nullcontext(SimpleNamespace(runs=["one"], run="one"))

    finders = list(sys.meta_path)
    watching = WithTorch(begin)
    monkeypatch.setitem(sys.modules, "torch", None)  # it may be there, or not, and is so again
    del sys.modules["torch"]
    monkeypatch.syspath_prepend(tmp_path)
    with watching.exits:
        watching.begin()
        assert importlib.util.find_spec("torch") is not None  # to ask for it is not to load it
        monkeypatch.setenv("OMP_NUM_THREADS", "17")
        importlib.import_module("torch")
        assert begun == ["17"]
        assert sys.path[0] == str(tmp_path)
        importlib.import_module("torch")
    assert begun == ["17"]
    assert sys.meta_path == finders
    assert watching.run == "one"


def test_a_script_that_does_not_load_torch_costs_nothing_and_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint({'torch', 'jax'} & {*sys.modules})", "utf-8")
    command = [sys.executable, "-m", "kit", "run", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "set()\n")
    assert "there was no step to record: it has not loaded torch" in done.stderr


def test_a_scripts_own_arguments_are_asked_for_after_two_dashes(kit_run: Kit) -> None:
    script = write("raise SystemExit(2)  # as argparse does")
    found, _, wrong = kit_run(script)
    assert found == 2
    assert "The script's own arguments stand after --" in wrong
    said = "unrecognized arguments: --lr 0.1; the script's own arguments stand after --"
    assert said in kit_run(script, "--lr", "0.1")[2]


def test_a_packages_own_module_called_kit_is_not_kit(tmp_path: Path) -> None:
    """`from .kit import HELP` was refused: "it has a step for kit"."""
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    (inner / "kit.py").write_text("HELP = 1", "utf-8")
    for text, knows in (
        ("from .kit import HELP", False),
        ("from ..above import x", True),
        ("from .beside import x", False),
        ("from ......far import x", False),
        ("from kit import run", True),
    ):
        (tmp_path / "package" / "above.py").write_text("import kit", "utf-8")
        (tmp_path / "beside.py").write_text("import kit", "utf-8")
        (inner / "train.py").write_text(text, "utf-8")
        assert knows_kit(inner / "train.py") is knows


@pytest.mark.parametrize(("wrong", "meant"), [("--stepz", "--steps"), ("--saev=x", "--save")])
def test_a_mistyped_option_is_asked_for_by_its_name(kit_run: Kit, wrong: str, meant: str) -> None:
    said = f"unrecognized arguments: {wrong} 3; did you mean {meant}?"
    wrong_said = kit_run(write("pass"), wrong, "3")[2]
    assert said in wrong_said
    assert wrong_said.startswith("usage: kit run ")  # what this verb takes, and not all verbs


def test_what_a_script_cannot_follow_is_refused_before_it_runs(kit_run: Kit) -> None:
    script = write("print('ran')")
    for arguments, why in (
        (("--set", "bulk_forward=5"), "bulk_forward cannot be set: train.py knows nothing of kit"),
        (("--devices", 2), "a script that is watched runs in one process, on one device"),
        (("--steps", 0), "steps of a watch must be a whole number of at least 1, not 0"),
    ):
        status, said, wrong = kit_run(script, *arguments)
        assert (status, said) == (1, "")
        assert why in wrong
    builder = write("import kit\n\n\ndef step():\n    pass\n", "builder.py")
    for option in (("--on", "kit"), ("--stop",)):
        wrong = kit_run(builder, *option)[2]
        assert "is for scripts without a step for kit" in wrong
        assert "or imports kit: one that opens a kit.Session itself is run by python" in wrong


@pytest.mark.parametrize(
    "setting",
    ["step_mode=replay", "step_mode=speculate", "prefetch=2", "batch_size=64", "accumulate=2",
     "dtype=bfloat16", "loss_scaling=static"],
)  # fmt: skip
def test_a_setting_that_only_a_builder_follows_is_refused_with_on_kit(
    kit_run: Kit, setting: str
) -> None:
    status, said, wrong = kit_run(write("print('ran')"), "--on", "kit", "--set", setting)
    assert status == 1
    assert "ran" not in said
    assert setting.partition("=")[0] in wrong
    assert "@kit.workload" in wrong


def test_a_device_that_one_kit_cannot_stand_in_for_is_an_error_of_the_script(kit_run: Kit) -> None:
    status, _, wrong = kit_run(write("import torch\ntorch.ones(2, device='cuda:1')"), "--on", "kit")
    assert status == 1
    assert "the script asks for cuda:1: device kit, which stands in for it, is one device" in wrong


@pytest.mark.parametrize(
    ("text", "knows"),
    [
        ("import kit", True),
        ("def f():\n    from kit.workloads import bert", True),
        ("import torch", False),
        ("import helper", True),  # a file beside it
        ("from package import part", True),
        ("def step():\n    return 1", True),
        ("def step(model=None, *, log=print):\n    if model:\n        return 1", True),
        ("def step():\n    opt.step()\n    return", False),  # a helper of a loop's
        ("def step():\n    def loss(): return 1\n    loss()", False),
        ("def step():\n    return 1\nif __name__ == '__main__':\n    step()", False),
        ("def step(batch):\n    return 1", False),
        ("def step(*, batch):\n    return 1", False),
        ("class A:\n    def step(self): pass", False),
        ("from . import x\nimport kitchen", False),
        ("not python", False),
    ],
)
def test_whether_a_script_knows_kit_is_read_and_nothing_is_run(
    tmp_path: Path, text: str, knows: bool
) -> None:
    (tmp_path / "helper.py").write_text("import train, kit.workloads\n1 / 0\n", "utf-8")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import kit\n1 / 0\n", "utf-8")
    (tmp_path / "train.py").write_text(text, "utf-8")
    assert knows_kit(tmp_path / "train.py") == knows


def test_the_folder_of_the_script_is_the_first_on_the_path_and_not_the_working_one(
    kit_run: Kit, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    script = tmp_path / "sub" / "where.py"
    script.write_text("import os, sys; print(sys.path[0], os.getcwd(), sep='|')", "utf-8")
    said = kit_run(script)[1].strip()
    assert said == f"{os.path.realpath(tmp_path / 'sub')}|{tmp_path}"


STEPS = """
import sys
import torch
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters())
for _ in range(8):
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
@pytest.mark.parametrize("end", ["print('trained')", "raise SystemExit('no more data')", "1 / 0"])
def test_what_was_measured_is_saved_though_nothing_can_be_printed(
    kit_run: Kit, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The run was lost with the script's own last lines, or with our words on its error."""
    # Each suppresses what the stream below it raises as it is closed.
    with (
        contextlib.suppress(OSError),
        open("/dev/full", "w") as out,
        contextlib.suppress(OSError),
        open("/dev/full", "w", buffering=1) as wrong,
    ):
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", wrong)
        script = write(STEPS + end)
        assert kit_run(script, "--steps", 1, "--skip", 0, "--save", "a.kitrun")[0] == 1
    assert len(Run.load("a.kitrun").step_times_ns) == 1


@pytest.mark.parametrize(
    "change",
    ["sys.stdout.close()", "sys.stdout = sys.stderr = type('Log', (), {'write': len})"],
)
def test_a_script_may_do_what_it_likes_with_its_streams(
    kit_run: Kit, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """One that closes them, and one that has put its own log in their places, without a flush."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    script = write(STEPS + change)
    status, _, wrong = kit_run(script, "--steps", 1, "--skip", 0, "--save", "a.kitrun")
    sys.stdout.close()  # the null device, where the script has closed what it had
    assert (status, wrong) == (0, "")
    assert len(Run.load("a.kitrun").step_times_ns) == 1


@pytest.mark.parametrize("own", ["def __str__(self): return 1 / 0", "__class__ = property(abs)"])
def test_an_error_that_cannot_be_asked_is_told_and_the_run_is_kept(kit_run: Kit, own: str) -> None:
    script = write(f"class Mute(Exception):\n    {own}\n{STEPS}\nraise Mute\n")
    status, said, wrong = kit_run(script, "--steps", 1, "--skip", 0)
    assert status == 1
    assert wrong == "kit: train.py:12\n    raise Mute\nMute\n"
    assert "device busy" in said
