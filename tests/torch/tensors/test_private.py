"""What the kit takes from torch below its public surface is in one file, and said if missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import kit
from kit.errors import SessionError
from kit.torch.tensors.private import NAMES, private
from kit.versions import needed, tried_text
from tests.warm import warm_python

ROOT = Path(kit.__file__).parent

WITHOUT = """
import torch
del torch._C._current_autograd_node
import kit
from kit.errors import SessionError
try:
    kit.Session()
except SessionError as error:
    print(error)
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_torch_lacks_is_said_with_the_versions_that_were_tried(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert private(name) is not None
    owner: Any = torch
    *path, last = name.split(".")[1:]
    for depth, part in enumerate(path, start=2):  # torch.optim hides its module "optimizer"
        module = sys.modules.get(".".join(name.split(".")[:depth]))
        owner = getattr(owner, part) if module is None else module
    holder = owner if isinstance(owner, type) else owner.__dict__
    if isinstance(holder, dict):
        monkeypatch.delitem(holder, last)
    else:
        monkeypatch.delattr(holder, last)
    with pytest.raises(SessionError, match=re.escape(f"has no {name}")) as said:
        private(name)
    assert tried_text("torch") in str(said.value)
    assert f'pip install "torch{needed()["torch"]}"' in str(said.value)


def test_a_session_on_such_a_torch_says_so_and_importing_kit_does_not_fail() -> None:
    command = [warm_python(), "-c", WITHOUT]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    assert "has no torch._C._current_autograd_node, which kit needs" in done.stdout


def test_no_other_file_reaches_below_torchs_surface() -> None:
    below = re.compile(
        r"\btorch\._(?:C|decomp|dynamo|inductor|prims|refs|subclasses)\b|from torch\._"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.name != "private.py"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if below.search(line.partition("#")[0]) and 'private("' not in line
    ]
    assert found == []
