"""A stranger's text in each target, numbers as people read them, checks of arguments."""

from __future__ import annotations

import json
import math
import pickle
import random
import re
import subprocess
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.errors import EngineError, SettingsError
from kit.shown import Column, Lines, Rows
from kit.text import (
    check_whole_number,
    format_bytes,
    format_count,
    format_ms,
    format_ns,
    format_number,
    format_percent,
    format_share,
    markdown_table,
    safe_html,
    safe_label,
    safe_markdown,
    safe_terminal,
)
from tests.factories import HOSTILE

TARGETS = (safe_html, safe_markdown, safe_terminal, safe_label)
# With what the nine sanitizers of before refused, one or another of them.
REFUSED = (
    "\x00\x07\x08\x0b\x0c\x1b\x1f\x7f\x80\x85\x9b\x9f\xad\u061c\u200b\u200e\u200f\u2028\u2029"
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff\ud800\udfff\ue000\U000e0041"
)
anything = st.text() | st.text(alphabet="<>&\"'`|*_[]{}\\$#~\n\r\t\x1b\u202e\ud800ab ")


class Reader(HTMLParser):
    """What a browser makes of a text: tags and attributes, and the text between."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(text: str) -> bool:
    """Is every character one that a person sees, line breaks and tabs aside?"""
    return all(c.isprintable() or c in "\n\t" for c in text)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("char", REFUSED)
def test_no_target_lets_a_control_or_a_mark_through(target, char: str):
    assert char not in target(f"a{char}b")
    assert target(f"a{char}b").startswith("a")
    assert target(f"a{char}b").endswith("b")


@pytest.mark.parametrize("target", TARGETS)
def test_a_hostile_text_is_short_and_can_be_written(target):
    text = target(HOSTILE, 100)
    text.encode("utf-8")
    assert len(text) < 500
    assert "W" * 200 not in text


@pytest.mark.parametrize("target", TARGETS)
def test_ordinary_names_stay_as_they_are(target):
    for name in ("Bert.layers.0 · train.py:41", "fusion.12", "größer – 表", "🙂"):
        assert target(name) == name


@given(anything)
def test_html_is_text_and_nothing_else_between_tags_and_in_attributes(text: str):
    safe = safe_html(text, 50)
    page = Reader(f'<p title="{safe}">{safe}</p>')
    assert page.tags == ["p"]
    assert len(page.attributes) == 1
    assert page.attributes[0] == ("title", page.text)
    assert Reader(safe_html(text, 50, is_read=False)).text == page.text.replace("\u200e", "")
    page.text = page.text.replace("\u200e", "")
    assert shown(page.text)
    assert len(page.text) <= 50
    safe.encode("utf-8")


@given(st.text())
def test_safe_html_never_opens_a_tag_and_can_always_be_encoded(text: str):
    safe = safe_html(text)
    assert not set("<>\"'") & set(safe)
    assert safe.encode("utf-8") is not None


def test_safe_html_keeps_both_ends_of_a_long_name():
    assert safe_html("abcdefghij", 7) == "abc…hij"
    assert safe_html("abcdefg", 7) == "abcdefg"


def test_in_html_a_number_stands_behind_a_name_that_is_read_from_the_right():
    """By the rules of Unicode a number behind such letters would stand before them."""
    assert safe_html("רשת.py:149 waits") == "רשת\u200e.py:149 waits"
    assert safe_html("שלום עולם 12 ms; نموذج") == "שלום עולם\u200e 12 ms; نموذج\u200e"
    assert safe_html("רשת 12", is_read=False) == "רשת 12"


def test_in_html_words_that_are_read_from_the_right_keep_their_order_and_emoji_are_whole():
    """A mark between two words would lay them out from the left."""
    said = 'שלום, "עולם" (שוב)'
    assert safe_html(said) == escape(said[:-1]) + "\u200e)"
    assert safe_html("1\ufe0f\u20e3 ⚠\ufe0f 3 ms") == "1\ufe0f\u20e3 ⚠\ufe0f 3 ms"


@given(anything)
def test_markdown_is_one_line_without_markup(text: str):
    safe = safe_markdown(text)
    assert safe.isprintable()
    assert "<" not in safe
    assert ">" not in safe
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_{}\[\]|#~$]", safe)
    row = markdown_table(["a", "b"], [[safe, "1"]]).splitlines()[2]
    assert len(re.split(r"(?<!\\)(?:\\\\)*\|", row)) == 4  # before, between and after two cells


@given(anything, st.integers(3, 60))
def test_a_terminal_gets_one_line_that_it_obeys_in_nothing(text: str, limit: int):
    safe = safe_terminal(text, limit)
    assert safe.isprintable()
    assert len(safe) <= limit
    assert safe == text or not text.isprintable() or len(text) > limit


@given(anything, st.integers(3, 60))
def test_a_label_is_one_line_and_no_formula(text: str, limit: int):
    safe = safe_label(f"{text}$$x$$\\[y\\]", limit)
    assert len(safe) <= limit
    assert safe.replace("\u200b", "").isprintable()
    assert "$$" not in safe
    assert "\\[" not in safe
    assert "\\(" not in safe


def test_a_long_path_keeps_both_ends_and_a_label_its_beginning():
    assert safe_terminal("/home/somebody/project/train.py:41", 17) == "/home/so…in.py:41"
    assert safe_html("abcdefgh", 5) == "ab…gh"
    assert safe_label("abcdefgh", 5) == safe_markdown("abcdefgh", 5) == "abcd…"


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (850, "850 ns"),
        (999.6, "1 µs"),
        (12_340, "12.3 µs"),
        (4_560_000, "4.56 ms"),
        (999_600_000, "1 s"),
        (4_683_000_000, "4.68 s"),
        (3.6e12, "3,600 s"),
        (-2000, "-2 µs"),
        (math.nan, "unknown"),
    ],
)
def test_a_time_has_the_unit_that_reads_best(ns: float, text: str):
    assert format_ns(ns) == text
    assert not ns or format_ms(ns / 1e6) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (999_700, "1 MB"),
        (12e6, "12 MB"),
        (2e9, "2 GB"),
        (5e12, "5,000 GB"),
        (math.nan, "unknown"),
    ],
)
def test_a_size_has_the_unit_that_reads_best(size: float, text: str):
    assert format_bytes(size) == text


@given(st.floats(allow_infinity=False))
def test_no_number_has_an_exponent(value: float):
    for form in (format_ns, format_ms, format_bytes, format_number):
        assert not re.search(r"\de[+-]?\d", form(value))


@given(st.floats(1, 1e12))
def test_a_time_is_right_to_three_figures(ns: float):
    number, unit = format_ns(ns).replace(",", "").split()
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert float(number) * scale == pytest.approx(ns, rel=0.006, abs=0.51)


def test_a_time_and_its_spread_have_one_unit():
    for one, other, texts in (
        (1.49, 0.8604, ("1.49 ms", "0.86 ms")),
        (0.000714, 0.662, ("1 µs", "662 µs")),
        (12.5, 0.0009, ("12.5 ms", "≈0 ms")),
        (12_345_000.0, 120_000.0, ("12,345 s", "120 s")),
        (1e9, 0.004, ("1,000,000 s", "≈0 s")),
        (math.inf, 1000.0, ("inf s", "1 s")),
        (4700.0, 4.0, ("4.7 s", "≈0 s")),
        (1234000.0, 4000.0, ("1,234 s", "4 s")),  # its larger numbers are whole ones
        (3e-5, 0.0, ("30 ns", "0 ns")),
        (5000.0, 0.0, ("5 s", "0 s")),
    ):
        assert (format_ms(one, beside=other), format_ms(other, beside=one)) == texts


def test_no_time_at_all_keeps_the_unit_of_the_caller():
    assert (format_ns(0), format_ms(0)) == ("0 ns", "0 ms")


def test_numbers_percentages_and_counts():
    values = (0.0, 0.0004, 0.0123, 1.234, 99.96, 1240.4, math.nan)
    assert [format_number(x) for x in values] == [
        "0",
        "≈0",
        "0.0123",
        "1.23",
        "100",
        "1,240",
        "unknown",
    ]
    assert format_count(1, "op") == "1 op"
    assert format_count(2000, "op") == "2,000 ops"
    assert [format_count(x, "sync") for x in (0.25, 1.0004)] == ["0.25 syncs", "1 sync"]


def test_a_percentage_is_none_or_all_only_where_it_is():
    edges = (0, 0.004, 0.005001, 0.426, 0.994, 0.997, 1, 1.004, 12.5)
    assert [format_percent(x) for x in edges] == [
        "0%", "≈0%", "1%", "43%", "99%", "≈100%", "100%", "≈100%", "1,250%",
    ]  # fmt: skip
    assert [format_share(x) for x in (0, 0.0004, 0.0512, 0.9996, sum([0.1] * 10))] == [
        "0.0%", "≈0.0%", "5.1%", "≈100.0%", "100.0%",
    ]  # fmt: skip
    changes = (0.0, 0.004, -0.004, 0.12, -0.12, -0.997, -1.0)
    assert [format_percent(x, signed=True) for x in changes] == [
        "0%", "≈0%", "≈0%", "+12%", "−12%", "≈−100%", "−100%",
    ]  # fmt: skip
    assert [format_percent(x, figures=1) for x in (0.0032, 0.047, 0.5)] == ["0.3%", "5%", "50%"]
    assert [format_percent(x, "?") for x in (math.nan, math.inf, -math.inf)] == ["?"] * 3


@given(st.floats(0, 2))
def test_a_percentage_is_right_to_half_of_its_last_digit(fraction: float):
    assert float(format_percent(fraction).strip("≈%")) == pytest.approx(100 * fraction, abs=0.501)
    assert (format_percent(fraction) == "0%") == (fraction <= 1e-9)


# A percentage that is made by hand, and lines that say how wide or where something is drawn.
BY_HAND, DRAWN = re.compile(r"\.\d%|\}\s?%(?!\?)"), re.compile(r"width:|left:|stops")


def by_hand(folder: Path) -> list[str]:
    """The lines of a folder that write a percentage without `format_percent`."""
    return [
        f"{file.name}: {line.strip()}"
        for file in (*folder.rglob("*.py"), *folder.rglob("*.js"))
        if file.name != "graphviz.js"
        for line in file.read_text(encoding="utf-8").splitlines()
        if BY_HAND.search(line) and not DRAWN.search(line)
    ]


def test_percentages_are_written_in_one_place(tmp_path: Path):
    """So that each has the same sign, space and edge: `format_percent`, `formatPercent`."""
    only = ("text.py", "format.js")
    assert [line for line in by_hand(Path(kit.__file__).parent) if not line.startswith(only)] == []
    bad = ('f"{x:.0%}"', '"{:.1%}".format', 'f"{x:+.1%} more"', "`${x.toFixed(0)} %`", 'f"{n} %"')
    (tmp_path / "bad.py").write_text("\n".join(bad))
    assert len(by_hand(tmp_path)) == len(bad)


def test_a_page_writes_numbers_as_a_terminal_does():
    """A bar of 12,250 ns was 12.3 µs where it is pointed at, and 12.2 µs in the table."""
    rng = random.Random(1)
    sizes = [rng.randrange(10**figures) for figures in range(1, 14) for _ in range(500)]
    sizes += [125 * i for i in range(9_000)] + [999_564_197_944]  # these lie between two
    parts = [rng.random() * 10**power for power in range(-5, 3) for _ in range(200)]
    parts += [i / 200 for i in range(420)]
    script = Path(kit.__file__).parent / "widgets" / "base" / "js" / "format.js"
    code = (
        f"import {{formatBytes, formatNs, formatPercent}} from {json.dumps(script.as_uri())};"
        'import {readFileSync} from "node:fs";'
        "const [sizes, parts] = JSON.parse(readFileSync(0));"
        "const all = [sizes.map(formatNs), sizes.map(formatBytes), parts.map(formatPercent)];"
        "console.log(JSON.stringify(all));"
    )
    ran = subprocess.run(
        ["node", "--input-type=module", "-e", code],
        input=json.dumps([sizes, parts]), capture_output=True, text=True, check=True,
    )  # fmt: skip
    own = ((format_ns, sizes), (format_bytes, sizes), (format_percent, parts))
    for (form, values), shown in zip(own, json.loads(ran.stdout), strict=True):
        assert [*map(form, values)] == shown


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "3", None, math.nan])
def test_what_is_no_whole_number_is_refused_with_its_name_and_the_advice(value: object):
    with pytest.raises(SettingsError, match=r"steps must be a whole number of at least 1, not .*"):
        check_whole_number(SettingsError, "steps", value)
    with pytest.raises(EngineError, match=r"not .*\. Use fewer\.$"):
        check_whole_number(EngineError, "steps", value, advice="Use fewer.")


def test_a_whole_number_is_let_through():
    check_whole_number(SettingsError, "steps", 1)
    check_whole_number(SettingsError, "warmup", 0, at_least=0)


class Pairs(Rows[tuple[str, int]]):
    noun = "pair"
    columns = (
        Column("name", lambda row: row[0], is_number=False),
        Column("many", lambda row: f"{row[1]:,}"),
    )


def test_rows_are_a_tuple_that_shows_itself_as_a_table():
    rows = Pairs([("a", 5), ("long", 1234)])
    assert rows == (("a", 5), ("long", 1234))
    assert repr(rows).splitlines() == [
        "2 pairs",
        "name   many",
        "-----------",
        "a         5",
        "long  1,234",
    ]
    style = "text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
    assert f'<td style="{style}">1,234</td>' in rows._repr_html_()
    assert (type(rows[:1]), rows[1], rows[:1]) == (Pairs, ("long", 1234), (("a", 5),))
    assert pickle.loads(pickle.dumps(rows)) == rows
    assert repr(Pairs()).startswith("0 pairs\n")
    assert "<caption>2 pairs; &lt;b&gt;</caption>" in rows.with_note("<b>")._repr_html_()
    assert repr(rows.with_note("off")[1:]).startswith("1 pair; off\n")
    assert repr(rows).startswith("2 pairs\n")
    many = Pairs([("x", i) for i in range(31)])
    assert repr(many).endswith("and 1 more pair: slice to see others")
    assert many._repr_html_().count("<tr>") == 31


def test_rows_make_a_strangers_text_safe():
    evil = Pairs([("<script>alert(1)</script>\x1b[31m", 1)])
    assert "<script" not in evil._repr_html_()
    assert "\x1b" not in repr(evil)
    assert "<img" not in Lines("<img src=x>")._repr_html_()


def test_lines_show_themselves_as_lines():
    said = Lines("a & b\nc")
    assert (said, repr(said)) == ("a & b\nc", "a & b\nc")
    assert ">a &amp; b\nc<" in said._repr_html_()
    assert "white-space:pre-wrap" in said._repr_html_()
    assert "x" * 9000 in Lines("x" * 9000)._repr_html_()  # a long line is not cut


def test_no_other_file_rounds_to_three_figures_by_itself():
    """`.3g` shows 1,591 sync points a step as 1.59e+03: format_number does not."""
    files = Path(kit.__file__).parent.rglob("*.py")
    assert {p.name for p in files if ":.3g" in p.read_text()} == {"text.py"}


def test_no_other_file_has_a_sanitizer_of_its_own():
    own = re.compile(r"from html import|import html\b|html\.escape|saxutils|markupsafe")
    found = {p.name for p in Path(kit.__file__).parent.rglob("*.py") if own.search(p.read_text())}
    assert found == {"text.py"}
