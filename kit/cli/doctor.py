"""`kit doctor`: what is installed, what is missing or broken, and how to get it.

It must work where nothing else does, so the standard library is enough: versions are read from the
packages' metadata, and what has to be imported is imported by another process, with a limit. Only
Jupyter's own list of its folders is asked for, where it is there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path

from kit import __version__
from kit.cli.cuda import Wheels, cuda_findings, installed_wheels
from kit.cli.finding import BAD, ODD, OK, Finding
from kit.cores import usable_cores
from kit.runtime.compiling.folder import NOISY_JAXLIB, chosen_folder, why_not_kept
from kit.text import format_count, safe_terminal
from kit.versions import cure_of, is_early, is_tried, is_within, needed, tried_text

__all__ = ["Finding", "doctor", "findings"]

LIMIT_S = 60.0  # for an import in another process: a cold one of torch takes seconds
QUICK_S = 10.0
_WIDEST = 1000  # characters of a line: paths and cures are whole
_FRONT_ENDS = ("@jupyter-widgets/jupyterlab-manager", "@bokeh/jupyter_bokeh")
_DEVICES = {
    "torch": "import torch; n = torch.cuda.device_count(); print(', '.join("
    "torch.cuda.get_device_name(i) for i in range(n)) or 'cpu only')",
    "jax": "import jax; print(', '.join(f'{d.platform} ({d.device_kind})' for d in jax.devices()))",
}


def _cores() -> str:
    every, usable = os.cpu_count() or 1, usable_cores()
    limited = f" of {every}, which this process may use" if usable < every else ""
    return f"{format_count(usable, 'core')}{limited}"


def doctor(*, full: bool = False) -> tuple[str, bool]:
    """The report as text, and whether all that kit needs is there."""
    found = findings(full=full)
    width = max(len(f.what) for f in found)
    lines = [
        f"overlap-kit {__version__}, Python {platform.python_version()} on "
        f"{platform.system()} {platform.machine()}, {_cores()}",
        "",
    ]
    for f in found:
        lines.append(f"{f.state:<7}  {f.what:<{width}}  {safe_terminal(f.text, _WIDEST)}")
        if f.cure:
            lines.append(f"{'':<7}  {'':<{width}}  -> {safe_terminal(f.cure, _WIDEST)}")
    bad = sum(f.state == BAD for f in found)
    lines += [
        "",
        "all that kit needs is there"
        if not bad
        else f"{format_count(bad, 'thing')} to put right, see the arrows",
    ]
    if not full:
        lines.append("kit doctor --full also imports torch and jax and lists their devices")
    return "\n".join(lines), not bad


def findings(*, full: bool = False) -> list[Finding]:
    """Everything that is looked at, in order.

    Args:
        full: also import torch and jax, each in a process of its own.
    """
    found = [_python(), *_home()]
    for name, bounds in sorted(needed().items()):
        found.append(_package(name, bounds))
    wheels = installed_wheels()
    gpu, driver = _gpu(wheels)
    found += [_dot(), *(_front_end(name) for name in _FRONT_ENDS), gpu]
    found += cuda_findings(wheels, driver, os.environ)
    found.append(_cache())
    if full:
        found += [_devices(name) for name in _DEVICES]
    return found


def _python() -> Finding:
    version = platform.python_version()
    text = f"{version}, {_shown(Path(sys.executable))}"
    if is_tried("python", version):
        return Finding("python", OK, text)
    text += f"; kit was tried with {tried_text('python')}"
    return Finding("python", ODD, text, "take one that was tried")


def _home() -> list[Finding]:
    """Said only where there is none: a container's user whom the system has no name for."""
    if not os.path.expanduser("~").startswith("~"):
        return []
    text = (
        "HOME is not set, and this user has no name: bokeh cannot be imported, nor JupyterLab run"
    )
    return [Finding("home", BAD, text, "export HOME=a/folder/of/yours")]


def _package(name: str, bounds: str) -> Finding:
    install = f'pip install "{name}{bounds}"'
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, BAD, "not installed", install)
    try:
        is_there = importlib.util.find_spec(name.replace("-", "_")) is not None
    except Exception:  # noqa: BLE001 - whatever stands in the way of an import
        is_there = False
    if not is_there:
        cure = f"pip install --force-reinstall --no-deps {name}"
        return Finding(name, BAD, f"{version} is installed, but cannot be imported", cure)
    if not is_within(version, bounds):
        return Finding(name, ODD, f"{version}; kit was tried with {bounds}", install)
    if is_early(version):
        text = f"{version}; kit was tried with releases only"
        return Finding(name, ODD, text, cure_of(name, version))
    return Finding(name, OK, version)


def _dot() -> Finding:
    path = shutil.which("dot")
    cure = (
        "apt-get install graphviz, brew install graphviz, winget install Graphviz.Graphviz, "
        "or conda install graphviz"
    )
    if path is None:
        return Finding("dot", ODD, "not on the PATH: the browser lays graphs out instead", cure)
    said, status = _ask([path, "-V"], QUICK_S)
    return Finding("dot", OK if not status else BAD, said, "" if not status else cure)


