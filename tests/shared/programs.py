"""Programs that the tests of one file have in common: each is compiled for the first of them.

A third of the programs of the tests was that of an earlier test in the same file, or of another
replica on the same device. Each session asks for its programs, counts them and explains them as
ever; only the program itself may be there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jax._src import config as jax_config

from kit.runtime.compiling import lower
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.compiling.lower import Executable, Source
from kit.runtime.rules.table import Rules

__all__ = ["SharedPrograms"]


class SharedPrograms:
    """What sessions have compiled, by the names of the programs: these hold a digest."""

    def __init__(self) -> None:
        self._cache = ExecutableCache()

    def compile_segment(
        self, source: Source, rules: Rules, *, name: str, sites: Sequence[str] = (), **how: Any
    ) -> Executable:
        """What `lower.compile_segment` gives; with the ops of who asks, and the time it took."""
        made = None

        def make() -> Executable:
            nonlocal made
            # On disk nothing is kept: one program in twenty is another file's, too.
            with jax_config.persistent_cache_min_compile_time_secs(math.inf):
                made = lower.compile_segment(source, rules, name=name, sites=sites, **how)
            return made

        start = time.perf_counter_ns()
        options = tuple((how["options"] or {}).items())
        self._cache.places_of(rules)  # keeps the rules, so that their id stays theirs
        found = self._cache.find(
            (name, source.scalars, tuple(source.places), id(rules), how["checks"], options,
             how["parts_chains"], jax_config.trace_context()), make
        )  # fmt: skip
        if found is made:
            return found
        stop = time.perf_counter_ns()
        return replace(
            found, ops=[op for op, _ in source.nodes],
            lower_ns=(start, stop), compile_ns=(stop, time.perf_counter_ns()),
        )  # fmt: skip
