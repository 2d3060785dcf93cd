"""Public example programs as they are, natively and on device kit: does each run, and alike?

    python benchmarks/peers/examples.py --repo examples minGPT nanoGPT makemore

Each folder is a checkout of a repository that others have written: pytorch/examples, and
karpathy/minGPT, nanoGPT and makemore. Programs are run by `kit run`, never edited; they are made
small by their own options, and get tiny made data where they would fetch some. A program that is
not there, or lacks a package, is named in the table. Nothing is timed here.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import pickle
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from kit.runs.run import Run
from kit.runtime.rules.random import RANDOM
from kit.trace.metrics import waits_of

Maker = Callable[[Path], None]
CLOSE = 1e-3  # relative: printed losses of float32 that were added up in another order
_LOSS = re.compile(r"(?:loss|mse)\S*[\s:=]+(-?\d+\.\d+(?:e-?\d+)?)", re.IGNORECASE)
_CAP_S = 1200  # of the clock: other programs may have the processor
_OF_A_SHELL = multiprocessing.get_start_method()


def make_mnist(folder: Path, train: int = 600) -> None:
    """Digits of noise, and sixty for the test, as the files that torchvision reads."""
    made = np.random.default_rng(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("t10k", 60)):
        images = made.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        head = np.array([0x803, count, 28, 28], ">i4").tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        labels = (np.arange(count) % 10).astype(np.uint8)
        head = np.array([0x801, count], ">i4").tobytes()
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def make_text(file: Path, lines: int = 200) -> None:
    """Words in no order."""
    made = random.Random(0)
    words = ["the", "device", "waits", "for", "a", "host", "that", "records"]
    text = "\n".join(" ".join(made.choices(words, k=8)) for _ in range(lines))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", encoding="utf-8")


def make_names(file: Path) -> None:
    """Words of a few letters, one a line."""
    made = random.Random(0)
    names = {"".join(made.choices("abcdefgh", k=made.randint(3, 7))) for _ in range(2_000)}
    file.write_text("\n".join(sorted(names)) + "\n", encoding="utf-8")


def make_tokens(folder: Path) -> None:
    """What nanoGPT reads: numbers of tokens, and how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    made = np.random.default_rng(0)
    for part in ("train", "val"):
        made.integers(0, 64, 4_000, dtype=np.uint16).tofile(folder / f"{part}.bin")
    with (folder / "meta.pkl").open("wb") as file:
        pickle.dump({"vocab_size": 64, "itos": {}, "stoi": {}}, file)


def make_play(file: Path) -> None:
    """Words among which all characters are that the program begins its own text with."""
    make_text(file)
    with file.open("a", encoding="utf-8") as opened:
        opened.write("O God, O God!\n" * 20)


def make_corpus(folder: Path) -> None:
    """The three files of the word language model."""
    for part in ("train", "valid", "test"):
        make_text(folder / f"{part}.txt", lines=60)


def make_waves(folder: Path) -> None:
    """What the time series example makes of sine waves for itself, smaller."""
    import torch

    at = np.arange(120)[None, :] + np.random.default_rng(0).integers(-80, 80, (8, 1))
    torch.save(np.sin(at / 20.0), folder / "traindata.pt")


def make_nothing(folder: Path) -> None:
    """The program needs no data."""


@dataclass(frozen=True)
class Program:
    """One program: where it is, its own options, and the data that it gets."""

    repo: str
    file: str
    options: str = ""
    make: Maker = make_nothing
    data: str = "."  # below the repository, for `make`
    ends: bool = False  # runs for long by itself: it is ended after the recorded steps

    @property
    def name(self) -> str:
        """For the table; programs that differ in an option are told apart by it."""
        which = re.search(r"--(?:type|model) (\S+)", self.options)
        said = f" {which[1]}" if which else ""
        return f"{self.repo}/{self.file}{said}{' --no-accel' * ('--no-accel' in self.options)}"


