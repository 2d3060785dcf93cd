"""Bad input: torch's own error type, the user's line where kit has one, and a usable session."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import kit
from kit.errors import ExecutionError, SessionError, SettingsError, UnsupportedOp
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.runtime.session.executor import Executor
from kit.runtime.session.setup import Setup
from kit.torch.device import open_session

D = "kit"
CASES: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "shapes that do not broadcast": (RuntimeError, r"size of tensor a \(3\)", lambda: torch.ones(
        3, device=D) + torch.ones(4, device=D)),
    "matrices that do not fit": (RuntimeError, "mat1 and mat2|cannot be multiplied", lambda: (
        torch.ones(2, 3, device=D) @ torch.ones(2, 3, device=D))),
    "a dim that is not there": (IndexError, "Dimension out of range", lambda: torch.ones(
        3, device=D).sum(2)),
    "an index out of range": (IndexError, "out of bounds|out of range", lambda: torch.ones(
        3, device=D)[5]),
    "mixed devices": (RuntimeError, "same device", lambda: torch.ones(
        3, device=D) + torch.ones(3)),
    "one length for two samples": (RuntimeError, "input_lengths must be of size", lambda: (
        functional.ctc_loss(torch.zeros(8, 2, 5, device=D), torch.ones(
            2, 3, dtype=torch.int64, device=D), torch.tensor([8], device=D),
            torch.tensor([3, 1], device=D)))),
    "statistics of another device": (RuntimeError, "same device", lambda: torch.nn.BatchNorm1d(2)(
        torch.ones(3, 2, device=D))),
    "a tensor of the CPU by an index of the device": (RuntimeError, "indices should be either on c",
        lambda: torch.ones(3)[torch.tensor([1], device=D)]),
    "rows of another device by index": (RuntimeError, "same device", lambda: torch.ones(
        3, device=D).index_select(0, torch.tensor([1]))),
    "values of another device by index": (RuntimeError, "same device", lambda: torch.ones(
        3, device=D).index_put((torch.tensor([1]),), torch.ones(1))),
    "a stack of numbers of two devices": (RuntimeError, "same device", lambda: torch.stack(
        [torch.tensor(1.0, device=D), torch.tensor(1.0)])),
    "a gradient of another device": (RuntimeError, "expected device kit:0 but got cpu", lambda: (
        torch.ones(2, device=D, requires_grad=True) * 2).backward(torch.ones(2))),
    "a gradient of another device, in a list": (RuntimeError, "index 1 - expected device kit:0 but",
        lambda: torch.autograd.backward(2 * [torch.ones(2, device=D, requires_grad=True) * 2], [
            torch.ones(2, device=D), torch.ones(2)])),
    "a gradient of the device": (RuntimeError, "expected device cpu but got kit:0", lambda: (
        torch.ones(2, requires_grad=True) * 2).backward(torch.ones(2, device=D))),
    "an array that shall be no copy": (ValueError, "without a copy", lambda: np.asarray(torch.ones(
        2, device=D), copy=False)),
    "an array, written": (ValueError, "read-only", lambda: torch.ones(
        2, device=D).numpy().fill(7)),
    "memory shared by DLPack": (BufferError, r"kit:0 .* take .cpu\(\)", lambda: torch.from_dlpack(
        torch.ones(2, device=D))),
    "a storage to show": (RuntimeError, "set_ on kit:0 takes another tensor", lambda: torch.ones(
        2, device=D).set_(torch.ones(2, device=D).untyped_storage(), 0, (1,))),  # type: ignore[arg-type]
    "a storage that shall grow": (AttributeError, "no 'resize_'.*XLA", lambda: torch.ones(
        2, device=D).untyped_storage().resize_(0)),
    "rows of labels that are no batch": (RuntimeError, "to have size 2 at dimension 0", lambda: (
        functional.ctc_loss(torch.zeros(8, 2, 5, device=D), torch.ones(
            3, 3, dtype=torch.int64, device=D), *torch.ones(2, 2, dtype=torch.int64, device=D)))),
    "lengths that are too long": (RuntimeError, "input_lengths to have value at most 8", lambda: (
        functional.ctc_loss(torch.zeros(8, 2, 5, device=D), torch.ones(
            2, 3, dtype=torch.int64, device=D), torch.tensor([8, 9]), torch.tensor([3, 1])))),
    "a number of the CPU, written in place": (RuntimeError, "cannot write to a tensor on cpu",
        lambda: torch.tensor(0.5).add_(torch.tensor(1.0, device=D))),
    "a copy that does not fit": (RuntimeError, r"size of tensor a \(3\)", lambda: torch.ones(
        2, 3, device=D).copy_(torch.ones(2, device=D))),
    "a copy of more dimensions": (RuntimeError, "output with shape", lambda: torch.ones(
        3, device=D).copy_(torch.ones(1, 3))),
    "a fill of several numbers": (RuntimeError, "0-dimension value tensor", lambda: torch.ones(
        2, 3, device=D).fill_(torch.ones(3, device=D))),
    "values that do not fit an index": (RuntimeError, "shape mismatch: value tensor", lambda: (
        torch.ones(2, 3, device=D).__setitem__(
            torch.tensor([0], device=D), torch.ones(2, device=D)))),
    "rows that do not fit, added by index": (RuntimeError, "source tensor shape must match", lambda:
        torch.ones(2, 3, device=D).index_add(
            0, torch.tensor([0], device=D), torch.ones(1, 1, device=D))),
    "one number put at two places": (IndexError, "same number of elements", lambda: torch.ones(
        3, device=D).put_(torch.tensor([0, 1], device=D), torch.ones(1, device=D))),
    "one bias for two channels": (RuntimeError, "expected bias to be 1-dimensional", lambda: (
        functional.conv1d(torch.ones(1, 1, 5, device=D), torch.ones(
            2, 1, 3, device=D), torch.ones(1, device=D)))),
    "channels of a transposed convolution": (RuntimeError, "to have 1 channels", lambda: (
        functional.conv_transpose1d(torch.ones(1, 2, 5, device=D), torch.ones(
            1, 1, 3, device=D)))),
    "labels that would spread a loss": (RuntimeError, "output with shape", lambda: (
        functional.soft_margin_loss(torch.ones(5, device=D), torch.ones(5, 1, device=D)))),
    "weights that would spread a loss": (RuntimeError, "output with shape", lambda: (
        functional.binary_cross_entropy_with_logits(torch.ones(5, device=D), torch.ones(
            5, device=D), torch.ones(5, 1, device=D)))),
    "a sum that would spread a product": (RuntimeError, "expanded size of the tensor", lambda: (
        torch.addmm(torch.ones(3, 3, device=D), torch.ones(1, 3, device=D), torch.ones(
            3, 3, device=D)))),
    "a sum in place that is larger than a product": (RuntimeError, "Bad in-place call", lambda: (
        torch.ones(1, 1, 3, device=D).addmm_(torch.ones(1, 2, device=D), torch.ones(
            2, 3, device=D)))),
    "labels that would spread a loss with logits": (RuntimeError, "output with shape", lambda: (
        torch.binary_cross_entropy_with_logits(torch.ones(3, device=D), torch.ones(
            2, 3, device=D), None, torch.ones(3, device=D), 1))),
    "boundaries in two dimensions": (RuntimeError, "must be 1 dimension", lambda: torch.bucketize(
        torch.ones(2, device=D), torch.ones(2, 2, device=D))),
    "a comparison in place that is larger": (RuntimeError, "output with shape", lambda: torch.ones(
        1, device=D).ge_(torch.ones(2, device=D))),
    "a memory that shall grow under a view": (SessionError, "resize_as_", lambda: torch.ones(
        4, device=D)[1:].resize_as_(torch.ones(2, 3, device=D))),
    "lists of tensors that do not fit": (RuntimeError, r"size of tensor a \(3\)", lambda: (
        torch._foreach_add([torch.ones(3, device=D)], [torch.ones(2, device=D)]))),
    "a list written with more than it holds": (RuntimeError, "output with shape", lambda: (
        torch._foreach_copy_([torch.ones(1, device=D)], [torch.ones(2, device=D)]))),
    "a list written with a longer one": (RuntimeError, "same number of tensors", lambda: (
        torch._foreach_copy_([torch.ones(1, device=D)], [torch.ones(1, device=D)] * 2))),
    "channels that do not match": (RuntimeError, "channels", lambda: functional.conv2d(
        torch.ones(1, 3, 8, 8, device=D), torch.ones(4, 2, 3, 3, device=D))),
    "a float index": (IndexError, "tensors used as indices", lambda: torch.ones(3, device=D)[
        torch.ones(1, device=D)]),
    "a write to an expanded tensor": (RuntimeError, "more than one element", lambda: torch.ones(
        1, device=D).expand(3).add_(1)),
    "a grad of an integer": (RuntimeError, "floating", lambda: torch.ones(
        2, dtype=torch.int64, device=D).requires_grad_()),
    "two numbers as one": (RuntimeError, "cannot be converted to Scalar|one element|single value",
        lambda: torch.ones(2, device=D).item()),
    "a truth of many": (RuntimeError, "ambiguous", lambda: bool(torch.ones(2, device=D) > 0)),
    "numpy of a gradient": (RuntimeError, "requires grad", lambda: torch.ones(
        2, device=D, requires_grad=True).numpy()),
    "a modified saved tensor": (RuntimeError, "modified by an inplace", lambda: _modified()),
}  # fmt: skip


def _modified() -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    y = x.exp()
    z = y * y
    y.add_(1)
    z.sum().backward()


BEFORE_DISPATCH = ("an index out of range", "a grad of an integer", "two numbers as one",
                   "a truth of many", "numpy of a gradient", "a modified saved tensor",
                   "a write to an expanded tensor", "a gradient of another device",
                   "a gradient of the device", "an array, written",
                   "a gradient of another device, in a list", "an array that shall be no copy",
                   "memory shared by DLPack", "a storage to show",
                   "a storage that shall grow")  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_torchs_own_error_and_a_usable_session(name: str) -> None:
    kind, words, call = CASES[name]
    with open_session():
        with pytest.raises(kind, match=words) as caught:
            call()
        own = (str(caught.value), *getattr(caught.value, "__notes__", ()))
        assert any("test_bad_input.py" in text for text in own) or name in BEFORE_DISPATCH
        assert torch.full((2,), 2.5, device=D).mul(2).tolist() == [5.0, 5.0]


def test_a_tensor_of_a_closed_session_says_what_to_do() -> None:
    with open_session():
        x = torch.ones(2, device=D)
    for use in (x.tolist, lambda: x + 1, lambda: str(x)):
        with pytest.raises(SessionError, match="has been closed"):
            use()
    assert "KitTensor" in repr(x)


def test_nothing_zero_and_not_a_number_pass_through() -> None:
    with open_session():
        x = torch.tensor([float("nan"), float("inf"), -0.0], device=D)
        assert torch.equal(x.cpu().isnan(), torch.tensor([True, False, False]))
        assert torch.zeros(0, 3, device=D).sum(0).tolist() == [0.0, 0.0, 0.0]
        assert torch.tensor(2.5, device=D).sum(0).item() == 2.5
        assert torch.zeros(0, device=D).mean().isnan().item()
        assert torch.cat([torch.zeros(0, device=D), torch.ones(1, device=D)]).tolist() == [1.0]


@pytest.mark.parametrize("waits", [True, False], ids=["waited", "unwaited"])
def test_memory_that_is_not_there_is_an_error_at_its_line(waits: bool) -> None:
    def executor(*args: Any) -> Executor:
        made = Executor(*args)
        made._waits = waits
        return made

    with open_session(setup=Setup(executor=executor)) as session:
        x = torch.ones(1 << 44, device=D) * 2.5
        with pytest.raises(ExecutionError, match=r"test_bad_input\.py"):
            session.wait_all()
        with pytest.raises(ExecutionError):
            x.cpu()
        assert torch.ones(2, device=D).sum().item() == 2.0


def test_an_error_inside_backward_is_raised_and_the_process_lives() -> None:
    rules = Rules({name: rule for name, rule in DEFAULT_RULES.items() if "polygamma" not in name})
    with open_session(strict=True, rules=rules) as session:
        x = torch.linspace(0.5, 1.5, 4).to(D).requires_grad_()
        loss = torch.digamma(x).sum()  # its gradient is `polygamma`, which has no rule here
        with pytest.raises(UnsupportedOp, match=r"polygamma[\s\S]*test_bad_input\.py"):
            loss.backward()
        y = torch.ones(2, device=D, requires_grad=True)
        (y * 2.5).sum().backward()
        assert y.grad is not None
        assert y.grad.tolist() == [2.5, 2.5]
        loss = torch.digamma(x).sum()
        with pytest.raises(UnsupportedOp, match="polygamma"):
            torch.autograd.grad(loss, x)
        assert (y + 1).tolist() == [2.0, 2.0]
        assert session.is_open


def test_a_tensor_of_the_cpu_is_filled_with_a_number_of_the_device() -> None:
    with open_session():
        filled = torch.zeros(3).fill_(torch.tensor(2.0, device=D))
    assert filled.device.type == "cpu"
    assert filled.tolist() == [2.0, 2.0, 2.0]


def test_a_session_takes_settings_by_name() -> None:
    given = kit.Settings(bulk_forward=3)
    assert kit.Session(given, seed=7).settings == kit.Settings(bulk_forward=3, seed=7)
    with pytest.raises(SettingsError, match=r"'bulk_foward'; did you mean 'bulk_forward'\?"):
        kit.Session(bulk_foward=5)


def test_an_error_of_an_op_without_a_rule_is_the_same_in_another_process() -> None:
    """Its text was put into its text once more."""
    error = UnsupportedOp("aten.foo.default", ["aten.fo.default"], "train.py:3", "no rule")
    error.add_note("a note")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.op, again.site) == (str(error), error.op, error.site)
    assert again.__notes__ == ["a note"]
