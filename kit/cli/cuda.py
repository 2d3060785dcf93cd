"""The CUDA libraries that torch and jax bring: which versions, what collides, and the cure.

Both load CUDA, cuDNN and NCCL from wheels named nvidia-...-cu12 or -cu13. What they ask for stands
in the wheels' metadata, so it is known before anything is imported, and without a GPU. These rules
were tested with made metadata: nobody has run them on a machine with a GPU yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata

from kit.cli.finding import ODD, OK, Finding
from kit.versions import is_within

__all__ = ["Wheels", "cuda_findings", "installed_wheels"]

MAJORS = (12, 13)
# The oldest Linux driver for each CUDA. Source: docs.jax.dev, installation, NVIDIA GPU.
DRIVERS = {12: "525", 13: "580"}
LIBRARIES = {"CUDA": "nvidia-cuda-runtime", "cuDNN": "nvidia-cudnn", "NCCL": "nvidia-nccl"}
SHARED = "XLA_PYTHON_CLIENT_PREALLOCATE"
_OTHER_PLUGIN = re.compile(r"jax-(?:rocm\d*-plugin|metal)")
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?")


@dataclass(frozen=True)
class Wheels:
    """What is installed, by name: the version, and for torch and jax's plugins what they need."""

    versions: Mapping[str, str]
    needs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def bounds(self, package: str, library: str) -> str:
        """What a package asks of a library, such as "==9.10.2.21"; "" if nothing."""
        for line in self.needs.get(package, ()):
            match = _REQUIREMENT.match(line)
            if match and match[1].lower() == library:
                return match[2].strip()
        return ""

    @property
    def of_torch(self) -> int:
        """The CUDA that torch was built for, 12 or 13; 0: none, or not known."""
        build = re.search(r"\+cu(\d\d)", self.versions.get("torch", ""))
        if build:
            return int(build[1])
        asked = (n for n in MAJORS if self.bounds("torch", f"nvidia-cudnn-cu{n}"))
        return next(asked, 0) if "torch" in self.versions else 0

    @property
    def of_jax(self) -> tuple[int, ...]:
        """The CUDAs that jax has a plugin for."""
        return tuple(n for n in MAJORS if f"jax-cuda{n}-plugin" in self.versions)

    @property
    def elsewhere(self) -> list[str]:
        """What computes on a device that is no NVIDIA GPU: jax's plugins, and torch for ROCm."""
        names = [n for n in sorted(self.versions) if _OTHER_PLUGIN.fullmatch(n)]
        torch = self.versions.get("torch", "")
        names += ["torch"] if "+rocm" in torch else []
        return [f"{name} {self.versions[name]}" for name in names]

    def library(self, name: str, major: int) -> tuple[str, str]:
        """The wheel of a library for this CUDA, and its version; CUDA 13's have no suffix."""
        plain = [name] if major == max(MAJORS) else []
        for wheel in (f"{name}-cu{major}", *plain):
            if wheel in self.versions:
                return wheel, self.versions[wheel]
        return "", ""


def installed_wheels() -> Wheels:
    """What this Python has, from the metadata alone."""
    versions: dict[str, str] = {}
    needs: dict[str, list[str]] = {}
    wanted = re.compile(rf"torch|jax|jaxlib|jax-cuda\d+-\w+|{_OTHER_PLUGIN.pattern}|nvidia-[\w-]+")
    for found in metadata.distributions():
        name = str(found.metadata["Name"] or "").lower().replace("_", "-")
        if wanted.fullmatch(name):
            versions.setdefault(name, found.version)
            if not name.startswith("nvidia-"):
                needs.setdefault(name, found.requires or [])
    return Wheels(versions, needs)


