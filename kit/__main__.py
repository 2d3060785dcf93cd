"""`python -m kit`: the command line, see `kit.cli.main`."""

from __future__ import annotations

import sys

from kit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
