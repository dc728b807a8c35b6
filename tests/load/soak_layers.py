"""Many calls of the layers around a product, from many threads, each result compared bit for bit.

    python tests/load/soak_layers.py --seconds 60
    python tests/load/soak_layers.py --layer shards --calls 20000

The layers are matrices on several GPUs, PyTorch's tensors, JAX's arrays and Dask's chunks; one
whose library is not installed is named. Every result must have the bits that the same call gave
when it was made alone, before the load began. Calls are made in rounds, each by new threads, so
that what is kept for a thread shows as well. Memory is looked at between the rounds: what counts is
how much it grows from the end of the first round to the end of the last.

The status is 1 if a result differs, a call fails or memory grows. Single products, batches,
several vectors and lists are those of ``soak.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

import gemv

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from load.soak import DEVICE_SLACK, HOST_SLACK, memory

# JAX would take three quarters of the GPU's memory for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

#: Rounds of threads; before the first look at memory there is one.
ROUNDS = 6
MOST_FAULTS = 10

Calls = dict[str, Callable[[], np.ndarray]]


def is_small() -> bool:
    """Whether each thread of a GPU is simulated, one after the other, or there is none at all."""
    return gemv.backend() != "cuda"


def numbers(*shape: int, dtype: str = "d", seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape, ord(dtype)])
    values = rng.standard_normal(shape)
    if dtype in "FD":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


# Layers -----------------------------------------------------------------------------------------


def shards() -> Calls:
    """One matrix on several devices, or several times on one."""
    from numba import cuda

    devices = list(range(len(cuda.gpus))) if not is_small() else [0]
    devices = devices if len(devices) > 1 else [0, 0]
    m, n = (20, 9) if is_small() else (3001, 700)
    calls: Calls = {}
    for dtype, split in itertools.product("dF", ("rows", "columns")):
        a = numbers(m, n, dtype=dtype)
        several = gemv.Matrix(a, devices=devices, split=split, reproducible=False)
        for form, name in ((several, "A"), (several.T, "A.T"), (several.H, "A.H")):
            x, xs = numbers(form.shape[1], dtype=dtype), numbers(form.shape[1], 3, dtype=dtype)
            calls[f"{dtype} {split} {name} @ x"] = lambda form=form, x=x: form @ x
            calls[f"{dtype} {split} {name} @ 3 x"] = lambda form=form, x=xs: form @ x
        on_device = cuda.to_device(numbers(n, dtype=dtype))
        plan = several.plan(on_device, cuda.to_device(numbers(m, dtype=dtype)))
        calls[f"{dtype} {split} plan"] = lambda plan=plan: plan().copy_to_host()
    return calls


def tensors() -> Calls:
    """PyTorch's, on streams of their own where there is a GPU; with gradients."""
    import torch

    import gemv.torch

    device = "cpu" if is_small() else "cuda"
    m, n = (40, 30) if is_small() else (1500, 1100)
    # As many streams as threads use at a time are enough: PyTorch keeps memory for each of them.
    streams = [torch.cuda.Stream() for _ in range(4)] if device == "cuda" else []
    turn = itertools.count()

    def on_stream(call):
        def run():
            stream = streams[next(turn) % len(streams)] if streams else None
            with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
                return call().resolve_conj().cpu().numpy()

        return run

    def gradient(a, x):
        a = a.detach().requires_grad_()
        (gemv.torch.mv(a, x).abs() ** 2).sum().backward()
        return a.grad

    calls: Calls = {}
    for dtype, trans in itertools.product("fdF", (0, 1, 2)):
        rows, cols = (n, m) if trans else (m, n)
        a, x, y = (
            torch.from_numpy(numbers(*shape, dtype=dtype)).to(device)
            for shape in ((m, n), (cols,), (rows,))
        )
        named = f"{dtype} {'NTC'[trans]}"
        calls[f"{named} mv"] = on_stream(lambda a=a, x=x, t=trans: gemv.torch.mv(a, x, trans=t))
        calls[f"{named} addmv"] = on_stream(
            lambda a=a, x=x, y=y, t=trans: gemv.torch.addmv(y, a, x, beta=0.5, alpha=2, trans=t)
        )
        if trans == 0:
            calls[f"{named} gradient"] = on_stream(lambda a=a, x=x: gradient(a, x))
    return calls


def arrays() -> Calls:
    """JAX's: at once, compiled, in batches, with gradients."""
    import jax
    import jax.numpy as jnp

    import gemv.jax

    m, n = (40, 30) if is_small() else (1500, 1100)
    a, x, y = (jnp.asarray(numbers(*shape, dtype="f")) for shape in ((m, n), (n,), (m,)))
    many = jnp.asarray(numbers(5, n, dtype="f"))
    compiled = jax.jit(lambda a, x, y: gemv.jax.matvec(a, x, y, alpha=2.0, beta=0.5))
    batch = jax.vmap(lambda x: gemv.jax.matvec(a, x))
    slope = jax.grad(lambda x: (gemv.jax.matvec(a, x) ** 2).sum())
    calls = {
        "at once": lambda: gemv.jax.matvec(a, x),
        "transposed": lambda: gemv.jax.matvec(a, y, trans=1),
        "with y": lambda: gemv.jax.matvec(a, x, y, alpha=2.0, beta=0.5),
        "compiled": lambda: compiled(a, x, y),
        "a batch": lambda: batch(many),
        "a gradient": lambda: slope(x),
        "gemv": lambda: gemv.gemv(1.5, a, x),
    }
    return {name: lambda call=call: np.asarray(call()) for name, call in calls.items()}


