"""One matrix on several GPUs beside one GPU: host time of a product whose x and y are on GPU 0.

    python -m benchmarks.measure.shards FILE.json [--devices 0,1] [--seconds 150] [--sizes "1 GiB"]

It measures each size by each way: our call and plan on one GPU, our shards of rows and of columns,
``torch.mv``, the same on a part of the rows each with copies between GPUs, and CuPy's distributed
array. A time is that from the call until all GPUs are idle, the median of many; beside it stand
the time until the GPU of y is idle, so that y can be read, the time after which the call returns,
the time of one of twenty products in a row, and for what writes to the same y each time, that of
one of twenty in a CUDA graph. Every result is compared with float64, and that of our shards of rows
with our single call, bit for bit.

The file is written after each cell, and a run with the same file goes on where the last one ended.
A way that fails leaves the text of its error. Where there is no GPU, the simulator runs all of it
on a few elements, without times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gemv
from benchmarks.measure.shards_arrays import Simulated, Torch, Ways
from gemv.core.files import write_text

#: By name: rows and columns, of which the first is for each GPU where it is negative, and dtype.
SIZES = {
    "64 MiB": (4096, 4096, "float32"),
    "256 MiB": (8192, 8192, "float32"),
    "1 GiB": (16384, 16384, "float32"),
    "4 GiB a GPU": (-32768, 32768, "float32"),
    "16 GiB": (65536, 65536, "float32"),
    "64 GiB": (131072, 131072, "float32"),
    "144 MB": (6000, 6000, "float32"),
    "196 MB": (7000, 7000, "float32"),
    "200 MB, float64": (5000, 5000, "float64"),
}
SMALL = {"small": (48, 32, "float32"), "small, float64": (-16, 24, "float64")}
#: Times of one product; calls that are not timed before, so that ``A @ x`` is one launch by then;
#: products in a row.
REPEATS, WARM, IN_A_ROW = 30, 6, 20


#: A product in a graph takes at least this part of its time alone, or the graph is empty.
LEAST_OF_TIME = 0.05


# --- ways -----------------------------------------------------------------------------------------


def our_ways(machine: Any, a: Any, x: Any) -> Ways:
    """Our ways: each prepares its operands, and gives the function that is timed."""
    rows = len(machine.devices)

    def call() -> Callable[[], Any]:
        y = machine.empty(a.shape[0], x)
        return lambda: gemv.gemv(1, a, x, 0, y, overwrite_y=1)

    def plan() -> Callable[[], Any]:
        return gemv.plan(a, x, machine.empty(a.shape[0], x))

    def sharded(axis: int) -> Any:
        parts = [machine.part(a, number, axis) for number in range(rows)]
        # Columns are cut evenly here, not where the single call splits its sums.
        return gemv.sharded(parts, axis, reproducible=axis == 0)

    def product(axis: int) -> Callable[[], Any]:
        matrix = sharded(axis)
        return lambda: matrix @ x

    def bound(axis: int) -> Callable[[], Any]:
        y = machine.empty(a.shape[0], x)
        plan: Callable[[], Any] = sharded(axis).plan(x, y)
        return plan

    return {
        "gemv, one GPU": call,
        "gemv.plan, one GPU": plan,
        "shards of rows": partial(product, 0),
        "plan, shards of rows": partial(bound, 0),
        "shards of columns": partial(product, 1),
        "plan, shards of columns": partial(bound, 1),
    }


# --- measuring ------------------------------------------------------------------------------------


def timed(machine: Any, product: Callable[[], Any]) -> dict[str, float]:
    """Seconds of one product, each followed by waits, of its call, and of one of many in a row."""
    for _ in range(WARM):
        product()
    machine.wait()
    alone, calls, of_y = [], [], []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        product()
        calls.append(time.perf_counter() - begin)
        machine.wait_for_y()
        of_y.append(time.perf_counter() - begin)
        machine.wait()
        alone.append(time.perf_counter() - begin)
    rows = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(IN_A_ROW):
            product()
        machine.wait()
        rows.append((time.perf_counter() - begin) / IN_A_ROW)
    quarters = statistics.quantiles(alone, n=4)
    return {
        "time_s": statistics.median(alone),
        "until_y_s": statistics.median(of_y),
        "call_s": statistics.median(calls),
        "first_quarter_s": quarters[0],
        "last_quarter_s": quarters[2],
        "in_a_row_s": statistics.median(rows),
    }


def cell(machine: Any, a: Any, x: Any, prepare: Callable[[], Any], bits: bytes | None) -> dict:
    """One way: checked, then timed. It raises what the way raises."""
    product = prepare()
    y = product()
    machine.wait()
    error = machine.error(a, x, y)
    found: dict[str, Any] = {"error": error, "right": bool(error <= a.shape[1])}
    if bits is not None:
        found["same_bits"] = machine.bits(y) == bits
    if hasattr(product, "is_graph"):
        found["is_graph"] = product.is_graph
    if machine.timed:
        found |= timed(machine, product)
    if machine.timed and product() is y:  # a new y each time has no place in a graph
        try:
            seconds = machine.in_graph(product, IN_A_ROW)
            if seconds < LEAST_OF_TIME * found["time_s"]:  # CuPy has its own streams
                raise RuntimeError("the product ran outside of the graph")
            found["in_graph_s"] = seconds
        except Exception as error:
            found["no_graph"] = f"{type(error).__name__}: {error}"
    return found


def measure(
    path: Path,
    machine: Any,
    sizes: dict[str, tuple[int, int, str]],
    seconds: float,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure what the file does not have yet, until the time is over."""
    end = time.monotonic() + seconds
    results = begun(path, machine)
    done = {(row["size"], row["way"]) for row in results["rows"] if "failed" not in row}
    for size, (m, n, dtype) in sizes.items():
        m = -m * len(machine.devices) if m < 0 else m
        with ExitStack() as stack:
            try:
                a, x = machine.random((m, n), dtype, 1), machine.random((n,), dtype, 2)
            except Exception as error:
                say(f"{size}: {type(error).__name__}: {error}")
                continue
            stack.callback(machine.wait)
            ways = {**our_ways(machine, a, x), **machine.other_ways(a, x)}
            bits = None
            for way, prepare in ways.items():
                if (size, way) in done:
                    continue
                if time.monotonic() > end:
                    say(f"the time is over before {size}, {way}; run it again with the same file")
                    return results
                row: dict[str, Any] = {"size": size, "way": way, "m": m, "n": n, "dtype": dtype}
                try:
                    if bits is None and way.endswith("shards of rows"):
                        bits = machine.bits(gemv.gemv(1, a, x))
                    ours = bits if way.endswith("shards of rows") else None
                    row |= cell(machine, a, x, prepare, ours)
                except Exception as error:
                    row["failed"] = f"{type(error).__name__}: {error}"
                rows = results["rows"]
                results["rows"] = [r for r in rows if (r["size"], r["way"]) != (size, way)] + [row]
                write_text(path, json.dumps(results, indent=1) + "\n")
                say(f"{size}, {way}: {row.get('failed') or row.get('time_s', 'not timed')}")
    return results


