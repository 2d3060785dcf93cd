"""Texts of ranges, as torch pushes them for ops and annotations."""

from __future__ import annotations

import pytest

from kit.formats.nvtx import category_and_name


@pytest.mark.parametrize(
    ("text", "category", "name"),
    [
        ("aten::mm, seq = 12, op_id = 7, sizes = [[2, 3], [3]]", "cpu_op", "aten::mm"),
        ("aten::copy_, op_id = 317128", "cpu_op", "aten::copy_"),
        ("aten::add.Tensor, op_id = 3", "cpu_op", "aten::add.Tensor"),
        ("aten::to, seq = 0", "cpu_op", "aten::to"),  # before op_id
        ("MmBackward0, seq = 12, op_id = 9", "cpu_op", "MmBackward0"),
        ("record_param_comms, op_id = 4", "cpu_op", "record_param_comms"),
        ("FSDP::pre_forward (a, b), op_id = 5", "user_annotation", "FSDP::pre_forward (a, b)"),
        ("epoch, seq = 2, op_id = 5, sizes = []", "cpu_op", "epoch"),
        ("train_step", "user_annotation", "train_step"),
        ("Solver::step", "user_annotation", "Solver::step"),  # of a program without torch
        ("batch, op_id = x", "user_annotation", "batch, op_id = x"),
        (", op_id = 5", "user_annotation", ", op_id = 5"),
        ("", "user_annotation", ""),
    ],
)
def test_a_range_is_an_op_or_an_annotation_without_numbers(
    text: str, category: str, name: str
) -> None:
    assert category_and_name(text) == (category, name)
