"""What kernels compute: arithmetic against torch's own counter, bytes against counting by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.ops import aten  # type: ignore[import-not-found]
from torch.utils.flop_counter import flop_registry

import kit
from kit.ir import Aval, Graph, Node
from kit.runs.analysis.kernels import kernel_table
from kit.runs.device.flops import node_flops
from kit.runs.run import Fused, Run
from kit.runs.settings import Settings
from kit.trace import Span, Timeline, union_ns
from kit.trace.imported import Caller
from kit.trace.kernels import Ceilings
from kit.workloads import mlp
from tests.factories import HOSTILE, empty_run, make_run, one_span_run

sizes = st.integers(1, 7)


def flops(op: str, inputs: list[tuple[int, ...]], *outputs: tuple[int, ...], **attrs: str) -> int:
    variables = [Node("input", (), (), (Aval(shape, "float32"),)) for shape in inputs]
    node = Node(
        op,
        tuple((i, 0) for i in range(len(inputs))),
        tuple(attrs.items()),
        tuple(Aval(shape, "float32") for shape in outputs),
    )
    return node_flops(Graph((*variables, node)), len(inputs))


@given(sizes, sizes, sizes, sizes)
def test_products_count_as_torch_counts_them(b: int, m: int, k: int, n: int) -> None:
    mm = flop_registry[aten.mm]((m, k), (k, n), out_val=(m, n))
    bmm = flop_registry[aten.bmm]((b, m, k), (b, k, n), out_val=(b, m, n))
    assert flops("aten.mm.default", [(m, k), (k, n)], (m, n)) == mm
    assert flops("aten.addmm.default", [(n,), (m, k), (k, n)], (m, n)) == mm
    assert flops("aten.bmm.default", [(b, m, k), (b, k, n)], (b, m, n)) == bmm
    assert flops("aten.baddbmm.default", [(b, m, n), (b, m, k), (b, k, n)], (b, m, n)) == bmm
    assert flops("aten.linear.default", [(b, m, k), (n, k), (n,)], (b, m, n)) == bmm
    assert flops("aten.mv.default", [(m, k), (k,)], (m,)) == 2 * m * k
    assert flops("aten.dot.default", [(k,), (k,)], ()) == 2 * k
    assert (
        flops(
            "jax.dot_general", [(k, m), (k, n)], (m, n), dimension_numbers="(((0), (0)), ((), ()))"
        )
        == mm
    )


@given(sizes, sizes, sizes, sizes)
def test_a_linear_layers_gradients_are_a_product_each(b: int, m: int, k: int, n: int) -> None:
    inputs = [(b, m, k), (b, m, n), (n, k)]
    one = 2 * b * m * k * n
    op = "aten.linear_backward.default"
    assert flops(op, inputs, (b, m, k), (n, k), (n,)) == 2 * one
    assert flops(op, inputs, (n, k)) == one


@given(sizes, sizes, sizes, st.integers(1, 3), st.booleans())
def test_convolutions_count_as_torch_counts_them(
    b: int, i: int, o: int, f: int, transposed: bool
) -> None:
    x, out = (b, i, 6, 5), (b, o, 4, 3)
    weight = (i, o, f, f) if transposed else (o, i, f, f)
    attrs = (None, 1, 0, 1, transposed)
    expected = flop_registry[aten.convolution](x, weight, *attrs, out_val=out)
    found = flops("aten.convolution.default", [x, weight], out, arg6=str(transposed))
    assert found == expected
    both = flop_registry[aten.convolution_backward](
        out, x, weight, None, 1, 0, 1, transposed, 0, 1, [True, True, True],
        out_val=[x, weight, (o,)],
    )  # fmt: skip
    found = flops(
        "aten.convolution_backward.default", [out, x, weight], x, weight, (o,), arg7=str(transposed)
    )
    assert found == both


@given(sizes, sizes, sizes, sizes, sizes)
def test_attention_counts_as_torch_counts_it(b: int, h: int, q: int, s: int, e: int) -> None:
    query, key = (b, h, q, e), (b, h, s, e)
    name = "aten._scaled_dot_product_fused_attention_overrideable"
    torchs = flop_registry[aten._scaled_dot_product_flash_attention]
    assert flops(f"{name}.default", [query, key, key], query) == torchs(
        query, key, key, out_val=query
    )
    torchs = flop_registry[aten._scaled_dot_product_flash_attention_backward]
    assert flops(f"{name}_backward.default", [query, query, key, key], query, key, key) == torchs(
        query, query, key, key, out_val=query
    )


@pytest.mark.parametrize("op", ["aten.mm.default", "jax.dot_general", "aten.convolution.default"])
def test_an_op_that_is_not_what_its_name_says_counts_nothing(op: str) -> None:
    assert flops(op, [(3,)], (3,)) == 0
    assert flops("aten.add.Tensor", [(3,), (3,)], (3,)) == 0


F32 = Aval((10,), "float32")
GRAPH = Graph(
    (
        Node("parameter", (), (), (F32,)),
        Node("aten.add.Tensor", ((0, 0), (0, 0)), (), (F32,), "train.py:1", scope="a"),
        Node("aten.mul.Tensor", ((1, 0), (0, 0)), (), (F32,), "train.py:2", scope="b"),
        Node("aten.neg.default", ((2, 0),), (), (F32,), "train.py:3", scope="b"),
    ),
    wanted=((3, 0),),
).check()


def run_of(*kernels: Span, fused: tuple[Fused, ...] = ()) -> Run:
    step = Span("host/main", "step 0", "step", 0, 1000)
    return Run(Settings(), (), (), Timeline.of([step, *kernels]), graphs=(GRAPH,), fused=fused)


def kernel(name: str, start: int, stop: int, node: int) -> Span:
    return Span("device/0 k", name, "kernel", start, stop, 0, node)


def test_a_fused_kernel_moves_what_crosses_its_border() -> None:
    run = run_of(kernel("f", 0, 80, 1), fused=(Fused(0, "f", (1, 2)),))
    (row,) = kernel_table(run)
    assert (row.ops, row.sites, row.scopes) == (
        ("aten.add.Tensor", "aten.mul.Tensor"),
        ("train.py:1", "train.py:2"),
        ("a", "b"),
    )
    assert (row.bytes_read, row.bytes_written) == (40, 40)
    assert row.gb_s == 1.0  # 80 bytes in 80 ns


def test_kernels_of_one_node_divide_it_by_their_time() -> None:
    rows = kernel_table(run_of(kernel("x", 0, 30, 3), kernel("y", 30, 40, 3)))
    assert [(r.bytes_read, r.bytes_written) for r in rows] == [(30, 30), (10, 10)]
    assert [r.gb_s for r in rows] == [2.0, 2.0]


def test_a_kernel_of_two_devices_at_the_same_time_is_no_faster_than_on_one() -> None:
    both = [kernel("x", 0, 80, 3), replace(kernel("x", 20, 100, 3), lane="device/1 k")]
    (row,) = kernel_table(run_of(*both))
    assert row.gb_s == kernel_table(run_of(both[0]))[0].gb_s == 1.0
    relu = Caller("aten::relu", inputs=(Aval((10,), "float32"),), calls=2, kernels=2)
    foreign = run_of(*(replace(one, segment=-1, node=0) for one in both))
    (row,) = kernel_table(replace(foreign, graphs=(), callers=(relu,)))
    assert (row.bytes_read, row.gb_s) == (80, 1.0)


def test_rates_are_held_against_the_nearer_ceiling() -> None:
    rows = kernel_table(run_of(kernel("x", 0, 80, 3)), ceilings=Ceilings(4.0, 100.0))
    assert (rows[0].of_ceiling, rows[0].limit) == (0.25, "memory")
    (row,) = kernel_table(run_of(kernel("x", 0, 80, 3)))
    assert math.isnan(row.of_ceiling)
    assert row.limit == ""


def test_a_kernel_that_nobody_knows_has_times_only() -> None:
    for run in (one_span_run(), replace(run_of(kernel("x", 0, 80, -1)), graphs=())):
        (row,) = kernel_table(run, ceilings=Ceilings(1.0, 1.0))
        assert row.ops == ()
        assert math.isnan(row.bytes_read)
        assert row.kernel.share == 1.0
    assert kernel_table(empty_run()) == ()
    assert any(HOSTILE in r.kernel.name for r in kernel_table(make_run(hostile=True)))


def test_on_a_real_run_times_and_arithmetic_add_up_to_no_more_than_there_is() -> None:
    run = kit.run(mlp, kit.Settings(mode="lazy", steps=1, warmup=1))
    rows = kit.kernel_table(run, ceilings=kit.measure_ceilings("cpu", repeats=1))
    busy = union_ns(run.timeline.intervals(kind="kernel")) / 1e6
    assert sum(r.kernel.charged_ms for r in rows) == pytest.approx(busy)
    whole = sum(node_flops(run.graphs[0], i) for i in range(len(run.graphs[0])))
    assert 0 < sum(r.flops for r in rows if r.nodes) <= whole * (1 + 1e-9)
    assert sum(r.kernel.share for r in rows if r.sites) > 0.9
    assert {r.limit for r in rows if r.nodes} <= {"memory", "arithmetic", ""}


def jax_convolution(x: Any, weight: Any, out: Any, spec: str, lhs: int = 1, groups: int = 1) -> Any:
    return flops(
        "jax.conv_general_dilated", [x, weight], out,
        dimension_numbers=f"ConvDimensionNumbers(lhs_spec=(0, 3, 1, 2), rhs_spec={spec}, "
                          "out_spec=(0, 3, 1, 2))",
        lhs_dilation=f"({lhs}, {lhs})", feature_group_count=str(groups),
    )  # fmt: skip


@given(sizes, sizes, sizes, st.integers(1, 3))
def test_jaxs_convolutions_and_their_gradients_count_as_torchs(b: int, i: int, o: int, f: int):
    x, out, kernel = (b, 8, 8, i), (b, 4, 4, o), (f, f, i, o)
    expected = 2 * b * 4 * 4 * o * f * f * i
    assert jax_convolution(x, kernel, out, "(3, 2, 0, 1)") == expected
    # the gradient of the input: the output's, dilated by the stride, with the kernel turned over
    assert jax_convolution(out, kernel, x, "(2, 3, 0, 1)", lhs=2) == expected
    # that of the kernel: the input with the output's gradient for its kernel
    assert jax_convolution(x, out, kernel, "(3, 0, 1, 2)") == expected


def test_what_a_loop_computes_is_not_known() -> None:
    assert math.isnan(flops("jax.scan", [(4,)], (4,)))
    looped = replace(GRAPH.nodes[3], op="jax.scan")
    run = run_of(kernel("x", 0, 80, 3))
    run = replace(run, graphs=(replace(GRAPH, nodes=(*GRAPH.nodes[:3], looped)),))
    (row,) = kernel_table(run, ceilings=Ceilings(4.0, 100.0))
    assert math.isnan(row.flops)
    assert (math.isnan(row.of_ceiling), row.limit) == (True, "")
    assert row.bytes_written == 40  # one kernel, run once: it may be all of the loop
    several = run_of(kernel("x", 0, 30, 3), kernel("y", 30, 40, 3))
    often = run_of(*(kernel("x", at, at + 10, 3) for at in range(0, 80, 10)))
    for run in (several, often):
        graph = replace(GRAPH, nodes=(*GRAPH.nodes[:3], looped))
        for row in kernel_table(replace(run, graphs=(graph,))):
            assert math.isnan(row.bytes_read)
            assert math.isnan(row.bytes_written)
            assert math.isnan(row.gb_s)


def test_a_product_of_another_type_is_not_held_against_float32() -> None:
    """A GPU computes products of halves several times as fast."""
    for dtype, is_held in (("float32", True), ("bfloat16", False)):
        avals = [Aval((8, 8), dtype)]
        nodes = [Node("input", (), (), tuple(avals)) for _ in range(2)]
        product = Node("aten.mm.default", ((0, 0), (1, 0)), (), tuple(avals))
        run = replace(run_of(kernel("x", 0, 80, 2)), graphs=(Graph((*nodes, product), ((2, 0),)),))
        (row,) = kernel_table(run, ceilings=Ceilings(4.0, 100.0))
        assert row.flops == 2 * 8**3
        assert math.isnan(row.of_ceiling) != is_held


@pytest.mark.parametrize(
    ("dtype", "is_held"),
    [("float32", True), ("bfloat16", False), ("float16", False), ("float8_e4m3fn", False),
     ("int8", False)],
)  # fmt: skip
def test_nor_is_a_native_product_of_another_type(dtype: str, is_held: bool) -> None:
    """Of a native run `aten::mm` of bfloat16 was said to reach 1,100% of the ceiling."""
    launched = Caller("aten::mm", inputs=(Aval((8, 8), dtype),) * 2, calls=1, kernels=1)
    native = replace(run_of(kernel("gemm", 0, 80, 0)), graphs=(), callers=(launched,))
    (row,) = kernel_table(native, ceilings=Ceilings(4.0, 100.0))
    assert row.flops == 2 * 8**3
    assert math.isnan(row.of_ceiling) != is_held
    relu = replace(launched, op="aten::relu", inputs=launched.inputs[:1])
    (row,) = kernel_table(replace(native, callers=(relu,)), ceilings=Ceilings(4.0, 100.0))
    assert row.limit == "memory"


def of_step(function: Any, *arrays: Any) -> dict[str, float]:
    """What is counted of each op of a step of jax's."""
    with kit.Session() as session:
        graph = session.plan(lambda: kit.jax.step(function)(*arrays)).graph
    return {node.op: node_flops(graph, i) for i, node in enumerate(graph.nodes)}


