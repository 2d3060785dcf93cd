"""`kit run -m` and `kit run FOLDER`: run as Python runs a module or a folder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

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
