"""What every test runs under: the CPU, fixed seeds, and no silent skip.

GPU tests are chosen by name (`pytest -m gpu`); without that, jax sees the CPU only, so that the
same tests give the same numbers on every machine.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from functools import partial
from importlib.metadata import version
from multiprocessing import spawn
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.warm import RUN, SERVER, warm_python

if TYPE_CHECKING:
    from tests.shared.programs import SharedPrograms

os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # debugpy warns in every kernel
# To build this package's grammar takes a second, and jsonschema, which nbformat loads, can do
# without: it checks addresses of a kind that no notebook has.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

# What takes long, the longest first, and what takes ten seconds with a few tests: a worker that got
# one of these last would be the only one at work for a minute or two.
LONG_FILES = (
    "tests/browser/test_notebook.py",
    "tests/measure/many/test_launch.py",
    "tests/measure/many/test_deaths.py",
    "tests/repository/test_notebooks.py",
    "tests/gpu_check/test_whole.py",
    "tests/reliability/stops/test_interrupts.py",
    "tests/workloads/test_convnets.py",
    "tests/torch/fuzz/test_programs.py",
    "tests/measure/test_experiment.py",
    "tests/runtime/compiling/test_disk_cache.py",
    "tests/models/test_transformers.py",
    "tests/torch/scaling/test_modes.py",
    "tests/torch/scaling/test_deferred.py",
    "tests/coverage/test_sample.py",
    "tests/measure/many/test_shipped.py",
    "tests/torch/parallel/test_own_step.py",
    "tests/torch/steps/test_model_changes.py",
    "tests/measure/many/test_batches.py",
    "tests/measure/search/test_sweeps.py",
    "tests/runtime/profiling/test_heap.py",
    "tests/measure/test_endings.py",
    "tests/models/test_trainers.py",
    "tests/torch/parallel/test_data_parallel.py",
    "tests/reliability/files/test_other_system.py",
    "tests/torch/ops/test_collectives.py",
    "tests/cli/test_demo.py",
    "tests/reliability/test_growth.py",
    "tests/reliability/stops/test_forks.py",
)
BROWSER = "tests/browser/"
# The marks of the tests whose programs XLA compiles as for a user.
AS_FOR_A_USER = ("gpu", "alone", "as_shipped")
OWN_PROGRAMS = ("compiles", "gpu", "alone")  # of the tests that share no programs
# What XLA's CPU compiler is told where it need not make fast programs.
_QUICKLY = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")

# Timings of a shared machine are no property of the code, and a failure must come back on a rerun.
settings.register_profile("kit", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("kit")


def pytest_configure(config: pytest.Config) -> None:
    """Before anything can import jax, which reads its settings once."""
    if "jax" in sys.modules:  # by a conftest.py beside the files that pytest was given
        raise pytest.UsageError("a conftest.py loads jax: load it in the fixtures that need it")
    if not _wants(config, "gpu"):
        os.environ["JAX_PLATFORMS"] = "cpu"
    if not any(_wants(config, marker) for marker in AS_FOR_A_USER):
        _compile_quickly()
    if not any(_wants(config, marker) for marker in ("gpu", "alone")):
        # Each worker has as many threads of torch as cores: one that waits shall sleep, not spin.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if not hasattr(config, "workerinput"):  # the workers have the environment of the main process
        _keep_programs(config)
    os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"  # a rule says each dtype; none slips in
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: tests of
        signal.signal(signal.SIGINT, signal.default_int_handler)  # interrupts would wait for ever


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m alone`, or another marker, leave out the files that do not name the marker.

    To import all files takes longer than most tests. `test_tools.py` holds each file to it.
    """
    marker = str(config.getoption("markexpr", ""))
    if not marker.isidentifier() or collection_path.suffix != ".py":
        return None
    is_named = f"pytest.mark.{marker}" in collection_path.read_text(encoding="utf-8")
    return None if is_named else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave GPU tests out of a CPU run; with pytest-xdist, begin with the longest files."""
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not _wants(config, "gpu"):
        config.hook.pytest_deselected(items=gpu)
        items[:] = [item for item in items if item not in gpu]
    if hasattr(config, "workerinput"):
        items.sort(key=partial(_place, Counter(item.path for item in items)))


class _ByFile(LoadFileScheduling):
    """A worker has all tests of a file, or of the browser: these share JupyterLab and Chromium."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return BROWSER if file.startswith(BROWSER) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ByFile | None:
    """The order of `--dist loadfile`."""
    return _ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay until the end: no garbage collection has to look through them.

    While they are imported, those that come by themselves would take as long as all else.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skipped test is a failed one: a missing tool has to be installed, not passed over."""
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and no test may be: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file, which `pytest.importorskip` would leave out."""
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped, and no file may be: {report.longrepr}"
    return report


