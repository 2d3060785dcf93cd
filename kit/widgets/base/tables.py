"""What views as HTML are made of: tables, sections, sentences, bars; their colours and fonts.

Shared by the live explorer and the report. Styles are inline, and colours are JupyterLab's
variables with fallbacks, so the same text reads well in a light and in a dark notebook and in a
plain page. Text from programs and traces goes through `safe_html`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from kit.runs.run import Run
from kit.text import capital, format_count, format_number, safe_html
from kit.widgets.base.selection import Selection, ranges_text
from kit.widgets.base.theme import KEPT

__all__ = [
    "BETTER",
    "FONT",
    "INK",
    "LINE",
    "MONO",
    "MUTED",
    "PANEL",
    "TRACK",
    "WORSE",
    "amount",
    "bar_html",
    "code",
    "doubt_html",
    "folded",
    "keys_html",
    "longest_number",
    "not_shown",
    "place_html",
    "row_attributes",
    "said_html",
    "scrolling",
    "section",
    "sentence",
    "swatch",
    "tab_stop",
    "table",
    "unbroken",
    "whole_html",
]


def _of_text(share: str) -> str:
    """The colour of the text around, of which a share is left."""
    return f"color-mix(in srgb, currentColor {share}, transparent)"


# JupyterLab's colours; elsewhere, as in VS Code, Colab and on code hosts, what the page gives its
# texts, light or dark.
INK = "var(--jp-ui-font-color1, currentColor)"
MUTED = f"var(--jp-ui-font-color2, {_of_text('75%')})"
PANEL = "var(--jp-layout-color0, var(--vscode-editor-background, transparent))"
LINE = f"var(--jp-border-color2, {_of_text('16%')})"
TRACK = f"var(--jp-layout-color2, {_of_text('8%')})"
FONT = "var(--jp-ui-font-family, Inter, 'Helvetica Neue', Helvetica, Arial, sans-serif)"
MONO = "var(--jp-code-font-family, 'DejaVu Sans Mono', Menlo, Consolas, monospace)"
# As text on the page's own ground; js/page.css has those of pages whose theme it knows.
BETTER, WORSE = (
    f"var(--kit-{name}, color-mix(in srgb, {color} 55%, currentColor))"
    for name, color in (("better", "#1a9a5a"), ("worse", "#e0452a"))
)

_CAPTION = "<!--caption-->"  # in a table; `section` puts its title there
_UNSEEN = (
    "position:absolute;width:1px;height:1px;margin:-1px;padding:0;overflow:hidden;"
    "clip-path:inset(50%);white-space:nowrap;border:0"
)
_COUNTS = re.compile(r"\d[\d,.]* [a-z]+,?")
_ENDS = re.compile(r"(?<=/)|(?<=[^/]{9})(?=:[0-9])")


def doubt_html(run: Run) -> str:
    """Why a run's numbers may be off, above a view that stands by itself; "" if they are not.

    On a page with the headline that says it for all.
    """
    why = run.doubt
    said = f"<b>{safe_html(capital(why), 300)}.</b> The numbers may be off."
    return f'<div role="note" style="margin-bottom:6px">{sentence(said)}</div>' if why else ""


def section(title: str, body: str) -> str:
    """A body under its heading, which is also the caption of the tables in it."""
    named = body.replace(_CAPTION, f'<caption style="{_UNSEEN}">{title}</caption>')
    return (
        f'<div style="font:13px/1.45 {FONT};color:{INK};margin-bottom:14px">'
        f'<div role="heading" aria-level="3" style="font-weight:600;margin:0 0 4px">{title}</div>'
        f"{named}</div>"
    )


def folded(line: str, body: str) -> str:
    """A body behind a line that a click opens."""
    return (
        f'<details style="font:13px/1.6 {FONT};color:{INK}"><summary style="cursor:pointer">'
        f'{line}</summary><div style="overflow-x:auto;max-width:980px;margin-top:6px">{body}</div>'
        "</details>"
    )


def sentence(text: str) -> str:
    """Quiet text in its own lines; "" of none."""
    style = f"font-size:12px;line-height:1.45;color:{MUTED};margin-top:4px;overflow-wrap:anywhere"
    return f'<div style="{style}">{text}</div>' if text else ""


def amount(value: float) -> str:
    """A number of a table; "?" where the run cannot say."""
    return format_number(value, "?")


def code(html: str) -> str:
    """A line of a program, or a name of it, which is broken where it does not fit."""
    return f'<div style="font-family:{MONO};font-size:12px;overflow-wrap:anywhere">{html}</div>'


def said_html(body: str) -> str:
    """What stands beside a figure with sliders, in the size of their labels."""
    return f'<div style="font:13px/1.5 {FONT};color:{INK};overflow-wrap:anywhere">{body}</div>'


def unbroken(html: str) -> str:
    """The same, in which no line ends between a number and its word: "2 backward"."""
    return _COUNTS.sub(r'<span style="white-space:nowrap">\g<0></span>', html)


def not_shown(count: int, what: str, more: str = "") -> str:
    """` Not shown: 3 ops.`; "" if all are."""
    return f" Not shown: {format_count(count, what)}{more}." if count > 0 else ""


def table(heads: Iterable[str], rows: Sequence[Sequence[str]], align: str, *,
           widths: Sequence[int], has_total: bool = False, least_px: int = 0,
           picks: Iterable[tuple[int, Selection | None]] = ()) -> str:  # fmt: skip
    """Rows of cells that are HTML.

    With rows that can be picked it is a grid: there a screen reader leaves the arrow keys to it.
    Where there is less room than `least_px` the table scrolls, and a line above says so.

    Args:
        picks: of the first rows, the number of each in its listing, and what it stands for; None:
            it cannot be picked.
    """
    attributes = ["" if picked is None else row_attributes(n, picked) for n, picked in picks]
    side = {"l": "left", "r": "right"}
    wrap = {"l": "break-word", "r": "normal"}  # a long name is broken, a number is not
    columns = "".join(f'<col style="width:{w}%">' for w in widths)
    cell = "padding:3px 6px;vertical-align:top;background:none;border:0"
    head = "".join(
        f'<th scope="col" style="{cell};text-align:{side[a]};font-weight:500;font-size:12px;'
        f'color:{MUTED}">{text}</th>'
        for text, a in zip(heads, align, strict=True)
    )
    body, stop = "", next((n for n, text in enumerate(attributes) if text), -1)
    for n, row in enumerate(rows):
        weight = "2px" if has_total and n == len(rows) - 1 else "1px"
        cells = "".join(
            f'<{tag} style="{cell};text-align:{side[a]};font-variant-numeric:tabular-nums;'
            f'overflow-wrap:{wrap[a]}{more}">{text}</{tag[:2]}>'
            for text, a, (tag, more) in zip(row, align, _tags(len(row)), strict=True)
        )
        more = f" {tab_stop(n == stop)} {attributes[n]}" if any(attributes[n : n + 1]) else ""
        body += f'<tr style="border-top:{weight} solid {LINE};background:none"{more}>{cells}</tr>'
    role = ' role="grid"' * (stop >= 0)
    made = (
        f'<table{role} style="width:100%;min-width:{least_px}px;table-layout:fixed;'
        f"border-collapse:collapse;font-size:13px;"
        f'color:{INK};margin:0">{_CAPTION}<colgroup>{columns}</colgroup><thead>'
        f'<tr style="background:none">{head}</tr></thead><tbody>{body}</tbody></table>'
    )
    return scrolling(made, least_px) if least_px else made


def scrolling(made: str, least_px: int, what: str = "more columns") -> str:
    """What is wide in a box that scrolls; the hint above has no height where all is in sight.

    Tab stops at the box, or at a row in it that can be picked: from there arrows scroll it, too.
    """
    stop = "" if tab_stop(True) in made else tab_stop(True)
    return (
        '<div style="container-type:inline-size"><div aria-hidden="true" style="font-size:'
        f"clamp(0px,({least_px}px - 100cqw) * 99,11px);line-height:1.5;text-align:right;"
        f'color:{MUTED}">{what}: scroll to the right &#8594;</div>'
        f'<div class="kit-wide" style="overflow-x:auto" {stop}>{made}</div></div>'
    )


def longest_number(rows: Iterable[Sequence[str]]) -> int:
    """Letters of the longest number of these rows, behind two texts.

    With more than 6, five columns are too narrow on a phone.
    """
    shown = (cell.replace("<b>", "b").partition("<")[0] for row in rows for cell in row[2:])
    return max(map(len, shown), default=0)  # a bold one is wider


def _tags(count: int) -> list[tuple[str, str]]:
    """Tag and style of each cell of a row: the first one is its heading."""
    return [('th scope="row"', ";font-weight:inherit"), *[("td", "")] * (count - 1)][:count]


def place_html(place: str, limit: int = 160) -> str:
    """A line of a program; where it does not fit, it goes on after a "/" or before its number."""
    return _ENDS.sub("<wbr>", safe_html(place, limit))


def whole_html(words: str) -> str:
    """Words in a text that go to the next line together, unless they are longer than a line."""
    return f'<span style="display:inline-block">{words}</span>'


def row_attributes(i: int, picked: Selection) -> str:
    """What makes an element row `i` of a listing, standing for `picked`; all text is escaped.

    The element needs a `tab_stop`, too.
    """
    site = next(iter(picked.sites)) if len(picked.sites) == 1 else ""
    return (
        f'data-row="{i}" data-site="{safe_html(site, 400, is_read=False)}" '
        f'data-nodes="{ranges_text(picked.nodes)}" '
        f'data-label="{safe_html(picked.label, 100, is_read=False)}"'
    )


def tab_stop(is_one: bool) -> str:
    """Of a row that can be picked: whether Tab stops at it. The arrow keys go on to the others."""
    return f'tabindex="{0 if is_one else -1}"'


def keys_html(colors: Mapping[str, str]) -> str:
    """What colours stand for: a swatch and its words, one after the other."""
    return "".join(
        f'<span style="display:inline-block;margin-right:14px">{swatch(color)}{said}</span>'
        for said, color in colors.items()
    )


def swatch(color: str) -> str:
    """A small square that says which colour stands for what follows."""
    return (
        f'<span style="display:inline-block;width:9px;height:9px;border-radius:2px;'
        f'margin-right:7px;background:{color};border:1px solid #8886;{KEPT}"></span>'
    )


def bar_html(fraction: float, color: str) -> str:
    """A thin bar, `fraction` of its cell wide."""
    width = min(max(fraction, 0.0), 1.0) * 100
    return (
        f'<div style="height:3px;border-radius:2px;background:{TRACK};margin-top:2px;{KEPT}">'
        f'<div style="height:3px;border-radius:2px;background:{color};width:{width:.1f}%">'
        f"</div></div>"
    )
