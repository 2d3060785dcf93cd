"""Gradients of one replica: gathered in buckets, and posted for reduction while backward goes on.

A bucket is full when the gradients of all of its parameters have been recorded. Then, with
`cut="bucket"`, the segment ends and the bucket is posted at once; with `cut="size"` it is posted
once the bulk size has ended the segment that makes its last gradient, which may be much later
(MXNet PR 14200: "gradients must wait until the end of a segment").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import nn

from kit.errors import SessionError, SettingsError
from kit.runs.gradients import Link
from kit.runtime.recording.bulk import Value
from kit.runtime.replicas.session import ReplicaSession
from kit.torch.constants import parts_of
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor, wrap

__all__ = ["Bucket", "Reducer", "check_reduced", "check_tuning"]

_CUTS = ("bucket", "size")


class Bucket:
    """Parameters whose gradients travel together; `number` 0 is ready first in backward."""

    def __init__(self, number: int, parameters: list[tuple[str, nn.Parameter]]) -> None:
        self.number = number
        self.parameters = parameters
        self.left = 0  # gradients that have not been recorded in this pass
        self.values: list[Value | None] = []  # what this replica brings
        self.results: list[Value] = []
        self.collective: Any = None
        self.metas = [torch.empty(p.shape, dtype=p.dtype, device="meta") for _, p in parameters]


def buckets_of(module: nn.Module, size_bytes: int) -> list[Bucket]:
    """The module's parameters from the last to the first, in buckets of about so many bytes."""
    groups: list[list[tuple[str, nn.Parameter]]] = []
    filled = size_bytes
    for name, parameter in reversed(list(module.named_parameters())):
        if not parameter.requires_grad:
            continue
        if filled >= size_bytes:
            groups.append([])
            filled = 0
        groups[-1].append((name, parameter))
        filled += parameter.numel() * parameter.element_size()
    return [Bucket(number, group) for number, group in enumerate(groups)]


