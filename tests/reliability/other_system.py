"""The kit where Python has fewer names: a run, a file and a report as on Windows.

    python -m tests.reliability.other_system FOLDER

What Windows' Python lacks is taken away after the libraries are imported and before the kit is; the
libraries themselves have wheels for that system. Prints what came of it, as JSON.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import pkgutil
import platform
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

LACKING = {
    os: ("chown", "fchmod", "fork", "forkpty", "getegid", "geteuid", "getgid", "getloadavg",
         "getpgid", "getuid", "killpg", "mkfifo", "pread", "pwrite", "sched_getaffinity",
         "sched_setaffinity", "setsid", "sysconf", "uname", "wait"),
    signal: ("SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "alarm",
             "pthread_kill", "pthread_sigmask", "setitimer", "sigwait"),
    time: ("clock_gettime", "clock_gettime_ns", "pthread_getcpuclockid", "tzset"),
}  # fmt: skip
MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios")
LIBRARIES = (
    "asyncio", "bokeh.embed", "bokeh.plotting", "ctypes", "expecttest", "graphviz", "ipywidgets",
    "jax.profiler", "jupyter_bokeh", "multiprocessing.connection", "psutil", "subprocess",
    "tempfile", "torch.utils.data", "torch.distributed", "transformers",
)  # fmt: skip


def as_on_windows() -> None:
    """Take away what Windows lacks; a file of /proc is an error."""
    for library in LIBRARIES:
        importlib.import_module(library)
    for module, names in LACKING.items():
        for name in names:
            delattr(module, name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it fails
    sys.platform = "win32"
    platform.system = lambda: "Windows"
    for owner in (builtins, os):
        owner.open = _not_of_linux(owner.open)  # type: ignore[attr-defined]


def _not_of_linux(real: Any) -> Any:
    def opened(file: Any, *args: Any, **options: Any) -> Any:
        asks = str(sys._getframe(1).f_globals.get("__name__"))  # psutil may: it is another there
        if asks.startswith("kit") and str(file).startswith(("/proc", "/sys", "/dev/shm")):
            raise FileNotFoundError(2, "not on this system", file)
        return real(file, *args, **options)

    return opened


def run(folder: Path) -> dict[str, Any]:
    """Import all of the kit, measure a step, save it, and write a report."""
    import kit

    for module in pkgutil.walk_packages(kit.__path__, "kit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    from kit.cli.doctor import doctor
    from kit.workloads import mlp

    measured = kit.run(mlp, kit.Settings(mode="lazy", steps=2, warmup=1))
    measured.save(folder / "run.kitrun")
    page = kit.report([kit.Run.load(folder / "run.kitrun")], path=folder / "report.html")
    return {
        "system": measured.environment["system"],
        "losses": len(measured.losses),
        "kernels": sum(span.kind == "kernel" for span in measured.timeline.spans),
        "cached": len(list(Path(os.environ["KIT_CACHE_DIR"]).glob("*"))),
        "report": Path(page).stat().st_size,
        "doctor": doctor()[0],
    }


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    as_on_windows()
    # an encoding that is not named is another one on each system
    warnings.filterwarnings("error", category=EncodingWarning, module=r"kit\b")
    sys.stdout.write(json.dumps(run(Path(sys.argv[1]))) + "\n")
