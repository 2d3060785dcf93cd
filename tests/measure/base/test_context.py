"""What a builder is given: loader, scaler, autocast; and what goes wrong, said clearly."""

from __future__ import annotations

import gc
import importlib
import itertools
import sys
import threading
import warnings
from collections import OrderedDict, UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import kit
from kit.errors import SettingsError
from kit.measure.base.context import Context, Workload, as_workload, workload
from kit.runs.settings import Settings
from kit.workloads.text import IGNORE, MASK, MaskedText, corpus, tokenise, vocabulary


class Numbers(torch.utils.data.Dataset[Any]):
    def __init__(self, length: int, *, fail_at: int = -1) -> None:
        self.length, self.fail_at = length, fail_at

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index == self.fail_at:
            raise OSError("disk gone")
        return torch.tensor(index), torch.tensor(index * 2)


class Collecting(Numbers):
    """After two items, waits for `go` and lets the garbage collector run, as it may anywhere."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.go, self.made = threading.Event(), 0

    def __getitem__(self, index: int) -> Any:
        self.made += 1
        if self.made > 2:
            self.go.wait(timeout=30)
            gc.collect()
        return super().__getitem__(index)


class Repeated:
    """The same batches in each pass."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class Pair(NamedTuple):
    first: Any
    second: Any


def first(count: int, **settings: Any) -> list[list[int]]:
    batches = Context(Settings(batch_size=3, **settings), "cpu").loader(Numbers(10))
    return [next(batches)[0].tolist() for _ in range(count)]


def test_batches_depend_on_the_seed_only() -> None:
    assert first(7) == first(7)
    assert first(7) != first(7, seed=1)


def test_prefetch_gives_the_same_batches() -> None:
    assert first(9, prefetch=2) == first(9)


def test_an_exception_in_the_dataset_arrives_at_next_with_and_without_prefetch() -> None:
    for prefetch in (0, 2):
        settings = Settings(batch_size=2, prefetch=prefetch)
        batches = Context(settings, "cpu").loader(Numbers(4, fail_at=3))
        with pytest.raises(OSError, match="disk gone"):
            list(itertools.islice(batches, 5))


def test_an_iterable_of_batches_is_taken_as_it_is_and_again_from_the_start() -> None:
    own = torch.utils.data.DataLoader(Numbers(6), batch_size=2)
    for prefetch in (0, 2):
        batches = Context(Settings(batch_size=5, prefetch=prefetch), "cpu").loader(own)
        taken = [batch[0].tolist() for batch in itertools.islice(batches, 4)]
        assert taken == [[0, 1], [2, 3], [4, 5], [0, 1]]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_that_ends_for_good_says_after_how_many_batches(prefetch: int) -> None:
    once = (torch.ones(1) * i for i in range(3))
    batches = Context(Settings(prefetch=prefetch), "cpu").loader(once)
    with pytest.raises(SettingsError, match="ended after 3 batches"):
        list(itertools.islice(batches, 5))


def test_what_gives_no_batches_is_named() -> None:
    with pytest.raises(SettingsError, match="not a int"):
        Context(Settings(), "cpu").loader(3)


def test_the_prefetch_thread_ends_with_its_iterator() -> None:
    batches: Any = Context(Settings(batch_size=2, prefetch=3), "cpu").loader(Numbers(8))
    next(batches)
    assert any(t.name == "kit prefetch" for t in threading.enumerate())
    batches.close()
    del batches
    assert not any(t.name == "kit prefetch" for t in threading.enumerate())


def test_the_prefetch_thread_may_itself_collect_the_iterator() -> None:
    """The garbage collector runs in any thread; a thread that joins itself is an error."""
    data = Collecting(8)
    batches: Any = Context(Settings(batch_size=2, prefetch=1), "cpu").loader(data)
    next(batches)
    knot: list[Any] = [batches]
    knot.append(knot)
    thread = next(t for t in threading.enumerate() if t.name == "kit prefetch")
    gc.disable()
    try:
        del batches, knot
        data.go.set()
        thread.join(timeout=30)
    finally:
        gc.enable()
    assert not thread.is_alive()


def test_a_batch_keeps_its_shape_on_its_way_to_the_device() -> None:
    class Pairs(Numbers):
        def __getitem__(self, index: int) -> Any:
            return {"pair": Pair(torch.tensor(index), torch.tensor(-index)), "name": "x"}

    batch = next(Context(Settings(batch_size=3), "cpu").loader(Pairs(3)))
    assert torch.equal(batch["pair"].first, -batch["pair"].second)
    assert batch["name"] == ["x", "x", "x"]


@pytest.mark.parametrize("kind", [OrderedDict, UserDict, dict])
def test_a_batch_comes_in_what_the_loader_made(kind: Any) -> None:
    given = kind(rows=(torch.ones(2), 3))
    batch = next(Context(Settings(), "meta").loader(iter([given])))
    assert type(batch) is kind
    assert type(batch["rows"]) is tuple
    assert batch["rows"][0].device.type == "meta"
    assert given["rows"][0].device.type == "cpu", "the loader's own stays as it is"


def test_a_step_that_changes_its_batch_does_not_change_the_loaders_own() -> None:
    """On the CPU nothing moves; the second pass over these batches found no labels."""
    given = [{"x": torch.ones(2), "rest": {"labels": torch.ones(2), "names": ["a"]}}]
    batches = Context(Settings(), "cpu").loader(Repeated(given))
    for _ in range(2):
        rest = next(batches)["rest"]
        assert rest.pop("labels").sum() == 2
        assert rest["names"].pop() == "a"