def begun(path: Path, machine: Any) -> dict[str, Any]:
    """What the file has, or the head of a new one."""
    head = {"devices": machine.devices, "names": machine.names, "versions": versions()}
    if not path.exists():
        return {**head, "rows": []}
    found: dict[str, Any] = json.loads(path.read_text())
    for name in ("devices", "names"):
        if found[name] != head[name]:
            raise SystemExit(f"{path}: measured with {name} {found[name]}, and here {head[name]}")
    return found


def versions() -> dict[str, str]:
    found = {"gemv": gemv.__version__}
    for name in ("torch", "cupy-cuda13x", "cupy-cuda12x", "numba-cuda"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            pass
    return found


def table(results: dict[str, Any]) -> str:
    """A line for each way: microseconds, and times as fast as our single call."""
    lines = [
        f"{'size':18} {'way':26} {'us':>9} {'until y':>9} {'call':>9} {'in a row':>9}"
        f" {'in graph':>9} {'of one':>7} {'y of one':>8}  check"
    ]
    best = {row["size"]: row for row in results["rows"] if row["way"] == "gemv.plan, one GPU"}
    for row in results["rows"]:
        checks = [] if row.get("right", True) else ["WRONG"]
        checks += ["same bits" if row["same_bits"] else "OTHER BITS"] if "same_bits" in row else []
        checks += ["no graph"] if row.get("is_graph") is False else []
        checks += [row[key].splitlines()[0][:60] for key in ("failed", "no_graph") if key in row]
        figures = [
            f"{row[name] * 1e6:9.1f}" if name in row else f"{'-':>9}"
            for name in ("time_s", "until_y_s", "call_s", "in_a_row_s", "in_graph_s")
        ]
        one = best.get(row["size"], {})
        times = " ".join(
            f"{one[name] / row[name]:{width}.2f}"
            if name in one and name in row
            else f"{'-':>{width}}"
            for name, width in (("time_s", 7), ("until_y_s", 8))
        )
        line = f"{row['size']:18} {row['way']:26} {' '.join(figures)} {times}"
        lines.append(f"{line}  {', '.join(checks)}".rstrip())
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.measure.shards")
    parser.add_argument("file", type=Path, help="results; a run goes on with those that are there")
    parser.add_argument("--devices", default="0,1", help="ordinals of GPUs; default 0,1")
    parser.add_argument("--seconds", type=float, default=150, help="begin no cell later")
    parser.add_argument("--sizes", nargs="+", metavar="SIZE", help="some of those it knows")
    options = parser.parse_args(arguments)
    devices = [int(each) for each in options.devices.split(",")]
    on_gpu = gemv.backend() == "cuda"
    machine = Torch(devices) if on_gpu else Simulated(devices)
    sizes = SIZES if on_gpu else SMALL
    for size in options.sizes or ():
        if size not in sizes:
            parser.error(f"no size is called {size!r}; there are {', '.join(map(repr, sizes))}")
    sizes = {size: sizes[size] for size in options.sizes or sizes}
    results = measure(options.file, machine, sizes, options.seconds)
    print(table(results))
    wrong = [
        row
        for row in results["rows"]
        if row.get("same_bits") is False or not row.get("right", True)
    ]
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
