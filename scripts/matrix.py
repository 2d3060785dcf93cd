"""Does the kit work with these versions? The rows of kit/tried.csv, which docs/versions.md shows.

    python scripts/matrix.py --keep python3.13,torch==2.14.1,jax==0.11.2 python3.11,torch==2.13.0

Each combination is a Python and what pip shall install, in commas. It gets a virtual environment of
its own in `--folder`, which stays there for the next time, and runs the tests of `make quick`, the
sample of torch's op tables, the step modes, and the main job in three modes. With `--here` the
Python's own packages are used and nothing is installed. Logs lie beside the environments. `--keep`
puts the rows into the table that the kit warns by, and into the page.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "kit" / "tried.csv"
PAGE = ROOT / "docs" / "versions.md"
NOT_RUN = "-"
NOT_QUICK = "not browser and not notebook and not slow and not alone"
STEP_MODES = ("tests/measure/test_step_modes.py", "tests/measure/test_replayed_steps.py")
MAIN_JOB = """
import math, kit
from kit.workloads import bert
for mode in ("lazy", "bulked", "torch"):
    run = kit.run(bert, kit.Settings(mode=mode, steps=3, warmup=2))
    assert all(map(math.isfinite, run.losses)), run.losses
print("3 passed")
"""
HEAD = [
    *("date", "python", "torch", "jax", "numpy"),
    *("make quick", "ops", "step modes", "main job"),
]
VERSIONS = """
import platform
from importlib.metadata import version
found = (version(name).split("+")[0] for name in ("torch", "jax", "numpy"))
print(platform.python_version(), *found)
"""


def main() -> int:
    """The table on the terminal; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("combination", nargs="+", help="PYTHON,REQUIREMENT,... in commas")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "matrix")
    parser.add_argument("--here", action="store_true", help="install nothing")
    parser.add_argument("--workers", default="2", help="of pytest")
    parser.add_argument("--keep", action="store_true", help="in kit/tried.csv and on its page")
    parser.add_argument("--parts", default="", help="only these columns, in commas")
    options = parser.parse_args()
    parts = {
        "make quick": pytest(options.workers, *quick_tests()),
        "ops": pytest(options.workers, "tests/coverage/test_sample.py"),
        "step modes": pytest(options.workers, *STEP_MODES),
        "main job": ["-c", MAIN_JOB],
    }
    chosen = options.parts.split(",") if options.parts else list(parts)
    say(markdown([HEAD]))
    is_well = True
    for text in options.combination:
        interpreter, *requirements = text.split(",")
        folder = options.folder / re.sub(r"[^\w.]+", "-", text).strip("-")
        folder.mkdir(parents=True, exist_ok=True)
        python = interpreter if options.here else installed(folder, interpreter, requirements)
        cells = [datetime.date.today().isoformat(), *said(python, "-c", VERSIONS).split()]
        for name, arguments in parts.items():
            if name not in chosen:
                cells.append(NOT_RUN)
                continue
            log = folder / f"{name.replace(' ', '-')}.log"
            cells.append(result([python, *arguments], log))
            is_well &= "failed" not in cells[-1]
        say(line(cells))
        if options.keep:
            keep(cells)
    return 0 if is_well else 1


def keep(cells: list[str]) -> None:
    """Put a row into the table, in place of an older one of the same versions, and on the page."""
    rows = [row for row in rows_of(TABLE) if row[1:4] != cells[1:4]]
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *sorted([*rows, cells])])
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), encoding="utf-8", newline="\n")


def rows_of(table: Path) -> list[list[str]]:
    """The rows of a table, without its head."""
    return list(csv.reader(table.read_text("utf-8").splitlines()))[1:]


def with_table(page: str) -> str:
    """The page with the table of now."""
    table = markdown([HEAD, *rows_of(TABLE)])
    return re.sub(r"^\| date .*\n(?:\|.*\n)+", f"{table}\n", page, count=1, flags=re.MULTILINE)


def markdown(rows: list[list[str]]) -> str:
    """Rows as a table; the first one is its head."""
    head, *rest = map(line, rows)
    return "\n".join([head, line(["---"] * len(rows[0])), *rest])


def line(cells: list[str]) -> str:
    """One row."""
    return f"| {' | '.join(cells)} |"


def quick_tests() -> list[str]:
    """The folders and files that the Makefile names."""
    command = ["make", "--silent", "--eval=show: ; @echo $(QUICK)", "show"]
    return subprocess.check_output(command, cwd=ROOT, text=True).split()


def pytest(workers: str, *tests: str) -> list[str]:
    """Arguments of a Python that runs these tests."""
    return ["-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider", "-m", NOT_QUICK, *tests]


def installed(folder: Path, interpreter: str, requirements: list[str]) -> str:
    """The Python of an environment with the kit and these requirements."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.check_call([ROOT / "scripts" / "make-venv", interpreter, folder / "venv"])
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.check_call([*pip, *requirements])
    subprocess.check_call([*pip, *requirements, "--editable", f"{ROOT}[test]"])
    return str(python)


def say(row: str) -> None:
    """A row of the table, as soon as it is known."""
    sys.stdout.write(row + "\n")
    sys.stdout.flush()


def said(*command: str) -> str:
    """What a command writes."""
    return subprocess.check_output(command, cwd=ROOT, text=True)


def result(command: list[str], log: Path) -> str:
    """`1203 passed`, `9 failed, 1194 passed`, or how else the process ended."""
    with log.open("w") as file:
        status = subprocess.call(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
    lines = log.read_text(errors="replace").splitlines()
    counted = (re.findall(r"\d+ (?:passed|failed|errors?)\b", text) for text in reversed(lines))
    found = ", ".join(sorted(next(filter(None, counted), [])))  # of the last line that has some
    if status and "failed" not in found:
        return f"failed with status {status}: {log.name}"
    return found or "no test ran"


if __name__ == "__main__":
    sys.exit(main())
