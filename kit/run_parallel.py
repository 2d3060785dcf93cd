"""Gradients on their way between devices: what a link takes, and how a step's bulk size meets it.

Everything here is a model or a measure of times that others have recorded; nothing is run.
"""

from __future__ import annotations

from dataclasses import dataclass

from kit.errors import SettingsError

__all__ = ["Link"]


@dataclass(frozen=True, slots=True)
class Link:
    """A connection between devices: what one message costs, and what its bytes cost.

    Units:
        latency_us in microseconds a hop; gb_per_s in 1e9 bytes a second, each direction.
    """

    latency_us: float = 30.0
    gb_per_s: float = 10.0

    def __post_init__(self) -> None:
        if not (self.latency_us >= 0 and self.gb_per_s > 0):
            raise SettingsError(
                "a link has a latency_us of at least 0 and a gb_per_s above 0, not "
                f"{self.latency_us!r} and {self.gb_per_s!r}"
            )

    def ns(self, size_bytes: int, devices: int) -> int:
        """How long a sum over all devices of so many bytes takes, as a ring would do it.

        Source:
            A ring all-reduce sends 2 (n - 1) messages of 1/n of the bytes, one after the other:
            Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
        """
        hops = 2 * (devices - 1)
        return round(hops * (self.latency_us * 1e3 + size_bytes / devices / self.gb_per_s))
