"""The kit where Python has fewer names: runs, files and reports as on Windows, or on macOS.

    python -m tests.reliability.files.other_system FOLDER [Windows|Darwin]

What that system's Python lacks is taken away after the libraries are imported and before the kit
is; the libraries themselves have wheels for that system. Files then follow the system's rules.
Prints what came of it, as JSON.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import json
import os
import pkgutil
import platform
import shutil
import signal
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.reliability.files.windows_files import with_windows_rules

_NOT_POSIX = {
    os: ("chown", "fchmod", "fork", "forkpty", "getegid", "geteuid", "getgid", "getloadavg",
         "getpgid", "getuid", "killpg", "mkfifo", "pread", "pwrite", "setsid", "sysconf", "uname",
         "wait"),
    signal: ("SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "alarm",
             "pthread_kill", "pthread_sigmask", "setitimer", "sigwait"),
    time: ("clock_gettime", "clock_gettime_ns", "tzset"),
}  # fmt: skip
_LINUX_ONLY = {
    os: ("eventfd", "memfd_create", "pidfd_open", "posix_fadvise", "sched_getaffinity",
         "sched_setaffinity", "splice"),
    time: ("pthread_getcpuclockid",),
}  # fmt: skip
_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios")
LIBRARIES = (
    "asyncio", "bokeh.embed", "bokeh.plotting", "ctypes", "expecttest", "graphviz", "ipywidgets",
    "jax.profiler", "jupyter_bokeh", "multiprocessing.connection", "psutil", "subprocess",
    "tempfile", "torch.utils.data", "torch.distributed", "transformers",
)  # fmt: skip


SUFFIXES = (".json", ".json.gz", ".csv", ".md")
COMMANDS = (
    ("view", "run.kitrun", "-o", "view.html"),
    ("query", "run.kitrun", "select count(*) from kernels"),
    ("diff", "run.kitrun", "run.kitrun"),
)


def as_on(system: str, folder: Path) -> None:
    """Take away what "Windows" or "Darwin" (macOS) lacks; a file of /proc is an error."""
    for library in LIBRARIES:
        importlib.import_module(library)
    is_windows = system == "Windows"
    for lacking in (_LINUX_ONLY, *[_NOT_POSIX] * is_windows):
        for module, names in lacking.items():
            for name in filter(partial(hasattr, module), names):
                delattr(module, name)
    for name in _MODULES if is_windows else ():
        sys.modules[name] = None  # type: ignore[assignment]  # importing it fails
    sys.platform = "win32" if is_windows else "darwin"
    if is_windows:  # since Python 3.12 `shutil.which` asks Windows about the current folder
        asked = SimpleNamespace(NeedCurrentDirectoryForExePath=lambda command: False)
        shutil._winapi = asked  # type: ignore[attr-defined, unused-ignore]
    platform.system = lambda: system
    with_windows_rules(folder)  # macOS has the one of case, and a test is the safer for all
    for owner in (builtins, os):
        owner.open = _not_of_linux(owner.open)  # type: ignore[attr-defined]


def _not_of_linux(real: Any) -> Any:
    def opened(file: Any, *args: Any, **options: Any) -> Any:
        asks = str(sys._getframe(1).f_globals.get("__name__"))  # psutil may: it is another there
        if asks.startswith("kit") and str(file).startswith(("/proc", "/sys", "/dev/shm")):
            raise FileNotFoundError(2, "not on this system", file)
        return real(file, *args, **options)

    return opened


def _watch(kit: Any, folder: Path) -> int:
    """Record steps of a loop when a file is written, natively; how many runs were kept."""
    import torch

    weights = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weights], lr=0.1)
    asked = folder / "now"
    with kit.watch(2, when=asked, save=folder / "kept" / "step.kitrun"):
        for i in range(400):
            if i == 3:
                asked.write_text("", encoding="utf-8")
            weights.square().sum().backward()
            optimizer.step()
            time.sleep(0.005)
            if (folder / "kept").exists():
                break
    return len(list((folder / "kept").glob("*.kitrun")))


def _command(folder: Path, *words: str) -> int:
    """The exit status of `kit`; what it prints has Windows' own encoding of a file."""
    from kit.cli.main import main

    out = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    with contextlib.redirect_stdout(out), contextlib.chdir(folder):
        return main(words)


def run(folder: Path) -> dict[str, Any]:
    """Import all of the kit, measure steps, save, resume and open them, and write a report."""
    import kit

    for module in pkgutil.walk_packages(kit.__path__, "kit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    from kit.cli.doctor import doctor
    from kit.workloads import mlp

    measured = kit.run(mlp, kit.Settings(mode="lazy", steps=2, warmup=1))
    measured.save(folder / "run.kitrun")
    loaded = kit.Run.load(folder / "run.kitrun")
    for _ in range(2):  # the second time over the first file
        loaded.save(folder / "run.kitrun")
        page = kit.report([loaded], path=folder / "report.html")
    exported = [kit.export_trace(loaded, folder / f"trace{end}") for end in SUFFIXES]
    reopened = kit.open_trace(folder / "trace.json.gz")
    settings = kit.Settings(mode="torch", steps=1, warmup=0)
    for _ in range(2):  # the second time it reads what is there
        kit.sweep(mlp, {"batch_size": [2, 3]}, settings, path=folder / "sweep", progress=False)
    return {
        "exported": len(list(filter(None, exported))),
        "reopened": len(reopened.timeline.spans),
        "swept": sorted(file.suffix for file in (folder / "sweep").iterdir()),
        "watched": _watch(kit, folder),
        "said": [_command(folder, *words) for words in COMMANDS],
        "system": measured.environment["system"],
        "losses": len(measured.losses),
        "kernels": sum(span.kind == "kernel" for span in measured.timeline.spans),
        "cached": len(list(Path(os.environ["KIT_CACHE_DIR"]).glob("*"))),
        "report": Path(page).stat().st_size,
        "doctor": doctor()[0],
    }


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    as_on(*sys.argv[2:] or ["Windows"], folder=Path(sys.argv[1]))
    # an encoding that is not named is another one on each system
    warnings.filterwarnings("error", category=EncodingWarning, module=r"kit\b")
    sys.stdout.write(json.dumps(run(Path(sys.argv[1]))) + "\n")
