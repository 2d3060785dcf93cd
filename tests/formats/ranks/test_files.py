"""Which folders of saved runs are those of the ranks of one job."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.formats.ranks.files import is_folder_of_ranks


@pytest.mark.parametrize(
    ("names", "is_one"),
    [
        (["rank0.kitrun", "rank1.kitrun"], True),
        (["now_rank0.kitrun", "now_rank1.kitrun", "now_rank1_2.kitrun"], True),
        (["rank0/step.kitrun", "rank1/step.kitrun"], True),
        (["lora_rank8-6b86.kitrun", "lora_rank8-d473.kitrun"], False),
        (["gpu1.kitrun", "gpu2.kitrun"], False),
        (["worker2.kitrun", "worker4.kitrun"], False),
        (["crank1.kitrun"], False),
        (["gpu1.json", "gpu2.json"], True),
    ],
)
def test_a_saved_run_is_a_rank_if_its_name_ends_so(tmp_path: Path, names: list[str], is_one: bool):
    """`kit view` of a sweep over "lora_rank8" showed one of its runs as rank 8 of 9."""
    folder = tmp_path / "rank8"  # whose name says nothing of the runs in it
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert is_folder_of_ranks(folder) == is_one
