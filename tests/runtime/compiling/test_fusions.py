"""Which nodes a kernel computes, from the text of a compiled program."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import kit
from kit.runs.analysis.nodes import node_ns
from kit.runs.run import Fused, Run
from kit.runs.settings import Settings
from kit.runtime.compiling.fusions import Instructions
from kit.runtime.compiling.lower import options_for
from kit.trace import KINDS, Span, Timeline, kernel_table
from kit.workloads import bert, jax_mlp
from tests.factories import make_run

HLO = """HloModule jit_seg, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%region_0 (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum.1 = f32[] add(%a, %b), metadata={op_name="jit(seg)/n7/reduce_sum"}
}

%fused_computation (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %mul.1 = f32[4]{0} multiply(%p, %p), metadata={op_name="jit(seg)/n2/mul"}
  ROOT %add.1 = f32[4]{0} add(%mul.1, %p), metadata={op_name="jit(seg)/n3/add"}
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0), metadata={op_name="args[0]"}
  %copy.1 = f32[4]{0} copy(%x)
  %fusion.1 = f32[4]{0} fusion(%copy.1), kind=kLoop, calls=%fused_computation, metadata={op_name="jit(seg)/n3/add"}
  %reduce.1 = f32[] reduce(%fusion.1), dimensions={0}, to_apply=%region_0, metadata={op_name="jit(seg)/n5/reduce"}
  %while.1 = f32[] while(%reduce.1), condition=%region_0, body=%fused_computation
  %copy.2 = f32[4]{0} copy(%fusion.1)
  ROOT %tuple.1 = (f32[4]{0}, f32[]) tuple(%copy.2, %while.1)
}
"""  # noqa: E501


# A step of BERT of one narrow layer, 159 ops, as jax 0.11.2 compiled it ahead of time for an H100
# (`jax.experimental.topologies`), without tuning parameters and lines of Python.
FOR_H100 = Path(__file__).parents[2] / "data" / "h100_bert.hlo.gz"


def test_each_kernel_of_a_program_for_an_h100_has_nodes() -> None:
    text = gzip.decompress(FOR_H100.read_bytes()).decode()
    found = Instructions(text)
    entry = text[text.index("\nENTRY") :]
    kernels = re.findall(r"^\s*(?:ROOT )?%?([\w.\-]+) = .* fusion\(", entry, re.M)
    assert len(kernels) == 133
    nodes = [found.members(name) for name in kernels]
    assert all(nodes)
    assert {node for some in nodes for node in some} <= set(range(159))
    assert all(found.root(name) in found.members(name) for name in kernels)


def test_a_gpus_kernels_keep_their_names_and_compile_soon_unless_the_user_wants_it_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a command buffer, XLA's profiler says of no kernel which instruction it is."""
    gpu, cpu = (SimpleNamespace(platform=name) for name in ("gpu", "cpu"))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert options_for(cpu) == {}
    asked = options_for(gpu)
    assert asked == {"xla_gpu_enable_command_buffer": "", "xla_gpu_enable_triton_gemm": False}
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    assert lowered.compile(asked)(1.0) == 2.0  # XLA knows the option, wherever it compiles
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_command_buffer=FUSION")
    assert options_for(gpu) == {"xla_gpu_enable_triton_gemm": False}
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
    assert options_for(gpu) == {"xla_gpu_enable_command_buffer": ""}


def test_a_fusion_has_the_nodes_of_what_is_in_it_and_is_named_after_its_own() -> None:
    found = Instructions(HLO)
    assert found.members("fusion.1") == (2, 3)
    assert found.root("fusion.1") == 3


def test_regions_and_loop_bodies_are_inside_too() -> None:
    found = Instructions(HLO)
    assert found.members("reduce.1") == (5, 7)
    assert found.members("while.1") == (2, 3, 7)
    assert found.root("while.1") == 2


def test_a_copy_is_charged_to_what_needed_it_or_else_to_what_it_was_made_from() -> None:
    found = Instructions(HLO)
    assert found.members("copy.1") == (2, 3)  # the fusion reads it
    assert found.members("copy.2") == (2, 3)  # only the result holds it
    assert found.root("copy.1") == 2


def test_an_instruction_inside_a_fusion_is_found_by_its_own_name() -> None:
    assert Instructions(HLO).members("mul.1") == (2,)


@pytest.mark.parametrize("text", ["", "garbage\n%x = ", HLO[:300], HLO.replace("%", "")])
def test_any_text_gives_an_answer(text: str) -> None:
    found = Instructions(text)
    assert found.members("nothing of this name") == ()
    assert found.root("nothing of this name") == -1
    assert found.members("fusion.1") in ((), (2, 3), (3,))


