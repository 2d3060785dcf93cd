"""`torch.kit`, `torch.accelerator`, pinned memory and copies: what scripts ask of any device."""

from __future__ import annotations

import copy
import pickle
import subprocess
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from kit.errors import SessionError
from kit.runs.settings import Settings
from kit.torch.device import open_session, register
from tests.warm import warm_python

POINTS = TensorDataset(torch.arange(8.0).reshape(4, 2))
SUMS = [6.0, 22.0]  # of batches of two
LOADERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pinned": {"pin_memory": True},
    "workers": {"num_workers": 1},
    "pinned, workers": {"num_workers": 1, "pin_memory": True},
    "pinned, workers that stay": {
        "num_workers": 1,
        "pin_memory": True,
        "persistent_workers": True,
    },
}


def kit() -> Any:
    return torch.kit  # type: ignore[attr-defined]


def sums(where: str, **how: Any) -> list[float]:
    loader = DataLoader(POINTS, batch_size=2, multiprocessing_context=None, **how)
    return [x.to(where, non_blocking=True).sum().item() for (x,) in loader]


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_gives_its_batches_in_a_session(name: str) -> None:
    with open_session():
        assert sums("kit", **LOADERS[name]) == SUMS


@pytest.mark.filterwarnings(
    "ignore:os.fork:RuntimeWarning",
    "ignore:.*fork:DeprecationWarning",
    "ignore:'pin_memory' argument:UserWarning",  # torch's, where there is no accelerator
)
@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_works_once_the_session_is_closed(name: str) -> None:
    with open_session():
        sums("kit")
    assert sums("cpu", **LOADERS[name]) == SUMS
    assert torch.ones(2).pin_memory().tolist() == [1.0, 1.0]


def test_the_device_is_there_while_a_session_is_open() -> None:
    register()
    assert not kit().is_available()
    with open_session():
        assert kit().is_available()
        assert torch.accelerator.current_accelerator() == torch.device("kit")
        assert kit().device_count() == torch.accelerator.device_count() == 1
        assert "cpu" in kit().get_device_name()
        kit().set_device(0)
        with pytest.raises(RuntimeError, match="DataParallel"):
            kit().set_device("kit:1")
    assert not torch.accelerator.is_available()


@pytest.mark.parametrize("call", ["kit", "accelerator"])
def test_synchronize_runs_what_is_recorded(call: str) -> None:
    with open_session(Settings(mode="lazy")) as session:
        torch.ones(2, device="kit").mul(2.5)
        before = session.metrics()["segment.count"]
        getattr(torch, call).synchronize()
        assert session.metrics()["segment.count"] > before
    getattr(torch, call).synchronize()  # nothing runs: nothing to wait for


def test_seeds_and_states_give_the_same_random_numbers_again() -> None:
    def draw() -> list[float]:
        return torch.rand(3, device="kit").tolist()  # type: ignore[no-any-return]

    with open_session():
        kit().manual_seed(7)
        first = draw()
        kit().manual_seed(7)
        state, host = kit().get_rng_state_all(), torch.get_rng_state()
        assert draw() == first
        second = draw()
        kit().set_rng_state_all(state)
        torch.set_rng_state(host)
        assert [draw(), draw()] == [first, second]
        assert kit().initial_seed() == 7
        kit().seed()
        assert draw() != first


def test_memory_is_counted_or_refused_with_what_to_use() -> None:
    with open_session():
        before = kit().memory_allocated()
        x = torch.ones(1000, device="kit").mul(2.5)
        kit().synchronize()
        assert kit().memory_allocated() >= before + 4000
        assert torch.accelerator.memory_allocated() >= before + 4000
        kit().empty_cache()
        torch.accelerator.empty_cache()
        assert x.sum().item() == 2500
        with pytest.raises(RuntimeError, match="MemoryView"):  # XLA's CPU has no such count
            kit().max_memory_allocated()
    with pytest.raises(SessionError, match=r"with kit\.Session"):
        kit().memory_allocated()


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("Stream", "Leave the stream out"),
        ("current_stream", "stream out"),
        ("Event", "kit.run"),
        ("get_device_properties", "get_device_name"),
        ("mem_get_info", "memory_allocated"),
    ],
)
def test_what_the_device_does_not_have_says_why(name: str, instead: str) -> None:
    with open_session(), pytest.raises(RuntimeError, match=instead):
        getattr(kit(), name)()


@pytest.mark.parametrize(
    "name",
    [
        "get_memory_info",
        "memory_stats",
        "memory_reserved",
        "max_memory_reserved",
        "reset_accumulated_memory_stats",
    ],
)
def test_what_torch_asks_its_own_allocator_for_says_what_to_use(name: str) -> None:
    """It was torch's INTERNAL ASSERT FAILED, or an answer of nothing."""
    if not hasattr(torch.accelerator, name):
        pytest.skip("this torch has no such function")
    with open_session(), pytest.raises(RuntimeError, match="counts the arrays that are"):
        getattr(torch.accelerator, name)()


def test_the_device_computes_in_bfloat16() -> None:
    assert kit().is_bf16_supported()


