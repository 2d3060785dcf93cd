"""`python -m kit.reports`: the same as `kit report`."""

from __future__ import annotations

import sys

from kit.cli.main import report_main

if __name__ == "__main__":
    sys.exit(report_main())
