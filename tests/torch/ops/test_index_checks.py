"""Bad indices and labels on the device: torch's error, found without a wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import kit
from kit.errors import BadIndexError, BadNumberError, DeviceCheckError
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.session.executor import Executor
from kit.runtime.session.setup import Setup
from kit.torch.device import open_session
from tests.pages import page, run_page
from tests.torch.parallel.replicas import net_on_one_cpu

Case = Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]

NAN, INF = float("nan"), float("inf")
X = torch.arange(40.0).reshape(10, 4)
LOGITS = X.log_softmax(1)


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).reshape(-1, 1)


def ctc(to: Any, labels: torch.Tensor, times: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return functional.ctc_loss(to(LOGITS[:, None]), to(labels), to(times), to(lengths))


# name -> (call with `to`, which moves a tensor to the device; one in an index is out of bounds)
BAD: dict[str, Case] = {
    "embedding": lambda to: functional.embedding(to(ids(1, 10)), to(X)),
    "embedding, negative": lambda to: functional.embedding(to(ids(1, -1)), to(X)),
    "embedding_bag": lambda to: functional.embedding_bag(to(ids(1, 12)), to(X), to(ids(0))),
    "embedding_bag of no rows": lambda to: functional.embedding_bag(
        to(ids(2)), to(X[:0]).requires_grad_(), to(ids(0))),
    "cross_entropy": lambda to: functional.cross_entropy(to(X), to(ids(*[0] * 9, 4))),
    "cross_entropy, -1": lambda to: functional.cross_entropy(to(X), to(ids(*[0] * 9, -1))),
    "nll_loss with weights": lambda to: functional.nll_loss(
        to(LOGITS), to(ids(*[3] * 9, 12)), weight=to(torch.ones(4))),
    "index_select": lambda to: to(X).index_select(0, to(ids(1, 12))),
    "index_select, negative": lambda to: to(X).index_select(0, to(ids(-1))),
    "index_reduce": lambda to: to(X).index_reduce(0, to(ids(12)), to(X[:1]), "prod"),
    "gather": lambda to: to(X).gather(0, to(column(1, 12).long())),
    "gather, negative": lambda to: to(X).gather(1, to(column(-1).long())),
    "scatter of a number": lambda to: to(X).scatter(0, to(column(12).long()), 1.0),
    "scatter": lambda to: to(X).scatter(-1, to(column(4).long()), to(column(1.0))),
    "scatter_add": lambda to: to(X).scatter_add(0, to(column(12).long()), to(column(1.0))),
    "scatter_reduce": lambda to: to(X).scatter_reduce(
        0, to(column(12).long()), to(column(1.0)), "amax"),
    "index": lambda to: to(X)[to(ids(1, 12))],
    "index, negative": lambda to: to(X)[to(ids(1, -11))],
    "index, two": lambda to: to(X)[to(ids(1, 2)), to(ids(1, 12))],
    "index_put": lambda to: to(X).index_put((to(ids(12)),), to(torch.tensor(1.0))),
    "index_put, added": lambda to: to(X).index_put(
        (to(ids(12)),), to(torch.tensor(1.0)), accumulate=True),
    "put": lambda to: to(X).put(to(ids(40)), to(torch.tensor([1.0]))),
    "take": lambda to: to(X).take(to(ids(1, -41))),
    "index_add": lambda to: to(X).index_add(0, to(ids(12)), to(X[:1])),
    "index_add, negative": lambda to: to(X).index_add(0, to(ids(-1)), to(X[:1])),
    "index_add, a row": lambda to: to(X[0]).index_add(0, to(ids(12)), to(X[0, :1])),
    "index_copy": lambda to: to(X).index_copy(0, to(ids(12)), to(X[:1])),
    "index_fill": lambda to: to(X).index_fill(0, to(ids(12)), 1.0),
    "labels of pixels": lambda to: functional.cross_entropy(
        to(X.reshape(1, 10, 2, 2)), to(torch.full((1, 2, 2), 10))),
    "multi_margin_loss": lambda to: functional.multi_margin_loss(
        to(torch.ones(2, 4)), to(ids(1, 4))),
    "multilabel_margin_loss, too large": lambda to: functional.multilabel_margin_loss(
        to(torch.ones(4)), to(ids(1, 4, -1, 0))),
    "multilabel_margin_loss, after the end of the list": (
        lambda to: functional.multilabel_margin_loss(to(torch.ones(4)), to(ids(1, -1, -2, 0)))),
    "one_hot, too large": lambda to: functional.one_hot(to(ids(1, 12)), 10),
    "one_hot, negative": lambda to: functional.one_hot(to(ids(1, -2)), 10),
    "bernoulli": lambda to: torch.bernoulli(to(torch.tensor([0.5, 1.5]))),
    "bernoulli of NaN": lambda to: torch.bernoulli(to(torch.tensor([0.5, NAN]))),
    "multinomial, negative": lambda to: torch.multinomial(to(torch.tensor([0.5, -1])), 1),
    "multinomial of zeros": lambda to: torch.multinomial(to(torch.zeros(2)), 1),
    "normal, negative": lambda to: torch.normal(to(torch.zeros(2)), to(torch.tensor([1.0, -1.0]))),
    "normal of NaN": lambda to: torch.normal(0.0, to(torch.tensor([1.0, NAN]))),
    "binary_cross_entropy, input": lambda to: functional.binary_cross_entropy(
        to(torch.tensor([0.5, 1.5])), to(torch.tensor([0.0, 1.0]))),
    "binary_cross_entropy, target": lambda to: functional.binary_cross_entropy(
        to(torch.tensor([0.5, 0.5])), to(torch.tensor([0.0, 2.0]))),
    "floor_divide": lambda to: to(ids(1, 2)) // to(ids(1, 0)),
    "floor_divide by a number": lambda to: to(ids(1, 2)) // 0,
    "remainder": lambda to: to(ids(1, 2)) % to(ids(1, 0)),
    "fmod": lambda to: to(ids(1, 2)).fmod(to(ids(1, 0))),
    "div, rounded": lambda to: torch.div(to(ids(1, 2)), to(ids(1, 0)), rounding_mode="trunc"),
    "masked_scatter": lambda to: to(X).masked_scatter(to(X > -1), to(torch.ones(2))),
    "ctc_loss, longer than there is time": lambda to: ctc(to, ids(1, 2, 3), ids(11), ids(3)),
    "ctc_loss, a negative length": lambda to: ctc(to, ids(1, 2, 3)[None], ids(10), ids(-1)),
    "ctc_loss, too few labels": lambda to: ctc(to, ids(1, 2, 3), ids(10), ids(4)),
    "ctc_loss, too many labels": lambda to: ctc(to, ids(1, 2, 3), ids(10), ids(2)),
    "ctc_loss, a row too short": lambda to: ctc(to, ids(1, 2, 3)[None], ids(10), ids(4)),
}  # fmt: skip

GOOD: dict[str, Case] = {
    "the last row": lambda to: functional.embedding(to(ids(0, 9)), to(X)),
    "padding": lambda to: functional.embedding(to(ids(0, 9)), to(X), padding_idx=9),
    "ignored labels": lambda to: functional.cross_entropy(to(X), to(ids(*[3] * 9, -100))),
    "an ignored label of our own": lambda to: functional.cross_entropy(
        to(X), to(ids(*[3] * 9, 255)), ignore_index=255),
    "negative indices": lambda to: to(X)[to(ids(-10, 9)), to(ids(-4, 3))],
    "negative elements": lambda to: to(X).put(to(ids(-40)), to(torch.tensor([1.0]))),
    "ignored pixels": lambda to: functional.cross_entropy(
        to(X.reshape(1, 10, 2, 2)), to(torch.tensor([[[0, -100], [9, 3]]]))),
    "all of its elements": lambda to: to(X).take(to(ids(-40, 39))),
    "the ends of probability": lambda to: torch.bernoulli(to(torch.tensor([0.0, 1.0]))),
    "no deviation": lambda to: torch.normal(to(X), to(torch.zeros(4))),
    "NaN beside a range": lambda to: torch.histc(to(torch.tensor([1.0, NAN])), 4, 0, 2),
    "a matrix": lambda to: torch.linalg.svdvals(to(X)),
    "certain labels": lambda to: functional.binary_cross_entropy(
        to(torch.tensor([0.0, 1.0, 1.0])), to(torch.tensor([0.0, 1.0, 0.5]))),
    "classes": lambda to: functional.one_hot(to(ids(0, 9)), 10),
    "classes that are counted": lambda to: functional.one_hot(to(ids(0, 3))),
    "floats divided by zero": lambda to: to(torch.tensor([1.0])) // to(torch.tensor([0.0])),
    "division by a number": lambda to: to(ids(7, -7)) // 2 + to(ids(7, -7)) % -2,
    "negative rows to fill": lambda to: to(X).index_fill(0, to(ids(-1, 0)), 1.0),
    "lengths of labels": lambda to: ctc(to, ids(1, 2, 3), ids(10), ids(3)),
    "no index at all": lambda to: to(X).index_select(0, to(ids().long())),
}  # fmt: skip


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def moved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("kit")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_index_raises_torchs_error_with_the_line(name: str) -> None:
    with pytest.raises((IndexError, RuntimeError)) as expected:
        BAD[name](plain)
    with kit.Session():
        result = BAD[name](moved)
        with pytest.raises(type(expected.value)) as found:
            result.cpu()
    assert isinstance(found.value, DeviceCheckError)
    said, _, _ = str(expected.value).partition("  (Could this error message")
    assert str(found.value).startswith(said)
    assert found.value.site.startswith("test_index_checks.py:")


WORDED: dict[str, tuple[str, Case]] = {
    "a matrix with NaN": ("the input matrix contained non-finite values", lambda to: (
        torch.linalg.svdvals(to(torch.tensor([[1.0, NAN], [2.0, 3.0]]))))),
    "its rank": ("the input matrix contained non-finite values", lambda to: (
        torch.linalg.matrix_rank(to(torch.tensor([[1.0, NAN], [2.0, 3.0]]))))),
    "one of a batch": (r"^linalg.svd: \(Batch element 1\): The algorithm", lambda to: (
        torch.linalg.matrix_norm(to(torch.tensor([[[1j, 0.0]], [[1j * NAN, 2.0]]])), 2))),
    "a histogram up to infinity": (r"torch.histc: range of \[.*\] is not finite", lambda to: (
        torch.histc(to(torch.tensor([1.0, INF])), 4))),
    "a histogram of NaN": (r"torch.histc: range of \[.*\] is not finite", lambda to: (
        torch.histc(to(torch.tensor([1.0, NAN])), 4))),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDED)
def test_a_number_that_torch_refuses_is_refused_in_nearly_its_words(name: str) -> None:
    """Torch's CPU prints two numbers of a histogram."""
    words, call = WORDED[name]
    with pytest.raises(RuntimeError, match=words) as expected:
        call(plain)
    with kit.Session():
        result = call(moved)
        with pytest.raises(DeviceCheckError, match=words) as found:
            result.cpu()
    assert isinstance(found.value, type(expected.value))  # of a matrix, LinAlgError
    assert found.value.site.startswith("test_index_checks.py:")


