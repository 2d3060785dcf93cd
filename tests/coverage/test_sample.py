"""A fixed sample of torch's tables: nothing wrong, no entry worse than the committed table says.

The whole is `make coverage-table`, which writes that table.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import jax.numpy as jnp
import pytest
import torch

from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from tests.coverage.harness import (
    CLASSES,
    Verdict,
    check_module,
    check_op,
    check_optimizer,
    entries,
    entry_name,
)
from tests.coverage.table import PAGE, RIGHT, TABLE, made_with, page, read_table, table

EVERY = 16  # so many entries make one of the sample
NAMED = ("linalg.svd", "nn.functional.conv2d", "nn.functional.scaled_dot_product_attention", "sort",
         "index_put", "nonzero", "nn.functional.cross_entropy", "kron", "as_strided_scatter",
         "logdet", "multinomial", "nn.functional.ctc_loss", "nn.functional.embedding_bag",
         "nn.BatchNorm2d", "nn.LSTM", "nn.MultiheadAttention", "SGD", "AdamW")  # fmt: skip
MADE_WITH = made_with(PAGE.read_text(encoding="utf-8"))
COMMITTED = read_table(TABLE.read_text(encoding="utf-8"))
SAMPLE = sorted({*sorted(COMMITTED)[::EVERY], *NAMED})


@cache
def by_name() -> dict[str, tuple[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own tables warn of themselves
        kinds = ("op", "module", "optimizer")
        return {entry_name(entry): (kind, entry) for kind in kinds for entry in entries(kind)}


def check(name: str, **how: Any) -> Verdict:
    kind, entry = by_name()[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "op":
            return check_op(entry, samples=2, **how)
        if kind == "module":
            return check_module(entry, samples=2, **how)
        return check_optimizer(entry, samples=2, **how)


@pytest.mark.parametrize("name", SAMPLE)
def test_an_entry_is_as_the_page_says_or_better(name: str) -> None:
    if name not in by_name():  # this torch's tables are others than the page's
        assert torch.__version__.split("+")[0] != MADE_WITH
        return
    found = check(name)
    assert found.verdict != "wrong", found.why
    if COMMITTED[name] != "untested":
        assert CLASSES.index(found.verdict) <= CLASSES.index(COMMITTED[name]), found.why


def test_the_page_lists_every_entry_of_torchs_tables() -> None:
    differ = set(COMMITTED) ^ set(by_name())
    is_same = torch.__version__.split("+")[0] == MADE_WITH
    assert len(differ) <= (0 if is_same else 0.1 * len(COMMITTED)), sorted(differ)


def test_the_page_says_that_nothing_is_wrong_and_nine_tenths_of_the_ops_are_right() -> None:
    assert "wrong" not in COMMITTED.values()
    known = by_name()
    ops = [v for name, v in COMMITTED.items() if name in known and known[name][0] == "op"]
    assert sum(verdict in RIGHT for verdict in ops) >= 0.9 * len(ops)


def test_a_wrong_rule_is_found() -> None:
    rules = Rules({"aten.sin.default": jnp.cos}).over(DEFAULT_RULES)
    assert check("sin", rules=rules).verdict == "wrong"


def test_a_wrong_gradient_is_found() -> None:
    rules = Rules({"aten.sigmoid_backward.default": lambda grad, y: grad * y}).over(DEFAULT_RULES)
    assert check("sigmoid", rules=rules).verdict == "wrong"


def test_a_missing_rule_is_named() -> None:
    rules = Rules({k: v for k, v in DEFAULT_RULES.items() if k != "aten._fft_r2c.default"})
    found = check("fft.rfft", rules=rules)
    assert found.verdict == "host"
    assert "aten._fft_r2c.default" in found.why


def test_the_table_reads_back_as_the_verdicts_it_was_made_from() -> None:
    verdicts = [
        Verdict("op", "add", "native"),
        Verdict("op", "addbmm", "host", "aten.addbmm.default"),
        Verdict("module", "nn.Linear", "native", strides="(1, 2) instead of (2, 1)"),
        Verdict("optimizer", "SGD", "wrong", "1 | 2 <b>"),
        Verdict("optimizer", "Adam", "wrong", "1 | 2 <b>"),
    ]
    assert read_table(table(verdicts)) == {v.name: v.verdict for v in verdicts}
    text = page(verdicts)
    assert "| `Adam`, `SGD` | 1 \\| 2 &lt;b> |" in text
    assert "`addbmm`" in text
    assert "`add`" not in text  # it is native: in the table
