"""The command line: each command for real, on small input, as a process where that matters."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kit.cli import main as cli
from kit.cli.scripts.script import error_text
from kit.errors import SettingsError
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.text import WHOLE, safe_terminal
from tests.cli.calls import Kit, write
from tests.factories import make_run
from tests.formats.chrome.traces import cuda_trace
from tests.warm import warm_python

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys

import torch

import kit


@kit.workload
def mine(ctx):
    weights = torch.nn.Parameter(torch.zeros(4, 4, device=ctx.device))

    def step():
        loss = (weights + 1).square().mean()
        loss.backward()
        if loss.item() > {limit}:
            raise RuntimeError("diverged")
        return loss.detach()

    return step


assert sys.argv[1:] == {arguments}
assert __name__ != "__main__"
"""
PLAIN = """
import torch

weights = torch.zeros(4, 4, requires_grad=True)


def step():
    return (weights + 1).square().mean()
"""
FAILING = """
import kit

@kit.workload
def mine(ctx):
    def step():
        {error}
    return step
"""
MOVED = """
import os, pathlib, torch, kit
os.chdir("/")

@kit.workload
def mine(ctx):
    data = torch.tensor(float(pathlib.Path(__file__).with_name("data.txt").read_text()))
    return lambda: data
"""
SMALL = ["--set", "steps=2&warmup=1"]


def process(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True,
                          timeout=120, **options)  # fmt: skip


@pytest.mark.parametrize(
    "command", ["", "run", "view", "open", "diff", "report", "demo", "lab", "doctor"]
)
def test_each_command_says_what_it_does(kit: Kit, command: str):
    status, out, err = kit(*filter(None, [command]), "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: kit {command}".strip())
    assert len(out.splitlines()) > 6


def test_kit_alone_prints_the_help(kit: Kit):
    assert kit() == kit("--help")


def test_the_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom kit.cli.main import main\ntry:\n    main(['run', '--help'])\n"
        "except SystemExit:\n    heavy = {'torch', 'jax', 'bokeh', 'numpy'}\n"
        "    print(sorted(heavy & set(sys.modules)))"
    )
    assert process("-c", code).stdout.splitlines()[-1] == "[]"


def test_the_console_script_and_the_module_are_the_same_program():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kit"] == "kit.__main__:main"
    assert process("-m", "kit", "--version").stdout.startswith("overlap-kit ")


def test_a_command_line_that_cannot_be_is_refused_with_status_2(kit: Kit):
    assert kit("fly")[0] == 2
    status, _, err = kit("view", "x.json", "--", "more")
    assert status == 2
    assert "for the script of `kit run`" in err


def test_a_script_is_measured_and_its_lines_are_named(kit: Kit):
    script = write("train.py", SCRIPT.format(limit=100, arguments=["--size", "4"]))
    status, out, err = kit(
        "run", script, *SMALL, "--save", "a.kitrun", "--report", "a.html", "--", "--size", "4"
    )
    assert (status, err) == (0, "")
    for said in ("mine: profiled", "steps=2, warmup=1", "device busy", "step", "100.0%",
                 "train.py:16", "if loss.item() > 100:", "item", "what would help"):  # fmt: skip
        assert said in out
    run = Run.load("a.kitrun")
    assert (run.name, run.settings.steps, len(run.losses)) == ("mine", 2, 2)
    assert "sync point" in Path("a.html").read_text()


SIZED = """
import torch, kit

@kit.workload
def sized(ctx, width: int = kit.knob(8, 32, step=8)):
    return lambda: torch.ones(width).sum()
"""


def test_a_parameter_of_the_builder_is_set_like_a_setting(kit: Kit):
    script = write("sized.py", SIZED)
    native = ("--set", "mode=torch")
    status, out, err = kit("run", script, *native, "--set", "steps=1&width=24")
    assert (status, "steps=1, width=24" in out) == (0, True), err
    assert "loss 24 to 24" in out
    said = "width of sized (sized.py:4) must be one of 8, 16, 24, 32, not '9'"
    assert said in kit("run", script, *native, "--set", "width=9")[2]
    assert "did you mean 'width'?" in kit("run", script, *native, "--set", "widht=8")[2]
    assert "did you mean 'mode'?" in kit("run", script, "--set", "moda=torch")[2]


