"""What calls cost in PyTorch and JAX, beside the calls that they replace; two trees in one run.

    python benchmarks/measure/calls_of_libraries.py FILE.json [--before DIRECTORY] [--repeats 2]

DIRECTORY holds an older tree's folder ``gemv``. Each tree and each library has a process of its
own, in turn, and in each the other library's calls are timed in the same rounds. A time is that of
the fastest round. Results are compared with the peer's before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS, CALLS, ROUND_S = 15, 200, 0.01
THREADS, CALLS_OF_THREADS = (2, 8, 24), 6000
SMALL = 64
TOP = Path(__file__).resolve().parents[2]
#: By row, its peer and how much of the peer's time is wanted at most.
PEERS = {
    "gemv.gemv, in place": ("torch.mv(out=)", 0.65),
    "gemv.torch.mv(out=)": ("torch.mv(out=)", 0.65),
    "gemv.torch.mv": ("torch.mv", 0.65),
    "gemv.torch.mv, trans='T'": ("torch.mv of a.T", 0.65),
    "gemv.torch.addmv": ("torch.addmv", 0.65),
    "gemv.torch.addmv(out=y)": ("torch.addmv(out=y)", 0.65),
    "gemv.gemv, new y of y": ("torch.addmv", 0.65),
    "gemv.torch.mv, recorded": ("torch.mv, recorded", None),
    "gemv.torch.mv, gradient of x": ("torch.mv, gradient of x", 1.0),
    "gemv.torch.mv, gradients of a and x": ("torch.mv, gradients of a and x", 1.0),
    **{
        f"{call}, {count} threads": (f"{peer}, {count} threads", 1.0)
        for count in THREADS
        for call, peer in (
            ("gemv.gemv, in place", "torch.mv(out=)"),
            ("gemv.torch.mv(out=)", "torch.mv(out=)"),
            ("gemv.torch.mv", "torch.mv"),
            ("gemv.torch.addmv", "torch.addmv"),
        )
    },
    "A @ x, two shards on one GPU": ("torch.mv", None),
    "jit of matvec": ("jit of jnp.matmul", 1.05),
    "jit of matvec, waited for": ("jit of jnp.matmul, waited for", 1.05),
    "matvec": ("jnp.matmul", 1.2),
    "matvec, waited for": ("jnp.matmul, waited for", 1.2),
    "gemv.gemv of JAX": ("jnp.matmul", 1.2),
    "gemv.gemv of JAX, waited for": ("jnp.matmul, waited for", 1.2),
    "gemv.gemv of JAX, alpha=2": ("jnp.matmul", 1.2),
    "gemv.gemv of JAX, alpha=2, waited for": ("jnp.matmul, waited for", 1.2),
    "gemv.gemv of JAX, another alpha": ("jnp.matmul", 1.2),
    "gemv.gemv of JAX, another alpha, waited for": ("jnp.matmul, waited for", 1.2),
    "gemv.gemv of JAX, another alpha, beta, y": ("2 * jnp.matmul + y / 2", 1.2),
    "gemv.matvec of JAX": ("jnp.matmul", 1.2),
    "gemv.matvec of JAX, waited for": ("jnp.matmul, waited for", 1.2),
    "gemv.matvec of JAX, another alpha": ("jnp.matmul", 1.2),
    "gemv.vecmat of JAX": ("jnp.matmul of x, a", 1.2),
    "gemv.matvec of JAX, 64 items": ("jnp.einsum, 64 items", 1.2),
    "gemv.matvec of JAX, 64 items, waited for": ("jnp.einsum, 64 items, waited for", 1.2),
    "gemv.gemv of JAX, 64 items": ("jnp.einsum, 64 items", 1.2),
    "jit of vmap of matvec, 64 items": ("jit of vmap of jnp.matmul, 64 items", 1.2),
    "jit of vmap of matvec, 64 vectors": ("jit of vmap of jnp.matmul, 64 vectors", 1.2),
    "vmap of matvec, 64 items": ("vmap of jnp.matmul, 64 items", 1.2),
    "vmap of matvec, 64 vectors": ("vmap of jnp.matmul, 64 vectors", 1.2),
    "grad of matvec by x": ("grad of jnp.matmul by x", 1.2),
    "grad of matvec by a and x": ("grad of jnp.matmul by a and x", 1.2),
    "vjp of matvec": ("vjp of jnp.matmul", 1.2),
    "jvp of matvec": ("jvp of jnp.matmul", 1.2),
    "gemv.gemv of JAX, alpha in memory": ("jnp.matmul", 1.2),
    "gemv.gemv of JAX, all in memory": ("jit of alpha * jnp.matmul + beta * y", 1.2),
    "gemv.gemv of JAX, alpha, beta, y": ("2 * jnp.matmul + y / 2", 1.2),
    "matvec, alpha=2": ("2 * jnp.matmul", 1.2),
    "matvec, alpha, beta, y": ("2 * jnp.matmul + y / 2", 1.2),
    "jit of a call that does nothing": ("jit of jnp.matmul", None),
    "matvec in a chain, 4096": ("the kernel in a chain, 4096", 1.05),
    "matmul in a chain, 4096": ("the kernel in a chain, 4096", None),
    "one more matvec in a chain, 4096": ("one more kernel in a chain, 4096", 1.05),
    "one more matmul in a chain, 4096": ("one more kernel in a chain, 4096", None),
}

Rows = dict[str, Callable[[], Any]]


# --- PyTorch --------------------------------------------------------------------------------------


def torch_rows() -> tuple[Rows, Callable[[], None]]:
    """The calls, and what waits for them."""
    import torch

    import gemv
    import gemv.torch as ours

    torch.manual_seed(0)
    a, x = torch.randn(SMALL, SMALL, device="cuda"), torch.randn(SMALL, device="cuda")
    y, f = torch.randn(SMALL, device="cuda"), gemv.gemv
    needing = [tensor.clone().requires_grad_() for tensor in (a, x)]

    def backward(product: Callable[..., Any], a: Any, x: Any) -> Callable[[], None]:
        def run() -> None:
            a.grad = x.grad = None
            product(a, x).backward(y)

        return run

    for product in (ours.mv, torch.mv):
        backward(product, *needing)()
        kept = [tensor.grad.clone() for tensor in needing]
        if product is ours.mv:
            mine = kept
    for got, expected in zip(mine, kept, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    for got, expected in (
        (ours.mv(a, x), a @ x), (ours.mv(a, x, trans="T"), a.T @ x),
        (ours.addmv(y, a, x), y + a @ x), (f(1.0, a, x), a @ x),
        (ours.addmv(y, a, x), y + a @ x), (f(1.0, a, x, 1.0, y), y + a @ x),
        (f(1.0, a, x, 1.0, y), y + a @ x), (ours.addmv(y, a, x, beta=0.5), y / 2 + a @ x),
    ):  # fmt: skip
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    several = gemv.Matrix(a.cpu().numpy(), devices=[0, 0], split="rows")
    torch.testing.assert_close(several @ x, a @ x, rtol=1e-4, atol=1e-4)
    z = y.clone()
    rows = {
        "torch.mv(out=)": lambda: torch.mv(a, x, out=z),
        "gemv.gemv, in place": lambda: f(1.0, a, x, 0.0, z, overwrite_y=1),
        "gemv.torch.mv(out=)": lambda: ours.mv(a, x, out=z),
        "torch.mv": lambda: torch.mv(a, x),
        "gemv.torch.mv": lambda: ours.mv(a, x),
        "torch.mv of a.T": lambda: torch.mv(a.T, x),
        "gemv.torch.mv, trans='T'": lambda: ours.mv(a, x, trans="T"),
        "torch.addmv": lambda: torch.addmv(y, a, x),
        "gemv.torch.addmv": lambda: ours.addmv(y, a, x),
        "torch.addmv(out=y)": lambda: torch.addmv(z, a, x, beta=0.5, out=z),
        "gemv.torch.addmv(out=y)": lambda: ours.addmv(z, a, x, beta=0.5, out=z),
        "gemv.gemv, new y of y": lambda: f(1.0, a, x, 1.0, y),
        "A @ x, two shards on one GPU": lambda: several @ x,
    }
    for name, product in (("torch.mv", torch.mv), ("gemv.torch.mv", ours.mv)):
        rows[f"{name}, recorded"] = lambda product=product: product(a, needing[1])
        rows[f"{name}, gradient of x"] = backward(product, a, needing[1])
        rows[f"{name}, gradients of a and x"] = backward(product, *needing)
    return rows, torch.cuda.synchronize


def thread_rows() -> Iterator[tuple[str, float]]:
    """Microseconds between two calls of all threads together, each with a stream and a y."""
    import torch

    import gemv
    import gemv.torch as ours

    a, x = torch.randn(SMALL, SMALL, device="cuda"), torch.randn(SMALL, device="cuda")
    calls = {
        "torch.mv(out=)": lambda mine: torch.mv(a, x, out=mine),
        "gemv.gemv, in place": lambda mine: gemv.gemv(1.0, a, x, 0.0, mine, overwrite_y=1),
        "gemv.torch.mv(out=)": lambda mine: ours.mv(a, x, out=mine),
        "torch.mv": lambda mine: torch.mv(a, x),
        "gemv.torch.mv": lambda mine: ours.mv(a, x),
        "torch.addmv": lambda mine: torch.addmv(mine, a, x),
        "gemv.torch.addmv": lambda mine: ours.addmv(mine, a, x),
    }

    def seconds(call: Callable[[Any], Any], threads: int) -> float:
        barrier, spans, count = threading.Barrier(threads), [], CALLS_OF_THREADS // threads

        def work() -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                mine = torch.zeros_like(x)
                for _ in range(3):
                    call(mine)
                barrier.wait()
                start = time.perf_counter()
                for _ in range(count):
                    call(mine)
                # Of its own: a thread that waits for the others gets the lock late.
                spans.append((start, time.perf_counter()))

        running = [threading.Thread(target=work) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        torch.cuda.synchronize()
        starts, ends = zip(*spans, strict=True)
        return (max(ends) - min(starts)) / (threads * count)

    for threads in THREADS:
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(4):
            for name, call in calls.items():
                best[name] = min(best[name], seconds(call, threads))
        for name, found in best.items():
            yield f"{name}, {threads} threads", 1e6 * found


# --- one process ----------------------------------------------------------------------------------


def fastest(rows: Rows, wait: Callable[[], None]) -> dict[str, float]:
    """Microseconds of each call in its fastest round, without waiting for the GPU."""
    best: dict[str, float] = {}
    counts = {}
    for name, call in rows.items():
        for _ in range(20):
            call()
        wait()
        start = time.perf_counter()
        for _ in range(10):
            call()
        counts[name] = max(min(CALLS, int(10 * ROUND_S / (time.perf_counter() - start))), 10)
    for _ in range(ROUNDS):
        for name, call in rows.items():
            wait()
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            each = 1e6 * (time.perf_counter() - start) / counts[name]
            best[name] = min(best.get(name, np.inf), each)
    return best


def measured(library: str) -> dict[str, Any]:
    """All rows of one library with the ``gemv`` that this process imports."""
    import gemv  # of the tree to be measured, before this program's own one is in sight

    if gemv.backend() != "cuda":
        raise SystemExit("the cost of calls can only be measured on a GPU")
    sys.path.insert(0, str(TOP))
    from gemv.engines import backend

    found: dict[str, Any] = {
        "device": backend.engine().device().name, "gemv": Path(gemv.__file__).parent.name,
    }  # fmt: skip
    if library == "torch":
        rows, wait = torch_rows()
        found["us"] = fastest(rows, wait) | dict(thread_rows())
    else:
        from benchmarks.measure import calls_of_jax

        rows, wait, found["counts"] = calls_of_jax.rows()
        found["us"] = fastest(rows, wait) | dict(calls_of_jax.chain_rows())
    return found


# --- both trees -----------------------------------------------------------------------------------


def in_process(library: str, tree: str) -> dict[str, Any]:
    """What :func:`measured` gives in a process that imports the ``gemv`` of a tree."""
    path = os.pathsep.join(filter(None, (tree, os.environ.get("PYTHONPATH"))))
    environment = dict(os.environ, PYTHONPATH=path, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    done = subprocess.run(
        [sys.executable, __file__, "--only", library],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    except (IndexError, ValueError):
        return {"us": {}, "failed": done.stderr[-1500:]}


def table(runs: dict[str, dict[str, float]]) -> Iterator[str]:
    """A line for each row of :data:`PEERS`; `runs` has microseconds by tree and row."""
    trees = list(runs)
    yield (
        f"{'us a call':44}"
        + "".join(f"{tree:>8} {'peer':>7} {'ratio':>6}" for tree in trees)
        + (f" {'wanted':>7}")
    )
    for name, (peer, wanted) in PEERS.items():
        line = f"{name:44}"
        for tree in trees:
            ours, theirs = runs[tree].get(name), runs[tree].get(peer)
            if ours is None or theirs is None:
                line += f"{'–':>8} {'–':>7} {'–':>6}"
            else:
                line += f"{ours:8.2f} {theirs:7.2f} {ours / theirs:6.2f}"
        yield line + (f" {wanted:7.2f}" if wanted is not None else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--before")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", choices=("torch", "jax"))
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured(options.only)))
        return
    trees = {"after": str(TOP)}
    if options.before:
        trees = {"before": str(Path(options.before).resolve())} | trees
    runs: dict[str, dict[str, float]] = {tree: {} for tree in trees}
    everything = []
    for _ in range(options.repeats):
        for library in ("torch", "jax"):
            for tree, path in trees.items():
                found = in_process(library, path)
                everything.append({"tree": tree, "library": library, **found})
                for name, us in found["us"].items():
                    runs[tree][name] = min(us, runs[tree].get(name, np.inf))
                if options.file:
                    Path(options.file).write_text(json.dumps(everything, indent=1) + "\n")
    for line in table(runs):
        print(line)
    for each in everything:
        if each.get("counts") or each.get("failed"):
            print(each["tree"], each["library"], each.get("counts", ""), each.get("failed", ""))


if __name__ == "__main__":
    main()
