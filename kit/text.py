"""Text that people read: a stranger's text made safe, numbers with units, checks of arguments.

Names of ops, lines, devices and files come from programs and traces of strangers. One rule says
which of their characters are shown (`str.isprintable`: no control, no escape sequence, no mark that
reorders text, no lone surrogate); each target then adds what has a meaning there. Every view,
report and message takes its text through one of the four `safe_*` functions; `quoted_page` is for
a whole page of kit's own.
"""

from __future__ import annotations

import codecs
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from numbers import Real
from typing import Any, cast

__all__ = [
    "MOST_WHOLE",
    "UNKNOWN",
    "WHOLE",
    "capital",
    "check_number",
    "check_whole_number",
    "format_bytes",
    "format_count",
    "format_more",
    "format_ms",
    "format_ns",
    "format_number",
    "format_percent",
    "format_share",
    "is_nothing",
    "is_whole_number",
    "markdown_table",
    "no_formula",
    "plain_text",
    "quoted_page",
    "safe_html",
    "safe_label",
    "safe_markdown",
    "safe_terminal",
    "terminal_table",
    "write_plainly",
]

UNKNOWN = "unknown"
MOST_WHOLE = 2**63 - 1  # what a file of a run, torch and numpy take for a whole number
_MOST_BITS = 128  # of a number that an error shows in digits
WHOLE = sys.maxsize  # the limit of a text that is not cut, because it is data
_REPLACED = "\ufffd"  # what stands where a character was that is not shown
_MARKDOWN = re.compile(r"([\\`*_{}\[\]|#~$])")
# Words that are read from the right, as those of Hebrew and Arabic, and what stands between them.
_RIGHT = r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]"
_FROM_RIGHT = re.compile(rf"{_RIGHT}(?:[\W_]*{_RIGHT})*")
_MATH = re.compile(r"\$(?=\$)|\\(?=[(\[])")  # what follows would begin a formula of bokeh's
_FORMULA = tuple("=+-@＝＋－＠")  # some spreadsheets take the wide ones, too
_PLAIN = {
    "µ": "u", "−": "-", "±": "+-", "≈": "~", "×": "x", "≤": "<=", "≥": ">=", "←": "<-", "→": "->",
    "…": "...", "–": "-", "—": "--", "·": "|", "▲": "^", "▼": "v", "★": "*", "█": "#", "░": ".",
    "\u200b": "",
}  # fmt: skip
_PLAIN_ERRORS = "kit.plain"  # the name under which Python's codecs know `_in_plain_letters`
_NS_UNITS = ((1, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s"))
_EXACT = 1e-9  # a sum of fractions that is as far from 1 is 1
_HALF = 0.5
_BYTE_UNITS = ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"))


def safe_html(text: object, limit: int = 160, *, is_read: bool = True) -> str:
    """Text for HTML, between tags or in an attribute: escaped, and cut in the middle if longer.

    Line breaks and tabs are kept: they are no markup, and code and tracebacks need them. Where it
    `is_read`, and not compared by a script, a mark that is not seen follows words that are read
    from the right: a number behind these would stand before them.
    """
    shown = _cut_middle(_clean(str(text), keep="\n\t"), limit)
    if is_read and not shown.isascii():
        shown = _FROM_RIGHT.sub("\\g<0>\u200e", shown)
    return escape(shown, quote=True)


def quoted_page(page: str) -> str:
    """A page that kit has made, as the value of an attribute: each character is kept."""
    return escape(page, quote=True)


def safe_markdown(text: object, limit: int = 200) -> str:
    """Text for one line of Markdown, or a cell of a table: no markup, no HTML, cut at the end."""
    return escape(_MARKDOWN.sub(r"\\\1", _cut_end(_clean(str(text)), limit)), quote=False)


def safe_terminal(text: object, limit: int = 100) -> str:
    """One line that a terminal shows and does not obey, cut in the middle if longer."""
    return _cut_middle(_clean(str(text)), limit)


def write_plainly(*streams: object) -> None:
    """Let streams write any text: what their encoding lacks becomes letters that mean the same.

    `93 µs` becomes `93 us`, and `−4%` becomes `-4%`: with a "?" there, unit or sign would be lost.
    """
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_PLAIN_ERRORS)


def plain_text(text: str, encoding: str) -> str:
    """The text as it is shown where only the characters of an encoding can be."""
    return text.encode(encoding, _PLAIN_ERRORS).decode(encoding)


def _in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    """What codecs write for the characters that an encoding lacks, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c, "?") for c in lacking), error.end


codecs.register_error(_PLAIN_ERRORS, _in_plain_letters)


def no_formula(text: str) -> str:
    """A cell that neither a spreadsheet nor a terminal obeys; nothing that can be seen is lost."""
    shown = safe_terminal(text, WHOLE)
    is_formula = text.lstrip().startswith(_FORMULA) or text.startswith(("\t", "\r"))
    return f"'{shown}" if is_formula else shown


def safe_label(text: object, limit: int = 200) -> str:
    """Text for a plot's label or hover card: one line, cut at the end, and no formula.

    Bokeh escapes HTML itself, but draws what stands after `$$` as a formula.
    """
    clean = " ".join(_clean(str(text)[: 4 * limit]).split())
    return _cut_end(_MATH.sub("\\g<0>\u200b", clean), limit)


def _clean(text: str, keep: str = "") -> str:
    """The text with spaces for other white space, and U+FFFD for what is not printable."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else " " if c.isspace() else _REPLACED for c in text
    )


