"""The ranks of a job as one HTML or Markdown file that needs no kernel and no network."""

from __future__ import annotations

import os
from pathlib import Path

from kit.files import write_whole
from kit.reports.target import is_markdown
from kit.text import format_count, safe_html
from kit.trace.ranks.ranks import Ranks
from kit.widgets.base.listing import LISTING_CSS
from kit.widgets.base.page import POLICY
from kit.widgets.base.scripts import asset, script
from kit.widgets.ranks.lanes import placed
from kit.widgets.ranks.view import ranks_drawn

__all__ = ["ranks_html", "write_ranks"]


def write_ranks(ranks: Ranks, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Write the page; the file appears whole or not at all. A path that ends in `.md` is Markdown.

    Raises:
        OSError: the folder cannot be written to.
    """
    target = Path(path)
    text = ranks.to_markdown() if is_markdown(target) else ranks_html(ranks, title=title)
    write_whole(target, text.encode(errors="backslashreplace"))
    return target


def ranks_html(ranks: Ranks, *, title: str | None = None) -> str:
    """The page as text."""
    name = safe_html(title or f"Which rank is slow? {ranks.name}", 200)
    body, _ = ranks_drawn(ranks)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="generator" content="overlap-kit">
<title>{name}</title>
<style>{asset("reports/page.css")}{LISTING_CSS}</style>
</head>
<body>
<main>
<header>
<h1>{name}</h1>
<p class="intro">{format_count(len(ranks.traces), "rank")}, each from its own trace,
{placed(ranks)}. Escape clears what is marked.</p>
</header>
<div class="card">{body}</div>
</main>
<script>
"use strict";
{script("reports/js/ranks.js")}.startRanks();
</script>
</body>
</html>
"""
