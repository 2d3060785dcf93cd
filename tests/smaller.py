"""A BERT of one narrow layer, for tests that run many.

A notebook measures BERT up to thirty times, and with this one takes two thirds of the processor.
"""

from __future__ import annotations

from dataclasses import replace

import nbformat

from kit.measure.base.context import Workload

__all__ = ["smaller_bert", "with_smaller_bert"]

# No name stays: one that the notebook forgot to import would not be missed.
_SMALLER = """
def smaller():
    from kit.workloads import masked_lm
    from tests.smaller import smaller_bert

    masked_lm.bert = smaller_bert()

smaller()
del smaller
"""


def smaller_bert() -> Workload:
    """The workload "bert", smaller."""
    from kit.workloads.masked_lm import SIZES, bert_of  # loads torch

    size = replace(SIZES["tiny"], layers=1, width=64, length=32, vocabulary=1000)
    return replace(bert_of(size), name="bert")


def with_smaller_bert(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook, after a cell that makes the workload smaller if the notebook imports it."""
    if any("import bert" in cell.source for cell in book.cells):
        book.cells.insert(0, nbformat.v4.new_code_cell(_SMALLER))
    return book