class Reducer:
    """Follows one replica's backward passes."""

    def __init__(
        self, session: ReplicaSession, tape: Tape, module: nn.Module, *, bucket_bytes: int,
        cut: str,
    ) -> None:  # fmt: skip
        self.session, self.tape, self.module = session, tape, module
        self.buckets: list[Bucket] = []
        self.cut = cut
        self.gradients: list[tuple[int, int]] = []  # of the last pass: (ops recorded, bytes)
        self.ops = 0  # of the last pass, without views
        self._mode = ""  # "sum" in a pass whose gradients are reduced, "local" in one without
        self._waiting: list[Bucket] = []  # full, in a segment that still grows
        self._start = 0
        self._of: dict[int, Bucket] = {}
        self._before: dict[str, Any] = {}  # in a pass, gradients that had been summed before it
        self.is_stray = False  # gradients are this replica's alone: they have not been summed
        self._turn, self._passes = -1, 0
        self.note: dict[str, Any] = {}  # the numbers of the optimizer at its last step
        self._hooked: dict[int, nn.Parameter] = {}  # held, so that no other gets its id
        self._places: list[tuple[str, dict[str, Any], str, Any]] = []
        self.fill_buckets(bucket_bytes)

    def take(self, module: nn.Module) -> None:
        """Follow this module from the next pass on, in which the one before is, with more.

        No new reducer: this one counts the passes of a turn, by which replicas tell sums apart.
        """
        self.module = module
        self.fill_buckets(self._bucket_bytes)

    def fill_buckets(self, size_bytes: int) -> None:
        """Other buckets from the next pass on."""
        self._bucket_bytes = size_bytes
        self.buckets = buckets_of(self.module, size_bytes)
        self._of = {id(p): bucket for bucket in self.buckets for _, p in bucket.parameters}
        self._places = [
            (f"{path}.{key}" if path else key, m._parameters, key, p)
            for path, m in self.module.named_modules()
            for key, p in m._parameters.items()
            if p is not None
        ]
        for parameter in self.module.parameters():  # each once, however many modules share it
            if parameter.requires_grad and id(parameter) not in self._hooked:
                parameter.register_post_accumulate_grad_hook(_hook_of(self))
                self._hooked[id(parameter)] = parameter

    def backward(
        self, losses: Sequence[Any], weight: float, *, is_local: bool, gradient: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        """Gradients of the losses, each times `weight`; summed over the replicas unless local.

        Args:
            gradient: of one loss, that it begins with; if not given, each loss is one number.
            options: as for `torch.autograd.backward`.

        Raises:
            SessionError: another replica has failed or has ended, or no loss can be differentiated.
        """
        roots = self._roots(losses, is_any_shape=gradient is not None)
        self._begin("local" if is_local else "sum")
        try:
            if gradient is None:
                weights = [torch.full_like(loss, weight) for loss in roots]
            else:
                weights = [gradient * weight]
            self._start, self.gradients = self.session.member.ops_recorded, []
            torch.autograd.backward(roots, weights, **options)
            self.ops = self.session.member.ops_recorded - self._start
            if is_local:
                self.is_stray = True
            else:
                self._finish()
        finally:
            self._mode = ""

    def _roots(self, losses: Sequence[Any], *, is_any_shape: bool) -> list[Any]:
        roots = [loss for loss in losses if loss.requires_grad]
        if not roots:
            raise SessionError(
                f"replica {self.session.rank}: no loss depends on a parameter that needs a "
                "gradient; give losses of the model's outputs, not detached ones"
            )
        for root in () if is_any_shape else roots:
            if root.numel() != 1:
                raise SessionError(
                    f"replica {self.session.rank}: grad can be implicitly created only for scalar "
                    f"outputs, and one of shape {list(root.shape)} was given as a loss: return the "
                    "loss, such as a model's outputs.loss, and other outputs detached"
                )
        return roots

    def state(self) -> list[tuple[Any, Value]]:
        """What the module's buffers hold now; values do not change, so that is no copy."""
        return [
            (b, b.ref.read(self.tape)) for b in self.module.buffers() if isinstance(b, KitTensor)
        ]

    def take_back(self, state: Sequence[tuple[Any, Value]]) -> None:
        """A step has failed: its gradients, and what it did to the buffers, have not happened."""
        for buffer, value in state:
            if buffer.ref.read(self.tape) is not value:
                buffer.ref.write(self.tape, value)
        self.module.zero_grad()
        self.forget()

    def has(self, parameter: Any) -> bool:
        """True if this parameter's gradients are summed."""
        return id(parameter) in self._of

    def forget(self) -> None:
        """The program has set the gradients to nothing."""
        self.is_stray, self._before = False, {}

    def _begin(self, mode: str) -> None:
        self._check_places()
        turn = self.session.collectives.group.turn
        if turn != self._turn:  # replicas that a failure has put out of step begin anew together
            self._turn, self._passes = turn, 0
        self._mode = mode
        self._waiting = []
        if any(p.requires_grad and id(p) not in self._of for p in parts_of(self.module)[1]):
            self.fill_buckets(self._bucket_bytes)  # unfrozen, or put in, since the last pass
        for bucket in self.buckets:
            bucket.left = len(bucket.parameters)
            bucket.values = [None] * bucket.left
            bucket.collective, bucket.results = None, []
        if not self.is_stray:
            self._set_aside()

    @torch.no_grad()
    def _set_aside(self) -> None:
        """Gradients that are the sum over all replicas must not be summed again with new ones.

        A pass whose own are not summed leaves each replica its share of them, which the next sum
        puts together again: so a program may zero them in between, in whatever way.
        """
        share = 1.0 / self.session.collectives.group.total
        for bucket in self.buckets:
            for name, parameter in bucket.parameters:
                if parameter.grad is not None and self._mode == "sum":
                    self._before[name], parameter.grad = parameter.grad, None
                elif parameter.grad is not None:
                    parameter.grad = parameter.grad * share

    def _check_places(self) -> None:
        for name, table, key, parameter in self._places:
            if (now := table.get(key)) is not parameter:
                where = "gone" if now is None else f"another one, on {now.device}"
                raise SettingsError(
                    f"replica {self.session.rank}: parameter {name!r} is {where}. It must stay the "
                    f"one on {self.tape.device} that DataParallel has made, or its gradient would "
                    "not be reduced: change the model before it is given to DataParallel"
                )

    def _ready(self, parameter: Any) -> None:
        """Torch has accumulated a parameter's gradient: an op that is recorded, not run."""
        if self._mode != "sum":
            self.is_stray = True
            return
        try:
            self._note(parameter)
        except Exception as error:  # noqa: BLE001 - inside backward it would end the process
            self.tape.keep(error)
            self._mode = "failed"

    def _note(self, parameter: Any) -> None:
        bucket = self._of[id(parameter)]
        place = next(i for i, (_, p) in enumerate(bucket.parameters) if p is parameter)
        if bucket.collective is not None or bucket.values[place] is not None:
            raise SessionError(
                f"replica {self.session.rank}: parameter {bucket.parameters[place][0]!r} got a "
                "gradient twice in one backward pass, as of a layer that is used twice under "
                "reentrant checkpointing: call checkpoint(..., use_reentrant=False)"
            )
        bucket.values[place] = parameter.grad.kit_value()
        recorded = self.session.member.ops_recorded - self._start
        self.gradients.append((recorded, parameter.numel() * parameter.element_size()))
        bucket.left -= 1
        if bucket.left == 0:
            self._waiting.append(bucket)
            if self.cut == "bucket":
                self.session.flush("bucket")
        self._post_cut()

    def _post_cut(self) -> None:
        """Post every full bucket whose segments have all been cut."""
        for bucket in list(self._waiting):
            if all(v is None or v.bulk is None for v in bucket.values):
                self._waiting.remove(bucket)
                self._post(bucket)

    def _post(self, bucket: Bucket) -> None:
        values, bucket.values = bucket.values, []
        bucket.results, bucket.collective = self.session.collectives.post(
            self.session.rank,
            ("gradients", self._passes, bucket.number),
            values,
            [self.tape.spec_of(meta).aval for meta in bucket.metas],
            priority=bucket.number,
            name=f"bucket {bucket.number}",
            note=self.note,
        )

    def _finish(self) -> None:
        """Backward is over: post what is left, and make the sums the parameters' gradients."""
        self.session.flush("phase")
        for bucket in self.buckets:
            if bucket.collective is None:
                for i, (_, p) in enumerate(bucket.parameters):
                    grad: Any = p.grad
                    if bucket.values[i] is None and grad is not None:
                        bucket.values[i] = grad.kit_value()  # of a pass without a sum
        self.session.flush("phase")
        self._waiting = [b for b in self.buckets if b.collective is None]
        self._post_cut()
        for bucket in self.buckets:
            self._assign(bucket)
        self._before = {}
        self._passes += 1
        self.is_stray = False

    @torch.no_grad()
    def _assign(self, bucket: Bucket) -> None:
        there = [p.grad is not None for _, p in bucket.parameters]
        if not all(there):  # perhaps another replica has used it
            self.session.stepper.note_obstacle("a parameter got no gradient in one replica")
            there = self.session.collectives.brought(bucket.collective)
        for (name, p), meta, value, is_there in zip(
            bucket.parameters, bucket.metas, bucket.results, there, strict=True
        ):
            before = self._before.get(name)
            if not is_there:
                p.grad = before
            else:
                summed = wrap(self.tape, value, self.tape.spec_of(meta))
                p.grad = summed if before is None else before + summed
        bucket.results, bucket.collective = [], None


def _hook_of(reducer: Reducer) -> Callable[[Any], None]:
    """What torch calls with a parameter whose gradient is ready; it keeps no reducer alive.

    Torch holds hooks where Python's collector cannot look: a cycle through one is never freed.
    """
    known = ref(reducer)

    def ready(parameter: Any) -> None:
        if (reducer := known()) is not None:
            reducer._ready(parameter)

    return ready


def check_reduced(reducers: Sequence[Reducer]) -> None:
    """Refuse an update from gradients that differ between the replicas.

    Raises:
        SessionError: some have not been reduced.
    """
    stray = [r.session.rank for r in reducers if r.is_stray]
    if stray:
        raise SessionError(
            f"the gradients of replica {stray[0]} have not been reduced, so the replicas would "
            "part: end an accumulation with one backward outside of net.no_sync(), and use "
            "net.backward(losses) or loss.backward(), not torch.autograd.backward"
        )


def check_tuning(cut: str = "bucket", bucket_mb: float = 1.0, link: Link | None = None) -> None:
    """Refuse what cannot be.

    Raises:
        SettingsError: a cut that is none, buckets of no size, or a link that is no `kit.Link`.
    """
    if link is not None and not isinstance(link, Link):
        raise SettingsError(f"link must be a kit.Link(latency_us, gb_per_s), not {link!r}")
    if cut not in _CUTS:
        raise SettingsError(f"cut must be one of {_CUTS}, not {cut!r}")
    if isinstance(bucket_mb, bool) or not isinstance(bucket_mb, int | float) or not bucket_mb > 0:
        raise SettingsError(f"bucket_mb must be more than 0, not {bucket_mb!r}")
