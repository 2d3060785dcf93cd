"""Write requirements/: what `make` fetches, each package by its version and hashes.

    python scripts/pins.py [--upgrade]  # needs uv: pip install uv

One list holds for each Python and system: an entry names where it applies. Torch is in none: it
comes from one of several indices, by `PIP_TORCH_ARGS`, with another file in each; the Makefile has
its version, and the lists hold what that version needs. Without `--upgrade` a pin stays as it is
where pyproject.toml still allows it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
# What each list has beyond those before it; "cuda" also takes what torch's wheels for a GPU need.
# "pip" is what fetches the others: the pip that comes with Python takes twice the time.
EXTRAS = {"pip": (), "kit": (), "cuda": ("cuda",), "test": ("test", "dev"), "site": ("site",)}
OF_A_GPU = re.compile(r"(nvidia|cuda|jax-cuda\d*|triton)(-|$)")
HEAD = """\
# Written by scripts/pins.py, for `make`: see "What is installed" in docs/security.md.
--only-binary :all:
"""


def compiled(extras: list[str], *options: str, given: str = "") -> str:
    """The list that uv makes of pyproject.toml.

    Args:
        given: an earlier list, whose versions are kept where they can be.
    """
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    torch = re.search(r"^TORCH \?= (.+)$", makefile, re.M)
    assert torch, "the Makefile names torch's version"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bounds, target = folder / "bounds.txt", folder / "list.txt"
        build = folder / "build.in"  # what makes an editable installation, and fetches
        bounds.write_text(f"{torch[1]}\n", encoding="utf-8")
        build.write_text("hatchling>=1.26\neditables\npip\n", encoding="utf-8")
        target.write_text(given, encoding="utf-8")
        command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
        command += ["--only-binary", ":all:", "--no-annotate", "--no-header", *options]
        command += [f"--extra={extra}" for extra in extras]
        command += ["--constraint", str(bounds), "--output-file", str(target)]
        subprocess.run([*command, "pyproject.toml", str(build)], cwd=ROOT, check=True)
        return target.read_text(encoding="utf-8")


def entries(listed: str) -> list[tuple[str, str]]:
    """Each package's name and its lines; a package may have one entry for each Python."""
    parts = re.split(r"^(?=[A-Za-z0-9])", listed, flags=re.M)
    return [(part.split("==")[0], part) for part in parts if "==" in part]


def main() -> None:
    """Write each list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest of each package")
    asked = parser.parse_args()
    earlier = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.txt"))]
    given = "" if asked.upgrade else "".join(text.removeprefix(HEAD) for text in earlier)
    everything = [extra for extras in EXTRAS.values() for extra in extras]
    whole = compiled(everything, "--generate-hashes", given=given)
    FOLDER.mkdir(exist_ok=True)
    written = {"torch"}
    for name, extras in EXTRAS.items():
        wanted = {"pip"}
        if name != "pip":
            wanted = {package for package, _ in entries(compiled(list(extras), given=whole))}
        chosen = [
            (package, lines)
            for package, lines in entries(whole)
            if package in wanted - written and (name == "cuda" or not OF_A_GPU.match(package))
        ]
        written |= {package for package, _ in chosen}
        text = HEAD + "".join(lines for _, lines in chosen)
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
