"""What a committed notebook may keep of its outputs: small ones, without a kernel, of its code.

`make notebooks` (scripts/notebooks.py) makes them. Here are the rules, which the tests ask and the
hook of pre-commit applies: outputs are absent, or fresh. `python scripts/kept_outputs.py FILES`
clears those of each file that are neither.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).parents[1]
MOST_BYTES = 300_000  # of a notebook with its outputs
GALLERY = "gallery"  # the cell of the first notebook that has a picture of each other one
KEPT = {"text/plain", "text/html", "text/markdown", "image/png", "image/svg+xml"}
_STAMP = "outputs_of_code"
_MACHINE = {"repository": str(ROOT), "home": str(Path.home()), "temporary": tempfile.gettempdir()}


def code_hash(book: nbformat.NotebookNode) -> str:
    """Of what stands in the code cells."""
    sources = [cell.source for cell in book.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]


def stamp(book: nbformat.NotebookNode) -> None:
    """Say in the notebook which code its outputs are of."""
    book.metadata[_STAMP] = code_hash(book)


def clear(book: nbformat.NotebookNode) -> None:
    """Take all outputs out, and what says which code they are of."""
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count, cell.metadata = [], None, nbformat.NotebookNode()
    for name in (_STAMP, "widgets"):
        book.metadata.pop(name, None)


def has_outputs(book: nbformat.NotebookNode) -> bool:
    """Is there anything that running it has left?"""
    ran = [cell for cell in book.cells if cell.cell_type == "code"]
    return _STAMP in book.metadata or any(cell.outputs or cell.execution_count for cell in ran)


def faults(book: nbformat.NotebookNode) -> list[str]:
    """Why the outputs of a notebook may not be committed; [] if they may, or if there are none."""
    if not has_outputs(book):
        return []
    found = []
    if book.metadata.get(_STAMP) != code_hash(book):
        found.append("its code has changed since its outputs were made: run `make notebooks`")
    size = len(nbformat.writes(book).encode())
    if size > MOST_BYTES:
        found.append(f"{size:,} bytes with its outputs, of at most {MOST_BYTES:,}")
    if "widgets" in book.metadata:
        found.append("the state of widgets, which need a kernel")
    for cell in book.cells:
        for output in cell.get("outputs", []):
            found += [f"cell {cell.id}: {fault}" for fault in _faults(output)]
    return found


def _faults(output: Any) -> list[str]:
    """What is wrong with one output."""
    if output.output_type == "error":
        return [f"an error: {output.ename}"]
    is_text = output.output_type == "stream"
    data = {"text/plain": output.text} if is_text else dict(output.data)
    found = [f"{kind}, which is not one of {sorted(KEPT)}" for kind in sorted(set(data) - KEPT)]
    for text in (data.get("text/html", ""), data.get("image/svg+xml", "")):
        found += [f"{tag}, which a code host does not show" for tag in needs_page(text)]
    said = "".join(str(text) for kind, text in data.items() if kind != "image/png")
    places = [what for what, at in _MACHINE.items() if at in said]
    return found + [f"the {what} folder of a machine" for what in places]


def needs_page(text: str) -> list[str]:
    """What a code host takes out of HTML, and what it says is then not to be seen."""
    return [tag for tag in ("<script", "<iframe", "<style", "<canvas") if tag in text.lower()]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        read = nbformat.read(name, as_version=4)
        if faults(read):
            clear(read)
            nbformat.write(read, name)
            sys.stdout.write(f"{name}: its outputs are cleared\n")
