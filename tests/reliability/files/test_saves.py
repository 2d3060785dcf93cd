"""A process that is killed while it saves, and a full disk, leave whole files."""

from __future__ import annotations

import random
from pathlib import Path

from tests.reliability.files.saves import fill_disk, kill_savers


def test_a_process_that_is_killed_while_it_saves_leaves_whole_files(tmp_path: Path) -> None:
    assert kill_savers(2, random.Random(3), tmp_path) >= 1


def test_a_full_disk_is_an_error_and_keeps_the_older_files(tmp_path: Path) -> None:
    fill_disk(tmp_path)