class Unwaited(Executor):
    """Issues programs and does not wait for them, as on a GPU."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waits = False


@pytest.mark.parametrize("name", GOOD)
def test_an_index_that_torch_takes_is_taken(name: str) -> None:
    with kit.Session() as session:
        found = GOOD[name](moved).cpu()
        session.wait_all()
    torch.testing.assert_close(found, GOOD[name](plain))


@pytest.mark.parametrize("settings", [
    kit.Settings(), kit.Settings(mode="lazy"), kit.Settings(segment_mode="launch"),
], ids=["bulked", "lazy", "op by op"])  # fmt: skip
@pytest.mark.parametrize("executor", [Executor, Unwaited])
def test_only_what_depends_on_a_bad_index_is_lost(
    settings: kit.Settings, executor: type[Executor]
) -> None:
    with open_session(settings, setup=Setup(executor=executor)) as session:
        weight, counts = X.to("kit"), torch.zeros(3, device="kit")
        session.mark_step()
        counts.add_(1.0)  # its memory is written over
        rows = weight[ids(3, 12).to("kit")]
        after = (rows * 2).sum()
        other = (weight + 1).sum()
        assert other.item() == (X + 1).sum()
        assert counts.tolist() == [1.0] * 3
        for lost in (after, rows):
            with pytest.raises(IndexError, match=r"index 12 is out of bounds for dimension 0"):
                lost.cpu()
        assert weight[ids(-1).to("kit")].tolist() == X[-1:].tolist()
        session.wait_all()  # the error has been raised


def test_the_dimension_is_that_of_the_tensor() -> None:
    """Torch's CPU counts the indices only, and says dimension 0."""
    with kit.Session(), pytest.raises(IndexError, match="12 is out of bounds for dimension 1 with"):
        X.to("kit")[:, ids(1, 12).to("kit")].cpu()