def test_a_generator_of_another_device_is_refused_with_what_to_write() -> None:
    with open_session():
        for device in ("kit", "kit:0", torch.device("kit")):
            assert torch.Generator(device).device == torch.device("kit:0")
        with pytest.raises(RuntimeError, match=r"normal_.*draw with torch\.Generator\('kit'\)"):
            torch.randn(2, device="kit", generator=torch.Generator())


def test_the_generators_of_the_cpu_are_torchs_own_after_a_session() -> None:
    class Mine(torch.Generator):
        pass

    with open_session():
        made = torch.Generator().manual_seed(3)
    assert type(made) is type(torch.default_generator)
    for one in (made, torch.default_generator, Mine()):
        assert isinstance(one, torch.Generator)
    assert not isinstance(made, Mine)
    assert not isinstance(3, torch.Generator)
    assert issubclass(type(made), torch.Generator)
    assert not issubclass(int, torch.Generator)
    drawn = torch.rand(3, generator=torch.Generator("cpu").manual_seed(3))
    for one in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), Mine().manual_seed(3)):
        assert torch.equal(torch.rand(3, generator=one), drawn)
    loader = DataLoader(POINTS, batch_size=2, shuffle=True, generator=made)
    assert sum(x.sum().item() for (x,) in loader) == sum(SUMS)


def test_the_default_device_makes_tensors_and_modules() -> None:
    with open_session():
        torch.set_default_device("kit")
        try:
            made = [torch.zeros(2), torch.nn.Linear(2, 2).weight, torch.tensor([1.0])]
        finally:
            torch.set_default_device(None)
        assert {x.device.type for x in made} == {"kit"}


def test_a_training_on_the_default_device_names_no_device() -> None:
    def train() -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(model.weight, 0.5)
        torch.nn.init.zeros_(model.bias)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        losses = []
        for _ in range(2):
            for (x,) in DataLoader(POINTS, batch_size=4, shuffle=True):
                loss = model(x.to(model.weight.device)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses

    expected = train()
    with open_session() as session:
        torch.set_default_device("kit")
        try:
            assert train() == pytest.approx(expected, rel=1e-4)
        finally:
            torch.set_default_device(None)
        assert session.metrics()["segment.count"] > 0


def test_a_shallow_copy_shows_the_same_memory_on_the_device() -> None:
    with open_session():
        for made in (torch.zeros(2, device="kit"), torch.nn.Parameter(torch.zeros(2).to("kit"))):
            twin = copy.copy(made)
            assert type(twin) is type(made)
            assert twin.requires_grad == made.requires_grad
            with torch.no_grad():
                twin.add_(1)
            assert made.tolist() == [1.0, 1.0]


def test_numbers_on_the_device_make_a_tensor() -> None:
    with open_session():
        numbers = [torch.tensor(1.5, device="kit"), torch.ones(1, device="kit")[0], 3]
        assert torch.tensor(numbers).tolist() == [1.5, 1.0, 3.0]
        assert torch.tensor(numbers, device="kit").tolist() == [1.5, 1.0, 3.0]


def in_a_new_process(code: str) -> str:
    """What it prints; device kit is registered once a process."""
    done = subprocess.run([warm_python(), "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_threads_may_open_the_first_sessions_together() -> None:
    code = """
import threading, torch, kit
def work():
    with kit.Session():
        print((torch.ones(2, device="kit") + 1).tolist())
threads = [threading.Thread(target=work) for _ in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
"""
    assert in_a_new_process(code).count("[2.0, 2.0]") == 3


def test_an_interrupt_while_the_device_is_registered_leaves_it_usable() -> None:
    code = """
import signal, torch, kit
from kit.torch import device
signal.signal(signal.SIGINT, signal.default_int_handler)
keep = device.keep_parameters
device.keep_parameters = lambda: (signal.raise_signal(signal.SIGINT), keep())
try:
    with kit.Session():
        print("no interrupt")
except KeyboardInterrupt:
    print("interrupted")
with kit.Session():
    print((torch.ones(2, device="kit") + 1).tolist())
"""
    assert in_a_new_process(code).split("\n")[:2] == ["interrupted", "[2.0, 2.0]"]


def test_an_error_while_the_device_is_registered_is_told_to_the_next_session() -> None:
    code = """
import kit
from kit.torch import device
def broken():
    raise MemoryError
device.keep_parameters = broken
for _ in range(2):
    try:
        with kit.Session():
            pass
    except (MemoryError, RuntimeError) as error:
        print(type(error).__name__, error)
"""
    said = in_a_new_process(code)
    assert said.startswith("MemoryError")
    assert "SessionError an error or an interrupt came while device 'kit' was registered" in said


def test_a_session_with_a_seed_of_its_own_draws_its_numbers() -> None:
    """It drew those of torch's seed, whatever its settings said."""
    torch.manual_seed(6)

    def drawn(seed: int) -> list[float]:
        with open_session(Settings(seed=seed)):
            return torch.randn(3, device="kit").tolist()

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(6) == drawn(0)  # as torch was seeded
