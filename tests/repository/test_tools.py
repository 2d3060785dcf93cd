"""The programs that kit and its tests call are there: a missing one is a failure, never a skip.

And the tests find one another: `pytest -m MARKER` reads only files that name the marker.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

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


def test_a_file_names_the_markers_of_its_tests(request: pytest.FixtureRequest):
    """Of what was collected in this run: `conftest.py` reads no other file for `-m alone`."""
    ours = {"alone", "as_shipped", "browser", "gpu", "notebook", "slow"}
    texts: dict[Path, str] = {}
    for item in request.session.items:
        text = texts.setdefault(item.path, item.path.read_text(encoding="utf-8"))
        for mark in item.iter_markers():
            assert mark.name not in ours or f"pytest.mark.{mark.name}" in text, item.nodeid


def test_the_files_that_the_workers_begin_with_are_there(request: pytest.FixtureRequest):
    (rules,) = (
        plugin
        for plugin in request.config.pluginmanager.get_plugins()
        if getattr(plugin, "LONG_FILES", None)
    )
    root = request.config.rootpath
    assert [name for name in rules.LONG_FILES if not (root / name).is_file()] == []


def test_the_film_of_a_slider_takes_the_place_of_the_one_before_in_the_readme():
    from scripts.animation import MARK, README, captioned

    text = README.read_text(encoding="utf-8")
    once = captioned(text, 3.0)
    assert captioned(captioned(text, 9.0), 3.0) == once
    assert once.count("![One move") == once.count(MARK) == 1
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert [line for line in once.splitlines() if line.startswith("#")] == heads
