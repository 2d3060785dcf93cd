"""Backward passes of native torch on a GPU beside device kit: the flag, and whose turn it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from kit.errors import SessionError
from kit.torch import accelerator
from kit.torch.accelerator import accelerator_of, flag_in
from kit.torch.device import open_session, register

# The first bytes of `c10::is_privateuse1_backend_registered` in wheels of torch: the address of the
# function, its code, the address of the flag as the library's table of symbols has it.
CODE = {
    "2.11.0, x86-64": (0x410D0, "0fb60529420d0084c00f95c0", 0x115300),
    "2.13.0, x86-64": (0x47B80, "0fb60501690e0084c00f95c0", 0x12E488),
    "2.13.0, ARM": (0x457AD0, "a008009000a0379100fcdf08", 0x56BDE8),
    "an ARM page before it": (0x457AD0, "a0ffff9000a0379100fcdf08", 0x44BDE8),
    "a landing pad first": (0x410CC, "f30f1efa0fb60529420d0084", 0x115300),
}


@pytest.mark.parametrize("name", CODE)
def test_the_flag_is_found_in_the_code_that_reads_it(name: str) -> None:
    start, code, flag = CODE[name]
    assert flag_in(bytes.fromhex(code), start) == flag


@pytest.mark.parametrize("code", ["c3" * 12, "e9" + "00" * 11, "a008009000a0379101fcdf09"])
def test_code_of_another_kind_is_not_guessed_at(code: str) -> None:
    assert flag_in(bytes.fromhex(code), 0x1000) == 0


def test_device_kit_is_no_accelerator_during_a_native_pass() -> None:
    """What torch's engine asks before it gives a node a stream."""
    register()
    with accelerator._SWITCH.native(), accelerator._SWITCH.native():
        assert torch._C._get_accelerator().type != "privateuseone"
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
    assert torch._C._get_accelerator().type == "kit"
    assert torch._C._get_privateuse1_backend_name() == "kit"


def test_what_an_interrupt_left_of_a_native_pass_is_gone_with_the_next() -> None:
    register()
    switch = accelerator._Switch()
    with switch.native():
        pass
    for begin in (switch.kit, switch.native):
        switch._native.add(threading.get_ident())  # its end was interrupted
        switch._tell()
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
        with begin():
            pass
        assert torch._C._get_privateuse1_backend_name() == "kit"


def test_a_torch_whose_flag_is_not_found_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    monkeypatch.setattr(accelerator, "flag_in", lambda code, start: 0)
    accelerator._flag.cache_clear()
    with pytest.raises(SessionError, match="in a process of its own"), accelerator._SWITCH.native():
        pass
    monkeypatch.undo()
    with accelerator._SWITCH.native():
        pass


@pytest.fixture
def beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every pass asks whose turn it is, as where a GPU is; the passes of native torch by name."""
    native: list[str] = []
    switch = accelerator._SWITCH.native

    def noted() -> object:
        native.append(threading.current_thread().name)
        return switch()

    monkeypatch.setattr(accelerator, "_has_gpu", lambda: True)
    monkeypatch.setattr(accelerator._SWITCH, "native", noted)
    yield native
    assert torch._C._get_privateuse1_backend_name() == "kit"


def test_passes_on_device_kit_and_on_the_cpu_are_as_before(beside_a_gpu: list[str]) -> None:
    with open_session():
        x = torch.ones(3, device="kit", requires_grad=True)
        (x * x).sum().cpu().backward()
        (x * x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [4.0] * 3
        y = torch.ones(3, requires_grad=True)
        (y * y).sum().backward()
        (y.to("kit") * 3).sum().cpu().backward()
        assert y.grad is not None
        assert y.grad.tolist() == [5.0] * 3
    assert not beside_a_gpu


def test_a_pass_from_the_cpu_is_that_of_the_device_behind_it(beside_a_gpu: list[str]) -> None:
    meta = torch.ones(3, device="meta", requires_grad=True)  # it stands for a GPU
    out = torch.ones(3, requires_grad=True) * 2
    for root in (meta, meta * 2, [torch.autograd.graph.get_gradient_edge(meta * 2)][0]):
        with accelerator_of((root,)):
            assert torch._C._get_privateuse1_backend_name() == "privateuseone"
    with accelerator_of((out,)):
        assert torch._C._get_privateuse1_backend_name() == "kit"
    assert len(beside_a_gpu) == 3


def test_a_pass_on_device_kit_waits_for_native_ones(beside_a_gpu: list[str]) -> None:
    meta, seen = torch.ones(3, device="meta"), []

    def train() -> None:
        with open_session():
            x = torch.ones(3, device="kit", requires_grad=True)
            loss = (x * x).sum()
            is_ready.set()
            may_begin.wait()
            loss.backward()
            assert x.grad is not None
            seen.append(x.grad.tolist())

    is_ready, may_begin = threading.Event(), threading.Event()
    thread = threading.Thread(target=train)
    thread.start()
    is_ready.wait()
    with accelerator_of((meta,)):
        may_begin.set()
        thread.join(0.3)
        assert thread.is_alive()
        assert not seen
    thread.join()
    assert seen == [[2.0] * 3]


def test_a_pass_over_both_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's own assertion, which only a GPU can make it raise: so the words are checked."""
    register()

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("opt_ready_stream && opt_parent_stream INTERNAL ASSERT FAILED at ..")

    made = Both.apply(torch.ones(2, requires_grad=True))  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="detach one from the other"):
        made.sum().backward()


@pytest.mark.parametrize("name", ["synchronize", "empty_cache", "memory_allocated"])
def test_torch_accelerator_asks_cuda_where_no_session_is_open(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a program that trains on a GPU before and after its sessions."""
    register()
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, name, lambda *args: asked.append(args))
    of_accelerator = getattr(torch.accelerator, name)
    of_accelerator()
    with open_session():
        of_accelerator()
    assert asked == [()]
