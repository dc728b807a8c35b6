"""Try kernels and their constants over shapes, and write the selection table that follows.

    python -m benchmarks.tune.try_constants FILE.jsonl [--shapes 4096x4096,...] [--dtypes s,d,c]
        [--ops N,T] [--views whole,odd] [--seconds 300] [--jobs 16] [--table FILE|auto]

Each line of the file is one problem with the time of every candidate; problems that the file has
already are skipped, so a run that was cut short goes on where it stopped. A is whole, or a view
without its first column ("odd": lda and base aligned to one element); from memory, and once more
from the L2 cache ("hot") if half of that holds it. Every candidate is checked before it is timed: A
and x are small integers, so that sums are exact in any order, and the answer must equal, bit for
bit, that of another kernel. Under the simulator shapes shrink and nothing is timed, which proves
the script alive.

The table is made of all records in the file by the rule in ``rows.py``; "auto" is the table of the
very GPU, gemv/selection/tables/<its name>.toml, which selection prefers from then on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

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
#: PIECES, COLUMNS, MIN_BLOCKS, THREADS_PER_BLOCK
LONG = ((4, 1, 4, 256), (2, 2, 4, 256), (4, 2, 2, 256), (8, 1, 2, 256), (4, 1, 8, 128))
#: LANES, ROWS, VECTORS, MIN_BLOCKS, THREADS_PER_BLOCK
PHASED_ROWS = (
    (8, 4, 2, 4, 128), (16, 4, 2, 4, 128), (32, 4, 1, 4, 128), (32, 4, 2, 4, 128),
    (32, 2, 4, 4, 128), (32, 2, 2, 4, 128), (128, 4, 2, 4, 128), (128, 2, 4, 4, 128),
    (256, 4, 2, 2, 256), (256, 2, 4, 2, 256), (256, 2, 2, 2, 256),
)  # fmt: skip
#: LANES, PIECES, COLUMNS, MIN_BLOCKS, THREADS_PER_BLOCK
PHASED_COLUMNS = (
    (8, 2, 8, 2, 256), (16, 2, 4, 2, 256), (16, 2, 8, 1, 256), (32, 1, 4, 3, 256),
    (32, 1, 8, 2, 256), (32, 1, 16, 1, 256), (32, 2, 4, 2, 256), (32, 2, 8, 1, 256),
    (64, 1, 8, 1, 512),
)  # fmt: skip
NAMES = {
    "vector_rows": ("LANES", "ROWS", "VECTORS", "MIN_BLOCKS", "THREADS_PER_BLOCK"),
    "vector_columns": ("LANES", "PIECES", "COLUMNS", "MIN_BLOCKS", "THREADS_PER_BLOCK"),
    "long_columns": ("PIECES", "COLUMNS", "MIN_BLOCKS", "THREADS_PER_BLOCK"),
    "phased_rows": ("LANES", "ROWS", "VECTORS", "MIN_BLOCKS", "THREADS_PER_BLOCK"),
    "phased_columns": ("LANES", "PIECES", "COLUMNS", "MIN_BLOCKS", "THREADS_PER_BLOCK"),
}
VALUES = {
    "vector_rows": ROWS, "vector_columns": COLUMNS, "long_columns": LONG,
    "phased_rows": PHASED_ROWS, "phased_columns": PHASED_COLUMNS,
}  # fmt: skip
#: Bytes to which a copy of A is aligned, as memory of its own would be.
ALIGNED = 256
#: Blocks for each multiprocessor that the columns are split for; 0 is no split.
SPLITS = (0, 4, 8)


def candidates(problem):
    """Kernels that selection may use, with constants worth a try.

    Those above, no more lanes than a line has loads, unless a block has; and those of all rows of
    the table in use, so that none that somebody found is lost. Kernels for lines that begin
    anywhere are left out where all of them are aligned. A kernel that is named above with
    no constants is tried with its own.
    """
    from gemv.core.geometry import LOAD_BYTES
    from gemv.engines import backend
    from gemv.kernels import REGISTRY
    from gemv.selection.table import table

    device = backend.engine().device()
    loads = -(-problem.line_bytes // 16)
    for name, kernel in REGISTRY.items():
        if kernel.teaching or kernel.accepts(problem) or device.lacks(kernel.capability):
            continue
        if kernel.phased and problem.a_alignment == LOAD_BYTES:
            continue  # the same loads as without phases, and x has narrower ones
        found = [dict(row.knobs) for row in table() if row.kernel == name] or [{}]
        for values in VALUES.get(name, ()):
            knobs = dict(zip(NAMES[name], values, strict=True))
            splits = SPLITS if "BLOCKS_PER_SM" in kernel.knobs else (None,)
            found += [knobs if n is None else {**knobs, "BLOCKS_PER_SM": n} for n in splits]
        for knobs in found:
            lanes = {**kernel.knobs, **knobs}.get("LANES", 32)
            fits = lanes >= 32 or 16 * lanes >= loads or problem.lines < 4096
            if lanes <= max(2 * loads, 1) and fits:
                yield name, knobs


class Integers:
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


def spacing(elements, itemsize):
    """Elements from one copy of A to the next: kernels rely on all being aligned as the first."""
    unit = ALIGNED // itemsize
    return -(-elements // unit) * unit


def make_problem(m, n, dtype, op, view):
    """A problem with A stored along its rows, and where A begins in its memory."""
    from gemv.measure import inputs

    problem = inputs.make_problem(m, n, dtype, "C", op)
    if view == "whole":
        return problem, 0
    lda = {"row_stride" if op == "N" else "col_stride": n + 1}
    return problem._replace(**lda), 1


def compiled(task):
    """Leave the machine code of a choice on disk; in a process of its own."""
    from gemv.engines import binaries
    from gemv.kernels import get

    name, spec, compute_capability = task
    binaries.binaries(get(name), spec, compute_capability)


def prepare(choices, compute_capability, pool):
    """Compile what is not on disk yet, several at a time."""
    from gemv.engines import cache_folder

    if pool is not None and cache_folder.directory() is not None:
        wanted = {(c.kernel.name, c.spec, compute_capability) for c in choices}
        list(pool.map(compiled, wanted))


def measure(m, n, prefix, op, view, engine, clock, integers, pool=None):
    """Records of one problem, A from memory and perhaps from L2: candidates checked and timed."""
    from gemv.core.dtypes import DTYPES
    from gemv.measure import inputs
    from gemv.measure.clock import copies_past_l2
    from gemv.selection.select import select

    dtype = DTYPES[prefix]
    device = engine.device()
    problem, begin = make_problem(m, n, dtype, op, view)
    reach = begin + (m - 1) * max(problem.row_stride, problem.col_stride) + n
    size, step = m * n * dtype.itemsize, spacing(reach, dtype.itemsize)
    copies = 1 if clock is None else copies_past_l2(size, clock.l2_bytes)
    everything = integers.of(dtype, step * copies)
    base = inputs.as_buffer(everything)
    places = [
        inputs.Buffer(
            _part(everything, start + begin, reach - begin),
            base.pointer + (start + begin) * dtype.itemsize,
        )
        for start in range(0, step * copies, step)
    ]
    x_host = np.resize(integers.block, problem.cols).astype(dtype)
    x = inputs.as_buffer(engine.to_device(x_host))
    problem = problem.at(places[0].pointer, x.pointer)
    one, zero = dtype.type(1), dtype.type(0)

    def result(choice):
        y = inputs.as_buffer(engine.to_device(np.full(problem.rows, np.nan, dtype)))
        engine.run(choice, problem, one, places[0], x, zero, y)
        return engine.to_host(y.owner), y

    expected, y = result(select(problem, device, "coalesced"))
    record = {
        "m": m, "n": n, "dtype": prefix, "op": op, "view": view, "hot": False,
        "access": problem.access, "line_bytes": problem.line_bytes, "lines": problem.lines,
        "element_bytes": dtype.itemsize, "load_bytes": problem.widths[0] * dtype.itemsize,
        "bytes": problem.bytes_moved(beta_is_zero=True),
    }  # fmt: skip
    hot = dict(record, hot=True) if clock and size <= clock.l2_bytes // 2 else None
    if clock is not None:
        starts = [base.pointer + k * step * dtype.itemsize for k in range(min(copies, 4))]
        record["read_gb_per_s"] = clock.read_ceiling(starts, size)
    chosen = select(problem, device)
    tried = [("the table's", chosen)]
    tried += [("candidate", select(problem, device, *each)) for each in candidates(problem)]
    if engine.name == "cuda":
        prepare([choice for _, choice in tried], device.compute_capability, pool)
    record["tried"] = []
    if hot is not None:
        hot["tried"] = []
    timed = {}
    for what, choice in tried:
        # Splits that come out alike are one launch, whatever constant asked for them; where none
        # does, the machine code is another.
        knobs = {k: min(v, 1) if k == "BLOCKS_PER_SM" else v for k, v in choice.knobs.items()}
        same = choice.kernel.name, tuple(knobs.items()), choice.geometry.launches
        if same not in timed:
            answer, y = result(choice)
            if answer.tobytes() != expected.tobytes():
                which = f"{choice.kernel.name} {choice.knobs}"
                raise AssertionError(f"{which} is wrong on {m} x {n} {prefix} {op} {view}")
            timed[same] = None, None
            if clock is not None:
                calls = [
                    partial(_call, engine, choice, problem, one, p, x, zero, y) for p in places
                ]
                timed[same] = clock.time(calls, 5), clock.time(calls[:1], 5) if hot else None
        for each, seconds in zip((record, hot), timed[same], strict=True):
            if each is not None:
                each["tried"].append([what, choice.kernel.name, choice.knobs, seconds])
    return [record] if hot is None else [record, hot]


def _part(array, start, count):
    return array[start : start + count]


def _call(engine, choice, problem, one, a, x, zero, y, stream):
    engine.run(choice, problem, one, a, x, zero, y, stream)


def summary(record):
    """One line: how far the table's choice is from the best that was tried."""
    m, n, dtype, op = (record[key] for key in ("m", "n", "dtype", "op"))
    op = f"{op} {record['view']}{' hot' if record['hot'] else ''}"
    timed = [
        (seconds, what, name, knobs) for what, name, knobs, seconds in record["tried"] if seconds
    ]
    if not timed:
        return f"{dtype} {m} x {n} {op}: {len(record['tried'])} candidates agree"
    seconds, _, name, knobs = min(timed, key=lambda row: row[0])
    table = next(row[0] for row in timed if row[1] == "the table's")
    rate = record["bytes"] / seconds / 1e9
    share = ""
    if "read_gb_per_s" in record:
        share = f", {rate / record['read_gb_per_s']:.2f} of the read rate"
    return (
        f"{dtype} {m} x {n} {op}: best {rate:.0f} GB/s{share}, {name} {knobs};"
        f" the table reaches {seconds / table:.2f} of it"
    )