@pytest.fixture(autouse=True, scope="module")
def _little_to_look_through() -> Generator[None]:
    """What outlives a file of tests is kept to the end: no collection looks through it again.

    A collection took a second in the end, and some tests ask for several.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _defaults_of_bokeh() -> None:
    if "bokeh.core.property.descriptors" in sys.modules:
        from tests.shared.defaults import keep_defaults  # loads bokeh

        keep_defaults()


@pytest.fixture(scope="module")
def shared_programs() -> SharedPrograms:
    """The programs that the tests of this file have compiled."""
    from tests.shared.programs import SharedPrograms  # loads jax

    return SharedPrograms()


@pytest.fixture(autouse=True)
def _programs_of_earlier_tests(request: pytest.FixtureRequest) -> Generator[None]:
    """A program that an earlier test of the file has compiled is not compiled again.

    But for tests that are about compiling or about time, and for those of a GPU.
    """
    compiler = sys.modules.get("kit.runtime.session.compiler")
    if compiler is None or any(map(request.node.get_closest_marker, OWN_PROGRAMS)):
        yield
        return
    shared = request.getfixturevalue("shared_programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "compile_segment", shared.compile_segment)
        yield


@pytest.fixture(scope="module")
def warm_processes() -> Iterator[None]:
    """What multiprocessing starts has torch and jax loaded; the hashes of its texts are alike."""
    usual = spawn.get_executable()
    multiprocessing.set_executable(warm_python())
    yield
    multiprocessing.set_executable(usual)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """The same random numbers for each test, alone or among others; torch only if it is loaded."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def _place(counts: Counter[Path], item: pytest.Item) -> tuple[int, int]:
    """Where a file stands among those that the workers take: long ones first, then many tests."""
    name = item.path.relative_to(item.config.rootpath).as_posix()
    place = LONG_FILES.index(name) if name in LONG_FILES else len(LONG_FILES)
    return place, -counts[item.path]


def _wants(config: pytest.Config, marker: str) -> bool:
    chosen = str(config.getoption("markexpr", ""))
    return marker in chosen and f"not {marker}" not in chosen


def _keep_programs(config: pytest.Config) -> None:
    """Let the processes that the tests of one run start share what they compile.

    Most of their programs are those of an earlier one: kit's cache on disk then loads them, as it
    does for a user. What another run has compiled is no part of a test.
    """
    folder = TemporaryDirectory(prefix="kit-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ |= {SERVER: os.path.join(folder.name, "warm"), RUN: str(os.getpid())}
    is_kept = not any(_wants(config, marker) for marker in AS_FOR_A_USER)
    os.environ["KIT_CACHE_DIR"] = os.path.join(folder.name, "programs") if is_kept else ""


def _compile_quickly() -> None:
    """Have XLA spend a third of the time on programs that compute the same.

    Compiling is most of what the tests do. Those marked `alone` ask how fast the programs are, and
    those marked `as_shipped` compare each kind of op with torch: `make test` runs both kinds by
    themselves, and there XLA compiles as it does for a user.

    XLA has two emitters of fused loops, and the one that is not the default needs half of the time.
    To cut a program into parts that threads compile takes half as long again as to compile it.
    A jaxlib that does not know a flag ends the process, so only tried ones get them.
    """
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    flags = os.environ.get("XLA_FLAGS", "")
    if version("jaxlib").startswith("0.10."):
        new = [flag for flag in _QUICKLY if flag.partition("=")[0] not in flags]
        os.environ["XLA_FLAGS"] = " ".join([flags, *new]).strip()
