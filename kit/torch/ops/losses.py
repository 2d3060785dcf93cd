"""What losses return that have no meta kernel in torch; labels; and the lengths of CTC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kit.runtime.recording.sites import format_site
from kit.runtime.recording.template import HOLE
from kit.torch.ops.host import zeros_on_cpu
from kit.torch.ops.schema import Special, handed_over, recorded
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor, to_host, wrap

__all__ = ["LOSSES", "LOSS_SHAPES", "register_ctc"]

_aten = torch.ops.aten


def _like_input(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _multi_margin(
    x: torch.Tensor, target: torch.Tensor, p: Any = 1, margin: Any = 1,
    weight: torch.Tensor | None = None, reduction: int = 1,
) -> torch.Tensor:  # fmt: skip
    """One loss for each label; torch's meta kernel makes a batch of one row."""
    loss: torch.Tensor = _aten.multi_margin_loss(x, target, p, margin, weight, reduction)
    return loss if reduction else loss.reshape(target.shape)


def _multilabel_margin(x: torch.Tensor, target: torch.Tensor, reduction: int) -> Any:
    loss, is_target = _aten.multilabel_margin_loss_forward(x, target, reduction)
    return loss if reduction else loss.reshape(x.shape[:-1]), is_target


def _trilinear(a: Any, b: Any, c: Any, *dims: Any) -> torch.Tensor:
    expanded = [_expand(x, axes) for x, axes in zip((a, b, c), dims[:3], strict=True)]
    shape = torch.broadcast_shapes(*[x.shape for x in expanded])
    return a.new_empty([n for i, n in enumerate(shape) if i not in dims[3]])  # type: ignore[no-any-return]


def _expand(x: torch.Tensor, axes: Any) -> torch.Tensor:
    for axis in axes:
        x = x.unsqueeze(axis)
    return x


def _ctc(log_probs: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The second one, alpha, is left empty: the backward pass computes it again."""
    return log_probs.new_empty(log_probs.shape[1]), log_probs.new_empty(0)


LOSS_SHAPES: dict[str, Callable[..., Any]] = {
    "aten.multi_margin_loss.default": _multi_margin,
    "aten.multi_margin_loss_backward.default": _like_input,
    "aten.multilabel_margin_loss_forward.default": _multilabel_margin,
    "aten.multilabel_margin_loss_backward.default": _like_input,
    "aten._trilinear.default": _trilinear,
    "aten._ctc_loss.default": _ctc,
    "aten._ctc_loss.Tensor": _ctc,
    "aten._ctc_loss_backward.default": _like_input,
    "aten._ctc_loss_backward.Tensor": _like_input,
}


# -- connectionist temporal classification -----------------------------------------------------


def register_ctc() -> torch.library.Library:
    """Install the choice below; the library must be kept alive."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("ctc_loss.Tensor", _choose, "AutogradPrivateUse1")
    return library


def _choose(log_probs: Any, targets: Any, times: Any, lengths: Any, *options: Any) -> Any:
    """Torch's own way with lengths, by where they are: those on the host are numbers to it.

    Where a tensor of another class than its own is given, torch keeps them as the tensors that they
    are, and divides a loss on the device by lengths on the host.
    """
    on_device = [isinstance(x, KitTensor) for x in (times, lengths)]
    if not isinstance(log_probs, KitTensor):
        times, lengths = times.cpu(), lengths.cpu()
    elif any(on_device):
        times, lengths = times.to("kit"), lengths.to("kit")
        return _aten.ctc_loss.Tensor.decompose(log_probs, targets, times, lengths, *options)
    numbers = [x.long().flatten().tolist() for x in (times, lengths)]
    return _aten.ctc_loss.IntList(log_probs, targets, *numbers, *options)


def _with_lengths(log_probs_at: int) -> Special:
    """Lengths that are numbers, checked as torch checks them, become inputs of the program.

    As constants of it, those of each batch would be a program of their own.
    """

    def special(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
        i = log_probs_at
        log_probs, targets, times, lengths = args[i : i + 4]
        if not _fit(log_probs, targets, times, lengths):
            _raise_torchs(tape, log_probs, targets, times, lengths)
        copies = (_on_device(tape, times), _on_device(tape, lengths))
        packet = func._overloadpacket
        return tape.dispatch(packet.Tensor, (*args[: i + 2], *copies, *args[i + 4 :]), kwargs)

    return special


def _fit(log_probs: Any, targets: Any, times: list[int], lengths: list[int]) -> bool:
    """Whether torch takes these lengths for a batch of this size."""
    batch = log_probs.shape[1]
    if not len(times) == len(lengths) == batch:
        return False
    longest, labels = log_probs.shape[0], targets.shape[-1]
    used = sum(lengths) if targets.dim() == 1 else max(lengths, default=0)
    fits = used == labels if targets.dim() == 1 else used <= labels
    return fits and all(0 <= n <= longest for n in times) and all(n >= 0 for n in lengths)


def _raise_torchs(tape: Tape, log_probs: Any, targets: Any, *lengths: list[int]) -> None:
    """Raise what CPU torch raises for these lengths, with the user's line."""
    site = format_site(tape.place.sync_frame()[0])
    try:
        _aten._ctc_loss.default(zeros_on_cpu(log_probs), zeros_on_cpu(targets), *lengths)
    except RuntimeError as error:
        error.add_note(f"kit: in aten._ctc_loss at {site or 'an unknown line'}")
        raise


def _on_device(tape: Tape, numbers: list[int]) -> KitTensor:
    host = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    return wrap(
        tape, tape.from_host(host, host.dtype), tape.spec((len(numbers),), (1,), 0, host.dtype)
    )


def _one_hot(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """One op, whose classes are checked; torch takes it apart, and reads how many there are."""
    x, classes = args[0], args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    if classes < 1 or x.dtype is not torch.int64:  # it counts them, or refuses in its own words
        classes = func(to_host(x, cause="item"), classes).shape[-1]
    shape = (*x.shape, classes)
    spec = tape.spec_of(torch.empty(shape, dtype=torch.int64, device="meta"))
    return recorded(tape, str(func), ((HOLE, classes), {}), [x], [], [spec])[0]


LOSSES: dict[str, Special] = {
    "aten.one_hot.default": _one_hot,
    "aten.ctc_loss.Tensor": handed_over(_choose),
    "aten._ctc_loss.default": _with_lengths(0),
    "aten._ctc_loss_backward.default": _with_lengths(1),
}
