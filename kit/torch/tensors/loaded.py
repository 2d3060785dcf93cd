"""The memory of a checkpoint that is loaded to device "kit"."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["LoadedStorage"]


class LoadedStorage(torch.UntypedStorage):
    """The bytes of a checkpoint's storage, still on the host; tensors that show it are kit's.

    Attributes:
        buffer: the memory on the device, once the first tensor that shows it has been made.
    """

    buffer: Any

    @classmethod
    def of(cls, host: torch.UntypedStorage) -> LoadedStorage:
        """A copy of a storage on the host."""
        made = cls(host.nbytes())
        made.copy_(host)
        made.buffer = None
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where tensors over it shall be: torch makes an empty one there first."""
        return torch.device("kit")
