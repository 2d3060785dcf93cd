"""A difference between two measurements as HTML: coloured only where the rule says "changed"."""

from __future__ import annotations

import math
from collections.abc import Callable

from kit.runs.change import Difference
from kit.text import format_number, format_percent, is_nothing, safe_html
from kit.widgets.base.tables import BETTER, MUTED, WORSE

__all__ = ["change_html"]

_MANY = 10.0  # beyond, "12 x" reads better than "+1,100%"


def change_html(
    found: Difference,
    *,
    more_is_better: bool = False,
    form: Callable[[float], str] | None = None,
    value: Callable[[float], str] = format_number,
    words: tuple[str, str] = ("better", "worse"),
) -> str:
    """`▼ −12% ± 4% better`; in a neutral colour where the spread is not exceeded.

    Args:
        form: shows an amount without its sign, "" of a spread that says nothing; by default percent
            of the old value.
        value: shows the old and the new one with their unit, where there is no percentage.
        words: what a change for the better and one for the worse is called.
    """
    kind = found.kind
    if kind == "unknown":
        return ""
    if not found.amount and not (found.old and found.spread):
        return _neutral("= unchanged")
    amount, spread = _texts(found, form, value)
    if kind == "same":
        return _neutral(f"no change beyond the spread ({amount}{spread})")
    arrow = "▲" if found.amount > 0 else "▼"
    if kind == "unclear":
        why = spread or ": its spread is not known"
        seen = (
            "no change seen"
            if is_nothing(amount, found.finer(form or format_percent))
            else f"maybe {arrow} {amount}"
        )
        means = found.means and found.means.text("longer", "shorter", says_doubt=False)
        but = f", but the mean: {means}" if means else ""
        return _neutral(f"{seen}{why}{but}", found.doubt)
    is_better = (found.amount > 0) == more_is_better
    word, color = (words[0], BETTER) if is_better else (words[1], WORSE)
    return f'<span style="color:{color};font-weight:600">{arrow} {amount} {word}</span>' + (
        f' <span style="color:{MUTED}">{spread.strip()}</span>' if spread else ""
    )


def _neutral(text: str, why: str = "") -> str:
    """Args: why: the doubt, for who points at it; what stands above says it once for all."""
    title = f' title="{safe_html(why, 300)}"' if why else ""
    return f'<span style="color:{MUTED}"{title}>{text}</span>'


def _texts(
    found: Difference, form: Callable[[float], str] | None, value: Callable[[float], str]
) -> tuple[str, str]:
    """The amount with its sign, and the spread with its own, both in one unit."""
    scale = 1.0
    if form is None:
        form = format_percent
        if math.isinf(found.amount):  # of no time there is no percentage
            return f"from 0 to {value(found.new)}", ""
        if not found.is_ratio:
            if not (found.old and found.new):
                old, new = (value(x) if x else "0" for x in (found.old, found.new))
                return (
                    f"from {old} to {new}",
                    f" ± {value(found.spread)}" if found.spread > 0 else "",
                )
            scale = 1 / abs(found.old)
        if found.amount * scale >= _MANY:
            return f"{found.amount * scale + 1:,.0f}&#8239;×", ""
    if found.is_ratio or form is not format_percent:
        form = found.finer(form)
    amount = form(abs(found.amount) * scale)
    if not is_nothing(amount, form):  # of a rise, 100% is no whole that is nearly reached
        amount = f"+{amount.removeprefix('≈')}" if found.amount > 0 else f"−{amount}"
    if found.is_ratio:
        return amount, f" {found.margin(form)}" if found.spread > 0 else ""
    spread = form(found.spread * scale) if found.spread > 0 else ""
    return amount, spread and f" ± {spread}"