@pytest.mark.as_shipped  # one that lost events to a busy machine runs again, alone
@pytest.mark.parametrize("workload", [bert, jax_mlp], ids=lambda w: w.name)
@pytest.mark.parametrize("changes", [
    {"mode": "lazy", "loss_scaling": "dynamic, on device"}, {"mode": "bulked"},
    {"segment_mode": "launch"},
], ids=str)  # fmt: skip
def test_at_least_98_percent_of_device_time_is_named(workload: kit.Workload, changes: dict) -> None:
    run = kit.run(workload, kit.Settings(steps=2, warmup=2, batch_size=2, **changes))
    t = run.timeline
    kernels = t.kind == KINDS.index("kernel")
    lengths = (t.stop_ns - t.start_ns).astype(float)
    assert lengths[kernels & (t.node >= 0)].sum() >= 0.98 * lengths[kernels].sum()
    for fused in run.fused:
        assert len(fused.nodes) > 1
        assert set(fused.nodes) <= set(run.segments[fused.segment].nodes)
    steps = int(t.where(kind="step").sum())
    charged = sum(row.charged_ms for row in kernel_table(t) if row.node >= 0)  # of the busy time
    assert sum(node_ns(run).values()) == pytest.approx(charged * 1e6 / steps, rel=1e-6)


def test_a_kernels_time_is_shared_equally_among_its_nodes() -> None:
    spans = [Span("host/main", "step 0", "step", 0, 100)] + [
        Span("device/0", name, "kernel", start, start + 30, 0, node)
        for name, start, node in (("fusion.1", 0, 2), ("dot", 40, 1), ("fusion.1", 70, 2))
    ]
    run = Run(Settings(), (), (), Timeline.of(spans), fused=(Fused(0, "fusion.1", (1, 2, 3)),),
              graphs=make_run().graphs)  # fmt: skip
    assert node_ns(run) == {1: 50.0, 2: 20.0, 3: 20.0}
    assert run.nodes_of(0, "fusion.1") == (1, 2, 3)
    assert run.nodes_of(0, "dot", 1) == (1,)
    assert run.nodes_of(0, "other") == ()
    assert np.isclose(sum(node_ns(run).values()), 90.0)


def test_nodes_whose_kernels_run_at_once_divide_the_time_and_add_up_to_the_busy_time() -> None:
    """The graph's boxes added up to more than the device was busy, and than the lines had."""
    spans = [Span("host/main", "step 0", "step", 0, 100)] + [
        Span(f"device/0 thread {node}", f"dot.{node}", "kernel", 10 * node, 50, 0, node)
        for node in (1, 2, 3)
    ]
    run = Run(Settings(), (), (), Timeline.of(spans), graphs=make_run().graphs)
    assert node_ns(run) == pytest.approx({1: 10 + 5 + 20 / 3, 2: 5 + 20 / 3, 3: 20 / 3})
    assert sum(node_ns(run).values()) == pytest.approx(40)


def test_scopes_inside_of_a_nodes_are_no_nodes() -> None:
    """A module named n1, and the ops of a hybridized function, have names like those of nodes."""
    inner = HLO.replace("n2/mul", "n2/jvp(Net)/n1/mul").replace("n3/add", "n3/n0/add")
    assert inner != HLO
    found = Instructions(inner)
    known = Instructions(HLO)
    for name in re.findall(r"%([\w.]+) = ", HLO):
        assert found.members(name) == known.members(name)
        assert found.root(name) == known.root(name)


def test_a_product_joined_with_its_results_transpose_is_not_lost() -> None:
    """jax writes the gradient of a weight as a product and its transpose; XLA makes one of both."""

    def step(w, x):
        return jax.value_and_grad(lambda w: jax.numpy.tanh(x @ w).sum())(w)

    @kit.workload(framework="jax")
    def wide(ctx: kit.Context):
        stepped, kept = kit.jax.step(step), None
        w, x = (np.ones(shape, np.float32) for shape in ((128, 64), (32, 128)))

        def run() -> object:
            nonlocal kept  # else XLA drops the gradient
            loss, kept = stepped(w, x)
            return loss

        return run

    run = kit.run(wide, kit.Settings(mode="lazy", steps=2, warmup=1))
    products = [k for k in kit.kernel_table(run) if "jax.dot_general" in k.ops]
    assert sum(k.flops for k in kit.kernel_table(run)) == 2 * 2 * 32 * 128 * 64
    assert [k.flops for k in products] == [2 * 32 * 128 * 64] * 2
    assert all(run.whole.nodes[k.kernel.node].op == "jax.dot_general" for k in products)


def test_a_transpose_that_is_a_kernel_of_its_own_computes_no_product() -> None:
    moved, product = {3: 2}, '%dot.9 = f32[4] dot(%x, %x), metadata={op_name="jit(seg)/n3/t"}'
    text = HLO.replace("%copy.2 = f32[4]{0} copy(%fusion.1)", product)
    assert Instructions(text, moved=moved).members("add.1") == (3,)
    assert Instructions(text, moved=moved).root("dot.9") == 2
    assert Instructions(text, moved=moved).members("dot.9") == (2, 3)
    assert Instructions(text).members("dot.9") == (3,)
