"""Run every notebook and keep small outputs in it: `make notebooks`, about fifteen minutes.

A reader on a code host, or of the documentation's pages, sees what a notebook shows without running
it. Texts and tables are kept as they are; each view becomes the picture that Chromium makes of its
static page; the first notebook gets a picture of each other one. What is shown was measured on the
machine that ran this: let the machine do nothing else. With names, `python scripts/notebooks.py
03 11` runs only those.
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from kit.runtime.profiling.heap import ONE_HEAP  # noqa: E402
from kit.widgets.base.bokehjs import bokehjs_source  # noqa: E402
from scripts.kept_outputs import GALLERY, MOST_BYTES, clear, faults, needs_page, stamp  # noqa: E402
from tests.browser.labserver import Browser, open_browser  # noqa: E402

NOTEBOOKS = ROOT / "notebooks"
WIDTH = 900  # pixels: as wide as a code host shows a notebook
THUMBNAIL = (360, 220)
MOST_SECONDS = 120
# An explorer measures after its cell has ended: its picture is the one of the end.
WAIT = """import gc
from kit.widgets.explorer.view import Explorer
for it in [it for it in gc.get_objects() if isinstance(it, Explorer)]:
    it.wait()
"""
PAGE = """<!doctype html><html><head><meta charset="utf-8"><style>
body {{ margin: 0; font: 13px/1.5 Arial, sans-serif; background: #fff; width: {width}px }}
.kept {{ padding: 4px; overflow: hidden }}
</style><script>{bokehjs}</script></head><body>{body}</body></html>"""


def main(chosen: list[str]) -> int:
    """Run the chosen notebooks, or all of them, the one with their pictures last."""
    paths = sorted(NOTEBOOKS.glob("*.ipynb"), reverse=True)
    wanted = [path for path in paths if not chosen or path.stem.startswith(tuple(chosen))]
    with tempfile.TemporaryDirectory() as name, open_browser(width=WIDTH, offline=True) as browser:
        settle(Path(name))
        for path in wanted:
            began = time.monotonic()
            book = nbformat.read(path, as_version=4)
            clear(book)
            run(book, Path(name) / path.stem)
            seconds = time.monotonic() - began
            keep(book, browser, Path(name))
            if path == paths[-1]:
                show_each(book, [p for p in paths if p != path])
            write(book, path)
            late = f", more than {MOST_SECONDS}" * (seconds > MOST_SECONDS)
            say(f"{path.name}: {seconds:.0f} s{late}; {path.stat().st_size / 1e3:.0f} kB")
    return 0


def write(book: nbformat.NotebookNode, path: Path) -> None:
    """Replace the notebook by this one, unless its outputs may not be committed."""
    stamp(book)
    if wrong := faults(book):
        raise SystemExit(f"{path.name}: {'; '.join(wrong)}")
    nbformat.write(book, path)


def say(text: str) -> None:
    """A line for who waits."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def settle(folder: Path) -> None:
    """Nothing of the person who runs this is read or changed, and nothing is compiled already."""
    os.environ.pop("KIT_FAST", None)
    os.environ.update(
        PYTHONPATH=str(ROOT),
        KIT_CACHE_DIR=str(folder / "compiled"),
        JUPYTER_PREFER_ENV_PATH="1",
        JUPYTER_RUNTIME_DIR=str(folder / "runtime"),
        IPYTHONDIR=str(folder / "ipython"),
        PYDEVD_DISABLE_FILE_VALIDATION="1",
        **ONE_HEAP,  # as `kit lab` does
    )


def run(book: nbformat.NotebookNode, folder: Path) -> None:
    """All cells, from top to bottom, in a kernel of their own; files land in the folder."""
    folder.mkdir()
    book.cells.append(nbformat.v4.new_code_cell(WAIT))
    places = {"metadata": {"path": str(folder)}}
    options = {"store_widget_state": False, "coalesce_streams": True}
    NotebookClient(book, timeout=900, resources=places, **options).execute()
    book.cells.pop()
    book.metadata.pop("language_info", None)
    book.metadata["language_info"] = {"name": "python"}


def keep(book: nbformat.NotebookNode, browser: Browser, folder: Path) -> None:
    """Of each output what a reader without a kernel sees."""
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.metadata = nbformat.NotebookNode()
            cell.outputs = [kept for output in cell.outputs if (kept := still(output))]
    views = list(framed(book))
    for output, shot in zip(views, pictures(views, browser, folder), strict=True):
        output.data = nbformat.NotebookNode({"text/plain": output.data["text/plain"], **shot})
    shrink(book)


def still(output: Any) -> Any:
    """The output without what needs a kernel; None if nothing is left."""
    if output.output_type == "stream":
        if output.name == "stderr":
            say(f"   left out of the outputs: {output.text[:500]}")
        return output if output.name == "stdout" else None
    if output.output_type == "error":
        return output
    kinds = ("text/html", "text/markdown", "image/png", "text/plain")
    data = {kind: output.data[kind] for kind in kinds if output.data.get(kind)}
    if "application/vnd.jupyter.widget-view+json" in output.data and "text/html" not in data:
        return None
    output.data = nbformat.NotebookNode(data)
    output.metadata = nbformat.NotebookNode()
    return output if data else None


def framed(book: nbformat.NotebookNode) -> Iterator[Any]:
    """The outputs that are views: a page of their own, or with a style that hides them at first."""
    for cell in book.cells:
        for output in cell.get("outputs", []):
            if needs_page(output.get("data", {}).get("text/html", "")):
                yield output


def pictures(outputs: list[Any], browser: Browser, folder: Path) -> Iterator[dict[str, str]]:
    """What Chromium shows of each, as PNG; nothing is fetched."""
    body = "".join(f'<div class="kept">{output.data["text/html"]}</div>' for output in outputs)
    page = folder / "page.html"
    script = bokehjs_source().replace("</script", "<\\/script")
    page.write_text(PAGE.format(width=WIDTH, bokehjs=script, body=body), encoding="utf-8")
    browser.page.goto(page.as_uri())
    for i in range(len(outputs)):
        view = browser.page.locator(".kept").nth(i)
        view.scroll_into_view_if_needed()
        if "<iframe" in outputs[i].data["text/html"]:
            view.frame_locator("iframe").locator("canvas, svg, table").first.wait_for()
        browser.page.wait_for_timeout(1500)  # a view is hidden at first; its height follows figures
        shot = view.screenshot()
        yield {"image/png": base64.b64encode(shot).decode()}
    if browser.errors() or browser.outside:
        raise SystemExit(f"the page said: {browser.errors()} {browser.outside}")


def shrink(book: nbformat.NotebookNode) -> None:
    """Fewer colours, then fewer pixels, until the notebook is small enough."""
    found = (out.get("data", {}) for cell in book.cells for out in cell.get("outputs", []))
    shots = [data for data in found if "image/png" in data]
    whole = [base64.b64decode(data["image/png"]) for data in shots]
    for colors, scale in ((256, 1.0), (128, 1.0), (64, 1.0), (64, 0.8), (48, 0.65)):
        for data, shot in zip(shots, whole, strict=True):
            data["image/png"] = base64.b64encode(smaller(shot, colors, scale)).decode()
        if len(nbformat.writes(book).encode()) < 0.95 * MOST_BYTES:
            return


def smaller(png: bytes, colors: int, scale: float) -> bytes:
    """The picture with few colours, in fewer pixels."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    if scale < 1:
        image = image.resize((int(image.width * scale), int(image.height * scale)))
    return as_png(image, colors)


def as_png(image: Image.Image, colors: int) -> bytes:
    """A small file of few colours: those of large areas, and others that are far apart.

    So no kind of span loses its own, and pale ones do not become the shade of another.
    """
    counted = sorted(image.getcolors(image.width * image.height) or [], reverse=True)
    large = [rgb for _, rgb in counted[: colors // 2]]
    rest = image.quantize(colors - len(large), method=Image.Quantize.MAXCOVERAGE)
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for rgb in large for part in rgb] + (rest.getpalette() or []))
    flat = image.quantize(palette=palette, dither=Image.Dither.NONE)
    found = io.BytesIO()
    flat.save(found, "PNG", optimize=True)
    return found.getvalue()


def show_each(book: nbformat.NotebookNode, paths: list[Path]) -> None:
    """A cell with the first picture of each notebook, in the order of the table above it."""
    table = book.cells[0].source
    names = [p.stem for p in paths if f"({p.name})" in table]
    names.sort(key=lambda name: table.index(f"({name}.ipynb)"))
    cells, attached = [], {}
    for name in names:
        shot = first_picture(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4))
        question = re.search(rf"\[([^\]]+)\]\({name}\.ipynb\)", table)[1]
        seen = f"![{question}](attachment:{name}.png)<br>" if shot else ""
        cells.append(f"[{seen}{question}]({name}.ipynb)")
        if shot:
            attached[f"{name}.png"] = {"image/png": base64.b64encode(shot).decode()}
    rows = [f"| {' | '.join(cells[i : i + 3])} |" for i in range(0, len(cells), 3)]
    text = "\n".join(["| | | |", "| --- | --- | --- |", *rows])
    gallery = nbformat.v4.new_markdown_cell(text, id=GALLERY, attachments=attached)
    book.cells = [cell for cell in book.cells if cell.id != GALLERY]
    book.cells.insert(1, gallery)


def first_picture(book: nbformat.NotebookNode) -> bytes | None:
    """The upper part of the notebook's first picture, small."""
    found = (out.get("data", {}) for cell in book.cells for out in cell.get("outputs", []))
    png = next((data["image/png"] for data in found if "image/png" in data), None)
    if png is None:
        return None
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    high = min(image.height, image.width * THUMBNAIL[1] // THUMBNAIL[0])
    image = image.crop((0, 0, image.width, high))
    image.thumbnail(THUMBNAIL)
    return as_png(image, 64)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
