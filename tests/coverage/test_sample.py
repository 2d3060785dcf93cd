"""A fixed sample of torch's tables: nothing wrong, and no entry worse than the committed page says.

The whole is `make coverage-table`, which writes that page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.coverage.harness import (
    CLASSES,
    check_module,
    check_op,
    check_optimizer,
    entries,
    entry_name,
)

PAGE = Path(__file__).parents[2] / "docs" / "op_coverage.md"
EVERY = {"op": 16, "module": 12, "optimizer": 3}  # so many entries make one of the sample
CHECKS = {"op": check_op, "module": check_module, "optimizer": check_optimizer}
NAMED = ("linalg.svd", "nn.functional.conv2d", "nn.functional.scaled_dot_product_attention", "sort",
         "index_put", "nonzero", "nn.functional.cross_entropy")  # fmt: skip


def sample() -> list[Any]:
    chosen = []
    for kind, stride in EVERY.items():
        for i, entry in enumerate(entries(kind)):
            name = entry_name(entry)
            if i % stride == 0 or (kind == "op" and name in NAMED):
                chosen.append(pytest.param(kind, entry, id=f"{kind} {name}"))
    return chosen


def committed() -> dict[str, str]:
    """Class by entry, as the page has it."""
    found: dict[str, str] = {}
    verdict = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            verdict = line[3:].split(":")[0]
        elif verdict in CLASSES and (line.startswith(("`", "| `"))):
            names = line.split("|")[1] if line.startswith("|") else line
            found |= dict.fromkeys(re.findall(r"`([^`]+)`", names), verdict)
    return found


@pytest.mark.filterwarnings("ignore")  # torch's own tables warn of themselves
@pytest.mark.parametrize(("kind", "entry"), sample())
def test_an_entry_is_as_the_page_says_or_better(kind: str, entry: Any) -> None:
    found = CHECKS[kind](entry)
    assert found.verdict != "wrong", found.why
    known = committed()[found.name]
    if known in CLASSES[:5] and found.verdict in CLASSES[:5]:
        assert CLASSES.index(found.verdict) <= CLASSES.index(known), found.why


def test_the_page_says_that_nothing_is_wrong_and_nine_tenths_are_right() -> None:
    page = committed()
    assert not [name for name, verdict in page.items() if verdict == "wrong"]
    right = sum(verdict in ("native", "reads", "host") for verdict in page.values())
    assert right >= 0.9 * len(page) > 500
