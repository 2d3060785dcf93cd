"""The programs that kit and its tests call are there: a missing one is a failure, never a skip."""

from __future__ import annotations

import subprocess

from tests.browser.labserver import chromium


def test_dot_draws_a_graph():
    answer = subprocess.run(
        ["dot", "-Tplain"], input="digraph { a -> b }", capture_output=True, text=True, timeout=30
    )
    assert answer.stdout.splitlines()[-1] == "stop", answer.stderr


def test_chromium_says_its_version():
    answer = subprocess.run([chromium(), "--version"], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert "Chrom" in answer.stdout
