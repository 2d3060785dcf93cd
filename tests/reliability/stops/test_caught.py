"""What the handler of a signal raises is the program's, and no error that the kit forgets."""

from __future__ import annotations

import ast
import shutil
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.errors import but_of_handlers, is_of_handler, suppressed
from kit.formats import memory_snapshot
from kit.measure.attached.capture import Capture
from kit.measure.base import machine, provenance
from kit.measure.search import codes, source
from kit.runtime.session.interrupts import INTERRUPTS
from kit.widgets.explorer.actions import FailureBox
from kit.widgets.graph import dot
from tests.factories import make_run
from tests.reliability.files.traces import KINDS
from tests.reliability.stops.errors import does_something, run_with

KIT = Path(kit.__file__).parent
SIGNAL = signal.SIGUSR1 if sys.platform != "win32" else signal.SIGTERM
# Errors of these a handler may have raised, too.
WIDE = {"OSError", "TimeoutError", "RuntimeError", "Exception", "BaseException", "_UNREADABLE"}
# Here none comes in between. Threads of the kit's own have no handlers; what comes while an op is
# recorded is kept (`interrupts.py`); and some programs are the kit's from beginning to end.
THREADS = ("runtime/engine/", "runtime/processes/", "runtime/replicas/", "runtime/session/")
PROGRAMS = ("__main__.py", "cli/", "gpu_check/", "formats/ranks/member.py")
NO_HANDLER = {
    *("formats/ranks/read.py _read", "measure/base/loading.py prefetched.prepare"),
    *("measure/many/launch.py _Task.do", "measure/search/sweeps.py _measure"),
    *("runtime/profiling/elsewhere.py _Looking._look_on", "threads.py end_at_once"),
    *("widgets/explorer/ahead.py AheadLine.work", "widgets/explorer/rerun.py Newest._work"),
    *("widgets/explorer/rerun.py Reruns._measure", "widgets/explorer/rerun.py Reruns._tell"),
    "widgets/graph/dot.py _begin",
}
# Here `is_of_handler` is asked in the block.
ASK = {
    *("measure/attached/loop.py LoopWatch._keep", "measure/attached/loop.py LoopWatch._step_ended"),
    *("measure/attached/recording.py Recording._trace", "measure/search/sweeps.py _Sweep.run_here"),
    *(
        "measure/attached/recording.py Recording.close",
        "measure/search/autotune.py _Search.measure",
    ),
}


class _Forgotten(ast.NodeVisitor):
    """The functions of a file that catch errors of any kind, and do not raise them again."""

    def __init__(self, file: Path) -> None:
        self.found: set[str] = set()
        self._where = [file.relative_to(KIT).as_posix() + " "]
        self.visit(ast.parse(file.read_text("utf-8")))

    def visit_FunctionDef(self, node: Any) -> None:
        self._where.append(node.name)
        self.generic_visit(node)
        self._where.pop()

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        last = node.body[-1]
        if not (isinstance(node.type, ast.Call) or (isinstance(last, ast.Raise) and not last.exc)):
            self._look(node.type)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if getattr(node.func, "attr", getattr(node.func, "id", "")) == "suppress":
            self._look(*node.args)
        self.generic_visit(node)

    def _look(self, *kinds: ast.expr | None) -> None:
        names = {"BaseException"} if kinds == (None,) else set[str]()
        names |= {x.id for k in kinds if k for x in ast.walk(k) if isinstance(x, ast.Name)}
        if names & WIDE:
            self.found.add(self._where[0] + ".".join(self._where[1:]))


def test_no_error_of_a_handler_is_forgotten() -> None:
    """Use `except but_of_handlers(OSError):` of `kit.errors`, or `with suppressed(OSError):`."""
    found = set[str]().union(*(_Forgotten(file).found for file in KIT.rglob("*.py")))
    elsewhere = (*THREADS, *PROGRAMS, "torch/")
    assert {x for x in found if not x.startswith(elsewhere)} == NO_HANDLER | ASK


class Limit(TimeoutError):
    """What a time limit raises is an OSError."""


class Handler:
    def handle(self, number: int, frame: Any) -> None:
        raise Limit


def handle_any(*given: Any) -> None:
    Handler().handle(*given)


@pytest.fixture(autouse=True)
def _time_limit() -> Iterator[None]:
    before = signal.signal(SIGNAL, handle_any)
    yield
    sys.settrace(None)
    signal.signal(SIGNAL, before)


def arrive(*_: Any) -> None:
    signal.raise_signal(SIGNAL)


def fail() -> None:
    raise TimeoutError


def handled(act: Callable[[], object]) -> str:
    """What becomes of an error of `act`."""
    try:
        with suppressed(OSError):
            act()
            return "none"
        return "forgotten"
    except but_of_handlers(OSError):
        return "caught"
    except OSError as error:
        return "raised" if is_of_handler(error) else "lost"


@pytest.mark.parametrize("is_hooked", [False, True])
@pytest.mark.parametrize("handler", [Handler().handle, handle_any])
def test_a_handlers_error_is_known_before_and_after_a_session(
    handler: Any, *, is_hooked: bool
) -> None:
    if is_hooked:
        INTERRUPTS.hook()
    signal.signal(SIGNAL, handler)
    assert handled(arrive) == "raised"
    assert handled(fail) == "forgotten"


def test_a_function_that_was_given_a_proxy_of_what_is_gone_keeps_its_own_error() -> None:
    """Its error was a ReferenceError, of the look for a signal's number among what it was given."""
    gone = weakref.proxy(Handler())

    def fail_with(_thing: Any, _other: Any) -> None:
        raise TimeoutError

    assert handled(lambda: fail_with(gone, gone)) == "forgotten"


def open_snapshot(folder: Path) -> object:
    path = folder / "snapshot.pickle"
    path.write_bytes(KINDS[path.name](folder))
    return kit.open_memory(path)


def build(ctx: Any) -> Any:
    return ctx


# What is done, and the function whose lines are tried: each had forgotten it, or told another one.
USES: list[tuple[Callable[[Path], object], Callable[..., Any]]] = [
    (lambda _: machine.read_machine(), machine.read_machine),
    (lambda _: provenance.provenance(), provenance._commit),
    (lambda _: source.source_of(kit.workload(build)), source._Found.text_of),
    (lambda _: source.source_of(kit.workload(build)), codes.is_edited),
    (open_snapshot, memory_snapshot._plain_values),
    (lambda _: dot.run_dot(shutil.which("dot") or "", ["{ a -> b; }"], 20.0), dot.run_dot),
    (lambda _: FailureBox(nullcontext()).guard(fail), FailureBox.guard),
    (lambda folder: Capture(save=folder / "a.kitrun").keep(make_run()), Capture._write),
]


@pytest.mark.parametrize(("use", "within"), USES)
def test_a_time_limit_comes_out_of_whatever_is_done_meanwhile(
    use: Callable[[Path], object], within: Any, tmp_path: Path
) -> None:
    code = within.__code__
    numbers = sorted({number for *_, number in code.co_lines() if number is not None})
    lines = [(code, n) for n in numbers[1:] if does_something(code, n)]
    raised = 0
    for line in lines:
        try:
            came = run_with(lambda: use(tmp_path), line, arrive)
        except Limit:
            raised += 1
        else:
            assert not came, line
    assert raised > 1
