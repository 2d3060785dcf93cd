"""`hybridize`: the same numbers as the plain function, one op; and what cannot be repeated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kit


@kit.hybridize
def zero_grad(arrays: list[torch.Tensor]) -> None:
    for a in arrays:
        a[()] = 0


def tensors(n: int, *shape: int) -> list[torch.Tensor]:
    return [torch.arange(6.0).reshape(shape or (2, 3)) + i for i in range(n)]


def ops(session: Any, call: Callable[[], Any]) -> int:
    session.wait_all()
    before = session.metrics().get("record.ops", 0)
    kept = call()
    session.wait_all()
    del kept
    return int(session.metrics()["record.ops"] - before)


def test_a_loop_of_zeros_records_nothing_after_its_first_call() -> None:
    with kit.Session() as session:
        arrays = [t.to("kit") for t in tensors(20)]
        zero_grad(arrays)
        for k in range(3):
            for a in arrays:
                a.add_(k + 1)
            assert ops(session, lambda: zero_grad(arrays)) == 0
            assert all(float(a.abs().sum()) == 0 for a in arrays)


def test_shared_zeros_are_copied_when_one_of_them_is_written() -> None:
    with kit.Session():
        arrays = [t.to("kit") for t in tensors(3)]
        for reset in (zero_grad, kit.reset_arrays):
            reset(arrays)
            arrays[0].add_(1)
            arrays[1][0] = 7
            assert [float(a.sum()) for a in arrays] == [6.0, 21.0, 0.0]


def test_it_is_the_plain_function_on_other_devices() -> None:
    arrays = tensors(3)
    zero_grad(arrays)
    assert all(float(a.sum()) == 0 for a in arrays)


@kit.hybridize
def mix(xs: list[Any], ys: list[Any], scale: float, twice: bool = False) -> dict[str, Any]:
    out = []
    for x, y in zip(xs, ys, strict=True):
        y.mul_(scale).add_(x)
        if twice:
            y[0] = x[1] * 2
        out.append((x * y).sum(0))
    xs[0].t().copy_(ys[0].t() + 1)
    return {
        "out": out,
        "same": ys[0],
        "view": xs[1][0],
        "number": 3,
        "ones": torch.ones_like(xs[0]),
    }


def flat(result: Any) -> list[Any]:
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list | tuple):
        return [y for x in result for y in flat(x)]
    return [result]


@pytest.mark.parametrize("mode", ["imperative", "bulked", "lazy"])
@pytest.mark.parametrize("segment_mode", ["fuse", "launch"])
def test_every_call_equals_the_plain_function(mode: str, segment_mode: str) -> None:
    plain = mix.__wrapped__
    with kit.Session(kit.Settings(mode=mode, segment_mode=segment_mode)):
        ours = [[t.to("kit") for t in tensors(3)], [t.to("kit") * 2 for t in tensors(3)]]
        theirs = [tensors(3), [t * 2 for t in tensors(3)]]
        for scale, twice in ((0.5, False), (0.5, False), (0.25, True), (0.25, True), (0.5, False)):
            a, b = mix(*ours, scale, twice=twice), plain(*theirs, scale, twice=twice)
            assert a["same"] is ours[1][0]
            a["view"].add_(1), b["view"].add_(1)  # shows the argument's memory
            for x, y in zip(flat([a, ours]), flat([b, theirs]), strict=True):
                if isinstance(y, torch.Tensor):
                    torch.testing.assert_close(x.cpu(), y)
                else:
                    assert x == y


steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=8
)


@given(program=steps, shared=st.booleans())
@settings(max_examples=25, deadline=None)
def test_random_functions_equal_torch(program: list[Any], shared: bool) -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        given = [a, b, c]
        made = []
        for what, i, j in program:
            x, y = given[i], given[j]
            if shared:
                y = y + 0  # torch refuses to write from memory that overlaps
            if what == 0:
                x.add_(y)
            elif what == 1:
                x.copy_(y)
            elif what == 2:
                x[1:].mul_(2)
            elif what == 3:
                made.append(x * y)
            elif what == 4:
                x.zero_()
            else:
                x.t()[0] = y.t()[1]
        return made

    def arguments(device: str) -> Any:
        whole = (torch.arange(18.0).reshape(6, 3) / 7).to(device)
        if shared:  # two of the three show parts of one memory
            return whole[:3], whole[2:5], whole[:3] + 1
        return whole[:3] + 0, whole[3:] + 0, whole[:3] + 1

    hybrid = kit.hybridize(function)
    with kit.Session(kit.Settings(bulk_forward=4)), warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, theirs = arguments("kit"), arguments("cpu")
        for _ in range(3):
            a, b = hybrid(*ours), function(*theirs)
            for x, y in zip([*a, *ours], [*b, *theirs], strict=True):
                torch.testing.assert_close(x.cpu(), y, rtol=1e-5, atol=1e-4)
            for x, y in zip(ours, theirs, strict=True):
                x.mul_(0.1), y.mul_(0.1)


def test_random_numbers_are_new_at_each_call() -> None:
    @kit.hybridize
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)

    with kit.Session() as session:
        x = torch.zeros(1000, device="kit")
        found = [noisy(x) for _ in range(4)]
        assert len({float(y.sum()) for y in found}) == 4
        assert ops(session, lambda: noisy(x)) == 1
        assert not noisy.reasons


def test_autograd_notices_what_a_call_has_overwritten() -> None:
    with kit.Session():
        w = torch.ones(2, 3, device="kit", requires_grad=True)
        x = torch.ones(2, 3, device="kit")
        for _ in range(2):
            loss = (w * x).sum()
            zero_grad([x])
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


def test_inside_another_one_it_is_part_of_its_op() -> None:
    @kit.hybridize
    def outer(arrays: list[torch.Tensor]) -> torch.Tensor:
        zero_grad(arrays)
        for a in arrays:
            a.add_(arrays[0] + 2)
        return arrays[0].sum()

    with kit.Session() as session:
        arrays = [t.to("kit") for t in tensors(3)]
        outer(arrays)
        assert ops(session, lambda: outer(arrays)) <= 1
        assert [float(a[0, 0]) for a in arrays] == [2.0, 4.0, 4.0]


def test_an_exception_leaves_the_session_as_it_was() -> None:
    @kit.hybridize
    def fails(x: torch.Tensor) -> None:
        x.add_(1)
        raise ZeroDivisionError

    with kit.Session(kit.Settings(bulk_forward=2)):
        x = torch.zeros(3, device="kit")
        for k in range(3):
            with pytest.raises(ZeroDivisionError):
                fails(x)
            assert x.tolist() == [k + 1.0] * 3
        y = x
        for _ in range(5):
            y = y + 1
        assert y.tolist() == [8.0] * 3


CAPTURED: list[Any] = []


def uses_other(x: Any) -> Any:
    return x + CAPTURED[0]


def writes_other(x: Any) -> None:
    CAPTURED[0].copy_(x)


def keeps(x: Any) -> None:
    CAPTURED.append(x * 2)


def reads(x: Any) -> Any:
    return x * float(x.sum())


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (uses_other, r"it uses a tensor of float32\[3\] that is no argument, at test_hybrid\.py"),
        (writes_other, r"it writes a tensor of float32\[3\] that is no argument"),
        (keeps, r"it keeps what it made at test_hybrid\.py:\d+ elsewhere"),
        (reads, "it waits for the device"),
        (lambda x: str(x.shape), "it returns a str"),
        (lambda x: x.clone().requires_grad_(), "it returns a tensor that requires grad"),
    ],
)
def test_what_cannot_be_repeated_runs_as_it_is_and_says_why(
    function: Callable[[Any], Any], why: str
) -> None:
    hybrid = kit.hybridize(function)
    with kit.Session():
        CAPTURED[:] = [torch.ones(3, device="kit")]
        with pytest.warns(UserWarning, match=f"runs as it is, because {why}"):
            first = hybrid(torch.full((3,), 2.0, device="kit"))
        CAPTURED[0] = torch.full((3,), 5.0, device="kit")
        again = hybrid(torch.full((3,), 3.0, device="kit"))
        expected = {"uses_other": ([3.0] * 3, [8.0] * 3), "reads": ([12.0] * 3, [27.0] * 3)}
        if function.__name__ in expected:
            assert (first.tolist(), again.tolist()) == expected[function.__name__]
        if function is writes_other:
            assert CAPTURED[0].tolist() == [3.0] * 3
        if function is keeps:
            assert CAPTURED[-1].tolist() == [6.0] * 3
        CAPTURED.clear()


def test_gradients_and_odd_arguments_run_as_they_are() -> None:
    @kit.hybridize
    def double(x: Any, *rest: Any) -> Any:
        return x * 2

    with kit.Session():
        w = torch.ones(3, device="kit", requires_grad=True)
        with pytest.warns(UserWarning, match="gradients are recorded"):
            double(w).sum().backward()
        assert w.grad is not None
        assert w.grad.tolist() == [2.0] * 3
        with pytest.warns(UserWarning, match="its arguments hold a object"):
            double(w.detach(), object())
        with pytest.warns(UserWarning, match="its arguments hold CPU tensors"):
            double(w.detach(), torch.ones(3))
        with torch.no_grad():
            assert double(w).tolist() == [2.0] * 3


def test_a_number_that_changes_at_each_call_ends_the_learning() -> None:
    @kit.hybridize
    def scaled(x: torch.Tensor, number: float) -> torch.Tensor:
        return x * number

    with kit.Session():
        x = torch.ones(2, device="kit")
        with pytest.warns(UserWarning, match="pass a number that changes as a 0-d tensor"):
            found = [scaled(x, float(k)) for k in range(80)]
        assert [float(y[0]) for y in found] == [float(k) for k in range(80)]


def test_an_error_in_the_op_names_it_and_its_line() -> None:
    def wrong(x: Any) -> Any:
        raise ValueError("no such number")

    rules = kit.Rules({"aten.erf.default": wrong}).over(kit.DEFAULT_RULES)

    @kit.hybridize
    def both(x: torch.Tensor) -> Any:
        return x + 1, torch.erf(x)

    with kit.Session(rules=rules):
        x = torch.ones(2, device="kit")
        both(x)
        found = both(x)
        with pytest.raises(kit.errors.LoweringError, match=r"aten\.erf"):
            found[1].tolist()


def test_a_tensor_made_of_one_number_is_still_an_argument() -> None:
    @kit.hybridize
    def put(x: torch.Tensor, number: torch.Tensor) -> None:
        x.copy_(number)
        x[0] = 9

    with kit.Session():
        x = torch.zeros(3, device="kit")
        for value in (0.5, 0.25, 2.0):
            put(x, torch.full((), value, device="kit"))
            assert x.tolist() == [9.0, value, value]


RATE = 0.5


def test_numbers_outside_of_the_function_are_seen_when_they_change() -> None:
    global RATE
    inside = 1.0

    @kit.hybridize
    def scaled(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x * RATE + inside for x in xs]

    with kit.Session():
        xs = [torch.ones(2, device="kit")]
        found = []
        for rate, add in ((0.5, 1.0), (0.5, 1.0), (2.0, 1.0), (2.0, 3.0), (0.5, 1.0)):
            RATE, inside = rate, add
            found.append(scaled(xs)[0].tolist()[0])
        assert found == [1.5, 1.5, 3.0, 5.0, 1.5]
        RATE = 0.5


RATES = [0.5]


class Scale:
    """A method that uses a number of its object."""

    rate: float = 0.5

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.rate


def test_what_is_not_a_plain_number_outside_is_seen_when_it_changes() -> None:
    global RATES
    scale = Scale()

    @kit.hybridize
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * RATES[0]

    by_method, by_object = kit.hybridize(scale.__call__), kit.hybridize(scale)
    with kit.Session():
        x = torch.ones(2, device="kit")
        found = []
        for rate in (0.5, 0.5, 2.0, 0.5):
            RATES = []  # its place in memory is free for the next one
            RATES, scale.rate = [rate], rate
            found.append([float(f(x)[0]) for f in (scaled, by_method, by_object)])
        assert found == [[r] * 3 for r in (0.5, 0.5, 2.0, 0.5)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (h := x * 2, h[-1]),
        lambda x: (h := x * 2, h.view(2, 2)),
        lambda x: (h := x * 2, h.detach()),
        lambda x: (h := x * 2, [h]),
        lambda x: (v := x.view(2, 2), {"again": v}),
    ],
    ids=["last", "view", "detach", "one object", "one view of an argument"],
)
def test_results_share_memory_at_each_call(function: Callable[[Any], Any]) -> None:
    hybrid = kit.hybridize(function)
    with kit.Session():
        for _ in range(3):
            first, second = hybrid(torch.ones(4, device="kit"))
            if isinstance(second, list | dict):
                assert next(iter(second.values() if isinstance(second, dict) else second)) is first
            else:
                second.zero_()
                assert float(first.sum()) == (6.0 if second.dim() == 0 else 0.0)


def test_autocast_and_the_default_type_make_another_kind_of_call() -> None:
    @kit.hybridize
    def product(x: torch.Tensor) -> list[torch.Tensor]:
        return [x @ x, x + torch.zeros(2, 2, device="kit")]

    def types(x: torch.Tensor) -> list[torch.dtype]:
        return [made.dtype for made in product(x)]

    with kit.Session():
        x = torch.ones(2, 2, device="kit")
        assert types(x) == types(x) == [torch.float32] * 2
        with torch.autocast("kit", dtype=torch.bfloat16):
            assert types(x) == types(x) == [torch.bfloat16, torch.float32]
        torch.set_default_dtype(torch.float64)
        try:
            assert types(x) == [torch.float32, torch.float64]
        finally:
            torch.set_default_dtype(torch.float32)
        assert types(x) == [torch.float32] * 2


def test_what_comes_from_elsewhere_is_not_taken_for_what_the_function_makes() -> None:
    """From the second call on it gave another of its results in the place of such a tensor."""

    @kit.hybridize
    def counts(x: torch.Tensor, n: torch.Tensor) -> None:
        n.add_(1)
        x.copy_(torch.tensor([1.0, 2.0]))

    for mode in ("retrace", "replay"):
        with kit.Session(kit.Settings(step_mode=mode)):
            x, n = torch.zeros(2, device="kit"), torch.full((2,), 100.0, device="kit")
            w = torch.full((2,), 7.0, device="kit")
            beside = kit.hybridize(lambda y, w=w: (y + 1, w))
            copied = kit.hybridize(lambda y, z: z.copy_(y))
            z = torch.zeros(2, device="kit")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that some run as they are, and why
                for _ in range(3):
                    counts(x, n)
                    made = beside(x)
                    copied(x, z)
            assert [t.tolist() for t in (x, n, *made, z)] == [
                [1.0, 2.0], [103.0, 103.0], [2.0, 3.0], [7.0, 7.0], [1.0, 2.0],
            ]  # fmt: skip
