"""Whether CUDA's profiling interface is free, asked of a library of that name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from kit.runtime.profiling import device_spans
from kit.runtime.profiling.cupti import TAKEN

# CUPTI 13.2 calls itself until the stack ends where CUDA's driver is not there.
CUPTI = """
#include <dlfcn.h>
#include <stdlib.h>
static int taken = TAKEN;
int cuptiSubscribe(void **subscriber, void *callback, void *data) {
    if (!dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY)) abort();
    if (taken) return 39;
    taken = 1; *subscriber = &taken; return 0;
}
int cuptiUnsubscribe(void *subscriber) { taken = 0; return 0; }
"""
ASK = """
import ctypes, sys
from kit.runtime.profiling.cupti import has_subscriber
print(has_subscriber())
for library in sys.argv[1:]:
    ctypes.CDLL(library)
    print(has_subscriber(), has_subscriber())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the library has its name on Linux")
@pytest.mark.parametrize("taken", [0, 1])
def test_a_loaded_library_is_asked_and_left_as_it_was(taken: int, tmp_path: Path) -> None:
    libraries = [
        _built(tmp_path / "libcupti.so.13", CUPTI, f"-DTAKEN={taken}"),
        _built(tmp_path / "libcuda.so.1", "int cuInit(unsigned flags) { return 0; }"),
    ]
    said = subprocess.run(
        [sys.executable, "-c", ASK, *libraries], capture_output=True, text=True, check=True
    ).stdout.split()
    # nobody had loaded it; then there is no driver, so no profiler either; then twice the same
    assert said == ["False"] * 3 + [str(bool(taken))] * 2


def _built(library: Path, source: str, *options: str) -> str:
    """A library of C, which is found by its file's name once it is loaded."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is needed"
    library.with_suffix(".c").write_text(source)
    subprocess.run(
        [compiler, "-shared", "-fPIC", *options, f"-Wl,-soname,{library.name}",
         "-o", str(library), str(library.with_suffix(".c")), "-ldl"],
        check=True,
    )  # fmt: skip
    return str(library)


def test_xlas_profiler_is_not_begun_beside_another_and_the_note_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would see nothing, and be deaf for the rest of the process."""

    def begin(options: object) -> object:
        raise AssertionError("it was begun")

    monkeypatch.setattr(device_spans, "_start", begin)
    monkeypatch.setattr(device_spans, "has_subscriber", lambda: True)
    with device_spans.profiled() as profile:
        pass
    assert "it was begun" in profile.notes[0]  # without a GPU of jax's there is nothing to share
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with device_spans.profiled() as profile:
        pass
    assert profile.notes == (TAKEN,)
    assert profile.kernels([], {}) == []