def _programs() -> Iterator[Program]:
    mnist = {"make": make_mnist, "data": "data"}
    # On an accelerator these shuffle, and load in workers: `--no-accel` has both ways do the same.
    yield Program("examples", "mnist/main.py", "--epochs 1 --batch-size 32", **mnist)
    yield Program("examples", "mnist/main.py", "--no-accel --epochs 1 --batch-size 32", **mnist)
    yield Program("examples", "mnist_rnn/main.py", "--epochs 1 --batch-size 32", **mnist)
    yield Program("examples", "siamese_network/main.py",
                  "--no-accel --epochs 1 --batch-size 6 --test-batch-size 20 --log-interval 4",
                  partial(make_mnist, train=96), "data")  # fmt: skip
    yield Program("examples", "vae/main.py", "--epochs 1 --batch-size 32", **mnist)
    yield Program("examples", "mnist_forward_forward/main.py",
                  "--epochs 2 --train_size 100 --test_size 20", make_mnist,
                  "mnist_forward_forward/data")  # fmt: skip
    yield Program("examples", "mnist_hogwild/main.py", "--epochs 1 --num-processes 1", **mnist)
    yield Program("examples", "dcgan/main.py",
                  "--dataset fake --imageSize 64 --batchSize 4 --ngf 4 --ndf 4 --workers 0 "
                  "--manualSeed 1 --niter 1", ends=True)  # fmt: skip
    yield Program("examples", "regression/main.py")
    yield Program("examples", "reinforcement_learning/reinforce.py", "--seed 1", ends=True)
    yield Program("examples", "reinforcement_learning/actor_critic.py", "--seed 1", ends=True)
    yield Program("examples", "time_sequence_prediction/train.py", "--steps 9", make_waves,
                  "time_sequence_prediction")  # fmt: skip
    tiny = "--epochs 1 --use-optimizer --lr 0.01 --log-interval 5 --emsize 16 --nhid 16 "
    tiny += "--batch_size 4 --bptt 8 --dropout 0"
    for model in ("RNN_TANH", "GRU", "LSTM", "Transformer"):
        yield Program("examples", "word_language_model/main.py",
                      f"--data made {tiny} --model {model}", make_corpus,
                      "word_language_model/made")  # fmt: skip
    for file in ("invert", "primitive_library", "subgraph_rewriter_basic_use"):
        yield Program("examples", f"fx/{file}.py")
    for kind in ("transformer", "bigram", "mlp", "rnn", "gru", "bow"):
        yield Program("makemore", "makemore.py",
                      f"--type {kind} --max-steps 24 --num-workers 0 -i made.txt --n-layer 2 "
                      "--n-embd 16 --n-embd2 16", make_names, "made.txt")  # fmt: skip
    small = "--trainer.num_workers=0 --trainer.batch_size=4 --model.model_type=gpt-nano"
    yield Program("minGPT", "projects/adder/adder.py", f"{small} --trainer.max_iters=20")
    yield Program("minGPT", "projects/chargpt/chargpt.py",
                  f"{small} --trainer.max_iters=20 --data.block_size=16", make_play,
                  "projects/chargpt/input.txt")  # fmt: skip
    yield Program("nanoGPT", "train.py",
                  "--device=cpu --compile=False --eval_iters=1 --log_interval=1 --block_size=16 "
                  "--batch_size=4 --n_layer=2 --n_head=2 --n_embd=32 --max_iters=20 "
                  "--lr_decay_iters=20 --gradient_accumulation_steps=2 --dataset=made",
                  make_tokens, "data/made")  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What one program did, one way."""

    status: int
    losses: list[float]
    error: str  # what was said last, where it failed
    run: Run | None

    @property
    def is_recorded(self) -> bool:
        """Its steps are a run."""
        return self.run is not None


def _kit(arguments: Sequence[str], cwd: Path, out: Path, err: Path, root: Path) -> None:
    """In a process of its own: the command line `kit`, with its output in two files.

    Args:
        root: of the repository, whose packages can be imported as if they were installed.
    """
    from kit.cli.main import main as kit_main

    sys.path.append(str(root))
    multiprocessing.set_start_method(_OF_A_SHELL, force=True)  # this process was given its own
    os.chdir(cwd)
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    try:
        status = kit_main(arguments)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    sys.exit(status)


def run_one(program: Program, repo: Path, ways: Sequence[str]) -> Outcome:
    """Run a program in a copy of its repository, in a process that has torch and jax loaded."""
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        copy = here / "repo"
        shutil.copytree(repo, copy, ignore=shutil.ignore_patterns(".git"))
        program.make(copy / program.data)
        script = copy / program.file
        saved, out, err = (here / name for name in ("a.kitrun", "out", "err"))
        arguments = ["run", str(script), "--steps", "3", "--skip", "2", "--save", str(saved),
                     *ways, *["--stop"] * program.ends, "--", *program.options.split()]  # fmt: skip
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=_kit, args=(arguments, script.parent, out, err, copy))
        process.start()
        process.join(_CAP_S)
        if process.is_alive():
            process.kill()
            process.join()
            return Outcome(124, [], f"took more than {_CAP_S} seconds", None)
        status = process.exitcode or 0
        own = _text(out).split(f"\n{script.name}: ")[0]  # then comes what kit says of it
        said = [line for line in _text(err).strip().split("\n") if line.strip()]
        errors = [line for line in said if re.match(r"(kit: )?\w*(Error|Exception)\b", line)]
        error = (errors or said or [""])[-1] if status or not saved.exists() else ""
        run = Run.load(saved) if saved.exists() else None
        return Outcome(status, [float(x) for x in _LOSS.findall(own)], error, run)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _losses(program: Program, native: Outcome, kit: Outcome) -> str:
    """How the printed losses compare; of a program that ended early, those that both printed."""
    pairs = list(zip(native.losses, kit.losses, strict=False))
    is_cut_short = program.ends or native.status or kit.status
    if not native.losses or (is_cut_short and not pairs):
        return "none printed"
    if len(native.losses) != len(kit.losses) and not is_cut_short:
        return f"{len(native.losses)} and {len(kit.losses)} printed"
    worst = max(abs(a - b) / max(abs(a), 1e-6) for a, b in pairs)
    if math.isnan(worst):
        return "nan"
    if worst <= CLOSE:
        return "equal" if len(native.losses) == len(kit.losses) else f"{len(pairs)} equal"
    why = ": random numbers of the device" if _draws(kit.run) else ""
    return f"differ by {worst:.1%}{why}"


def _draws(run: Run | None) -> bool:
    """Does a step take random numbers, such as dropout's? Device kit has others than the CPU."""
    graphs = () if run is None else run.graphs
    return any(node.op in RANDOM for graph in graphs for node in graph.nodes)