class Numbered(tuple[Any, ...]):
    def __new__(cls, rows: torch.Tensor, number: int) -> Numbered:
        return super().__new__(cls, (rows, number))


def test_a_class_that_is_not_made_of_a_list_comes_as_a_list() -> None:
    """As torch's own loader gives it."""
    batches = Context(Settings(), "meta").loader(Repeated([Numbered(torch.ones(2), 3)]))
    rows, number = next(batches)
    assert (rows.device.type, number) == ("meta", 3)


def test_a_dataset_smaller_than_a_batch_is_a_clear_error() -> None:
    with pytest.raises(SettingsError, match="dataset has only 4 items"):
        Context(Settings(batch_size=5), "cpu").loader(Numbers(4))


def test_float32_needs_no_autocast_and_bfloat16_does() -> None:
    x, w = torch.ones(2, 2), torch.ones(2, 2)
    with Context(Settings(), "cpu").autocast():
        assert (x @ w).dtype is torch.float32
    with Context(Settings(dtype="bfloat16"), "cpu").autocast():
        assert (x @ w).dtype is torch.bfloat16


def test_the_decorator_names_the_workload_and_plain_functions_are_taken_too() -> None:
    @workload
    def mine(ctx: Context) -> Any:
        """Mine."""
        return lambda: ctx.batch_size

    assert isinstance(mine, Workload)
    assert (mine.name, mine.doc) == ("mine", "Mine.")
    assert as_workload(lambda ctx: None).name == "<lambda>"
    with pytest.raises(SettingsError, match=r"@kit\.workload"):
        as_workload(3)
    with pytest.raises(SettingsError, match="import bert`"):
        as_workload("bert")


def test_a_builder_of_before_its_module_was_loaded_anew_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`%autoreload 2`: its numbers were those of the old code, beside the new text."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    text = "import kit\nmade = []\nfor _ in range(2):\n    @kit.workload\n    def mine(ctx):\n"
    text += "        return lambda: 64\n    made.append(mine)\n"
    text += "@kit.workload\ndef mine(ctx):\n    return lambda: 64 or 1\nmade.append(mine)\n"
    file = tmp_path / "loaded_anew.py"
    file.write_text(text, "utf-8")
    module = importlib.import_module("loaded_anew")
    try:
        old = module.made
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [one(Context(Settings(), "cpu"))() for one in old] == [64, 64, 64]
        file.write_text(text.replace("64", "512"), "utf-8")
        new = importlib.reload(module).mine
        with pytest.warns(UserWarning, match="new one: `from loaded_anew import mine`") as said:
            assert old[1](Context(Settings(), "cpu"))() == 64
        assert said[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert new(Context(Settings(), "cpu"))() == 512
    finally:
        del sys.modules["loaded_anew"]


def test_a_builder_that_forgets_to_return_its_step_is_told_so() -> None:
    with pytest.raises(SettingsError, match="Add `return step`"):
        as_workload(lambda ctx: None)(Context(Settings(), "cpu"))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: lambda: None, r"`def mine\(ctx\):`.*too many positional arguments"),
        (lambda ctx, model: lambda: None, "takes other arguments: missing.*'model'"),
        (lambda ctx: lambda batch: batch, "takes some: missing.*'batch'.*ctx.loader"),
    ],
)
def test_a_builder_or_step_with_other_arguments_is_told_which(build: Any, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        as_workload(build)(Context(Settings(), "cpu"))


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), torch.nn.Linear])
def test_a_model_is_no_workload(model: Any) -> None:
    with pytest.raises(SettingsError, match="write a function that takes a context"):
        as_workload(model)


@pytest.mark.parametrize("shown", [kit.kernel_table, kit.TimelineView, kit.line_costs])
def test_a_workload_in_the_place_of_its_run_is_told_so(shown: Any) -> None:
    with pytest.raises((AttributeError, SettingsError), match=r"kit\.run\(workload\)"):
        shown(Workload("mine", lambda ctx: lambda: None))


def test_a_dict_is_no_settings() -> None:
    with pytest.raises(SettingsError, match=r"kit\.Settings\(mode='lazy'\), not dict"):
        kit.run(lambda ctx: lambda: None, {"mode": "lazy"})  # type: ignore[arg-type]


def test_the_text_is_real_and_the_vocabulary_is_fixed() -> None:
    assert corpus().startswith("In the beginning God created the heaven and the earth.")
    known = vocabulary(tokenise(corpus()), 3000)
    assert len(known) == 3000
    assert list(known)[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenise("And God said, Let") == ["and", "god", "said", ",", "let"]


def test_masking_asks_for_about_15_percent_and_hides_most_of_them() -> None:
    data = MaskedText(length=64, size=3000)
    ids = torch.stack([data[i][0] for i in range(400)])
    labels = torch.stack([data[i][1] for i in range(400)])
    asked = labels != IGNORE
    assert 0.12 < asked.float().mean() < 0.18
    assert 0.75 < (ids[asked] == MASK).float().mean() < 0.85
    assert torch.equal(data[7][0], MaskedText(length=64, size=3000)[7][0])


def test_a_text_that_is_too_short_is_a_clear_error() -> None:
    with pytest.raises(SettingsError, match="fewer than a piece"):
        MaskedText(length=64, text="In the beginning")
