"""Ctrl-C in a script on device kit: it ends soon, and what was recorded is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from kit.runs.run import Run
from tests.cli.calls import Kit, write

INTERRUPTED = """
import torch

net = torch.nn.Linear(3, 2).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(4, 3, device="cuda")
for _ in range({steps}):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
kept = [torch.ones(3 + i, device="cuda").cumsum(0) for i in range(3)]
{reads}
raise KeyboardInterrupt
"""


def test_after_an_interrupt_what_is_pending_is_not_compiled(tmp_path: Path) -> None:
    """It was, before the script ended: for most of a minute in a loop whose shapes grow."""
    script = tmp_path / "none.py"
    programs = tmp_path / "programs"
    for reads, is_compiled in (("kept[0].tolist()", True), ("", False)):
        script.write_text(INTERRUPTED.format(steps=0, reads=reads))
        command = [sys.executable, "-m", "kit", "run", str(script), "--on", "kit"]
        ended = subprocess.run(
            command, env={**os.environ, "KIT_CACHE_DIR": str(programs)},
            capture_output=True, text=True,
        )  # fmt: skip
        assert ended.returncode == 130
        assert ended.stderr.startswith("kit: interrupted\n")
        assert "Traceback" not in ended.stderr
        assert bool([*programs.rglob("*segment*")]) == is_compiled
        shutil.rmtree(programs)


def test_after_an_interrupt_the_steps_are_kept(kit_run: Kit) -> None:
    script = write("train.py", INTERRUPTED.format(steps=9, reads=""))
    status, _, wrong = kit_run(script, "--on", "kit", "--skip", 1, "--save", "a.kitrun")
    assert status == 130
    assert "Traceback" not in wrong
    assert len(Run.load("a.kitrun").step_times_ns) > 3
