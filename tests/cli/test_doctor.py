"""`kit doctor` works where torch, jax, bokeh or dot are missing or broken, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from kit import versions
from kit.cli import doctor as cli_doctor
from kit.cli import main as cli
from kit.cli.doctor import BAD, ODD, OK, doctor, findings

ROOT = Path(__file__).parents[2]
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(f"{{name}} is broken")

sys.meta_path.insert(0, Blocker())
sys.argv = ["kit", "doctor"]
from kit.cli.main import main
sys.exit(main())
"""


def states() -> dict[str, str]:
    return {f.what: f.state for f in findings()}


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, **environment}, timeout=120)  # fmt: skip


def test_a_machine_that_runs_these_tests_has_all_that_kit_needs():
    found = findings()
    assert [f for f in found if f.state == BAD] == []
    assert {"python", "torch", "jax", "bokeh", "dot", "@bokeh/jupyter_bokeh"} <= set(states())
    text, is_well = doctor()
    assert is_well
    assert "all that kit needs is there" in text


def test_nothing_heavy_is_imported_and_no_process_but_dot_is_asked(monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(cli_doctor, "_ask", lambda command, limit: (asked.append(command[0]), 0))
    findings()
    assert {Path(name).name for name in asked} <= {"dot", "nvidia-smi"}
    code = (
        "import sys; from kit.cli.doctor import findings; findings(); print(sorted("
        "{'torch', 'jax', 'bokeh', 'numpy', 'ipywidgets'} & set(sys.modules)))"
    )
    assert run("-c", code).stdout == "[]\n"


@pytest.mark.parametrize("blocked", [{"torch"}, {"jax", "jaxlib"}, {"bokeh", "ipywidgets"}])
def test_packages_that_cannot_be_imported_are_named(blocked: set[str]):
    said = run("-c", BLOCKER.format(blocked=blocked))
    assert (said.returncode, said.stderr) == (1, "")
    for name in blocked:
        line = next(x for x in said.stdout.splitlines() if x.split()[1:2] == [name])
        assert line.startswith(BAD)
        assert "is installed, but cannot be imported" in line
        assert f"pip install --force-reinstall --no-deps {name}" in said.stdout


def test_without_any_package_and_any_program_it_says_how_to_get_them(tmp_path: Path):
    said = run(
        "-S", "-m", "kit", "doctor", PATH=str(tmp_path), PYTHONPATH=str(ROOT), HOME=str(tmp_path)
    )
    assert (said.returncode, said.stderr) == (1, "")
    assert 'pip install "torch>=' in said.stdout
    assert "note     dot" in said.stdout  # the browser lays graphs out, so nothing is amiss
    assert "apt-get install graphviz" in said.stdout
    assert "things to put right" in said.stdout


def test_a_dot_that_fails_is_not_taken_for_one(tmp_path: Path, monkeypatch):
    (tmp_path / "dot").write_text("#!/bin/sh\necho 'no libgvc' >&2; exit 3\n")
    (tmp_path / "dot").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = next(f for f in findings() if f.what == "dot")
    assert (found.state, found.text) == (BAD, "no libgvc")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
def test_every_gpu_is_shown_and_nvidia_smi_is_asked_once(tmp_path: Path, monkeypatch):
    """Only the last of its lines was shown, and the driver asked for by itself."""
    said = ["NVIDIA A100, 580.95.05", "NVIDIA H100, 580.95.05", "NVIDIA H100, 580.95.05"]
    (tmp_path / "nvidia-smi").write_text(
        f"#!/bin/sh\necho asked >> {tmp_path}/calls\nprintf '%s\\n' '{said[0]}' '{said[1]}' "
        f"'{said[2]}'\n"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    drivers: list[str] = []
    cuda = cli_doctor.cuda_findings
    monkeypatch.setattr(
        cli_doctor, "cuda_findings", lambda w, d, e: [drivers.append(d), *cuda(w, d, e)][1:]
    )
    found = next(f for f in findings() if f.what == "gpu")
    assert found.text == "NVIDIA A100, 580.95.05; 2 x NVIDIA H100, 580.95.05"
    assert drivers == ["580.95.05"]
    assert (tmp_path / "calls").read_text() == "asked\n"


def test_a_missing_front_end_is_named(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(cli_doctor, "_FRONT_ENDS", ("@nobody/has-this",))
    found = next(f for f in findings() if f.what == "@nobody/has-this")
    assert found.state == BAD
    assert "widgets stay text" in found.text


def test_a_front_end_is_found_where_jupyter_itself_looks(monkeypatch, tmp_path: Path):
    """On macOS and Windows these are other folders than on Linux."""
    folder = tmp_path / "Library" / "Jupyter" / "labextensions" / "@nobody" / "has-this"
    folder.mkdir(parents=True)
    (folder / "package.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "Library" / "Jupyter"))
    monkeypatch.setattr(cli_doctor, "_FRONT_ENDS", ("@nobody/has-this",))
    found = next(f for f in findings() if f.what == "@nobody/has-this")
    assert (found.state, found.text) == (OK, "JupyterLab finds it")


@pytest.mark.parametrize(
    ("version", "bounds", "is_within"),
    [("2.13.0+cpu", ">=2.11,<2.14", True), ("2.14.0", ">=2.11,<2.14", False),
     ("2.9", ">=2.11", False), ("0.10", ">=0.10,<0.12", True), ("3.9rc1", ">=3.9", True),
     ("4", "", True)],
)  # fmt: skip
def test_versions_are_compared_as_numbers(version: str, bounds: str, is_within: bool):
    assert versions.is_within(version, bounds) is is_within


def test_a_release_candidate_within_the_bounds_is_a_note_that_says_how_to_replace_it(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0rc2")
    found = cli_doctor._package("torch", ">=2.11,<2.15")
    assert found.state == ODD
    assert "2.13.0rc2" in found.text
    assert found.cure.endswith(',!=2.13.0rc2"')


def test_a_python_that_kit_was_never_tried_with_is_a_note(monkeypatch):
    """A session warns of it, and the doctor had called it ok."""
    assert states()["python"] == OK
    monkeypatch.setattr("platform.python_version", lambda: "3.99.1")
    found = next(f for f in findings() if f.what == "python")
    assert found.state == ODD
    assert found.text.startswith("3.99.1, ")
    assert f"kit was tried with {versions.tried_text('python')}" in found.text
    assert found.cure == "take one that was tried"


@pytest.mark.skipif(sys.platform == "win32", reason="there a home folder has other names")
def test_a_user_without_a_home_folder_is_told_what_needs_one(monkeypatch):
    """Jupyter's list of its folders is a RuntimeError then, which ended the doctor."""

    def no_name(number: int) -> None:
        raise KeyError(number)

    assert "home" not in states()
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("KIT_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_name)
    found = {f.what: f for f in findings()}
    assert (found["home"].state, found["cache"].state) == (BAD, ODD)
    assert "bokeh cannot be imported" in found["home"].text
    assert found["home"].cure == "export HOME=a/folder/of/yours"


def test_an_import_that_hangs_or_crashes_is_a_finding_and_not_the_end(monkeypatch):
    monkeypatch.setattr(cli_doctor, "LIMIT_S", 0.5)
    monkeypatch.setattr(cli_doctor, "_DEVICES", {
        "slow": "import time; time.sleep(60)", "dead": "import os; os.abort()",
        "broken": "raise ImportError('libcudart.so.13 is missing')", "good": "print('cpu (cpu)')",
    })  # fmt: skip
    found = {f.what: f for f in findings(full=True) if f.what.endswith("devices")}
    assert [f.state for f in found.values()] == [BAD, BAD, BAD, OK]
    assert "no answer within" in found["slow devices"].text
    assert "libcudart.so.13 is missing" in found["broken devices"].text


@pytest.mark.parametrize(
    ("folder", "state"), [("", ODD), ("new/folder", OK), ("file", ODD), ("file/below", ODD)]
)
def test_it_says_where_compiled_programs_are_kept(
    monkeypatch, tmp_path: Path, folder: str, state: str
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KIT_CACHE_DIR", str(tmp_path / folder) if folder else "")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    assert states()["cache"] == state


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in use cannot be removed there")
def test_in_a_folder_that_is_gone_it_works_and_others_say_what_is_wrong(
    monkeypatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """They said "No such file or directory", and not which."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "cache" in states()
    for arguments in (["lab", "--no-browser"], ["run", "-m", "train"], ["view", "a.json"]):
        assert cli.main(arguments) == 1
        assert "started in is gone: cd to one that is there\n" in capsys.readouterr().err


def test_one_core_is_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """It said "1 cores of 2"."""
    monkeypatch.setattr(cli_doctor, "usable_cores", lambda: 1)
    assert cli_doctor._cores().split(" of ")[0] == "1 core"
