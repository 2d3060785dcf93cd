"""`named_devices`: other devices mean kit in the code of users, and the CPU in torch's own."""

from __future__ import annotations

import linecache
import threading
import warnings
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import kit
from kit.errors import SettingsError
from kit.torch.mapping import named_devices


def trained(kind: type[torch.optim.Optimizer], device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Linear(4, 2).to(device)
    optimizer = kind(net.parameters(), foreach=True)  # type: ignore[call-arg]
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(3, 4).to(device)).square().sum().backward()
        optimizer.step()
    return [p.detach().cpu() for p in net.parameters()]


@pytest.mark.parametrize("kind", [torch.optim.Adadelta, torch.optim.Adam])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_an_optimizers_own_numbers_stay_on_the_cpu(
    kind: type[torch.optim.Optimizer], device: str
) -> None:
    expected = trained(kind, "cpu")
    with kit.Session(), named_devices() as names:
        found = trained(kind, device)
    torch.testing.assert_close(found, expected)
    name = device.split(":")[0]
    assert f"device kit stood in for {name} in 3 calls" in names.said  # a model, two inputs
    assert ("an installed package" in names.said) is (name == "cpu")


def test_what_an_installed_package_places_follows_cuda_and_not_cpu(tmp_path: Path) -> None:
    """As `Data.to(device)` of torch_geometric does: of "cpu" nobody knows what it is there."""
    path = tmp_path / "site-packages" / "package.py"
    code = compile(
        "def place(x, device): return x.to(device)\n"
        "def draw(device): return rand(2, generator=Generator(), device=device)\n",
        str(path),
        "exec",
    )
    package: dict[str, Any] = {"rand": torch.rand, "Generator": torch.Generator}
    exec(code, package)
    with kit.Session(), named_devices():
        for name, place in (("cpu", "cpu"), ("cuda", "kit")):
            assert package["place"](torch.ones(2), name).device.type == place
            assert package["draw"](name).device.type == place


class OfAPackage(nn.Linear):
    """A module with a `to` of its own, as those of transformers have."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        return super().to(*args, **kwargs)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, nn.Linear, OfAPackage])
def test_a_module_with_a_move_of_its_own_is_placed_too(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = "/site-packages/package.py"
    to = OfAPackage.to.__code__.replace(co_filename=file)
    monkeypatch.setattr(OfAPackage.to, "__code__", to)
    with kit.Session(), named_devices():
        found = {p.device.type for p in kind(3, 2).to("cpu").parameters()}
    assert found == {"kit"}


def test_what_is_placed_is_on_kit_and_what_is_read_is_on_the_cpu() -> None:
    with kit.Session(), named_devices():
        made = torch.ones(2, device="cpu")
        assert made.device.type == torch.ones(2).cuda().device.type == "kit"
        assert made.to("cpu").device.type == made.cpu().device.type == "cpu"
        assert torch.ones(2).to(torch.device("mps")).device.type == "kit"
        assert torch.ones(2).to(torch.float64).device.type == "cpu"
        assert torch.ones(2, device="meta").device.type == "meta"
        with pytest.raises(SettingsError, match="asks for cuda:1"):
            torch.ones(2, device="cuda:1")


def test_a_device_by_the_name_of_which_things_are_placed_is_no_place_to_read_to() -> None:
    """`torch.zeros_like(x).to(device)` was on the CPU, and met `x` in the next op."""
    device, settings, cpu_device = "cpu", {"device": torch.device("cpu")}, torch.device("cpu")
    with kit.Session(), named_devices() as names:
        net = nn.Linear(4, 2).to(device)
        x = torch.ones(3, 4).to(
            device,
            torch.float32,
        )
        y = torch.ones(3, 4, device=settings["device"])
        assert "cpu in 3 calls" in names.said
        assert net.to(device).weight.device.type == "kit"
        assert torch.zeros_like(x).to(device).device.type == "kit"
        assert x.to(device=settings["device"]).device.type == "kit"
        assert [row.to(device).device.type for row in (x, y)] == ["kit", "kit"]
        assert (x + torch.zeros_like(y).to(device)).sum().item() == 12
        for read in (x.to("cpu"), x.to(cpu_device), x.to(torch.device("cpu")), x.cpu()):
            assert read.device.type == "cpu"
        code = compile("moved = x.to(device)", "<no file>", "exec")
        exec(code, found := {"x": x, "device": device})
        assert found["moved"].device.type == "cpu"  # how it is written nobody knows


class Tied(nn.Module):
    """Two parts that share a third one, as an encoder and a decoder their embedding."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Embedding(5, 4)
        self.encoder = nn.Sequential(shared, nn.Linear(4, 4))
        self.decoder = nn.Sequential(shared, nn.Linear(4, 4))