class Picked(torch.autograd.Function):
    """Its gradient takes rows that are not there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.index_select(0, *ctx.saved_tensors), None


def test_an_op_of_the_backward_pass_is_checked_too() -> None:
    with kit.Session():
        x = torch.ones(2, device="kit", requires_grad=True)
        Picked.apply(x, ids(1, 5).to("kit")).sum().backward()
        assert x.grad is not None
        with pytest.raises(IndexError, match=r"index_select\.default at .* was given 5"):
            x.grad.cpu()


@kit.hybridize
def doubled(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return table[rows] * 2


def test_an_op_inside_of_a_hybrid_is_named() -> None:
    with kit.Session():
        rows = doubled(X.to("kit"), ids(1, 12).to("kit"))
        with pytest.raises(IndexError, match=r"aten\.index\.Tensor at test_index_checks\.py"):
            rows.cpu()


def test_the_checks_are_no_ops_of_the_graph() -> None:
    def build(ctx: kit.Context) -> Callable[[], torch.Tensor]:
        table, rows = X.to(ctx.device), ids(1, 2).to(ctx.device)
        return lambda: table[rows].sum()

    runs = [
        kit.run(build, kit.Settings(steps=1, warmup=1, check_indices=asked))
        for asked in ("on", "off")
    ]
    (checked,), (plain,) = (run.graphs for run in runs)
    assert [n.op for n in checked] == [n.op for n in plain]
    assert checked.hash == plain.hash


def test_an_index_that_nothing_reads_is_found_by_a_wait_for_all() -> None:
    with kit.Session() as session:
        memory = torch.zeros(4, device="kit")
        memory[ids(1, 7).to("kit")] = 1.0
        with pytest.raises(BadIndexError, match="index 7 is out of bounds") as found:
            session.wait_all()
    assert (found.value.value, found.value.allowed) == (7, "-4 to 3")
    # The second is how torch 2.15 sets elements to a number.
    assert found.value.op in ("aten.index_put.default", "aten.index_fill.int_Scalar")


def test_checks_are_off_where_the_settings_say_so() -> None:
    with kit.Session(kit.Settings(check_indices="off")) as session:
        rows = X.to("kit")[ids(12).to("kit")]
        assert rows.tolist() == X[9:].tolist()  # as XLA does: the nearest
        session.wait_all()


# -- steps ---------------------------------------------------------------------------------------


class Lookup:
    """Steps that train a table of 10 rows, and are given row `bad` in one of them."""

    def __init__(self, session: kit.Session, at: int = -1, bad: int = 12) -> None:
        self._session, self._at, self._bad = session, at, bad
        self.table = torch.nn.Embedding(10, 4).to("kit")
        self._optimizer = torch.optim.SGD(self.table.parameters(), lr=0.1)
        self._fetched = 0

    def _batch(self) -> torch.Tensor:
        row = self._bad if self._fetched == self._at else 3
        self._fetched += 1
        return ids(1, row).to("kit")

    def _step(self) -> torch.Tensor:
        rows = self._session.fetch(self._batch)
        loss = self.table(rows).square().sum()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._session.run_step(self._step)


@pytest.fixture(scope="module")
def cache() -> ExecutableCache:
    """Programs that the steps below share."""
    return ExecutableCache()


@pytest.mark.parametrize("setup", [None, Setup(executor=Unwaited)], ids=["waited", "unwaited"])
@pytest.mark.parametrize("mode", ["retrace", "replay", "speculate"])
def test_a_step_that_reads_nothing_is_stopped_soon(
    mode: str, setup: Setup | None, cache: ExecutableCache
) -> None:
    settings = kit.Settings(mode="lazy", step_mode=mode)
    with open_session(settings, setup=setup, cache=cache) as session:
        steps = Lookup(session, at=6)
        steps.run(6)
        with pytest.raises(IndexError, match=r"was given 12 in step 6") as found:
            steps.run(3)  # with the device a step behind, in step 7 or 8
        assert str(found.value).startswith("index out of range in self")
        with pytest.raises(IndexError, match="was given 12 in step 6"):
            steps.table.weight.cpu()  # an update has added to it what was never there
        session.wait_all()
        other = Lookup(session)
        other.run(5)
        assert torch.isfinite(other.table.weight.cpu()).all()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["retrace", "replay", "speculate"])
def test_a_gpu_finds_a_bad_index_without_a_wait(mode: str) -> None:
    settings = kit.Settings(mode="lazy", step_mode=mode, device="gpu")
    with open_session(settings) as session:
        steps = Lookup(session, at=6)
        steps.run(6)
        with pytest.raises(IndexError, match=r"was given 12 in step 6"):
            steps.run(20)
        assert not session.syncs


def test_a_step_that_is_taken_back_has_made_no_error() -> None:
    settings = kit.Settings(mode="lazy", loss_scaling="dynamic, deferred")
    with open_session(settings) as session:
        weight = torch.ones(4, device="kit")
        flag, wrong = torch.ones((), device="kit"), (torch.ones(4) * 12).to("kit")
        before = weight.kit_value()
        weight.copy_(wrong)
        session.redo.open(flag.kit_value(), [(weight.kit_value(), before)])
        rows = X.to("kit")[weight.long()]
        total = rows.sum(1)
        session.mark_step()
        session.mark_step()
        session.mark_step()
        assert total.tolist() == X[ids(1, 1, 1, 1)].sum(1).tolist()
        session.wait_all()


def test_a_replica_is_named() -> None:
    with net_on_one_cpu(torch.nn.Embedding(10, 3), 2) as net:
        optimizer = net.optimizer(torch.optim.SGD, lr=0.1)
        rows, weights = ids(1, 2, 3, 12), torch.ones(4)

        def loss(module: Any, rows: Any, weights: Any) -> Any:
            return (module(rows).sum(1) * weights).mean()

        def steps() -> None:
            net.step(loss, optimizer, rows, weights)  # raises if it has run by its end
            net.wait_all()

        with pytest.raises(IndexError, match="index out of range in self") as found:
            steps()
        (note,) = [n for n in found.value.__notes__ if "in replica" in n]
        assert note.startswith("kit: this was in replica 1")


@pytest.mark.parametrize("mode", ["retrace", "replay"])
def test_first_steps_are_checked_and_later_ones_are_not(mode: str) -> None:
    settings = kit.Settings(mode="lazy", step_mode=mode, check_indices="first steps")
    with open_session(settings) as session:
        steps = Lookup(session, at=8)
        steps.run(10)
        session.wait_all()
        again = [c.sentence for c in session.compiles if c.kind == "checks"]
    assert again
    assert set(again) == {"the first steps are over, and so are the checks on the device"}
    with open_session(settings) as session, pytest.raises(IndexError, match="was given 12 in st"):
        Lookup(session, at=1).run(4)


# -- NaN and infinities --------------------------------------------------------------------------


@pytest.mark.parametrize("executor", [Executor, Unwaited])
def test_the_first_op_that_made_a_nan_is_named(executor: type[Executor]) -> None:
    settings = kit.Settings(check_numbers=True)
    with open_session(settings, setup=Setup(executor=executor)) as session:
        x = torch.tensor([1.0, 0.0, 2.0]).to("kit")
        masked = x.masked_fill(x > 1, -INF).softmax(0)  # -inf was given, not made
        made = x.log()
        after = (made * 0).sum()  # NaN, of an infinity
        assert masked.sum().item() == pytest.approx(1)
        with pytest.raises(
            FloatingPointError, match=r"aten\.log\.default at .* made -inf"
        ) as found:
            after.item()
        assert isinstance(found.value, BadNumberError)
        assert found.value.site.startswith("test_index_checks.py:")
        nothing = torch.full((3,), -INF, device="kit").softmax(0)
        with pytest.raises(FloatingPointError, match=r"aten\._softmax\.default at .* made nan"):
            nothing.cpu()
        session.wait_all()


def test_numbers_are_not_checked_unless_asked_for() -> None:
    assert kit.Settings(check_numbers=False) == kit.Settings()
    with kit.Session() as session:
        assert torch.zeros(1, device="kit").log().item() == -INF
        session.wait_all()


def test_the_code_of_the_page_says_what_the_page_says() -> None:
    text, names = page("checks.md").read_text(), run_page(page("checks.md"))
    line = next(i for i, x in enumerate(text.splitlines(), 1) if "rows = table(" in x)
    said = names["said"].replace(f"checks.md:{line}", "train.py:7")
    assert said in " ".join(text.split())
    assert "aten.log.default at checks.md:" in names["why"]
    assert "made -inf" in names["why"]
