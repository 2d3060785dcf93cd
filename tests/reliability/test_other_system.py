"""Where Python has fewer names, as on Windows, a step is measured and a report is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from kit.torch.tensors import places


def test_a_run_a_file_and_a_report_are_made_without_the_names_that_windows_lacks(
    tmp_path: Path,
) -> None:
    cache = tmp_path / ".cache"
    environment = {**os.environ, "HOME": str(tmp_path), "KIT_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-Xwarn_default_encoding", "-m", "tests.reliability.other_system",
         str(tmp_path)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["system"].startswith("Windows")
    assert found["losses"] == 2
    assert found["kernels"] > 0
    assert found["cached"] > 0  # the folder is below the user's own
    assert found["report"] > 10_000
    assert "on Windows" in found["doctor"]


def test_the_line_of_a_library_has_slashes_and_no_folder_of_an_installation(monkeypatch) -> None:
    with monkeypatch.context() as windows:
        windows.setattr(os, "sep", "\\")
        windows.setattr(places, "_INSTALLED", ("C:\\Python\\Lib\\",))
        package = places._installed("C:\\Python\\Lib\\site-packages\\transformers\\trainer.py")
        module = places._installed("C:\\Python\\Lib\\logging\\__init__.py")
    assert (package, module) == ("transformers/trainer.py", "logging/__init__.py")