def cuda_findings(wheels: Wheels, driver: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    """A line for each framework that has CUDA, then what collides; nothing where none has.

    torch's wheels for Linux have CUDA, so most machines without a GPU have it, too: what only a GPU
    needs is asked for where there is one.

    Args:
        driver: as nvidia-smi names its version; "" if it does not: there is no GPU.
    """
    stacks = [("torch", "torch", wheels.of_torch)] if wheels.of_torch else []
    stacks += [("jax", f"jax-cuda{n}-plugin", n) for n in wheels.of_jax]
    for name, package, major in stacks:
        yield _stack(wheels, name, package, major)
        yield from _libraries(wheels, name, package, major)
        if driver and not is_within(driver, f">={DRIVERS[major]}"):
            yield Finding(
                f"{name} and the driver",
                ODD,
                f"driver {driver}; CUDA {major} needs {DRIVERS[major]} or newer",
                "update the driver"
                + (f", or install {name} for CUDA {MAJORS[0]}" if major > MAJORS[0] else ""),
            )
    yield from _between(wheels, has_gpu=bool(driver))
    if stacks:
        yield from _settings(wheels, environment, has_gpu=bool(driver))


def _stack(wheels: Wheels, name: str, package: str, major: int) -> Finding:
    """The versions of one framework's libraries."""
    found = []
    for word, library in LIBRARIES.items():
        version = wheels.library(library, major)[1]
        found.append(f"{word} {version or 'not from a wheel'}")
    text = f"{package} {wheels.versions[package]}, for CUDA {major}: {', '.join(found)}"
    return Finding(f"{name} on CUDA", OK, text)


def _libraries(wheels: Wheels, name: str, package: str, major: int) -> Iterator[Finding]:
    """The libraries whose version is another than the framework asks for."""
    for word, library in LIBRARIES.items():
        wheel, version = wheels.library(library, major)
        bounds = wheels.bounds(package, wheel) if wheel else ""
        if not bounds or _meets(version, bounds):
            continue
        yield Finding(
            f"{name}'s {word}",
            ODD,
            f"{wheel} {version} is installed, and {package} asks for {bounds}",
            f'pip install "{wheel}{bounds}"',
        )


def _meets(version: str, bounds: str) -> bool:
    exact = [x.strip()[2:].strip() for x in bounds.split(",") if x.strip().startswith("==")]
    return is_within(version, bounds) and all(x in (version, "*") for x in exact)


def _between(wheels: Wheels, *, has_gpu: bool) -> Iterator[Finding]:
    """What collides between torch and jax, and between jax and its plugin."""
    torch, plugins = wheels.of_torch, wheels.of_jax
    if len(plugins) > 1:
        yield Finding(
            "jax's plugins",
            ODD,
            "there is one for CUDA 12 and one for CUDA 13",
            f"pip uninstall {' '.join(_plugin(wheels, plugins[0]))}",
        )
    elif torch and plugins and plugins[0] != torch:
        yield Finding(
            "torch and jax",
            ODD,
            f"torch brings CUDA {torch} and jax CUDA {plugins[0]}: two sets of libraries in one "
            "process, and twice the memory for them",
            f"pip uninstall {' '.join(_plugin(wheels, plugins[0]))}, then "
            f'pip install "jax[cuda{torch}]"',
        )
    if torch and not plugins and has_gpu:
        yield Finding(
            "torch and jax",
            ODD,
            "torch has CUDA, and jax has no plugin for it",
            f'pip install "jax[cuda{torch}]"',
        )
    jaxlib = wheels.versions.get("jaxlib", "")
    for major in plugins:
        version = wheels.versions[f"jax-cuda{major}-plugin"]
        if jaxlib and version != jaxlib:
            yield Finding(
                "jax and its plugin",
                ODD,
                f"jaxlib {jaxlib} and jax-cuda{major}-plugin {version}",
                f'pip install "jax[cuda{major}]=={wheels.versions.get("jax", jaxlib)}"',
            )


def _plugin(wheels: Wheels, major: int) -> list[str]:
    return [name for name in sorted(wheels.versions) if name.startswith(f"jax-cuda{major}-")]


def _settings(
    wheels: Wheels, environment: Mapping[str, str], *, has_gpu: bool
) -> Iterator[Finding]:
    """Variables that decide which libraries are loaded, and who gets the memory."""
    folders = environment.get("LD_LIBRARY_PATH", "").split(":")
    cuda = [folder for folder in folders if re.search(r"cuda|cudnn|nccl", folder, re.IGNORECASE)]
    if cuda:
        yield Finding(
            "LD_LIBRARY_PATH",
            ODD,
            f"{', '.join(cuda)} comes before the libraries of torch's and jax's wheels",
            "unset LD_LIBRARY_PATH, or take these folders out of it",
        )
    both = wheels.of_torch and wheels.of_jax and has_gpu
    is_set = environment.get(SHARED, "").lower() in ("false", "0")
    if both and not is_set and "XLA_PYTHON_CLIENT_MEM_FRACTION" not in environment:
        yield Finding(
            "the GPU's memory",
            ODD,
            "jax takes three quarters of it at its start, and torch finds the rest",
            f"export {SHARED}=false, before Python starts",
        )
