"""What the builder of a jax workload is given: the same as `Context`, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NoReturn

import jax
import numpy as np

from kit.errors import SettingsError
from kit.jax.arguments import NO_NUMBERS
from kit.jax.frontend import device_put
from kit.measure.base.context import Context
from kit.measure.base.loading import NEXT, WAITED, fetched, noted
from kit.runs.settings import Settings
from kit.runtime.session.session import current_session

__all__ = ["JaxContext"]

Region = AbstractContextManager[object]


class JaxContext(Context):
    """One run's settings, and the parts of a step that depend on them.

    Attributes:
        settings: the run's `Settings`.
        device: "kit", or the platform on which jax.jit runs the baseline.
        batch_size, seed, accumulate: as in the settings.
    """

    def __init__(
        self, settings: Settings, device: str, loading: Callable[[str], Region] = nullcontext
    ) -> None:
        """What a builder sees of this run.

        Args:
            loading: the region, of this name, in which a native step waits for a batch; a session
                sees it without.
        """
        super().__init__(settings, device)
        self._loading = loading

    def loader(self, dataset: Any) -> Iterator[Any]:
        """Batches for ever, on the device, in an order that depends on the seed only.

        With `prefetch=k`, a thread prepares up to k batches while the step runs, and on device
        "kit" copies them there too.

        Args:
            dataset: a pytree of arrays with equally many items along their first axis, such as a
                tuple or a dict of them; or an object with a length and items, each a pytree of
                arrays.

        Raises:
            SettingsError: the dataset is smaller than a batch, its arrays differ in length, it is a
                list of things alike, which may be items, or it holds something else, such as texts.
        """
        length, take = _items(dataset)
        self._check_holds_batch(length)
        batches = _shuffled(length, take, self.batch_size, self.seed)
        depth = self.settings.prefetch
        session = current_session()
        if session is not None:
            return fetched(session, batches, device_put, depth)
        return noted(
            map(device_put, self._ahead(batches)), partial(self._loading, WAITED if depth else NEXT)
        )

    def scaler(self) -> NoReturn:
        """Not for jax: a step scales its loss itself, as `settings.loss_scaling` says."""
        raise SettingsError(
            "ctx.scaler() is torch's. In jax the step scales its loss itself, by "
            "ctx.settings.loss_scaling; kit.workloads.jax_mlp shows how"
        )

    def autocast(self) -> NoReturn:
        """Not for jax: a step casts by itself, as `settings.dtype` says."""
        raise SettingsError(
            "ctx.autocast() is torch's. In jax the step casts by itself, to ctx.settings.dtype"
        )


Take = Callable[[Any], Any]  # indices -> a batch, a pytree of numpy arrays


def _items(dataset: Any) -> tuple[int, Take]:
    if isinstance(dataset, str | bytes):
        raise SettingsError(
            f"ctx.loader was given the text {dataset!r:.60}: load what it names, and give the "
            "arrays"
        )
    is_array = isinstance(dataset, np.ndarray | jax.Array)
    has_items = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    # What jax knows as a pytree, a dict or flax's FrozenDict, has whole arrays.
    if has_items and not is_array and jax.tree_util.all_leaves([dataset]):
        return len(dataset), lambda indices: jax.tree.map_with_path(
            lambda path, *items: np.stack([_numbers(path, x) for x in items]),
            *(dataset[i] for i in indices),
        )
    _refuse_items(dataset)
    leaves = [dataset] if isinstance(dataset, Iterator) else jax.tree.leaves(dataset)
    if not all(map(np.ndim, leaves)):
        raise SettingsError(
            "ctx.loader takes a pytree of arrays, each with a first axis of items, or an object "
            f"with a length and items; in this {type(dataset).__name__} is something else"
        )
    arrays = jax.tree.map_with_path(_numbers, dataset)
    lengths = {len(a) for a in jax.tree.leaves(arrays)}
    if len(lengths) != 1:
        raise SettingsError(
            f"the arrays of a dataset must have equally many items, not {sorted(lengths)}"
        )
    return lengths.pop(), lambda indices: jax.tree.map(lambda a: a[indices], arrays)


def _numbers(path: Any, leaf: Any) -> np.ndarray[Any, Any]:
    """An array of a dataset, or of an item, on the host.

    Raises:
        SettingsError: no device can hold it.
    """
    where = f"dataset{jax.tree_util.keystr(path)}"
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise SettingsError(
            f"{where} are random keys: give jax.random.key_data(keys), and make them keys again in "
            "the step, by jax.random.wrap_key_data"
        )
    array = np.asarray(leaf)
    if array.dtype.kind in NO_NUMBERS:
        raise SettingsError(
            f"{where} is of dtype {array.dtype}, which no device holds: keep texts, dates and "
            "objects beside ctx.loader, and give it numbers, such as their places"
        )
    return array


def _refuse_items(dataset: Any) -> None:
    """A list of items would be taken for whole arrays, and its first axis for the items."""
    if not isinstance(dataset, list) or len(dataset) < 2:
        return
    kinds = {jax.tree.structure(x) for x in dataset}
    are_arrays = all(isinstance(x, np.ndarray | jax.Array) for x in dataset)
    if len(kinds) == 1 and not (are_arrays and len({(x.shape, x.dtype) for x in dataset}) > 1):
        raise SettingsError(
            f"ctx.loader was given a list of {len(dataset):,} things alike. If each is an item, "
            "stack them: jax.tree.map(lambda *x: np.stack(x), *items), or give an object of a "
            "class of yours with __len__ and __getitem__. If each is a whole array, give a tuple"
        )


def _shuffled(length: int, take: Take, size: int, seed: int) -> Iterator[Any]:
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(length)
        for start in range(0, length - size + 1, size):
            yield take(order[start : start + size])
