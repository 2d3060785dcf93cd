"""An op without a rule: right on the host, counted with its line and time, and a rule away."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
import torch

from kit.errors import LoweringError, UnsupportedOp
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.torch.device import open_session
from kit.torch.ops.host import rule_skeleton

KEYS = torch.tensor([3, 1, 1, 0])


def test_an_op_without_a_rule_is_right_counted_and_timed() -> None:
    with open_session() as session:
        for _ in range(2):
            assert torch.bincount(KEYS.to("kit")).tolist() == [1, 2, 0, 1]
        ((key, count),) = session.unlowered.items()
        assert key.startswith("aten.bincount.default at test_fallback.py:")
        assert count == 2
        assert session.unlowered_ns[key] > 0
        session.unlowered_ns[key] = 5_766_400_000
        text = session.explain()
        assert "ran on the host, 2 times, 5.77 s: aten.bincount" in text
        assert "kit.Rules({'aten.bincount.default': bincount})" in text


def test_a_strict_session_raises_with_the_line_and_the_rule_to_write() -> None:
    with open_session(strict=True) as session:
        keys = KEYS.to("kit")
        with pytest.raises(UnsupportedOp, match=r"test_fallback\.py") as caught:
            torch.bincount(keys)
        assert "def bincount(self, weights=None, minlength=0):" in str(caught.value)
        assert not session.unlowered
        assert (keys + 1).tolist() == [4, 2, 2, 1]  # the session is usable afterwards


@pytest.mark.parametrize(
    "op",
    ["add.Tensor", "index_put_.default", "max_pool2d.default", "cat.default", "_foreach_add.List"],
)
def test_a_skeleton_is_python_that_compiles(op: str) -> None:
    packet, overload = op.split(".")
    text = rule_skeleton(getattr(getattr(torch.ops.aten, packet), overload))
    compile(text, "skeleton", "exec")
    assert "Rules({" in text


def test_a_skeleton_lists_no_argument_that_a_rule_is_never_given() -> None:
    text = rule_skeleton(torch.ops.aten.copy.default)
    assert text.startswith("def copy(self, src):")


def test_a_user_adds_a_rule_without_touching_anything_global() -> None:
    def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
        return jnp.bincount(x, weights, length=4)

    def shaped(x: Any) -> Any:
        return jnp.flip(x)

    library = torch.library.Library("mine", "FRAGMENT")
    library.define("backwards(Tensor x) -> Tensor")
    library.impl("backwards", lambda x: x.flip(0), "CPU")
    library.impl("backwards", torch.empty_like, "Meta")
    mine = Rules({"mine.backwards.default": shaped})
    with open_session(rules=DEFAULT_RULES | mine) as session:
        assert torch.ops.mine.backwards(KEYS.to("kit")).tolist() == [0, 1, 1, 3]
        assert not session.unlowered
    assert "mine.backwards.default" not in DEFAULT_RULES
    with open_session() as session:
        assert torch.ops.mine.backwards(KEYS.to("kit")).tolist() == [0, 1, 1, 3]
        assert session.unlowered


@pytest.mark.parametrize("bad", [lambda x: x[:1], lambda x: 1 / 0])
def test_a_wrong_rule_is_an_error_that_names_the_op_and_the_line(bad: Any) -> None:
    with open_session(rules=Rules({"aten.neg.default": bad}).over(DEFAULT_RULES)):
        x = KEYS.to("kit")
        with pytest.raises(LoweringError, match=r"aten\.neg\.default.*test_fallback\.py"):
            (-x).cpu()
        assert (x + x).tolist() == [6, 2, 2, 0]


WRITES = {
    "one number at a mask and places": lambda x, m, i: x.index_put_((m, i), x.new_tensor(7.0)),
    "numbers at a mask and places": lambda x, m, i: x.index_put_((m, i), x[0, :2].clone()),
    "at places and a mask": lambda x, m, i: x.T.index_put_((i, m), x.new_tensor(7.0)),
    "added": lambda x, m, i: x.index_put_((m, i), x.new_tensor(7.0), accumulate=True),
    "of one element": lambda x, m, i: x[:, :1].index_put_((m,), x[:2, :1].clone()),
    "a new tensor": lambda x, m, i: x.index_put((m, i), x.new_tensor(7.0)),
    "read": lambda x, m, i: x[m, i],
    "read for one row": lambda x, m, i: x[m, i[:1]],
}


@pytest.mark.parametrize("name", WRITES)
def test_a_mask_beside_places_is_torchs(name: str) -> None:
    """Whether they fit was asked of a mask of zeros, which shows nothing (RetinaNet's labels)."""

    def numbers(device: str) -> list[Any]:
        x = torch.arange(12.0).reshape(4, 3).to(device)
        mask = torch.tensor([True, False, False, True]).to(device)
        return [WRITES[name](x, mask, torch.tensor([2, 0]).to(device)).tolist(), x.tolist()]

    with open_session():
        assert numbers("kit") == numbers("cpu")


def test_a_mask_and_places_that_do_not_fit_raise_torchs_error() -> None:
    with open_session():
        x, mask = torch.ones(4, 3, device="kit"), torch.tensor([True] * 3 + [False], device="kit")
        with pytest.raises(IndexError, match=r"could not be broadcast together.*\[3\], \[2\]"):
            x[mask, torch.tensor([0, 1], device="kit")] = 1.0
