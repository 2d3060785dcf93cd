"""Let native torch run a backward pass on a GPU in a process that has device "kit".

Torch has one accelerator a process, the named spare device before any GPU, and its engine gives a
stream to nodes on that one only: with device "kit" registered, a backward pass on a GPU ends in
"opt_ready_stream && opt_parent_stream INTERNAL ASSERT FAILED" (pytorch issue 161129, torch 2.8 and
later). So during such a pass torch is told that the spare device has no name. Nothing public says
that: the flag is found in the code of the function that reads it, and used only if that function
is seen to obey. Tried with torch 2.11 on an H100; the function is the same in 2.13 and 2.14.

Meanwhile the name "kit" means nothing to torch: another thread that begins a backward pass on
device "kit" waits, one that makes a tensor there is told that there is no such device.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from kit.errors import SessionError, but_of_handlers
from kit.torch.tensors.private import private

__all__ = ["accelerator_of", "flag_in"]

_graph_task_id: Callable[[], int] = private("torch._C._current_graph_task_id")
_KIT = ("kit", "privateuseone")  # the latter while a native pass runs in another thread
_LIBRARIES = {"win32": "c10.dll", "darwin": "libc10.dylib"}
_NAMES = {"win32": "?is_privateuse1_backend_registered@c10@@YA_NXZ"}
_NAME = "_ZN3c1033is_privateuse1_backend_registeredEv"
_LOADS = (b"\x0f\xb6\x05", b"\x8a\x05")  # x86-64: movzx eax, byte [rip + ...]; mov al, ...
_PATIENCE_S = 60.0  # for passes of the other kind: one that never ends must not end the program
_CODE_BYTES = 12  # of the function, at most: up to where it has read the flag


class _Switch:
    """Whose turn torch's accelerator is: passes of one kind may overlap, those of two may not."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._native: set[int] = set()  # threads with such a pass
        self._kit: set[int] = set()
        self._flag: Any = None  # once it was asked for

    def native(self) -> contextlib.AbstractContextManager[None]:
        """A GPU is torch's accelerator.

        Raises:
            SessionError: this torch's flag was not found.
        """
        self._flag = _flag()
        return self._pass(self._native, self._kit)

    def kit(self) -> contextlib.AbstractContextManager[None]:
        """Device "kit" is."""
        return self._pass(self._kit, self._native)

    @contextlib.contextmanager
    def _pass(self, mine: set[int], others: set[int]) -> Iterator[None]:
        thread = threading.get_ident()
        try:
            with self._turn:
                others.discard(thread)  # an interrupt left that one in the middle of its end
                self._turn.wait_for(lambda: not others, _PATIENCE_S)
                mine.add(thread)
                self._tell()
            yield
        finally:
            with self._turn:
                mine.discard(thread)
                self._tell()
                self._turn.notify_all()

    def _tell(self) -> None:
        if self._flag is not None:
            self._flag.value = not self._native


_SWITCH = _Switch()


def accelerator_of(outputs: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """What a backward pass from these tensors runs in.

    Raises:
        SessionError: it is on a GPU, and this torch's flag was not found.
    """
    if not _has_gpu() or _graph_task_id() != -1:
        return contextlib.nullcontext()  # a pass inside of one is of its kind
    device = _device_of(outputs)
    if device == "cpu":
        return contextlib.nullcontext()
    return _SWITCH.kit() if device in _KIT else _SWITCH.native()


@functools.cache
def _has_gpu() -> bool:
    """Is there a device whose backward passes have streams?"""
    return torch.cuda.is_available() or torch.xpu.is_available() or torch.mps.is_available()


def _device_of(outputs: Sequence[Any]) -> str:
    """The first kind of device but the CPU on the way back from these tensors; else "cpu"."""
    nodes = []
    for output in outputs:
        if not isinstance(output, torch.Tensor):  # an edge of the graph
            nodes.append(getattr(output, "node", None))
        elif output.device.type != "cpu":
            return output.device.type
        else:
            nodes.append(output.grad_fn)
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        for each in node._input_metadata:
            if each.device.type != "cpu":
                return str(each.device.type)
        fresh = {next_node for next_node, _ in node.next_functions} - seen
        seen |= fresh
        nodes += fresh
    return "cpu"


@functools.cache
def _flag() -> Any:
    """The byte that says whether the spare device has a name; it can be written.

    Raises:
        SessionError: it was not found.
    """
    try:
        path = Path(torch.__file__).with_name("lib") / _LIBRARIES.get(sys.platform, "libc10.so")
        asked = ctypes.CDLL(str(path))[_NAMES.get(sys.platform, _NAME)]
        asked.restype, asked.argtypes = ctypes.c_bool, ()
        start = ctypes.cast(asked, ctypes.c_void_p).value or 0
        address = flag_in(ctypes.string_at(start, _CODE_BYTES), start)
        flag = ctypes.c_uint8.from_address(address) if address else None
    except but_of_handlers(OSError, AttributeError):
        flag = None
    if flag is None or flag.value != 1 or not asked():
        raise _unknown()
    flag.value = 0
    obeys = not asked()
    flag.value = 1
    if not obeys:
        raise _unknown()
    return flag


def flag_in(code: bytes, start: int) -> int:
    """The address of the byte that this function, which begins at `start`, reads first; 0: unknown.

    Args:
        code: machine code of x86-64 or 64-bit ARM.
    """
    code = code.removeprefix(b"\xf3\x0f\x1e\xfa")  # endbr64
    skipped = _CODE_BYTES - len(code)
    for load in _LOADS:
        if code.startswith(load):
            end = len(load) + 4
            offset = int.from_bytes(code[len(load) : end], "little", signed=True)
            return start + skipped + end + offset
    page, add, read = (int.from_bytes(code[i : i + 4], "little") for i in (0, 4, 8))
    is_read = (
        page & 0x9F000000 == 0x90000000  # adrp
        and add & 0xFFC00000 == 0x91000000  # add
        and read & 0xFFFFFC00 == 0x08DFFC00  # ldarb
        and page & 31 == add >> 5 & 31
        and add & 31 == read >> 5 & 31
    )
    if not is_read:
        return 0
    pages = (page >> 5 & 0x7FFFF) << 2 | page >> 29 & 3
    pages -= (pages & 1 << 20) << 1
    return (start & ~0xFFF) + (pages << 12) + (add >> 10 & 0xFFF)


def _unknown() -> SessionError:
    return SessionError(
        f"torch {torch.__version__} runs no backward pass on a GPU in a process that has device "
        '"kit" (pytorch issue 161129), and kit has found no way round: run the native step in a '
        "process of its own"
    )