def chunks() -> Calls:
    """Dask's, computed by threads, whose sums are in the order of the chunks."""
    import dask.array as da

    import gemv.dask

    a, x, y = numbers(7, 50, 40), numbers(7, 40), numbers(7, 50)
    chunked = da.from_array(a, chunks=(3, 20, 15))
    given, other = da.from_array(x, chunks=(3, 15)), da.from_array(y, chunks=(7, 20))
    several = {
        "matvec": gemv.dask.matvec(chunked, given, alpha=2.0),
        "vecmat": gemv.dask.vecmat(other, chunked),
        "one of them": gemv.dask.matvec(chunked[2], x[2]),
    }
    return {name: lambda lazy=lazy: lazy.compute(scheduler="threads")
            for name, lazy in several.items()}  # fmt: skip


class Layer(NamedTuple):
    """What makes the calls of a layer, and the package that it needs."""

    make: Callable[[], Calls]
    needs: str


LAYERS = {
    "shards": Layer(shards, "gemv"),
    "tensors": Layer(tensors, "torch"),
    "arrays": Layer(arrays, "jax"),
    "chunks": Layer(chunks, "dask"),
}


# Load -------------------------------------------------------------------------------------------


def pool_of(name: str) -> Callable[[], int]:
    """Bytes of the GPU that the library of a layer keeps to serve results from."""
    if name == "tensors":
        return sys.modules["torch"].cuda.memory_reserved
    if name == "arrays":
        device = sys.modules["jax"].devices()[0]
        return lambda: (device.memory_stats() or {}).get("pool_bytes", 0)
    return lambda: 0


class Outcome(NamedTuple):
    calls: int
    faults: list[str]
    host_growth: int
    device_growth: int


def soak(name: str, calls: int, seconds: float, threads: int = 4, shared: bool = False) -> Outcome:
    """Make so many calls of a layer, or those of so many seconds."""
    all_calls = list(LAYERS[name].make().items())
    expected = {each: call().tobytes() for each, call in all_calls}
    looks, faults, made = [], [], itertools.count()
    library = SimpleNamespace(pool=pool_of(name))
    deadline = time.monotonic() + seconds
    done = 0

    def work(seed: int, most: int) -> None:
        chance = random.Random(seed)
        while len(faults) < MOST_FAULTS and time.monotonic() < deadline and next(made) < most:
            each, call = chance.choice(all_calls)
            try:
                found = call().tobytes()
            except Exception as error:
                faults.append(f"{name}: {each}: {type(error).__name__}: {error}")
                continue
            if found != expected[each]:
                faults.append(f"{name}: {each}: other bits")

    for number in range(ROUNDS):
        most = calls * (number + 1) // ROUNDS
        own = [
            threading.Thread(target=work, args=(number * threads + k, most), daemon=True)
            for k in range(threads)
        ]
        for thread in own:
            thread.start()
        for thread in own:
            thread.join()
        # Each thread has drawn one number more than it made calls, unless time was up.
        done = max(done, min(next(made), most))
        made = itertools.count(done)
        looks.append(memory(library))
    growth = np.array(looks[-1]) - looks[0]
    host, device = int(growth[0]), 0 if shared else int(growth[1])
    for place, grown, slack in (("host", host, HOST_SLACK), ("device", device, DEVICE_SLACK)):
        if grown > slack:
            faults.append(f"{name}: {grown} bytes more {place} memory than after a round")
    return Outcome(done, faults, host, device)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layer", choices=LAYERS, action="append", help="may be given again")
    parser.add_argument("--calls", type=int, default=40_000, help="of each layer")
    parser.add_argument("--seconds", type=float, default=60.0, help="at most, of each layer")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument(
        "--shared", action="store_true", help="others use the GPU: do not watch its memory"
    )
    options = parser.parse_args(argv)
    status = 0
    for name in options.layer or LAYERS:
        if importlib.util.find_spec(LAYERS[name].needs) is None:
            print(f"{name}: {LAYERS[name].needs} is not installed")
            status |= bool(options.layer)
            continue
        host = name != "shards" and is_small()  # the simulator would take minutes
        with on_host() if host else contextlib.nullcontext():
            found = soak(name, options.calls, options.seconds, options.threads, options.shared)
            where = gemv.backend()
        print(
            f"{name}: {found.calls} calls on {where}, host {found.host_growth / 2**20:+.1f} MiB,"
            f" device {found.device_growth / 2**20:+.1f} MiB, faults: {len(found.faults)}",
            *found.faults, sep="\n",
        )  # fmt: skip
        status |= bool(found.faults)
    return status


@contextlib.contextmanager
def on_host():
    before = gemv.use_backend("host")
    try:
        yield before
    finally:
        gemv.use_backend(None)


if __name__ == "__main__":
    sys.exit(main())
