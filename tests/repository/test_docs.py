"""What the documentation names is there: files, names of kit, links, pictures that are up to date.

And its lines fit on a screen, so that a change to a page can be read as a diff.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import kit
from kit.cli.main import VERBS
from scripts import tables
from scripts.diagrams import IMAGES, ONE_OP, PICTURES, PURPOSE, stamp
from scripts.pages import navigation
from tests.test_layers import BELOW

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]
BOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
HISTORY = {"CHANGELOG.md"}  # names what was there at the time
COLUMNS = 100
# What `import kit` reaches, whatever else of kit this process has imported by now.
PUBLIC = {*kit._HOMES, "__all__", "__version__"}
OPS = {"kit.hybrid", "kit.all_gather", "kit.all_reduce"}  # names of ops, not of Python
FOLDERS = ("kit/", "tests/", "docs/", "scripts/", "benchmarks/", "notebooks/", ".github/", ".ci/")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
each_text = pytest.mark.parametrize(
    "page",
    [p for p in [*PAGES, *BOOKS] if p.name not in HISTORY],
    ids=lambda p: p.relative_to(ROOT).as_posix(),
)


@cache
def text_of(page: Path) -> str:
    """A page, or the Markdown cells of a notebook."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def prose(text: str) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.M | re.S)


def spans(text: str) -> list[str]:
    """What stands in `code spans`."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", prose(text_of(page)), re.M)
    plain = [re.sub(r"[^\w\- ]", "", head.lower()) for head in heads]
    return {head.replace(" ", "-") for head in plain}


def missing_name(dotted: str) -> str:
    """The part of `kit.x.y` that `import kit` does not reach, or "". All of it may be a module."""
    if dotted.split(".")[1] not in PUBLIC:
        return "" if is_module(dotted) else dotted.split(".")[1]
    found: object = kit
    for part in dotted.split(".")[1:]:
        try:
            found = getattr(found, part)
        except AttributeError:
            return "" if is_module(dotted) else part
    return ""


def is_module(dotted: str) -> bool:
    """Can it be imported?"""
    try:
        return find_spec(dotted) is not None
    except ModuleNotFoundError:
        return False


@each_text
def test_every_file_that_a_page_names_is_there(page: Path):
    named = {span.split("::")[0] for span in spans(text_of(page)) if span.startswith(FOLDERS)}
    paths = {name for name in named if re.fullmatch(r"[\w./*-]+", name) and "..." not in name}
    assert [path for path in sorted(paths) if not any(ROOT.glob(path.rstrip("/")))] == []


@each_text
def test_every_name_of_kit_that_a_page_names_is_there(page: Path):
    named = {
        match[0]
        for span in spans(text_of(page))
        if (match := re.match(r"kit(\.[A-Za-z_]\w*)+", span)) and not span.startswith("kit.git")
    }
    assert [name for name in sorted(named - OPS) if missing_name(name)] == []


@each_page
def test_every_block_of_python_can_be_parsed(page: Path):
    for block in re.findall(r"^```python\n(.*?)^```", text_of(page), re.M | re.S):
        ast.parse(block)


@each_page
def test_every_link_leads_somewhere(page: Path):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text_of(page))):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        goal = (page.parent / file).resolve() if file else page
        if not goal.exists() or (anchor and anchor not in anchors(goal)):
            broken.append(target)
    assert broken == []


@each_page
def test_a_line_fits_but_for_tables_code_and_links(page: Path):
    lines = prose(text_of(page)).splitlines()
    long = [line for line in lines if len(line) > COLUMNS]
    assert [s for s in long if not s.lstrip().startswith(("|", "![", "<"))] == []


def test_the_index_lists_every_page():
    index = text_of(ROOT / "docs" / "README.md")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()
    design = text_of(ROOT / "docs" / "architecture.md")
    notes = {f"design/{page.name}" for page in (ROOT / "docs" / "design").glob("*.md")}
    assert {note for note in notes if f"]({note})" not in design} == set()


def test_the_navigation_of_the_site_is_the_index():
    found = json.dumps(navigation(text_of(ROOT / "docs" / "README.md")))
    pages = [f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")]
    pages += [f"notebooks/{book.stem}.md" for book in BOOKS]
    pages += ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    assert [page for page in pages if f'"{page}"' not in found and page != "docs/README.md"] == []


def test_the_site_asks_no_other_host():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["theme"]["font"] is False
    assert not {"extra", "extra_css", "extra_javascript"} & set(settings)  # nor is a reader counted


@pytest.mark.parametrize("name", PICTURES)
def test_a_drawn_picture_is_up_to_date(name: str):
    drawn = (IMAGES / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn.startswith(stamp(PICTURES[name]())), "run `make pictures`"


def test_every_package_has_its_purpose_in_the_picture():
    assert set(PURPOSE) == {folder.split("/")[0] for folder in BELOW}


def test_the_files_of_one_op_are_there_and_passed_once():
    files = [file for _, _, steps in ONE_OP for file in steps]
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert len(files) == len(set(files))


def test_the_pages_have_the_tables_that_the_code_has():
    pages = {page.name: page.read_text("utf-8") for page in tables.PAGES}
    for table in tables.TABLES:
        heads = table.partition("\n")[0] + "\n"
        assert sum(text.count(heads) for text in pages.values()) == 1, heads
    stale = [name for name, text in pages.items() if tables.with_tables(text) != text]
    assert not stale, "`python scripts/tables.py` writes them anew"


def test_each_command_of_kit_has_its_row():
    page = (ROOT / "docs" / "command_line.md").read_text("utf-8")
    assert [verb.name for verb in VERBS if f"\n| `kit {verb.name}" not in page] == []


def test_a_missing_name_is_found():
    assert missing_name("kit.Settings.replace") == ""
    assert missing_name("kit.ir.Node") == ""
    assert missing_name("kit.runs.gradients") == ""  # a module
    assert missing_name("kit.runs.gradients.best_buckets") == "runs"  # `import kit` is not enough
    assert missing_name("kit.Settings.replaced") == "replaced"
    assert missing_name("kit.nowhere.x") == "nowhere"


def test_a_block_of_code_is_no_prose():
    assert prose("a\n```sh\nkit/x\n```\nb").split() == ["a", "b"]