def test_a_product_by_groups_of_rows_counts_each_row_once_in_each_direction() -> None:
    x, w = np.ones((6, 3), np.float32), np.ones((2, 3, 5), np.float32)
    rows = np.array([2, 4], np.int32)
    product = jax.lax.ragged_dot
    ragged = "jax.ragged_dot_general"
    assert of_step(lambda x, w: product(x, w, rows), x, w)[ragged] == 2 * 6 * 3 * 5
    for argument in (0, 1):
        gradient = jax.grad(lambda x, w: product(x, w, rows).sum(), argument)
        assert of_step(gradient, x, w)[ragged] == 2 * 6 * 3 * 5
    numbers = "=(((1), (2)), ((0), (0))), lhs_ragged_dimensions=(0), rhs_group_dimensions=()"
    batched = {"ragged_dot_dimension_numbers": numbers}
    assert math.isnan(flops(ragged, [(2, 6, 3), (2, 5, 3), (2,)], (2, 6, 5), **batched))


def test_an_op_of_jax_with_ops_inside_is_not_said_to_do_nothing() -> None:
    m, x, at = np.eye(3, dtype=np.float32), np.ones(3, np.float32), np.arange(2)

    def solve(m: Any, x: Any) -> Any:
        return jax.scipy.sparse.linalg.cg(lambda v: m @ v, x)[0]

    assert math.isnan(of_step(solve, m, x)["jax.custom_linear_solve"])
    assert of_step(lambda x, i: x.at[i].add(1), x, at)["jax.scatter-add"] == 0
