"""What the text of a range says where torch has pushed it: NVTX on NVIDIA's GPUs, roctx on AMD's.

Inside of `torch.autograd.profiler.emit_nvtx()` each op and each `record_function` is a range:

    text ::= name [", seq = " number] [", op_id = " number]
             [", sizes = [" shapes "]"] [", input_op_ids = [" pairs "]"]

No two texts of one op are alike, so the name alone is kept. Of annotations torch gives no `seq`; an
op without one, that has no gradient, is known by its namespace.
"""

from __future__ import annotations

import re

__all__ = ["category_and_name"]

_WITH_NAMESPACE = re.compile(r"\w+(?:::\w+)+(?:\.\w+)?$")
_INPUTS = re.compile(r", (?:sizes|input_op_ids) = \[")
_COMMUNICATES = "record_param_comms"  # an op of torch's without a namespace


def category_and_name(text: str) -> tuple[str, str]:
    """Category and name of the event that torch.profiler would have written for a range."""
    without_inputs = _INPUTS.split(text, maxsplit=1)[0]
    with_op, op_id = _number_after(", op_id = ", without_inputs)
    name, seq = _number_after(", seq = ", with_op)
    if not seq and not op_id:
        return "user_annotation", text
    is_op = seq or name == _COMMUNICATES or _WITH_NAMESPACE.match(name)
    return "cpu_op" if is_op else "user_annotation", name


def _number_after(mark: str, text: str) -> tuple[str, str]:
    """The text before the mark, and the number behind it; without one the text as it is."""
    before, _, number = text.rpartition(mark)
    return (before, number) if before and number.isdecimal() else (text, "")
