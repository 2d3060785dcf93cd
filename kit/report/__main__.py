"""`python -m kit.report`: the main job without a browser. With saved runs: a report of those."""

from __future__ import annotations

import argparse
import sys

import kit
from kit.errors import KitError
from kit.run import Run


def main(arguments: list[str] | None = None) -> int:
    """Write a report; the exit status is 0 if it was written."""
    parser = argparse.ArgumentParser(prog="python -m kit.report", description=__doc__)
    parser.add_argument("runs", nargs="*", help="saved runs (*.kitrun); none: run BERT and sweep")
    parser.add_argument("-o", "--output", default="report.html", help="default: report.html")
    parser.add_argument("--fast", action="store_true", help="a small sweep with few steps")
    options = parser.parse_args(arguments)
    try:
        if options.runs:
            path = kit.report([Run.load(name) for name in options.runs], path=options.output)
        else:
            from kit.workloads import bert

            path = kit.report(
                bert,
                {"loss_scaling": ["none", "dynamic, on device"], "batch_size": [2]}
                if options.fast
                else None,
                options.output,
                settings=kit.Settings(steps=3, warmup=2) if options.fast else None,
                progress=lambda text, done: print(f"\r{done:4.0%}  {text:60}", end="", flush=True),
            )
            print()
    except (KitError, OSError) as error:
        print(f"no report: {error}", file=sys.stderr)
        return 1
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