def test_a_module_is_placed_and_read_whole_however_often_a_part_is_in_it() -> None:
    """torch moves a shared part twice: the second time, from device kit, it was read."""
    with kit.Session(), named_devices() as names:
        net = Tied().to("cpu")
        assert {p.device.type for p in net.parameters()} == {"kit"}
        assert "cpu in 1 call." in names.said
        assert {p.device.type for p in net.to("cpu").parameters()} == {"cpu"}
        half = Tied()
        half.encoder.to("cuda")
        assert {p.device.type for p in half.to(device="cpu").parameters()} == {"kit"}


def test_a_name_is_known_at_the_end_of_calls_on_several_lines() -> None:
    device = "cpu"
    with kit.Session(), named_devices():
        net = nn.Linear(
            4,
            2,
        ).to(device)
        x = (
            torch.ones(3, 4)
            .to(device)
            .to(
                device=device,
            )
        )
        assert net(x).device.type == "kit"
        assert net.to(device).weight.device.type == "kit"


@pytest.mark.parametrize("device", ["cpu", "cuda", torch.device("cuda:0")])
def test_the_default_device_of_the_code_is_device_kit(device: Any) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(6.0)[:, None])
    with kit.Session(), named_devices() as names:
        assert torch.rand(2, generator=torch.Generator()).device.type == "cpu"
        torch.set_default_device(device)
        net = nn.Linear(1, 2)
        (x,) = next(iter(torch.utils.data.DataLoader(data, batch_size=6, shuffle=True)))
        assert sorted(x.flatten().tolist()) == [0, 1, 2, 3, 4, 5]
        drawn = torch.rand(2, generator=torch.Generator().manual_seed(5))
        assert net(torch.ones(3, 1)).sum().device.type == drawn.device.type == "kit"
        assert f"stood in for {torch.device(device).type} in 1 call" in names.said
        numbers = drawn.tolist()
    made = torch.rand(2, generator=torch.Generator().manual_seed(5))
    assert made.device.type == "cpu"
    assert made.tolist() == numbers


@pytest.mark.parametrize("device", ["cpu", "cuda", torch.device("cpu")])
def test_what_is_made_under_a_named_device_is_on_kit(device: Any) -> None:
    """With "cpu" the model was on the CPU, and its data on device kit."""
    with kit.Session(), named_devices() as names:
        with torch.device(device):
            net, x = nn.Linear(4, 2), torch.ones(2, 4)
        assert net(x.to(device)).device.type == "kit"
        there = torch.device(device)
        with there:
            assert net(torch.ones(2, 4).to(there)).device.type == "kit"
        assert f"stood in for {torch.device(device).type} in" in names.said
        with torch.device("meta"):
            assert nn.Linear(4, 2).weight.is_meta
        with torch.ones(3).device:
            assert torch.ones(3).device.type == "cpu"
        assert torch.ones(3).device.type == "cpu"
    with torch.device("cpu"):
        assert torch.ones(3).device.type == "cpu"


def test_the_place_of_a_cpu_tensor_is_no_device_that_the_code_names() -> None:
    """In a dataset, `torch.arange(n, device=x.device)` was on the device, and `x` was not."""
    with kit.Session(), named_devices() as names:
        x = torch.ones(3)
        where = x.device
        made = [
            torch.zeros(3, device=x.device),
            torch.zeros(3, device=where),
            torch.zeros_like(x, device=where),
            torch.zeros(3).to(x.device),
            x.cuda().to(where),
        ]
        net = nn.Linear(3, 2).to(x.device)
        assert sum(x + y for y in made).tolist() == [6, 6, 6]
        assert net(x).device.type == "cpu"
        assert [where, str(where), x.device] == [torch.device("cpu"), "cpu", where]
        assert torch.zeros(3, device=x.cuda().device).device.type == "kit"
        assert "cpu" not in names.said.split(".")[0]


def test_a_warning_of_torchs_names_the_line_of_the_program(monkeypatch: Any) -> None:
    told: list[tuple[str, str]] = []

    def show(message: Any, category: Any, filename: str, lineno: int, *more: Any) -> None:
        told.append((Path(filename).name, linecache.getline(filename, lineno).strip()))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        with kit.Session(), named_devices():
            y = torch.ones(3, 4, 2, device="cuda")
            y.T  # noqa: B018
            torch.tensor(y)
            nn.functional.softmax(y)
        assert warnings.showwarning is show
    lines = ["y.T  # noqa: B018", "torch.tensor(y)", "nn.functional.softmax(y)"]
    assert told == [("test_mapping.py", line) for line in lines]


