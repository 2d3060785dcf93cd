"""MXNet 1.9.1 on the two workloads that the kit's engine grew from; prints one JSON object.

It needs an environment of its own, because MXNet's last release wants an old numpy:

    python3 -m venv mx && mx/bin/pip install "numpy<1.24" mxnet==1.9.1
    mx/bin/python benchmarks/peers/mxnet_seeds.py [--quick] [--only zero_grad|flips]

(Where the import finds no shared library: `apt install libgfortran5 libopenblas0 libgomp1`.)
`benchmarks/multi_tensor.py` and `benchmarks/bulking.py` call it if they are given `--mxnet PYTHON`.

"zero_grad": PR 16716. 500 arrays of (100, 100) are set to zero 10 times; milliseconds, the median.
"flips": PR 14200's own test of bulking. 1000 flips of an array of 10, forward and backward;
milliseconds a step by bulk size, for the symbolic executor and a statically hybridized block. Each
size is a process of its own: MXNet reads the variable once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import mxnet as mx

ARRAYS, SHAPE, SWEEPS = 500, (100, 100), 10
FLIPS, LENGTH = 1000, 10
SIZES = (1, 2, 5, 15, 50, 1000)
VARIABLE = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN"


def clock(function):
    """Milliseconds of one call, and of what it left running."""
    mx.nd.waitall()
    start = time.perf_counter()
    function()
    mx.nd.waitall()
    return (time.perf_counter() - start) * 1e3


def zero_grad(rounds):
    """Way -> milliseconds; the ways take turns."""
    arrays = [mx.nd.ones(SHAPE) for _ in range(ARRAYS)]

    def set_all():
        for _ in range(SWEEPS):
            for a in arrays:
                a[:] = 0

    def zeros_out():
        for _ in range(SWEEPS):
            for a in arrays:
                mx.nd.zeros(SHAPE, out=a)

    def reset():
        for _ in range(SWEEPS):
            mx.nd.reset_arrays(*arrays, num_arrays=ARRAYS)

    def bulked(size, function):
        def run():
            with mx.engine.bulk(size):
                function()

        return run

    ways = {
        "a[:] = 0": set_all,
        "a[:] = 0 in engine.bulk(500)": bulked(500, set_all),
        "a[:] = 0 in engine.bulk(15)": bulked(15, set_all),
        "zeros(out=a)": zeros_out,
        "zeros(out=a) in engine.bulk(500)": bulked(500, zeros_out),
        "reset_arrays": reset,
    }
    times = {name: [] for name in ways}
    for i in range(rounds + 1):
        for name, way in ways.items():
            ms = clock(way)
            if i:  # the first round warms up
                times[name].append(ms)
    return {name: statistics.median(values) for name, values in times.items()}


class Flips(mx.gluon.HybridBlock):
    """1000 flips, one after the other."""

    def hybrid_forward(self, F, x):
        for _ in range(FLIPS):
            x = F.flip(x, axis=0)
        return x


def flips(steps):
    """Milliseconds a step in this process, at the bulk size that it was started with."""
    x = symbol = mx.sym.Variable("x")
    for _ in range(FLIPS):
        symbol = mx.sym.flip(symbol, axis=0)
    executor = symbol.simple_bind(ctx=mx.cpu(), **{x.name: (LENGTH,)})
    ones = mx.nd.ones((LENGTH,))

    def symbolic():
        executor.forward(is_train=True)
        executor.backward(ones)

    net = Flips()
    net.initialize()
    net.hybridize(static_alloc=True, static_shape=True)
    array = mx.nd.arange(LENGTH)
    array.attach_grad()

    def static():
        with mx.autograd.record():
            y = net(array)
        y.backward()

    times = {"symbolic": [], "gluon static": []}
    for i in range(steps + 5):
        for name, way in (("symbolic", symbolic), ("gluon static", static)):
            ms = clock(way)
            if i >= 5:
                times[name].append(ms)
    return {name: statistics.median(values) for name, values in times.items()}


def flips_by_size(sizes, steps):
    """Executor -> bulk size -> milliseconds a step."""
    found = {"symbolic": {}, "gluon static": {}}
    for size in sizes:
        command = [sys.executable, os.path.abspath(__file__), "--one-size", str(steps)]
        text = subprocess.run(
            command,
            env=dict(os.environ, **{VARIABLE: str(size)}),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        for name, ms in json.loads(text.splitlines()[-1]).items():
            found[name][str(size)] = ms
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, sizes 1, 15 and 1000")
    parser.add_argument("--only", choices=("zero_grad", "flips"))
    parser.add_argument("--one-size", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_size:
        print(json.dumps(flips(options.one_size)))
        return
    result = {"mxnet": mx.__version__}
    if options.only != "flips":
        result["zero_grad"] = zero_grad(2 if options.quick else 5)
    if options.only != "zero_grad":
        sizes = (1, 15, 1000) if options.quick else SIZES
        result["flips"] = flips_by_size(sizes, 50 if options.quick else 200)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
