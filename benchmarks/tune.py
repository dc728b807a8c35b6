"""Try kernels and their constants over shapes, and show where the selection table falls behind.

Usage: python benchmarks/tune.py results.jsonl [--shapes 4096x4096,...] [--dtypes s,d,c] [--ops N,T]
       [--seconds 300]

Each line of the file is one problem with the time of every candidate; problems that the file has
already are skipped, so a run that was cut short goes on where it stopped. Every candidate is
checked before it is timed: A and x are small integers, so that sums are exact in any order, and the
answer must equal, bit for bit, that of another kernel. Under the simulator shapes shrink and
nothing is timed, which proves the script alive.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from functools import partial
from pathlib import Path

import numpy as np

SHAPES = (
    "16384x16384 8192x8192 4096x4096 2048x2048 1024x1024 512x512 256x256 16x4194304 4194304x16"
    " 128x1048576 1048576x128 1x67108864 67108864x1 4x16777216 16777216x4 1000x100000 100000x1000"
    " 10000x10000 9999x9973 333x77777 77777x333 14336x4096 4096x14336 128256x4096"
)
SIMULATED = "5x70 70x5 33x17"

#: LANES, ROWS, VECTORS, MIN_BLOCKS, THREADS_PER_BLOCK
ROWS = (
    (1, 4, 1, 3, 256), (2, 4, 1, 3, 256), (4, 4, 1, 3, 256), (8, 4, 1, 3, 256), (8, 2, 2, 3, 256),
    (16, 4, 1, 3, 256), (16, 2, 2, 3, 256), (32, 4, 1, 3, 256), (32, 2, 2, 3, 256),
    (32, 2, 4, 2, 256), (64, 2, 4, 4, 64), (64, 4, 2, 4, 64), (128, 2, 4, 4, 128),
    (128, 4, 2, 4, 128), (256, 1, 4, 4, 256), (256, 1, 8, 2, 256), (256, 2, 4, 2, 256),
)  # fmt: skip
#: LANES, PIECES, COLUMNS, MIN_BLOCKS, THREADS_PER_BLOCK
COLUMNS = (
    (1, 1, 8, 2, 256), (2, 1, 8, 2, 256), (4, 1, 8, 2, 256), (8, 1, 8, 2, 256), (16, 1, 8, 2, 256),
    (32, 1, 8, 2, 256), (32, 1, 16, 1, 256), (64, 1, 8, 2, 256), (256, 1, 8, 2, 256),
    (4, 1, 4, 2, 512), (8, 1, 8, 1, 512), (16, 1, 8, 1, 512), (8, 1, 4, 3, 256), (32, 1, 4, 2, 256),
    (256, 4, 2, 2, 256), (256, 2, 4, 2, 256), (64, 2, 4, 2, 256), (32, 2, 4, 2, 256),
)  # fmt: skip
NAMES = {
    "vector_rows": ("LANES", "ROWS", "VECTORS", "MIN_BLOCKS", "THREADS_PER_BLOCK"),
    "vector_columns": ("LANES", "PIECES", "COLUMNS", "MIN_BLOCKS", "THREADS_PER_BLOCK"),
}
#: Bytes to which a copy of A is aligned, as memory of its own would be.
ALIGNED = 256
#: Blocks for each multiprocessor that the columns are split for; 0 is no split.
SPLITS = (0, 4, 8)


def candidates(problem):
    """Kernel and knobs worth a try: no more lanes than a line has loads, unless a block has."""
    kernel, choices = (
        ("vector_rows", ROWS) if problem.access == "dot" else ("vector_columns", COLUMNS)
    )
    loads = -(-problem.line_bytes // 16)
    for values, splits in itertools.product(choices, SPLITS):
        lanes = values[0]
        if lanes <= 2 * loads and (lanes >= 32 or 16 * lanes >= loads or problem.lines < 4096):
            yield kernel, {**dict(zip(NAMES[kernel], values, strict=True)), "BLOCKS_PER_SM": splits}


class Memory:
    """Small integers on the device, enough for one A in several places, and x."""

    def __init__(self, engine, nbytes):
        rng = np.random.default_rng(7)
        block = rng.integers(-4, 5, min(nbytes, 1 << 24)).astype(np.int8)
        self.engine, self.block = engine, block
        self.kept = {}

    def of(self, dtype, elements):
        """A flat device array of that many integers of `dtype`."""
        if self.kept.get("key") != (dtype, elements):
            values = np.resize(self.block, elements).astype(dtype)
            self.kept = {"key": (dtype, elements), "array": self.engine.to_device(values)}
        return self.kept["array"]


def problem_record(m, n, prefix, op):
    return {"m": m, "n": n, "dtype": prefix, "op": op}


def spacing(elements, itemsize):
    """Elements from one copy of A to the next: kernels rely on all being aligned as the first."""
    unit = ALIGNED // itemsize
    return -(-elements // unit) * unit


def copies_of(size, l2_bytes):
    """Copies of A that together exceed the L2 cache, unless it takes too many of them."""
    from gemv._measure import _L2_TIMES, _MOST_COPIES

    return min(-(-_L2_TIMES * l2_bytes // size) + 1, _MOST_COPIES)


def measure(m, n, prefix, op, engine, clock, memory):
    """All candidates of one problem: checked, and timed where there is a GPU."""
    from gemv import _measure
    from gemv._problem import DTYPES
    from gemv._select import select

    dtype = DTYPES[prefix]
    device = engine.device()
    problem = _measure.make_problem(m, n, dtype, "C", op)
    size, step = m * n * dtype.itemsize, spacing(m * n, dtype.itemsize)
    copies = 1 if clock is None else copies_of(size, clock.l2_bytes)
    everything = memory.of(dtype, step * copies)
    base = _measure._operand(everything)
    places = [
        _measure._Array(_part(everything, start, m * n), base.pointer + start * dtype.itemsize)
        for start in range(0, step * copies, step)
    ]
    x_host = np.resize(memory.block, problem.cols).astype(dtype)
    x = _measure._operand(engine.to_device(x_host))
    problem = problem.at(places[0].pointer, x.pointer)
    one, zero = dtype.type(1), dtype.type(0)

    def result(choice):
        y = _measure._operand(engine.to_device(np.full(problem.rows, np.nan, dtype)))
        engine.run(choice, problem, one, places[0], x, zero, y)
        return engine.to_host(y.owner), y

    expected, y = result(select(problem, device, "coalesced"))
    record = {**problem_record(m, n, prefix, op), "bytes": problem.bytes_moved(beta_is_zero=True)}
    if clock is not None:
        record["read_gb_per_s"] = clock.read_ceiling([p.pointer for p in places[:4]], size)
    chosen = select(problem, device)
    tried = [("the table's", chosen.kernel.name, chosen.knobs, chosen)]
    launches = set()
    for name, knobs in candidates(problem):
        choice = select(problem, device, name, knobs)
        key = (tuple(sorted((k, v) for k, v in knobs.items() if k != "BLOCKS_PER_SM")),
               choice.geometry.launches)  # fmt: skip
        if key not in launches:
            launches.add(key)
            tried.append(("candidate", name, knobs, choice))
    record["tried"] = []
    for what, name, knobs, choice in tried:
        answer, y = result(choice)
        if answer.tobytes() != expected.tobytes():
            raise AssertionError(f"{name} {knobs} is wrong on {m} x {n} {prefix} {op}")
        seconds = None
        if clock is not None:
            calls = [partial(_call, engine, choice, problem, one, p, x, zero, y) for p in places]
            seconds = clock.time(calls, 5)
        record["tried"].append([what, name, dict(knobs), seconds])
    return record


def _part(array, start, count):
    return array[start : start + count]


def _call(engine, choice, problem, one, a, x, zero, y, stream):
    engine.run(choice, problem, one, a, x, zero, y, stream)


def summary(record):
    """One line: how far the table's choice is from the best that was tried."""
    m, n, dtype, op = (record[key] for key in ("m", "n", "dtype", "op"))
    timed = [
        (seconds, what, name, knobs) for what, name, knobs, seconds in record["tried"] if seconds
    ]
    if not timed:
        return f"{dtype} {m} x {n} {op}: {len(record['tried'])} candidates agree"
    seconds, _, name, knobs = min(timed, key=lambda row: row[0])
    table = next(row[0] for row in timed if row[1] == "the table's")
    rate = record["bytes"] / seconds / 1e9
    return (
        f"{dtype} {m} x {n} {op}: best {rate:.0f} GB/s, {rate / record['read_gb_per_s']:.2f} of the"
        f" read rate, {name} {knobs}; the table reaches {seconds / table:.2f} of it"
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--shapes")
    parser.add_argument("--dtypes", default="s,d,c")
    parser.add_argument("--ops", default="N,T")
    parser.add_argument("--seconds", type=float, default=3600.0)
    options = parser.parse_args(arguments)

    from gemv import _backend, _measure

    engine = _backend.engine()
    clock = _measure.Clock(engine) if engine.name == "cuda" else None
    names = options.shapes or (SHAPES.replace(" ", ",") if clock else SIMULATED.replace(" ", ","))
    shapes = [tuple(map(int, shape.split("x"))) for shape in names.split(",")]
    done = set()
    if options.file.exists():
        for line in options.file.read_text().splitlines():
            record = json.loads(line)
            done.add(tuple(record[key] for key in ("m", "n", "dtype", "op")))
    memory = Memory(engine, 1 << 24)
    end = time.monotonic() + options.seconds
    wanted = itertools.product(options.dtypes.split(","), shapes, options.ops.split(","))
    for prefix, (m, n), op in wanted:
        if (m, n, prefix, op) in done:
            continue
        if time.monotonic() > end:
            print("time is up; the same command goes on from here")
            break
        record = measure(m, n, prefix, op, engine, clock, memory)
        with options.file.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(summary(record), flush=True)


if __name__ == "__main__":
    main()