def test_a_plain_step_is_measured_natively(kit: Kit):
    script = write("plain.py", PLAIN)
    status, out, err = kit("run", script, *SMALL)
    assert status == 0
    assert "mode=torch" in out
    assert "measuring `step` as it is" in err
    status, _, err = kit("run", script, "--set", "mode=lazy")
    assert status == 1
    assert "needs a builder that takes a context" in err


@pytest.mark.parametrize(
    ("text", "place", "error"),
    [
        (SCRIPT.format(limit=0, arguments=[]), "wrong.py:17 in step", "RuntimeError: diverged"),
        ("import kit\nmissing_name\n", "wrong.py:2", "NameError: name 'missing_name'"),
        (
            "import kit, importlib\nimportlib.import_module('no')\n",
            "wrong.py:2",
            "No module named 'no'",
        ),
        ("x = (\n", "wrong.py:1", "SyntaxError: '(' was never closed"),
        (
            "import kit\nraise SystemExit(3)",
            "wrong.py:2",
            "the script ended itself, with exit status 3",
        ),
        (FAILING.format(error="open('no data')"), "wrong.py:7 in step", "FileNotFoundError"),
        (
            FAILING.format(error="raise BrokenPipeError(32, 'gone')"),
            "wrong.py:7 in step",
            "BrokenPipeError: [Errno 32] gone",
        ),
    ],
)
def test_an_error_names_the_users_line(kit: Kit, text: str, place: str, error: str):
    status, out, err = kit("run", write("wrong.py", text), *SMALL)
    assert (status, out) == (1, "")
    assert err.startswith(f"kit: {place}\n")
    assert error in err
    assert "Traceback" not in err
    assert "Traceback" in kit("run", "wrong.py", *SMALL, "--traceback")[2]


@pytest.mark.parametrize("more", ["import kit", ""], ids=["with a builder", "watched"])
def test_an_error_names_the_line_of_a_script_that_has_gone_to_another_folder(kit: Kit, more: str):
    script = write("wrong.py", f"import os\n{more}\nos.chdir('/')\nmissing_name\n")
    assert "wrong.py:4\n" in kit("run", script)[2]


def test_an_error_in_kits_own_code_names_the_users_line_also_in_a_checkout():
    with pytest.raises(SettingsError) as caught:
        Settings(batch_size=0)
    assert "tests/cli/test_main.py:" in error_text(caught.value, ROOT / "train.py")


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])  # Debian's is the latter
def test_a_package_installed_beside_the_script_is_not_to_blame(folder: str, tmp_path: Path):
    package = tmp_path / "env" / folder / "package.py"
    found: dict[str, Any] = {}
    exec(compile("def fail(): raise OSError('no')", str(package), "exec"), found)
    found["do"] = found["fail"]
    exec(compile("def step(): do()", str(tmp_path / "train.py"), "exec"), found)
    with pytest.raises(OSError, match="no") as caught:
        found["step"]()
    assert "train.py:1" in error_text(caught.value, tmp_path / "train.py")


def test_a_step_that_is_a_partial_is_a_plain_step(kit: Kit):
    script = write(
        "part.py",
        "import functools\n"
        + PLAIN.replace("def step():", "def _step(scale):")
        + "\n\nstep = functools.partial(_step, 1)\n",
    )
    status, out, err = kit("run", script, "--workload", "step", *SMALL)
    assert (status, "mode 'torch'" in err) == (0, True), err
    assert "step: profiled" in out


def test_a_script_that_goes_to_another_folder_still_knows_where_it_is(kit: Kit):
    write("data.txt", "1.5")
    status, out, err = kit("run", write("moved.py", MOVED), *SMALL, "--set", "mode=torch")
    assert status == 0, err
    assert "loss 1.5 to 1.5" in out