def _front_end(name: str) -> Finding:
    """The JavaScript half of a widget package, which JupyterLab loads."""
    for folder in _jupyter_folders():
        if Path(folder, "labextensions", name, "package.json").is_file():
            return Finding(name, OK, "JupyterLab finds it")
    package = "jupyterlab_widgets" if "widgets" in name else "jupyter_bokeh"
    cure = f"pip install --force-reinstall --no-deps {package}, then reload the page"
    return Finding(name, BAD, "JupyterLab has no such extension: widgets stay text", cure)


def _jupyter_folders() -> list[str]:
    """Where JupyterLab looks for what it loads: other folders on each system."""
    try:
        from jupyter_core.paths import jupyter_path

        return [str(folder) for folder in jupyter_path()]
    except Exception:  # noqa: BLE001 - it cannot be imported, or finds no home: no JupyterLab runs
        return [os.path.join(sys.prefix, "share", "jupyter")]


def _gpu(wheels: Wheels) -> tuple[Finding, str]:
    """The GPUs, and the version of NVIDIA's driver; "" where nvidia-smi does not say."""
    path = shutil.which("nvidia-smi")
    if path is None and wheels.elsewhere:
        text = f"no nvidia-smi here; {', '.join(wheels.elsewhere)}: kit was never tried on such"
        return Finding("gpu", ODD, text, "kit doctor --full lists the devices that jax finds"), ""
    if path is None:
        return Finding("gpu", ODD, "no nvidia-smi here: steps run on the CPU"), ""
    asked = [path, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines, status = _lines(asked, QUICK_S)
    if status:
        return Finding("gpu", ODD, f"nvidia-smi fails: {lines[-1]}"), ""
    text = "; ".join(f"{n} x {gpu}" if n > 1 else gpu for gpu, n in Counter(lines).items())
    driver = re.search(r", ([\d.]+)$", lines[-1])
    cure = "" if wheels.of_jax else 'jax does not see it: pip install "overlap-kit[cuda]"'
    return Finding("gpu", OK if wheels.of_jax else ODD, text, cure), driver[1] if driver else ""


def _cache() -> Finding:
    of_jax = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if of_jax:
        return Finding("cache", OK, f"jax keeps compiled programs in {_shown(Path(of_jax))}")
    if os.environ.get("KIT_CACHE_DIR") == "":
        return Finding("cache", ODD, "KIT_CACHE_DIR is empty: each process compiles anew")
    folder, cure = chosen_folder(), "export KIT_CACHE_DIR=a/folder/of/yours"
    if not folder:
        return Finding("cache", ODD, "you have no home folder: each process compiles anew", cure)
    shown = _shown(Path(folder))
    with contextlib.suppress(metadata.PackageNotFoundError):
        if is_within(jaxlib := metadata.version("jaxlib"), NOISY_JAXLIB):
            text = f"on a CPU each process compiles anew: jaxlib {jaxlib} loads with errors"
            return Finding("cache", ODD, text, 'pip install "jaxlib>=0.10.2"')
    if why := why_not_kept(folder):
        text = f"each process compiles anew, nothing is kept in {shown}: {why}"
        return Finding("cache", ODD, text, cure)
    return Finding("cache", OK, f"compiled programs are kept in {shown}")


def _shown(path: Path) -> str:
    """As one would write it here: from this folder, or from one's own."""
    bases = [(Path(os.path.expanduser("~")), "~/")]
    with contextlib.suppress(OSError):  # this folder is gone
        bases.insert(0, (Path.cwd(), ""))
    for base, sign in bases:
        if path.is_relative_to(base):
            return f"{sign}{path.relative_to(base)}"
    return str(path)


def _devices(name: str) -> Finding:
    """Import it in another process: a broken one may hang, or take the process with it."""
    said, status = _ask([sys.executable, "-c", _DEVICES[name]], LIMIT_S)
    what = f"{name} devices"
    if status:
        return Finding(
            what, BAD, f"import {name} fails: {said}", f"python -c 'import {name}' says more"
        )
    return Finding(what, OK, said)


def _ask(command: list[str], limit_s: float) -> tuple[str, int]:
    """The last line that a program says, and its exit status; 1 if it cannot or does not end."""
    lines, status = _lines(command, limit_s)
    return lines[-1], status


def _lines(command: list[str], limit_s: float) -> tuple[list[str], int]:
    """All its lines, at least one; what `_ask` gives the last of."""
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace",
                              timeout=limit_s, check=False, stdin=subprocess.DEVNULL)  # fmt: skip
    except subprocess.TimeoutExpired:
        return [f"no answer within {limit_s:.0f} s"], 1
    except OSError as error:
        return [str(error)], 1
    texts = [done.stdout, done.stderr] if not done.returncode else [done.stderr, done.stdout]
    lines = next((t.strip().splitlines() for t in texts if t.strip()), [])
    lines = lines or [f"exit status {done.returncode}"]
    return [safe_terminal(line, 300) for line in lines], done.returncode
