"""Write what the kit's own tables have, settings and trace formats, into the pages of docs.

`python scripts/tables.py` rewrites the pages; a test fails if one has another table.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from kit.formats.readers import readers_table  # noqa: E402 - after the path to it
from kit.runs.knob import settings_table  # noqa: E402
from kit.runs.settings import Settings  # noqa: E402

PAGES = tuple(sorted(ROOT.glob("docs/*.md")))
TABLES = (settings_table(Settings), readers_table())


def with_tables(text: str) -> str:
    """A page's text, where each of the tables stands instead of the one with the same heads."""
    for table in TABLES:
        heads = re.escape(table.partition("\n")[0])
        text = re.sub(rf"^{heads}\n(?:\|.*\n)+", lambda _, new=table: f"{new}\n", text, flags=re.M)
    return text


def main() -> int:
    """Rewrite the pages whose tables are others."""
    for page in PAGES:
        text = page.read_text("utf-8")
        if (made := with_tables(text)) != text:
            page.write_text(made, "utf-8", newline="\n")
            sys.stdout.write(f"wrote {page.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