def _cut_middle(text: str, limit: int) -> str:
    """At most `limit` characters: a long path keeps its beginning and its file's name."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def _cut_end(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, has_numbers: bool = True
) -> str:
    """A Markdown table; with numbers, all columns but the first are aligned to the right.

    Cells are Markdown: a stranger's text goes through `safe_markdown` before.
    """
    rest = "---:" if has_numbers else "---"
    lines = [head, ["---", *[rest] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def terminal_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)
) -> str:
    """Aligned columns, two spaces apart; nothing is left behind at the ends of lines.

    Args:
        left: the columns that are aligned to the left.
    """
    lines = [list(heads), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    shown = [
        "  ".join(
            x.ljust(w) if i in left else x.rjust(w)
            for i, (x, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([shown[0], "-" * max(map(len, shown)), *shown[1:]])


def format_ns(ns: float) -> str:
    """A time with the unit that reads best: `850 ns`, `12.3 µs`, `4.56 ms`, `1.23 s`."""
    return _with_unit(ns, _NS_UNITS, UNKNOWN)


def format_ms(ms: float, unknown: str = UNKNOWN, *, beside: float = 0.0) -> str:
    """The same for a time in milliseconds: `4.7 s`, and not `4.68e+03 ms`.

    Args:
        beside: another time, or its spread: both get the unit of the larger one, and its decimals.
    """
    return _with_unit(ms * 1e6, _NS_UNITS, unknown, beside * 1e6) if ms or beside else "0 ms"


def format_bytes(size: float, unknown: str = UNKNOWN) -> str:
    """A size with the unit that reads best: `64 B`, `1.5 kB`, `12 MB`."""
    return _with_unit(size, _BYTE_UNITS, unknown)


def _with_unit(
    value: float, units: Sequence[tuple[float, str]], unknown: str, beside: float = 0.0
) -> str:
    """Three figures and no exponent: 999.7 of one unit would read as 1e+03, so it is 1 of the next.

    The smallest unit has no fractions, and the largest has thousands.
    """
    if math.isnan(value):
        return unknown
    largest = max(abs(value), abs(beside))
    scale, unit = next((u for u in units if largest < 999.5 * u[0]), units[-1])
    number = value / scale
    if abs(value) < largest < math.inf:  # what is left of nothing is about nothing
        decimals = max(2 - math.floor(math.log10(largest / scale)), 0)
        number = round(number, decimals) or number * _EXACT
    return f"{number:,.0f} {unit}" if scale == 1 else f"{format_number(number)} {unit}"


def format_number(value: float, unknown: str = UNKNOWN, *, figures: int = 3) -> str:
    """Three figures, never an exponent: `0.012`, `1.53`, `1,240`; `≈0` below 0.001.

    Args:
        figures: fewer, 1 or 2, for what is not known as well: a spread, the end of an interval.
    """
    if math.isnan(value):
        return unknown
    if figures < 3:
        value = float(f"{value:.{figures}g}")
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 or not value else "≈0"


def format_percent(
    fraction: float,
    unknown: str = UNKNOWN,
    *,
    decimals: int = 0,
    figures: int = 0,
    signed: bool = False,
) -> str:
    """A fraction of one as `43%`; `≈0%` and `≈100%` of what rounds to these and is not.

    Args:
        decimals: as many in each row of a column: `43.2%`.
        figures: as many and no fixed decimals, for a spread or a bound: `0.3%`.
        signed: of a change, with `+` or `−` before it.
    """
    if not math.isfinite(fraction):
        return unknown
    size = abs(fraction)
    sign = "−" if fraction < 0 else "+" if signed else ""
    if figures:
        return f"{sign}{format_number(100 * size, figures=figures)}%"
    shown = f"{size:,.{decimals}%}"
    if any(shown == f"{whole:.{decimals}%}" and abs(size - whole) > _EXACT for whole in (0, 1)):
        return f"≈{sign if size > _HALF else ''}{shown}"
    return f"{sign if size else ''}{shown}"


def format_share(fraction: float) -> str:
    """A fraction in a column of shares, which add up: `43.2%`."""
    return format_percent(fraction, decimals=1)


def is_nothing(shown: str, form: Callable[[float], str]) -> bool:
    """Whether an amount is shown as none, or as about none."""
    return shown.removeprefix("≈") == form(0.0)


def format_count(count: float, word: str) -> str:
    """`1 op`, `2,000 ops`, `0.25 ops` of a mean: one, if that is what is shown."""
    shown = f"{count:,}" if isinstance(count, int) else format_number(count)
    return f"{shown} {word}{'' if shown == '1' else 's'}"


def format_more(count: int, what: str, before: str = "\n") -> str:
    """What stands below a table that leaves so many rows out: `(3 more lines)`; "" if none."""
    return f"{before}({format_count(count, f'more {what}')})" if count > 0 else ""


def capital(text: str) -> str:
    """A text as a sentence begins, with a capital letter; what follows stays as it is."""
    return text[:1].upper() + text[1:]


def is_whole_number(value: object, at_least: int) -> bool:
    """Is this an int, and not a bool, of at least so much?"""
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def check_whole_number(
    error: type[Exception],
    name: str,
    value: object,
    *,
    at_least: int = 1,
    at_most: int = MOST_WHOLE,
    advice: str = "",
) -> None:
    """Refuse an argument that is not a whole number of at least `at_least` and at most `at_most`.

    Args:
        error: the exception to raise.
        advice: what to do instead, a sentence of its own.

    Raises:
        error: the value is something else; True and False are no numbers here.
    """
    more = f". {advice}" if advice else ""
    is_long = isinstance(value, int) and value.bit_length() > _MOST_BITS  # Python may refuse it
    given = f"a number of {cast(int, value).bit_length():,} bits" if is_long else repr(value)
    if not is_whole_number(value, at_least):
        raise error(f"{name} must be a whole number of at least {at_least}, not {given}{more}")
    if cast(int, value) > at_most:
        raise error(f"{name} must be at most {at_most:,}, not {given}{more}")


def check_number(
    error: type[Exception],
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    unit: str = "",
) -> None:
    """Refuse an argument that is not a finite number within these bounds.

    Args:
        error: the exception to raise.
        unit: of the bounds, such as "nanoseconds".

    Raises:
        error: the value is something else; True and False are no numbers here.
    """
    number: Any = value
    is_number = isinstance(number, Real) and not isinstance(number, bool)
    if is_number and above < number < math.inf and at_least <= number <= at_most:
        return
    bounds = (("above", above), ("at least", at_least), ("at most", at_most))
    words = " and ".join(f"{word} {bound:,g}" for word, bound in bounds if math.isfinite(bound))
    needed = " ".join(filter(None, ("a finite number", words, unit)))
    raise error(f"{name} must be {needed}, not {value!r}")