def _waits(run: Run | None) -> str:
    if run is None or not run.step_times_ns:
        return ""
    waits = waits_of(run)
    sites = dict.fromkeys(f"{s.site} {s.cause}" for s in waits.syncs)
    return f"{len(waits.syncs) / max(waits.steps, 1):.3g} a step" + (
        f": {', '.join(list(sites)[:3])}" if sites else ""
    )


def _way(outcome: Outcome) -> str:
    if outcome.is_recorded:
        return "runs" if outcome.status == 0 else f"status {outcome.status}"
    return "no steps" if "there was no step" in outcome.error else "fails"


def row_of(program: Program, repos: dict[str, Path]) -> list[str]:
    """One line of the table."""
    repo = repos.get(program.repo)
    if repo is None or not (repo / program.file).is_file():
        return [program.name, "not there", "", "", "", ""]
    native = run_one(program, repo, [])
    kit = run_one(program, repo, ["--on", "kit", "--set", "mode=lazy"])
    where = kit.run.settings.mode if kit.run is not None else ""
    ran = f"{_way(kit)}, on the CPU" if where == "torch" else _way(kit)
    remark = kit.error or native.error
    remark = remark.removeprefix("kit: ")[:110].replace("|", "/")
    return [program.name, _way(native), ran, _losses(program, native, kit), _waits(kit.run), remark]


def main() -> None:
    """Print the table, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repo", nargs="+", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", default="", metavar="TEXT", help="programs with this in the name")
    asked = parser.parse_args()
    repos = {path.name: path.resolve() for path in asked.repo}
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        [
            "torch",
            "jax",
            "kit.api",
            "kit.cli.scripts.run",
            "kit.measure.attached.loop",
            "kit.torch.device",
        ]
    )
    heads = ("program", "natively", "on device kit", "losses", "waits on device kit", "remark")
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for program in _programs():
        if asked.only in program.name:
            print(f"| {' | '.join(row_of(program, repos))} |", flush=True)


if __name__ == "__main__":
    main()
