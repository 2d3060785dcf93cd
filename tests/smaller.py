"""A notebook as the tests run it: with a BERT of one narrow layer.

A notebook measures BERT up to thirty times, and this one takes two thirds of the processor.
"""

from __future__ import annotations

import nbformat

__all__ = ["with_smaller_bert"]

# No name stays: one that the notebook forgot to import would not be missed.
_SMALLER = """
def smaller():
    from dataclasses import replace

    from kit.workloads import masked_lm

    size = replace(masked_lm.SIZES["tiny"], layers=1, width=64, length=32, vocabulary=1000)
    masked_lm.bert = replace(masked_lm.bert_of(size), name="bert")

smaller()
del smaller
"""


def with_smaller_bert(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook, after a cell that makes the workload smaller if the notebook imports it."""
    if any("import bert" in cell.source for cell in book.cells):
        book.cells.insert(0, nbformat.v4.new_code_cell(_SMALLER))
    return book