def saved(path: Path, tag: str) -> Path:
    """A checkpoint of two numbers, whose memory was on the device of this name."""
    torch.save({"x": torch.tensor([1.0, 2.0])}, path)
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts.items():
            name_of_cpu, name_of_tag = (
                b"X" + len(word).to_bytes(4, "little") + word for word in (b"cpu", tag.encode())
            )
            is_pickle = name.endswith("data.pkl")
            file.writestr(name, data.replace(name_of_cpu, name_of_tag) if is_pickle else data)
    return path


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("tag", "place", "expected"),
    [
        ("cpu", None, "cpu"),
        ("cuda:0", None, "kit"),
        ("cuda:3", "cuda", "kit"),
        ("cpu", torch.device("cuda", 0), "kit"),
        ("cuda:0", "cpu", "cpu"),
        ("cuda:1", {"cuda:1": "cuda:0"}, "kit"),
        ("cuda:0", lambda storage, tag: storage, "cpu"),
    ],
)
def test_a_checkpoint_is_loaded_to_where_cuda_would_be(
    tmp_path: Path, tag: str, place: Any, expected: str, weights_only: bool
) -> None:
    path, load = saved(tmp_path / "a.pt", tag), torch.load
    with kit.Session(), named_devices() as names:
        found = torch.load(path, map_location=place, weights_only=weights_only)["x"]
        assert found.device.type == expected
        assert (found * 2).tolist() == [2.0, 4.0]
        with pytest.raises(SettingsError, match="asks for cuda:1"):
            torch.load(path, map_location="cuda:1")
        torch.ones(2, device="cuda")
    assert torch.load is load
    assert ("torch.load without" in names.said) is (tag == "cpu" and place is None)


def test_code_that_names_no_device_is_told_so() -> None:
    with kit.Session(), named_devices() as names:
        assert torch.ones(2).device.type == "cpu"
    assert "names no device" in names.said


class Worker(threading.Thread):
    """A thread with a `run` of its own."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work

    def run(self) -> None:
        self.work()


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_own_thread(work: Callable[[], object]) -> None:
    thread = Worker(work)
    thread.start()
    thread.join()


def in_pool(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def in_thread_of_a_thread(work: Callable[[], object]) -> None:
    in_thread(lambda: in_thread(work))


@pytest.mark.parametrize("begin", [in_thread, in_own_thread, in_pool, in_thread_of_a_thread])
def test_a_thread_of_the_program_is_in_its_session_and_names_devices_alike(begin: Any) -> None:
    """It had no session, and its "cpu" was the CPU, unsaid."""
    found: list[list[torch.Tensor]] = []
    start = threading.Thread.start
    expected = trained(torch.optim.Adam, "cpu")
    with kit.Session(), named_devices() as names:
        begin(lambda: found.append(trained(torch.optim.Adam, "cpu")))
    torch.testing.assert_close(found, [expected])
    assert "cpu in 3 calls" in names.said
    assert threading.Thread.start is start


def test_a_thread_that_is_started_twice_is_refused_as_ever() -> None:
    runs: list[int] = []
    with kit.Session(), named_devices():
        thread = threading.Thread(target=runs.append, args=(1,))
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="only be started once"):
            thread.start()
    assert runs == [1]
    assert "run" not in vars(thread)


def test_a_generator_of_the_cpu_gives_a_named_device_its_own_numbers() -> None:
    """It was an error, of a call that is right wherever the device is the CPU."""

    def drawn(device: str) -> list[torch.Tensor]:
        generator = torch.Generator(device="cpu").manual_seed(3)
        made = [
            torch.randn(4, 3, generator=generator, device=device, requires_grad=True),
            torch.randint(0, 9, (5,), generator=generator, device=device),
            torch.randperm(6, generator=generator, device=device),
        ]
        assert made[0].is_leaf
        assert made[0].requires_grad
        return made

    expected = [x.detach() for x in drawn("cpu")]
    with kit.Session(), named_devices():
        found = drawn("cpu")
        assert {x.device.type for x in found} == {"kit"}
        torch.testing.assert_close([x.detach().cpu() for x in found], expected)


def test_what_torch_compile_is_given_runs_as_it_is_written() -> None:
    """Torch traced the kit's mode, and its autocast, with the program, and failed."""
    device, compile_before = "cpu", torch.compile
    torch.manual_seed(0)
    net = nn.Linear(3, 2)

    def by(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return net(x)  # type: ignore[no-any-return]

    x = torch.ones(4, 3)
    expected = by(x)
    with kit.Session(), named_devices() as names:
        net.to(device)
        assert "torch.compile" not in names.said
        found = torch.compile(by, backend="eager")(x.to(device))
        assert (found.device.type, found.dtype) == ("kit", torch.bfloat16)
        torch.testing.assert_close(found.detach().cpu(), expected.detach())
    assert "torch.compile: its functions ran as they are written" in names.said
    assert torch.compile is compile_before


@pytest.mark.parametrize("is_daemon", [True, False])
def test_a_daemon_that_outlives_the_program_ends_without_a_word(
    is_daemon: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python ends it, wherever it is; here its session is closed meanwhile."""
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    may_go_on = threading.Event()

    def work() -> None:
        x = torch.ones(2).to("cuda")
        placed.set()
        may_go_on.wait(60)
        x.sum().item()

    placed = threading.Event()
    with kit.Session(), named_devices():
        thread = threading.Thread(target=work, daemon=is_daemon)
        thread.start()
        placed.wait(60)
    may_go_on.set()
    thread.join()
    assert len(told) == (0 if is_daemon else 1)