def make_clock(engine):
    """The clock of this GPU; None under the simulator, where there is nothing to time."""
    from gemv.measure.clock import Clock

    return Clock(engine) if engine.name == "cuda" else None


def write_table(place, records, engine, clock):
    """The table that follows from the records, checked: it reads back and selects what it says."""
    from importlib import resources

    from benchmarks.tune import rows as tune_rows
    from gemv.core.files import write_text
    from gemv.selection.parse import parse
    from gemv.selection.table import file_names

    device = engine.device()
    rows = tune_rows.rows(records)
    if not rows:
        print("no times, so no table")
        return
    about = {
        "gpu": device.name,
        "compute_capability": list(device.compute_capability),
        "date": datetime.now(UTC).date().isoformat(),
        "command": "benchmarks.tune.try_constants",
        "problems": len(records),
        "versions": clock.versions(),
    }
    text = tune_rows.to_toml(rows, about)
    assert len(parse(text, last=False)) == len(rows)
    if place == "auto":
        place = resources.files("gemv.selection").joinpath(f"tables/{file_names(device)[0]}.toml")
    write_text(place, text)
    print(f"{len(rows)} rows in {Path(place).name}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--shapes")
    parser.add_argument("--dtypes", default="s,d,c")
    parser.add_argument("--ops", default="N,T")
    parser.add_argument("--views", default="whole,odd")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--table", help="a file, or auto")
    options = parser.parse_args(arguments)

    from gemv.core.files import write_text
    from gemv.engines import backend
    from gemv.measure.cells import SHAPES, SIMULATED_SHAPES

    engine = backend.engine()
    clock = make_clock(engine)
    if options.shapes:
        shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes.split(",")]
    else:
        shapes = SHAPES if clock else SIMULATED_SHAPES
    records = []
    if options.file.exists():
        records = [json.loads(line) for line in options.file.read_text("utf-8").splitlines()]
    fields = ("dtype", "m", "n", "view", "op")
    done = {tuple(record[key] for key in fields) for record in records}
    integers = Integers(engine, 1 << 24)
    end = time.monotonic() + options.seconds
    wanted = itertools.product(
        options.dtypes.split(","), shapes, options.views.split(","), options.ops.split(",")
    )
    pool = None
    if engine.name == "cuda" and options.jobs > 1:
        # Not forked: the driver does not survive that.
        pool = ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"))
    try:
        for prefix, (m, n), view, op in wanted:
            if (prefix, m, n, view, op) in done:
                continue
            if time.monotonic() > end:
                print("time is up; the same command goes on from here")
                break
            for record in measure(m, n, prefix, op, view, engine, clock, integers, pool):
                records.append(record)
                # Not appended: half a line, where the disk is full, could not be read back.
                write_text(options.file, "".join(json.dumps(each) + "\n" for each in records))
                print(summary(record), flush=True)
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    if options.table:
        write_table(options.table, records, engine, clock)


if __name__ == "__main__":
    main()
