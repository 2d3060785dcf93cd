"""The Makefile, its scripts and .ci/run do the right thing on machines unlike this one.

So do the files that repeat what the Makefile says: the workflow, the commit hooks, .editorconfig.
Each test of a target makes small stand-ins for the system's programs (`id`, `apt-get`,
`nvidia-smi`) its PATH: they print what they were asked, so nothing is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
BASICS = ("sh", "bash", "env", "dirname", "make")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder that is the whole PATH of a Linux: the basic programs, and what a test adds."""
    for name in BASICS:
        found = shutil.which(name)
        assert found, name
        (tmp_path / name).symlink_to(found)
    add(tmp_path, "uname", "echo Linux")
    return tmp_path


def add(machine: Path, name: str, body: str) -> None:
    (machine / name).write_text(f"#!/bin/sh\n{body}\n")
    (machine / name).chmod(0o755)


def call(machine: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("CI", "MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**env, "PATH": str(machine)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_user_without_root_is_told_what_to_install(machine: Path):
    add(machine, "id", "echo 1000")
    said = call(machine, "scripts/need", "graphviz", "dot")
    assert said.returncode == 0
    assert "'dot' is missing, and kit needs it. Install the package 'graphviz'" in said.stderr


def test_root_on_linux_gets_it_from_apt(machine: Path):
    add(machine, "id", "echo 0")
    add(machine, "apt-get", f'echo "$@" >> {machine}/asked')
    assert call(machine, "scripts/need", "graphviz", "dot").returncode == 0
    asked = (machine / "asked").read_text().splitlines()
    assert asked[0].startswith("update")
    assert asked[1].endswith("--no-install-recommends graphviz")


def test_a_program_that_is_there_is_not_installed_again(machine: Path):
    add(machine, "id", "echo 0")
    add(machine, "apt-get", f"touch {machine}/asked")
    add(machine, "chromium-browser", "true")
    said = call(machine, "scripts/need", "chromium", "chromium", "chromium-browser")
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    assert not (machine / "asked").exists()


def test_a_missing_python_is_named(machine: Path):
    said = call(machine, "scripts/make-venv", "python3", "unused")
    assert said.returncode == 1
    assert said.stderr.startswith("kit needs Python 3.11 or newer; 'python3' was not found")


def test_an_old_python_is_named_with_its_version(machine: Path):
    add(machine, "python3", '[ "$1" = -V ] && echo "Python 3.9.2" || exit 1')
    said = call(machine, "scripts/make-venv", "python3", "unused")
    assert said.returncode == 1
    assert "'python3' is Python 3.9.2" in said.stderr


def test_a_python_without_ensurepip_is_a_clear_line(machine: Path):
    add(machine, "id", "echo 1000")
    add(
        machine,
        "python3",
        'case "$2" in *ensurepip*) exit 1;; *print*) echo python3.11-venv;; esac',
    )
    said = call(machine, "scripts/make-venv", "python3", "unused")
    assert said.returncode == 1
    assert "Install the package 'python3.11-venv'" in said.stderr
    assert "'python3' has no 'ensurepip'" in said.stderr


def test_node_does_not_take_the_scripts_of_jupyterlab_for_modules(machine: Path, tmp_path: Path):
    """JupyterLab runs one when it starts, and its traceback stood in the terminal of `make lab`."""
    (tmp_path / "package.json").write_text('{"type": "module"}')  # as that of this folder
    add(machine, "python3", f'[ "$2" != venv ] || {shutil.which("mkdir")} "$3"')
    assert call(machine, "scripts/make-venv", "python3", f"{tmp_path}/.venv").returncode == 0
    script = tmp_path / ".venv" / "check.js"
    script.write_text("require('node:path')")
    subprocess.run(["node", script], check=True, capture_output=True)


def test_without_a_gpu_no_cuda_wheel_is_asked_for(machine: Path):
    plan = call(machine, "make", "--dry-run", "--always-make", "test").stdout
    assert '--editable ".[test,dev]"' in plan
    assert "cuda" not in plan
    assert "-m gpu" not in plan


def test_with_a_gpu_jax_comes_with_cuda_and_the_gpu_tests_run_too(machine: Path):
    add(machine, "nvidia-smi", "true")
    plan = call(machine, "make", "--dry-run", "--always-make", "test").stdout
    assert '--editable ".[cuda,test,dev]"' in plan
    assert "pytest -m gpu" in plan
    assert '--editable ".[cuda]"' in call(machine, "make", "-nB", "lab").stdout


def test_torch_can_be_chosen_by_hand(machine: Path):
    choice = ("TORCH=torch==2.12.0", "PIP_TORCH_ARGS=--pre")
    plan = call(machine, "make", "--dry-run", "--always-make", "lab", *choice).stdout
    assert 'install --pre "torch==2.12.0"' in plan


def test_make_fetches_by_hash_and_then_nothing_that_the_lists_lack(machine: Path):
    def installs(*choice: str) -> list[str]:
        plan = call(machine, "make", "--dry-run", "--always-make", "check", *choice).stdout
        return [line.partition(" install ")[2] for line in plan.splitlines() if " -m pip " in line]

    assert installs() == [
        "--no-deps --require-hashes --requirement requirements/pip.txt",
        "--no-deps --require-hashes --requirement requirements/kit.txt",
        ' "torch==2.13.0"',
        "--no-deps --require-hashes --requirement requirements/test.txt",
        '--no-index --no-build-isolation --editable ".[test,dev]"',
    ]
    assert installs("PINS=") == [' "torch==2.13.0"', ' --editable ".[test,dev]"']


def test_pytest_has_the_last_word_of_make_test(machine: Path):
    lines = call(machine, "make", "--dry-run", "--always-make", "test").stdout.splitlines()
    assert lines[-1].split()[1:3] == ["-m", "pytest"]


def test_the_notebook_and_the_report_of_make_are_those_of_the_command_line(machine: Path):
    plan = call(machine, "make", "--dry-run", "--always-make", "lab", "NOTEBOOK=n/x.ipynb").stdout
    assert plan.splitlines()[-1] == ".venv/bin/python -m kit lab n/x.ipynb"
    plan = call(machine, "make", "--dry-run", "lab", "LAB_ARGS=--port 9", "NOTEBOOK=n.ipynb").stdout
    assert plan.splitlines()[-1] == ".venv/bin/python -m kit lab n.ipynb --port 9"
    plan = call(machine, "make", "--dry-run", "--always-make", "report", "REPORT=r.html").stdout
    assert plan.splitlines()[-1] == ".venv/bin/python -m kit report --output r.html"


def test_ci_installs_what_a_fresh_machine_lacks_and_then_runs_make_test(machine: Path):
    add(machine, "apt-get", f'echo "$@" >> {machine}/asked')
    add(machine, "python3", "exit 1")
    (machine / "make").unlink()
    add(machine, "make", 'echo "make $* with CI=$CI"')
    said = call(machine, ".ci/run")
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == [
        f"make {target} with CI=true" for target in (".venv/.installed-test", "test")
    ]
    asked = set((machine / "asked").read_text().split())
    assert {"graphviz", "chromium-headless-shell", "npm", "python3-venv"} <= asked


def test_ci_fails_where_a_package_cannot_be_installed(machine: Path):
    add(machine, "apt-get", '[ "$1" = update ] || { echo "no such package" >&2; exit 100; }')
    add(machine, "python3", "exit 0")
    (machine / "make").unlink()
    add(machine, "make", "echo $*")
    said = call(machine, ".ci/run")
    assert said.returncode == 100
    assert "no such package" in said.stderr
    assert said.stdout == ".venv/.installed-test\n"


def test_check_takes_the_python_and_the_javascript_side_by_side(machine: Path):
    plan = call(machine, "make", "--dry-run", "--always-make", "check").stdout
    assert "--jobs 2 lint javascript" in plan
    assert {"-m mypy", "npm run --silent check"} <= {
        line.removeprefix(".venv/bin/python ") for line in plan.splitlines()
    }


def test_one_process_compiles_what_the_workers_import_beside_the_linter(machine: Path):
    lines = call(machine, "make", "--dry-run", "--always-make", "test").stdout.splitlines()
    (side_by_side,) = (line for line in lines if "--jobs 2 " in line)
    assert side_by_side.split("--jobs 2 ")[1] == "lint .venv/.bytecode javascript"
    (collect,) = (i for i, line in enumerate(lines) if "-m pytest --collect-only" in line)
    assert collect < min(i for i, line in enumerate(lines) if "-m pytest -n" in line)


def test_help_lists_every_target_that_is_no_file(machine: Path):
    awk = shutil.which("awk")
    assert awk
    (machine / "awk").symlink_to(awk)
    said = call(machine, "make", "help")
    assert said.returncode == 0, said.stderr
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.M)
    assert phony
    listed = [line.split()[1] for line in said.stdout.splitlines()]
    assert sorted(listed) == sorted(phony[1].split())
    assert all(len(line.split(maxsplit=2)) == 3 for line in said.stdout.splitlines())


def test_quick_checks_first_and_leaves_out_browsers_notebooks_and_slow_tests(machine: Path):
    lines = call(machine, "make", "--dry-run", "--always-make", "quick").stdout.splitlines()
    assert any(line.endswith("-m mypy") for line in lines[:-1])
    assert '-m "not browser and not notebook and not slow and not alone"' in lines[-1]


def test_all_tests_run_those_that_must_be_alone_last(machine: Path):
    lines = call(machine, "make", "--dry-run", "--always-make", "test").stdout.splitlines()
    quickly, as_shipped, alone = lines[-3:]
    assert "-m pytest -n 3 --dist loadfile --no-loadscope-reorder -m" in quickly
    assert quickly.count('-m "not alone and not as_shipped"') == 2
    assert '-m pytest -n 3 --dist worksteal -m "as_shipped"' in as_shipped
    assert '-m pytest -n 0 -m "alone"' in alone


@pytest.mark.parametrize(
    ("ends", "is_green", "runs"),
    [([0], True, 1), ([1, 0], True, 2), ([1, 1], False, 2), ([2], False, 1)],
    ids=["passed", "failed beside others", "failed alone", "broken off"],
)
def test_what_fails_beside_others_runs_once_more_alone(
    machine: Path, ends: list[int], is_green: bool, runs: int
):
    """The stand-in for Python ends with one status after the other."""
    (machine / "ends").write_text("".join(f"{end}\n" for end in ends))
    for name in ("sed", "head"):
        (machine / name).symlink_to(shutil.which(name) or "")
    add(
        machine,
        "python-of-a-test",
        f'cd {machine}; echo "$@" >> asked; end=$(head -n 1 ends); sed -i 1d ends; exit $end',
    )
    lines = call(machine, "make", "--dry-run", "--always-make", "test").stdout.splitlines()
    line = lines[-3].replace(".venv/bin/python", "python-of-a-test")
    assert (call(machine, "sh", "-c", line).returncode == 0) == is_green
    asked = (machine / "asked").read_text().splitlines()
    assert ["--last-failed" in once for once in asked] == [False, True][:runs]


def test_the_folders_that_the_makefile_chooses_are_there(machine: Path):
    plan = call(machine, "make", "--dry-run", "--always-make", "quick").stdout
    named = {word for word in plan.split() if word.startswith("tests/")}
    assert named
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_fmt_corrects_and_lays_out(machine: Path):
    lines = call(machine, "make", "--dry-run", "fmt").stdout.splitlines()
    assert lines[-2:] == [
        ".venv/bin/python -m ruff check --fix .",
        ".venv/bin/python -m ruff format .",
    ]


def test_the_workflow_runs_the_targets_of_the_makefile_on_the_oldest_and_newest_python():
    flow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    job = flow["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.13"]
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs[-2:] == ["make quick", "make test"]


def test_a_commit_is_laid_out_by_the_programs_of_the_makefile():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = {hook["id"]: hook for repo in config["repos"] for hook in repo["hooks"]}
    assert hooks["ruff"]["entry"].startswith(".venv/bin/ruff check --fix")
    assert hooks["ruff-format"]["entry"].startswith(".venv/bin/ruff format")
    assert hooks["notebook-outputs"]["entry"].endswith("python scripts/kept_outputs.py")
    assert {"trailing-whitespace", "end-of-file-fixer"} <= set(hooks)


def test_an_editor_is_told_the_line_length_of_ruff():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    editor = (ROOT / ".editorconfig").read_text(encoding="utf-8")
    assert f"max_line_length = {project['tool']['ruff']['line-length']}" in editor


def test_an_issue_form_asks_for_something_and_says_why():
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) == 4
    for form in forms:
        asked = yaml.safe_load(form.read_text(encoding="utf-8"))
        if form.name != "config.yml":
            assert asked["name"], form
            assert asked["description"], form
            assert [field["id"] for field in asked["body"]], form


def test_a_source_archive_has_whatever_the_makefile_and_the_tests_read():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    packed = {path.name for pattern in included for path in ROOT.glob(pattern.lstrip("/"))}
    packed |= {"pyproject.toml", "LICENSE", ".gitignore"}  # hatchling's own rule
    asked = subprocess.run(("git", "ls-files"), cwd=ROOT, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    assert {line.split("/")[0] for line in asked.stdout.splitlines()} <= packed
