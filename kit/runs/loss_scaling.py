"""The table of loss-scaling modes: what each does when a gradient has overflowed, and its cost.

A mode is one row here, a scaler in `kit.torch.scaling`, and its builder in
`kit.torch.scaling.choose`. Everything else asks the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from kit.errors import SettingsError

__all__ = ["DEFERRED", "HOST_CHECK", "LOSS_SCALING", "NONE", "ON_DEVICE", "STATIC", "LossScaling",
           "loss_scaling"]  # fmt: skip

NONE = "none"
STATIC = "static"
HOST_CHECK = "dynamic, host check"
ON_DEVICE = "dynamic, on device"
DEFERRED = "dynamic, deferred"


@dataclass(frozen=True, slots=True)
class LossScaling:
    """One mode of loss scaling.

    Attributes:
        name: as `Settings.loss_scaling` has it.
        costs: what a step pays for it, in words.
        first_scale: what the loss is multiplied with at first; dynamic: torch's own default.
        is_dynamic: the scale follows the gradients, and a step with an infinite one is skipped.
            All dynamic modes give the same weights.
        waits_for_check: the host reads the check before it goes on, a sync point in each step.
        takes_back: a step whose check fails is taken back later and issued again, which is
            impossible where other devices have been sent its results.
        native: the mode used instead without kit's runtime, where a step cannot be taken back;
            it gives the same weights.
    """

    name: str
    costs: str
    first_scale: float = 1.0
    is_dynamic: bool = False
    waits_for_check: bool = False
    takes_back: bool = False
    native: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "native", self.native or self.name)


_ROWS = (
    LossScaling(NONE, "nothing"),
    LossScaling(STATIC, "a multiplication of the loss and of each gradient", 2.0**10),
    LossScaling(
        HOST_CHECK,
        "the host waits in each step until the device has said that the gradients are finite",
        2.0**16,
        is_dynamic=True,
        waits_for_check=True,
    ),
    LossScaling(
        ON_DEVICE, "a few ops: the device itself skips the update", 2.0**16, is_dynamic=True
    ),
    LossScaling(
        DEFERRED,
        "the host reads the check one step later, and takes a bad step back",
        2.0**16,
        is_dynamic=True,
        takes_back=True,
        native=ON_DEVICE,
    ),
)
_BY_NAME = MappingProxyType({row.name: row for row in _ROWS})
LOSS_SCALING = tuple(_BY_NAME)  # the names


def loss_scaling(name: str) -> LossScaling:
    """The row of a mode.

    Raises:
        SettingsError: there is no such mode; the message lists all.
    """
    if name not in _BY_NAME:
        names = ", ".join(repr(x) for x in LOSS_SCALING)
        raise SettingsError(f"loss_scaling must be one of {names}, not {name!r}.")
    return _BY_NAME[name]
