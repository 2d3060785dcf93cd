"""Build the documentation as a site: `make site` writes build/site, which needs no network.

The pages are copied as they lie in the repository, so each link between them holds there and on a
code host; notebooks become pages, with the outputs that they keep. The navigation is the table of
docs/README.md. A link or an anchor that leads nowhere is an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
ALONE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FOLDERS = ("docs", "docs/design", "docs/images", "docs/images/views")


def main() -> int:
    """The pages into build/pages, the site into build/site."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for name in ALONE:
        write(PAGES / name, (ROOT / name).read_text(encoding="utf-8"))
    for folder in FOLDERS:
        for file in (path for path in (ROOT / folder).iterdir() if path.is_file()):
            if file.suffix == ".md":
                write(PAGES / folder / file.name, file.read_text(encoding="utf-8"))
            else:
                (PAGES / folder).mkdir(parents=True, exist_ok=True)
                shutil.copy(file, PAGES / folder)
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        write_notebook(notebook)
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    settings = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": "pages", "site_dir": "site"}
    file = PAGES.parent / "mkdocs.yml"
    file.write_text(yaml.safe_dump({**settings, "nav": navigation(index)}), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", file],
        check=False,
    ).returncode


def navigation(index: str) -> list[dict[str, object]]:
    """The pages in the order of the table in docs/README.md, and the notebooks in theirs."""
    links = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\)", index, re.M)
    found: list[dict[str, object]] = []
    for link in links:
        page = link.removeprefix("../") if link.startswith("../") else f"docs/{link}"
        if page.startswith("notebooks/"):
            names = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
            found.append({"Notebooks": [{words(name): f"notebooks/{name}.md"} for name in names]})
        else:
            found.append({"Start" if page == "README.md" else title(ROOT / page): page})
    return [*found, {"Changes": "CHANGELOG.md"}]


def title(page: Path) -> str:
    """What stands in the navigation: the page's first heading, without what is behind a colon."""
    head = page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
    return head.split(":")[0].replace("`", "")


def words(name: str) -> str:
    """`03_why_did_my_graph_change` as "03 why did my graph change"."""
    return name.replace("_", " ")


def write_notebook(notebook: Path) -> None:
    """A notebook with its outputs as a page, its pictures beside it."""
    from nbconvert import MarkdownExporter  # takes a second to load

    text, more = MarkdownExporter().from_filename(
        str(notebook), resources={"output_files_dir": f"{notebook.stem}_files"}
    )
    write(PAGES / "notebooks" / f"{notebook.stem}.md", text)
    for name, data in more["outputs"].items():
        place = PAGES / "notebooks" / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)


def write(file: Path, text: str) -> None:
    """A page, with links to notebooks as links to their pages."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(re.sub(r"(\]\([^)\s]+)\.ipynb\)", r"\1.md)", text), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
