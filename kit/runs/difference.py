"""`Difference`: from one median to another, how sure that is, and how it is said.

docs/measuring.md says in words what is assumed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from kit.text import format_ms, format_number, format_percent, is_nothing

__all__ = ["BLUR", "Difference", "ends_text"]

BLUR = 0.10  # an interval that reaches further to one side could hide a change worth knowing
_WIDEST = 1e4  # times the lower end: an interval whose upper end lies beyond says nothing
_MAY_BE_ANYTHING = "may be off a hundredfold"  # said of such an interval


@dataclass(frozen=True, slots=True)
class Difference:
    """From `old` to `new`, both medians, and the 95 % interval of how much that is.

    Units:
        `low` and `high` are factors (1.1: ten percent more) if `is_ratio`, else differences in the
        unit of `old`; nan where nothing says how far off the medians may be.
    """

    old: float
    new: float
    low: float
    high: float
    is_ratio: bool = True
    blur: float = BLUR  # as RERUN a fraction if `is_ratio`, else in the unit of `old`
    doubt: str = ""  # why the spread does not say all: another program took the cores
    means: Difference | None = None  # of the mean steps, where they do not bear this one out

    def __post_init__(self) -> None:
        if self.means and self.means.doubt != self.doubt:  # disturbed alike
            object.__setattr__(self, "means", replace(self.means, doubt=self.doubt))

    @property
    def kind(self) -> str:
        """One of "more", "less", "same", "unclear" and "unknown".

        "same": no change beyond the spread, and the spread would have shown one of `blur`.
        "unclear": the spread is too wide to say so, there is a doubt, or the means do not bear it
        out. "unknown": a side was not measured.
        """
        if math.isnan(self.old) or math.isnan(self.new):
            return "unknown"
        if self.doubt or self.means or math.isnan(self.low) or math.isnan(self.high):
            return "unclear"
        none = 1.0 if self.is_ratio else 0.0
        if self.low > none:
            return "more"
        if self.high < none:
            return "less"
        return "unclear" if self.spread > self.blur else "same"

    @property
    def is_changed(self) -> bool:
        """Does the interval leave out "no change"?"""
        return self.kind in ("more", "less")

    @property
    def amount(self) -> float:
        """`new / old - 1`, or `new - old` where it is no ratio; inf from 0."""
        if not self.is_ratio:
            return self.new - self.old
        return self.new / self.old - 1 if self.old else math.inf if self.new else 0.0

    @property
    def spread(self) -> float:
        """Half of the interval, in the unit of `amount`."""
        return (self.high - self.low) / 2

    def margin(self, form: Callable[[float], str] = format_percent) -> str:
        """`± 4%`; of a ratio that may be off by more than all of it, its ends, `0.7 to 3 times`.

        So where `33% ± 35%` would deny a change, of 1.02 to 1.72 times: a ratio's interval reaches
        further upwards. Ends so far apart that they would say nothing are not told.
        """
        if self.is_ratio and self.low < 1 < self.high and self.high > _WIDEST * self.low:
            return f"({_MAY_BE_ANYTHING})"
        is_sure, seems_sure = self.low > 1 or self.high < 1, self.spread < abs(self.amount)
        if self.is_ratio and (self.spread > 1 or (is_sure != seems_sure and self.kind != "same")):
            figures = 2 if self.spread > 1 else 3
            low, high = (_end_text(end, figures) for end in (self.low, self.high))
            return f"({low} to {high} times)"
        said = form(self.spread)
        if is_nothing(said, form) and self.spread > 0:  # no measurement is surer than any number
            said = format_percent(self.spread, figures=1) if self.is_ratio else said
        return f"± {said}"

    def finer(self, form: Callable[[float], str]) -> Callable[[float], str]:
        """With decimals where amount and spread would read alike, though one of them is larger.

        Not of what is unclear: there is nothing to deny. Of times, both in one unit.
        """
        amount, spread = abs(self.amount), self.spread
        if form is format_ms:
            return functools.partial(format_ms, beside=max(amount, spread))
        is_told = self.is_changed or (self.kind == "same" and amount < spread)
        if form is not format_percent or not is_told:
            return form
        if form(amount) == form(spread) and not is_nothing(form(amount), form):
            for each in (functools.partial(format_percent, decimals=n) for n in (1, 2)):
                if each(amount) != each(spread):
                    return each
        return form

    def text(
        self,
        more: str = "slower",
        less: str = "faster",
        form: Callable[[float], str] = format_percent,
        *,
        says_doubt: bool = True,
    ) -> str:
        """`12% ± 4% slower`, or why nothing can be said, in words.

        Args:
            form: shows an amount without its sign.
            says_doubt: false where what stands above has said it for all.
        """
        kind = self.kind
        if kind == "unknown":
            return "not measured in both"
        word = more if self.amount > 0 else less
        form = self.finer(form)
        amount = form(abs(self.amount)) if math.isfinite(self.amount) else "from 0"
        is_none = is_nothing(amount, form)
        if self.amount > 0 and not is_none:
            amount = amount.removeprefix("≈")  # of a rise, 100% is no whole that is nearly reached
        if math.isnan(self.spread):
            seen = "no change seen" if is_none else f"maybe {amount} {word}"
            return f"{seen}: too few steps to know the spread"
        spread = self.margin(form)
        if kind == "same":
            sign = "" if is_none else "+" if self.amount > 0 else "−"
            return f"no change beyond the spread ({sign}{amount} {spread})"
        why = f": {self.doubt}" if self.doubt and says_doubt else ""
        if self.means:
            why += f", but the mean: {self.means.text(more, less, form, says_doubt=False)}"
        if kind == "unclear" and is_none:
            return f"no change seen ({spread.strip('()')}){why}"
        told = f"{word} {spread}" if spread[0] == "(" else f"{spread} {word}"
        return f"{'maybe ' * (kind == 'unclear')}{amount} {told}{why}"

    def times_text(self) -> str:
        """Of a ratio, how many times as much the new is: `1.2x ± 4%`, `maybe 1.05x ± 8%`."""
        if math.isnan(self.old) or math.isnan(self.new) or not self.old:
            return "not measured in both"
        is_sure = not math.isnan(self.spread) and self.kind != "unclear"
        word = "no change, " if self.kind == "same" else "" if is_sure else "maybe "
        margin = "" if math.isnan(self.spread) else f" {self.margin()}"
        but = f", but the mean: {self.means.times_text()}" if self.means else ""
        return f"{word}{format_number(self.new / self.old)}x{margin}{but}"


def _end_text(factor: float, figures: int) -> str:
    """One end of a ratio's interval; never 1 of what is not, which would deny the verdict."""
    shown = (format_number(factor, figures=figures), *(f"{factor:.{n}g}" for n in range(3, 7)))
    return next((text for text in shown if text != "1"), shown[0])


def ends_text(low_ms: float, high_ms: float) -> str:
    """`10.4 ms to 14 ms`: an interval; "± unknown" of nan."""
    if math.isnan(low_ms) or math.isnan(high_ms):
        return "± unknown"
    if high_ms > _WIDEST * low_ms:
        return _MAY_BE_ANYTHING
    return f"{format_ms(low_ms)} to {format_ms(high_ms)}"