def test_a_script_without_a_step_and_one_with_two_are_told_what_to_do(kit: Kit):
    status, _, err = kit("run", write("none.py", "x = 1"))
    assert status == 1
    assert "@kit.workload" in err
    _, _, err = kit("run", write("watched.py", "import kit\ndef step(batch): ...\n"))
    assert "without arguments: its own takes arguments" in err
    assert "A script with kit.watch in it is run by python" in err
    two = "import kit\n@kit.workload\ndef a(ctx): ...\n@kit.workload\ndef b(ctx): ...\n"
    _, _, err = kit("run", write("two.py", two))
    assert "several workloads: a, b. Say which by --workload" in err
    _, _, err = kit("run", "two.py", "--workload", "c")
    assert "no workload called 'c'; there are: a, b" in err
    _, _, err = kit("run", "two.py", "--workload", "b")
    assert "the workload 'b' must return its step" in err


def test_a_setting_that_cannot_be_is_one_line(kit: Kit):
    script = write("plain.py", PLAIN)
    assert "did you mean 'steps'?" in kit("run", script, "--set", "stops=3")[2]
    assert "steps must be a whole number" in kit("run", script, "--set", "steps=0")[2]


def test_a_report_without_runs_says_first_what_it_will_measure(kit: Kit):
    status, out, err = kit("report", "-o", "no/such/folder/r.html")
    assert status == 1
    assert "no such folder" in err
    assert out.startswith("No runs are given: the kit's BERT is measured under 27 settings")


def test_files_that_are_not_there_or_not_traces_are_one_line(kit: Kit):
    assert kit("run", "no.py") == (1, "", "kit: there is no such script: no.py\n")
    assert kit("view", "no.json") == (1, "", "kit: No such file or directory: no.json\n")
    assert kit("report", "no.kitrun") == (1, "", "kit: No such file or directory: no.kitrun\n")
    assert kit("lab", "no.ipynb") == (1, "", "kit: there is no such notebook: no.ipynb\n")
    assert "--fast is of the sweep over BERT" in kit("report", "a.kitrun", "--fast")[2]
    status, _, err = kit("view", write("text.json", "import torch"))
    assert status == 1
    assert "is not a trace that can be read" in err


def test_a_trace_of_a_gpu_is_shown_and_becomes_a_page(kit: Kit):
    write("trace.json", json.dumps(cuda_trace()))
    status, out, _ = kit("view", "trace.json", "-o", "page.html")
    assert status == 0
    assert "imported" in out
    assert "where the mean traced step goes" in out
    assert out.endswith("wrote page.html\n")
    assert Path("page.html").read_text().startswith("<!doctype html>")


def test_a_strangers_run_cannot_write_to_the_terminal(kit: Kit):
    make_run(hostile=True).save("evil.kitrun")
    status, out, err = kit("view", "evil.kitrun")
    assert (status, err) == (0, "")
    assert all(c == "\n" or (c.isprintable() and ord(c) < 0xD800) or c == "\ufffd" for c in out)
    assert max(map(len, out.splitlines())) < 700


@pytest.mark.skipif(sys.platform == "win32", reason="no file has such a name")
def test_the_name_of_a_written_file_cannot_write_to_the_terminal(kit: Kit, tmp_path: Path):
    """Names come from folders that others fill: `kit report "$run" -o "$run.html"`."""
    make_run().save(tmp_path / "a.kitrun")
    page = tmp_path / "\x1b[31mred\nred.html"
    for verb in ("view", "report"):
        status, said, wrong = kit(verb, str(tmp_path / "a.kitrun"), "-o", str(page))
        assert (status, wrong) == (0, "")
        assert said.splitlines()[-1] == f"wrote {safe_terminal(page, WHOLE)}"
        assert page.is_file()
        page.unlink()


def test_saved_runs_become_one_report_by_both_roads(kit: Kit, tmp_path: Path):
    for size in (4, 8):
        make_run(Settings(batch_size=size)).save(f"{size}.kitrun")
    assert kit("report", "4.kitrun", "8.kitrun", "-o", "both.html")[:2] == (0, "wrote both.html\n")
    assert "batch size" in Path("both.html").read_text()
    said = process("-m", "kit.reports", str(tmp_path / "4.kitrun"), "-o", str(tmp_path / "x.html"))
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "x.html").is_file()


