"""Device time by what it is for: compute, communication, memory, idle; held against a count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.trace import Span, Timeline
from kit.trace.communication import communicates, device_work, moves_memory, operation_of
from kit.trace.intervals import joined, within

NAMES = ("gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Memcpy HtoD (Pinned -> Device)")
SPAN = st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 20))
STEP = st.tuples(st.integers(0, 60), st.integers(1, 20))


@settings(max_examples=60, deadline=None)
@given(st.lists(SPAN, max_size=12), st.lists(STEP, min_size=1, max_size=3))
def test_each_instant_of_the_steps_is_counted_once(kernels, steps):
    spans = [Span(f"device/0 stream {n}", NAMES[n], "kernel", a, a + w) for n, a, w in kernels]
    spans += [Span("host/main", f"step {i}", "step", a, a + w) for i, (a, w) in enumerate(steps)]
    work = device_work(Timeline.of(spans))
    during = joined(_array([(a, a + w) for a, w in steps]))
    counted = {"compute": 0, "communication": 0, "exposed": 0, "memory": 0, "busy": 0}
    for t in range(100):
        if not any(a <= t < a + w for a, w in steps):
            continue
        on = [any(n == m and a <= t < a + w for m, a, w in kernels) for n in range(3)]
        counted["compute"] += on[0]
        counted["communication"] += on[1]
        counted["memory"] += on[2]
        counted["exposed"] += on[1] and not on[0]
        counted["busy"] += any(on)
    for what, of_it in counted.items():
        assert within(getattr(work, what), during).sum() == of_it, what


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", "all_gather"),
        ("void rccl_main_kernel_ReduceScatter", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("gloo:all_reduce", "all_reduce"),
        ("all-gather-start.3", "all_gather"),
        ("reduce-scatter.1", "reduce_scatter"),
        ("collective-permute-done", "permute"),
        ("void multimem_all_reduce_kernel<float>", "all_reduce"),
        ("void vllm::cross_device_reduce_1stage<half, 8>", "all_reduce"),
        (
            "void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>(AllReduceParams)",
            "all_reduce",
        ),
        ("psum_invariant.7", "all_reduce"),
        ("pmax.7", "all_reduce"),
        ("ppermute.3", "permute"),
        ("unreduced_reduce_scatter.7", "reduce_scatter"),
        ("all_gather.3-start.1", "all_gather"),
        ("ragged_all_to_all.1", "all_to_all"),
        ("ncclDevKernel_Generic", ""),
        ("void deep_ep::internode_ll::dispatch<(bool)1, (int)7168>(void *)", ""),
        ("void deep_ep::intranode::cached_notify_combine<8>(void**, int*)", ""),
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*)", ""),
        ("mori::moe::EpCombineInterNodeV1Kernel<hip_bfloat16>", ""),
        ("tensorrt_llm::kernels::moeAllToAllKernel(tensorrt_llm::kernels::MoeEpW)", "all_to_all"),
        ("void flashinfer::fused_moe_impl::moeAllToAllKernel<2, false>(Kernel)", "all_to_all"),
        ("void tensorrt_llm::_v1::kernels::moe_comm::moeA2ADispatchKernel<8, true>(int*)", ""),
        ("void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<__half>(Pointers)", ""),
        ("quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>>", "all_reduce"),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>",
            "all_reduce",
        ),
    ],
)
def test_kernels_of_libraries_that_communicate_are_known(name: str, operation: str):
    assert communicates(name)
    assert operation_of(name) == operation


@pytest.mark.parametrize(
    "name",
    ["sgemm_128x64", "void at::native::reduce_kernel<512, 1>", "reduce.3", "all-reduce-fusion x",
     "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)",
     "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*>>",
     "void deep_ep::internode::get_dispatch_layout<256>(long const*)",
     "hipLaunchKernel", "void gatherTopK", "broadcast_in_dim.4", "scatter.1", "psum_of_mine.3",
     "all_gather_fusion.1", "tensorrt_llm::kernels::moe_comm::moeA2APrepareCombineKernel<4>"],
)  # fmt: skip
def test_kernels_that_compute_do_not_communicate(name: str):
    assert not communicates(name)


@pytest.mark.parametrize(
    "name",
    [
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "MemcpyH2D",
        "MemcpyDtoDAsync",
        "__amd_rocclr_copyBuffer.kd",
        "__amd_rocclr_fillBufferAligned",
    ],
)
def test_copies_move_memory(name: str):
    assert moves_memory(name)
    assert not communicates(name)
    assert not moves_memory("memory_efficient_attention")
    assert not moves_memory("__amd_rocclr_initHeap")


@pytest.mark.parametrize("said", ["allreduce", "_allgather_base", "reduce_scatter_tensor_coalesced",
                                  "all_to_allv", "broadcast", "barrier"])  # fmt: skip
def test_torchs_names_of_collectives_are_known(said: str):
    assert operation_of(said)


def _array(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, np.int64).reshape(-1, 2)
