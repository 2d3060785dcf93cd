"""A file is written whole, and no more people can read it than before."""

from __future__ import annotations

from pathlib import Path

from kit.files import write_whole


def test_a_file_that_is_written_again_stays_as_private_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "mine.kitrun"
    write_whole(file, b"one")
    file.chmod(0o600)
    write_whole(file, b"two")
    assert file.read_bytes() == b"two"
    assert file.stat().st_mode & 0o777 == 0o600
