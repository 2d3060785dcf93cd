"""Write the table of settings into the documentation, from the rows in kit/runs/settings.py.

`python scripts/settings_table.py` rewrites the page; a test fails if the page has another table.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from kit.runs.knob import settings_table  # noqa: E402 - after the path to it
from kit.runs.settings import Settings  # noqa: E402

MARKED = re.compile(r"(<!-- settings -->\n).*?(\n<!-- /settings -->)", re.DOTALL)


def main() -> int:
    """Replace what stands between the marks, in each page of docs that has them."""
    for page in sorted(ROOT.glob("docs/*.md")):
        text = page.read_text("utf-8")
        made = MARKED.sub(lambda found: found[1] + settings_table(Settings) + found[2], text)
        if made != text:
            page.write_text(made, "utf-8")
            sys.stdout.write(f"wrote {page.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
