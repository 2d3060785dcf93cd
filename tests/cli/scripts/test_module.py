"""`kit run` of a module, a folder, a builder's script: run as Python runs or imports them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import kit
from kit.errors import TraceFileError
from tests.cli.calls import Kit

MODULE = """
import sys
from pathlib import Path

import torch

from .parts import STEPS

assert sys.path[0] == str(Path.cwd()), sys.path[0]
assert __package__ == "package"
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters())
for _ in range(STEPS):
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
print("its own", sys.argv[1:])
"""


@pytest.mark.parametrize("name", ["package", "package.train"])
def test_a_module_is_run_as_python_runs_it(
    kit_run: Kit, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("package").mkdir()
    Path("package/__init__.py").touch()
    Path("package/parts.py").write_text("STEPS = 6")
    Path(f"package/{'__main__' if name == 'package' else 'train'}.py").write_text(MODULE)
    for known in [key for key in sys.modules if key.partition(".")[0] == "package"]:
        monkeypatch.delitem(sys.modules, known)
    importlib.invalidate_caches()
    status, said, wrong = kit_run("-m", name, "--steps", 2, "--skip", 0, "--", "-x")
    assert (status, wrong) == (0, "")
    assert said.startswith("its own ['-x']\n")
    assert "device busy" in said


def test_a_saved_run_for_a_script_and_a_script_for_a_trace_say_which_command_takes_them(
    kit_run: Kit,
) -> None:
    """It was "SyntaxError: source code string cannot contain null bytes", and "it is not JSON"."""
    Path("now.kitrun").write_bytes(b"PK")
    said = "kit: now.kitrun is a saved run and no script: kit view now.kitrun\n"
    assert kit_run("now.kitrun") == (1, "", said)
    Path("train.py").write_text("import torch")
    with pytest.raises(TraceFileError, match="it is a script, which is not read: measure it"):
        kit.open_trace("train.py")


def test_a_module_or_folder_that_cannot_be_run_says_what_can(kit_run: Kit) -> None:
    Path("folder").mkdir()
    assert kit_run("folder")[2] == "kit: folder is a folder; it has no Python file\n"
    Path("folder/train.py").write_text("import kit")
    said = "kit: folder is a folder; run a file of it: kit run folder/train.py\n"
    assert kit_run("folder") == (1, "", said)
    assert "no module of Python called 'nothing.a' can be run" in kit_run("-m", "nothing.a")[2]
    Path("folder/__init__.py").write_text("1 / 0")
    assert "folder cannot be imported: ZeroDivision" in kit_run("-m", "folder.train")[2]
    Path("folder/__init__.py").write_text("import fol")  # its name begins the package's
    importlib.invalidate_caches()
    said = "folder cannot be imported: ModuleNotFoundError: No module named 'fol'"
    assert said in kit_run("-m", "folder.train")[2]
    Path("folder/__init__.py").unlink()
    importlib.invalidate_caches()
    assert "without .py, kit run -m train\n" in kit_run("-m", "train.py")[2]
    said = "folder.train has a step for kit, which is measured in its file: kit run folder/train.py"
    assert said in kit_run("-m", "folder.train")[2]


BUILDER = """
import inspect, io
import kit, torch

class Net(torch.nn.Linear):
    pass

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.ones(4)

@kit.workload
def mine(ctx):
    net = Net(4, 2).to(ctx.device)
    torch.save(net.cpu(), io.BytesIO())
    print(inspect.getsource(Net).split("\\n")[0])
    loader = torch.utils.data.DataLoader(Points(), num_workers=1, multiprocessing_context="spawn")
    print("batches", len(list(loader)))
    points = torch.ones(3, 4).to(ctx.device)
    net = net.to(ctx.device)
    return lambda: net(points).sum()
"""


@pytest.mark.usefixtures("warm_processes")
def test_what_a_builders_script_defines_is_found_by_its_name(kit: Kit) -> None:
    """By pickle, by a worker that is spawned, and by inspect."""
    known = set(sys.modules)
    Path("batches_of_mine.py").write_text(BUILDER)
    importlib.invalidate_caches()
    status, said, wrong = kit("run", "batches_of_mine.py", "--steps", 2, "--skip", 1)
    assert (status, wrong) == (0, "")
    assert said.startswith("class Net(torch.nn.Linear):\nbatches 8\n")
    assert "batches_of_mine" in set(sys.modules) - known


def test_a_builders_script_with_the_name_of_another_module_does_not_replace_that(kit: Kit) -> None:
    before = sys.modules["json"]
    Path("json.py").write_text(
        BUILDER.replace('num_workers=1, multiprocessing_context="spawn"', "")
    )
    status, said, _ = kit("run", "json.py", "--steps", 2, "--skip", 1)
    assert status == 0
    assert "batches 8\n" in said
    assert sys.modules["json"] is before


@pytest.mark.parametrize(
    "asks", ["from in_circle import Config", "import in_circle as x; x.Config"]
)
def test_a_builders_script_may_be_imported_by_what_it_imports(
    kit: Kit, asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python runs it twice then; it was refused: "cannot import name 'Config' from 'in_circle'"."""
    plain = BUILDER.replace('num_workers=1, multiprocessing_context="spawn"', "")
    Path("in_circle.py").write_text(f"import beside_circle\nclass Config: pass\n{plain}")

    def run_beside(text: str) -> tuple[int, str, str]:
        Path("beside_circle.py").write_text(f"{text}\n")
        importlib.invalidate_caches()
        for name in ("in_circle", "beside_circle", "kit_script"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        return kit("run", "in_circle.py", "--steps", 2, "--skip", 1)

    status, said, wrong = run_beside(asks)
    assert (status, wrong) == (0, "")
    assert "batches 8\n" in said
    wrong = run_beside("from in_circle import Missing")[2]
    assert "cannot import name 'Missing' from 'in_circle'" in wrong
