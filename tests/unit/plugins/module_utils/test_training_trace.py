# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Communication, its exposed part and the messages' own time, from traces of which the answer is known."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _training_trace as trace
from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import (
    Task,
    Training,
    answer_line,
    answers,
)
from hypothesis import given
from hypothesis import strategies as st

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda one: (one[0], one[0] + one[1])))


def gpu(name: str, begin: int, end: int, kind: str = "kernel") -> trace.Activity:
    return trace.Activity(name, kind, True, begin, end)


def cpu(name: str, begin: int, end: int) -> trace.Activity:
    return trace.Activity(name, "cpu_op", False, begin, end)


@given(INTERVALS, INTERVALS)
def test_lengths_are_those_of_sets_of_moments(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    first, second = ({moment for begin, end in side for moment in range(begin, end)} for side in (one, other))
    assert trace.length(one) == len(first)
    assert trace.common(one, other) == len(first & second) == trace.common(other, one)


def test_nccl_kernels_are_communication_and_all_other_work_of_the_gpu_hides_it() -> None:
    seen = [
        gpu("ampere_gemm", 0, 100),
        gpu("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 80, 200),
        gpu("Memcpy DtoD", 150, 160, "gpu_memcpy"),
        gpu("ncclDevKernel_Broadcast_RING_LL(...)", 210, 220),
        gpu("nccl:all_reduce", 0, 1000, "gpu_user_annotation"),
        cpu("aten::mm", 0, 1000),
        cpu("gloo:all_reduce", 0, 1000),
    ]
    found = trace.summary(seen)
    assert found["communication_s"] == pytest.approx(130e-9)
    assert found["exposed_s"] == pytest.approx((130 - 20 - 10) * 1e-9)
    assert found["compute_s"] == pytest.approx(110e-9)
    assert found["messages_s"] == pytest.approx([120e-9, 10e-9])


@pytest.mark.parametrize("name", ["nccl:all_reduce", "ProfilerStep#3", "Stream Wait Event", "Context Sync"])
def test_without_kinds_annotations_and_waiting_are_no_work(name: str) -> None:
    seen = [gpu("ncclKernel_AllReduce_RING_LL_Sum_float", 0, 10, ""), gpu(name, 0, 500, "")]
    found = trace.summary(seen)
    assert (found["communication_s"], found["compute_s"]) == (pytest.approx(10e-9), 0.0)


def test_without_gpus_gloo_communicates_and_operators_compute() -> None:
    seen = [
        cpu("gloo:all_reduce", 10, 50),
        cpu("aten::mm", 0, 20),
        cpu("aten::add", 5, 15),
        cpu("c10d::allreduce_", 0, 99),
    ]
    found = trace.summary(seen)
    assert found["communication_s"] == pytest.approx(40e-9)
    assert found["exposed_s"] == pytest.approx(30e-9)


def test_a_step_without_messages_has_no_communication() -> None:
    found = trace.summary([cpu("aten::mm", 0, 20)])
    assert (found["communication_s"], found["exposed_s"], found["messages_s"]) == (0.0, 0.0, [])


@pytest.mark.parametrize(
    ("ranks", "seconds"),
    [
        ([[5.0, 1.0], [2.0, 3.0]], 3.0),  # each waits once for the other
        ([[5.0, 1.0], [2.0]], 2.0),
        ([[4.0], [4.0]], 4.0),
    ],
)
def test_the_rank_that_comes_last_tells_how_long_a_message_takes(ranks: list[list[float]], seconds: float) -> None:
    given_by = [{"communication_s": sum(times), "messages_s": times} for times in ranks]
    assert trace.transfer_s(given_by) == seconds
    assert sum(trace.transfers_s(ranks)) == (seconds if len({len(times) for times in ranks}) == 1 else 0)


def test_a_task_comes_through_as_it_was_given() -> None:
    training = Training("x", {"model_type": "llama"}, "fsdp2", {"r": 8}, options={"reshard": False})
    task = Task("gloo", (training,), {"all_reduce": [8, 16]}, memory_mb=100)
    assert Task.from_json(task.to_json()) == task


def test_answers_are_found_among_noise_and_cut_lines_are_left_out() -> None:
    first: dict[str, t.Any] = {"rank": 0, "training": "x", "steps": []}
    text = "a warning\n" + answer_line(first) + 'TRAINING {"rank": 1, "trai\n'
    assert answers(text) == [first]