def test_a_folder_of_saved_runs_is_reported_and_one_of_them_must_be_named_to_be_viewed(kit: Kit):
    Path("sweep").mkdir()
    for size in (4, 8):
        make_run(Settings(batch_size=size)).save(f"sweep/{size}.kitrun")
    assert kit("report", "sweep", "-o", "both.html")[:2] == (0, "wrote both.html\n")
    assert "2 recorded runs" in Path("both.html").read_text()
    for asked in (("view", "sweep"), ("query", "sweep", "select 1")):
        status, out, err = kit(*asked)
        assert (status, out) == (1, "")
        assert "'sweep' holds 2 saved runs: name one of them, or" in err
        assert "`kit report FOLDER`" in err
        assert "jax" not in err
    Path("sweep/8.kitrun").unlink()
    status, out, err = kit("view", "sweep")
    assert (status, "step 1.5" in out, err) == (0, True, "")
    Path("sweep/plugins").mkdir()  # as jax has it in the folder of a profile
    Path("sweep/plugins/host.xplane.pb").touch()
    status, out, err = kit("view", "sweep")
    assert (status, "step 1.5" in out) == (0, True)
    assert "Left out: sweep/plugins/host.xplane.pb; give a trace by its file" in err


def test_a_run_before_and_one_after_are_both_in_the_report(kit: Kit, tmp_path: Path):
    for i, name in enumerate(("before", "after")):
        make_run(seed=i).save(tmp_path / f"{name}.kitrun")
    kit("report", "before.kitrun", "after.kitrun", "-o", "r.html")
    page = (tmp_path / "r.html").read_text()
    assert '"values": ["before", "after"]' in page
    assert len(re.findall(r'id="run-[0-9]+"', page)) == 2


LONG = """
import torch

import kit


@kit.workload
def mine(ctx):
    weights = torch.nn.Parameter(torch.zeros(4, 4, device=ctx.device))

    def step():
        loss = (weights + 1).square().mean()
        loss.backward()
        print("stepping", flush=True)
        return loss.detach()

    return step
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('stepping', flush=True)\nimport time\ntime.sleep(60)\n", "kit: interrupted\n"),
        (LONG, "\nkit: interrupted: stopping after this step; Ctrl-C again stops at once\n"),
    ],
    ids=["in the script", "in a step"],
)
def test_an_interrupt_ends_it_with_130_and_no_traceback(tmp_path: Path, text: str, said: str):
    script = tmp_path / "slow.py"
    script.write_text(text)
    command = [warm_python(), "-m", "kit", "run", str(script), "--set", "steps=1000000"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "stepping\n"
        running.send_signal(signal.SIGINT)
        _, err = running.communicate()
    assert (running.returncode, err) == (130, said)


def test_a_closed_pipe_is_quiet(tmp_path: Path):
    make_run().save(tmp_path / "a.kitrun")
    reading, writing = os.pipe()
    os.close(reading)
    said = subprocess.run([sys.executable, "-m", "kit", "view", str(tmp_path / "a.kitrun")],
                          cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True)  # fmt: skip
    os.close(writing)
    assert (said.returncode, said.stderr) == (141, "")


def test_what_the_page_says_can_be_typed():
    text = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    commands = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    assert {command[1] for command in commands} == {"run", "view", "diff", "report", "doctor"}
    parse = cli._parser().parse_args
    assert all(callable(parse(command[1:]).act) for command in commands)


def test_a_coordinator_without_a_rank_is_refused(kit: Kit):
    status, _, err = kit("run", write("mine.py", SCRIPT), "--coordinator", "host0:9911")
    assert status == 1
    assert "--coordinator needs --rank" in err


def test_a_rank_needs_the_number_of_processes(kit: Kit):
    where = ("--rank", "0", "--coordinator", "127.0.0.1:9911")
    status, _, err = kit("run", write("mine.py", SCRIPT), *where)
    assert status == 1
    assert "--rank needs --processes" in err


def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path):
    script = tmp_path / "bare.py"
    script.write_text(
        "import kit\nfrom kit.workloads import mlp\n"
        "kit.run(mlp, kit.Settings(steps=1), processes=2)\n"
    )
    command = [warm_python(), str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert 'must do that under `if __name__ == "__main__":`' in ended.stderr
