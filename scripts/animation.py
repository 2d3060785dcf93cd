"""Film one move of a slider in the explorer, for the README: `make pictures`, a minute.

Chromium shows the explorer in JupyterLab; the slider "bulk size, forward" is moved by its keys. One
picture shows the wait, whose length the caption says, and none is taken during it: to draw them
took a third of a small machine, and the run that they showed said that it was disturbed.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from pathlib import Path
from textwrap import fill
from typing import Any

import nbformat
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser.labserver import Browser, open_browser, start_lab  # noqa: E402

FILM = ROOT / "docs" / "images" / "one_move.gif"
README = ROOT / "README.md"
MOST_BYTES = 2_000_000
WIDTH = 830  # pixels, as wide as a code host shows a page
LEFT_MS, MOVED_MS, WAITED_MS, RIGHT_MS = 2500, 450, 1500, 4500  # how long each picture is shown
MOVES = 3
EXPLORER = """import os
os.environ["NPROC"] = "1"
import kit
from kit.workloads import mlp
settings = kit.Settings(mode="bulked", bulk_forward=1, bulk_backward=50, steps=600)
explorer = kit.Explorer(mlp, settings)
_ = explorer.wait()"""
MARK = "<!-- scripts/animation.py writes what follows, up to the next heading -->"
ALT = "One move of a slider: the step is measured again, and the timeline follows"
CAPTION = (
    '*An MLP of many tiny ops in mode bulked, on a CPU: the slider "bulk size, forward" goes from '
    "1 to 10 ops a segment, the step is measured again, and one sentence says what changed and how "
    "sure that is. The wait, {waited_s:.0f} s, is shown faster.*"
)
SLIDER = "bulk size, forward"
IS_MEASURED = """() => {
  const said = document.querySelector('.kit-explorer [role=status]')?.innerText || '';
  return said.startsWith('measured in') && !document.querySelector('.kit-modelled');
}"""


def main() -> int:
    """Write the film, and say how long the wait was and how large the file is."""
    with tempfile.TemporaryDirectory() as name:
        pictures, waited_s = taken(Path(name))
    lengths = [LEFT_MS, *[MOVED_MS] * MOVES, WAITED_MS, RIGHT_MS]
    for colors in (256, 128, 64):
        film(pictures, lengths, colors)
        if FILM.stat().st_size <= MOST_BYTES:
            break
    size, seconds = FILM.stat().st_size, sum(lengths) / 1e3
    sys.stdout.write(f"{FILM.name}: {seconds:.1f} s, {size:,} bytes; waited {waited_s:.1f} s\n")
    readme = README.read_text(encoding="utf-8")
    README.write_text(captioned(readme, waited_s), encoding="utf-8")
    return int(size > MOST_BYTES)


def captioned(readme: str, waited_s: float) -> str:
    """The README with the film and what it shows, in the place of what stood there."""
    picture = f"![{ALT}]({FILM.relative_to(ROOT).as_posix()})"
    text = fill(CAPTION.format(waited_s=waited_s), 100)
    before, after = readme.split(MARK)
    return f"{before}{MARK}\n\n{picture}\n\n{text}\n\n{after[after.index('## ') :]}"


def taken(folder: Path) -> tuple[list[Image.Image], float]:
    """The pictures: before, after each move, as the wait begins, and the new run; seconds of it."""
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(EXPLORER), nbformat.v4.new_code_cell("explorer")]
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    with start_lab(folder / "lab") as lab, open_browser(width=1080, height=1380) as browser:
        nbformat.write(book, lab.root / "film.ipynb")
        assert lab.open_and_run(browser, "film.ipynb", seconds=300) == []
        page = browser.page
        page.evaluate("window.jupyterapp.shell.collapseLeft()")
        page.wait_for_function(IS_MEASURED)
        browser.wait_for_canvases(1)
        page.wait_for_timeout(3000)
        slider = page.get_by_role("slider", name=SLIDER)
        slider.focus()
        page.locator(".kit-explorer").evaluate("(view) => view.scrollIntoView(true)")
        page.wait_for_timeout(500)
        found = [picture(browser)]
        for _ in range(MOVES):
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(60)
            found.append(picture(browser))
        began = time.monotonic()
        page.wait_for_timeout(150)
        found.append(picture(browser))
        while not page.evaluate(IS_MEASURED):
            page.wait_for_timeout(250)
        waited_s = time.monotonic() - began
        page.wait_for_timeout(2000)
        found.append(picture(browser))
    return found, waited_s


def picture(browser: Browser) -> Image.Image:
    """The explorer's controls, numbers and timeline as they are now."""
    box: Any = browser.page.locator(".kit-explorer").bounding_box()
    bottom: Any = browser.page.locator("#jp-main-statusbar").bounding_box()
    box["height"] = min(box["height"], bottom["y"] - box["y"])
    whole = Image.open(io.BytesIO(browser.page.screenshot(clip=box))).convert("RGB")
    return whole.resize((WIDTH, whole.height * WIDTH // whole.width), Image.Resampling.LANCZOS)


def film(pictures: list[Image.Image], lengths: list[int], colors: int) -> None:
    """All in the same few colours, which are far apart: so no kind of span loses its own."""
    high = min(picture.height for picture in pictures)
    ends = Image.new("RGB", (WIDTH, 2 * high))
    for i, picture in enumerate((pictures[0], pictures[-1])):
        ends.paste(picture, (0, i * high))
    palette = ends.quantize(colors, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    flat = [
        picture.crop((0, 0, WIDTH, high)).quantize(palette=palette, dither=Image.Dither.NONE)
        for picture in pictures
    ]
    options = {"duration": lengths, "loop": 0, "optimize": True}
    flat[0].save(FILM, save_all=True, append_images=flat[1:], **options)


if __name__ == "__main__":
    sys.exit(main())
