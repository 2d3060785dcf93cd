"""What a command line cannot mean is refused before anything runs, and says what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.cli.main import report_main
from kit.gpu_check import __main__ as gpu_check
from tests.cli.calls import Kit, write
from tests.factories import make_run


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--save", "model.pt"], "in a file *.kitrun"),
        (["--save", "model"], "is a file of another kind"),
        (["--report", "page.pdf"], "a browser prints a page as PDF"),
        (["--save", "now", "--report", "./now"], "the page would take the place of the run"),
        (["--device", "1"], "did you mean --devices? The script's own arguments stand after --"),
        (["--trace"], "The script's own arguments stand after --"),
    ],
)
def test_a_script_does_not_run_for_what_could_not_be_kept(
    kit: Kit, arguments: list[str], why: str
) -> None:
    """A checkpoint was replaced by a run; `--device 1` was taken for `--devices 1`."""
    for name in ("model", "model.pt"):
        write(name, "a checkpoint")
    status, out, err = kit("run", write("train.py", "print('ran')"), *arguments)
    assert status != 0
    assert out == ""
    assert why in err
    assert Path("model").read_text() == Path("model.pt").read_text() == "a checkpoint"


def test_a_run_is_kept_under_any_name_without_a_suffix(kit: Kit) -> None:
    make_run().save("now")
    for name in ("now", "new"):
        _, out, err = kit("run", write("train.py", "print('ran')"), "--save", name)
        assert (out, "--save" in err) == ("ran\n", False)


def test_a_run_is_kept_over_a_run_and_under_a_name_with_a_number(kit: Kit) -> None:
    make_run().save("old.kitrun")
    Path("old.kitrun").rename("old.run")
    for name in ("old.run", "run_lr0.01", "a.KITRUN"):
        _, out, err = kit("run", write("train.py", "print('ran')"), "--save", name)
        assert (out, "--save" in err) == ("ran\n", False)


def test_a_script_with_a_step_that_was_not_measured_is_told_why(kit: Kit) -> None:
    *_, err = kit("run", write("train.py", "def step():\n    pass\n"))
    assert "Its step() is measured by itself if it needs no argument, returns its loss" in err


def test_a_page_that_cannot_be_written_is_said_before_a_trace_is_read(kit: Kit) -> None:
    make_run().save("a.kitrun")
    for verb in ("view", "report"):
        status, out, err = kit(verb, "none.kitrun", "-o", "page.pdf")
        assert (status, out) == (1, "")
        assert "a browser prints a page as PDF" in err


@pytest.mark.parametrize("verb", ["view", "report", "diff", "query"])
def test_a_folder_without_saved_runs_says_where_some_are(kit: Kit, verb: str) -> None:
    """It was told about *.xplane.pb."""
    for name in ("empty", "nest/a", "nest/b"):
        Path(name).mkdir(parents=True)
    for name in ("a", "b"):
        make_run().save(f"nest/{name}/{name}.kitrun")

    def said(folder: str) -> str:
        more = {"diff": [folder], "query": ["select 1"], "report": ["-o", "page.html"]}
        status, out, err = kit(verb, folder, *more.get(verb, []))
        assert (status, out) == (2 if verb == "diff" else 1, "")
        return err

    assert "'empty' holds no saved run (*.kitrun), and no trace" in said("empty")
    profile = Path("nest/plugins/profile/1/host.xplane.pb")
    profile.parent.mkdir(parents=True)
    profile.touch()
    assert "its folders do" not in said("nest")
    profile.unlink()
    where = f"{Path('nest/a')}, {Path('nest/b')}"
    assert f"'nest' holds no saved run (*.kitrun); its folders do: {where}" in said("nest")


def test_a_plain_step_of_jax_is_so_though_torch_is_loaded_and_its_errors_are_short(kit: Kit):
    """It was measured, and then refused: PyTorch had not computed its loss."""
    text = "import jax, torch\nn = 0.0\nf = jax.jit(lambda x: x * 2)\n"
    text += "def step():\n    global n\n    n += 1\n    return f(n)\n"
    status, out, err = kit("run", write("plain.py", text), "--steps", "2", "--skip", "1")
    assert (status, "loss 4 to 6" in out) == (0, True), err
    status, out, err = kit("run", write("plain.py", text.replace("f(n)", "f('a')")), "--steps", "2")
    assert (status, "removed its internal frames" in err) == (1, False), err


def test_an_argument_that_is_refused_is_shown_and_not_obeyed(
    kit: Kit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell's `*` gives the names of files, and others may have named these."""
    evil = "--\x1b[2J\u202e\x9bx"
    said = [kit("view", evil, "run.kitrun")]
    monkeypatch.setattr("sys.argv", ["a program", evil, "run.kitrun"])
    for main in (gpu_check.main, report_main):
        with pytest.raises(SystemExit) as end:
            main()
        said.append((end.value.code, *capsys.readouterr()))
    for status, out, err in said:
        assert (status, out) == (2, "")
        assert "unrecognized arguments: --\ufffd[2J" in err
        assert err.replace("\n", "").isprintable()
