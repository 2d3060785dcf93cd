"""No file of kit is longer than 450 lines; `pytest -s tests/test_sizes.py` prints the sizes."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median

KIT = Path(__file__).parents[1] / "kit"
CAP = 450


def lines_by_room() -> dict[str, dict[str, int]]:
    """room -> file -> lines."""
    rooms: dict[str, dict[str, int]] = defaultdict(dict)
    for path in sorted(KIT.rglob("*.py")):
        name = path.relative_to(KIT).as_posix()
        room = name.split("/")[0] if "/" in name else "(top)"
        rooms[room][name] = len(path.read_text(encoding="utf-8").splitlines())
    return rooms


def test_no_file_is_longer_than_the_cap():
    rooms = lines_by_room()
    print(f"\n{'room':<12}{'files':>6}{'lines':>8}{'median':>8}  longest")
    for room, files in rooms.items():
        longest = max(files, key=lambda name: files[name])
        print(
            f"{room:<12}{len(files):>6}{sum(files.values()):>8}{median(files.values()):>8.0f}"
            f"  {longest} ({files[longest]})"
        )
    too_long = {n: size for files in rooms.values() for n, size in files.items() if size > CAP}
    assert too_long == {}, f"split these, or argue in the commit: {too_long}"
