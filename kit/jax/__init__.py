"""Steps written in jax: `kit.jax.step(fn)` is recorded and cut as a torch step is.

    step = kit.jax.step(train_step)
    with kit.Session(kit.Settings(bulk_forward=15)) as session:
        state, loss = step(state, batch)
        print(float(loss))  # a sync point

Any function that `jax.jit` takes will do: plain jax, flax, optax. `docs/jax.md` has more.
"""

from __future__ import annotations

from kit.jax.array import LazyArray
from kit.jax.frontend import device_put
from kit.jax.steps import Step, step
from kit.jax.tracing import Trace

__all__ = ["LazyArray", "Step", "Trace", "device_put", "step"]
