"""What a profiler, Nsight Compute (``ncu``), tells of each rung, for the pages of the climb.

    python -m benchmarks.measure.profiler [--shape 8192x8192] [--order F] [FOLDER]

It needs the right to count. A is float32, stored by rows (C) or by columns (F), and op(A) = A. Each
kernel that accepts the problem is launched once, and finds an empty L2 cache. Results go to
``benchmarks/results/profiler``, into a file that is named as the ladder's one for the same problem.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from pathlib import Path

from gemv.core.files import write_text

RESULTS = Path(__file__).resolve().parents[1] / "results" / "profiler"

#: Names of ncu, by ours.
METRICS = {
    "duration": "gpu__time_duration.sum",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sectors": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "read": "dram__bytes_read.sum",
    "latency": "smsp__average_warp_latency_per_inst_issued.ratio",
    "memory": "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "barrier": "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
}
#: Bytes, by the unit that ncu writes.
UNITS = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}


def launch(m: int, n: int, order: str) -> None:
    """Launch each kernel that accepts the problem once; this is what ncu watches."""
    import numpy as np

    from gemv.core.dtypes import DTYPES
    from gemv.engines import backend
    from gemv.kernels import REGISTRY
    from gemv.measure.inputs import ALPHA, BETA, as_buffer, make_problem, random_array
    from gemv.selection.select import select

    engine = backend.engine()
    device, dtype = engine.device(), DTYPES["s"]
    rng = np.random.default_rng(20240501)
    a, x, y = (
        as_buffer(engine.to_device(random_array(rng, shape, dtype)))
        for shape in ((m, n), (n,), (m,))
    )
    problem = make_problem(m, n, dtype, order, "N").at(a.pointer, x.pointer)
    for kernel in REGISTRY.values():
        if kernel.accepts(problem) or device.lacks(kernel.capability):
            continue
        choice = select(problem, device, kernel.name)
        engine.run(choice, problem, dtype.type(ALPHA), a, x, dtype.type(BETA), y)
        engine.to_host(y.owner)  # waits
        functions = [function.__name__ for function in kernel.build(choice.spec)]
        print("launched", kernel.name, *functions, flush=True)


def parse(text: str, nbytes: int) -> list[dict]:
    """What is told of each kernel that was launched, from ncu's raw CSV page.

    A kernel may take several launches; the longest one counts.
    """
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if not rows:
        raise ValueError("ncu counted nothing")
    headings, units, *data = rows
    place = {ours: headings.index(theirs) for ours, theirs in METRICS.items()}
    name_at = headings.index("Kernel Name")

    def number(row: list[str], ours: str) -> float:
        return float(row[place[ours]].replace(",", "") or "nan")

    found, left = [], iter(data)
    for line in re.findall(r"^launched (.+)$", text, re.MULTILINE):
        name, *functions = line.split()
        own = [next((row for row in left if each in row[name_at]), None) for each in functions]
        counted = [row for row in own if row is not None]
        if len(counted) < len(functions):
            raise ValueError(f"ncu counted {len(counted)} launches of {name}, not {len(functions)}")
        row = max(counted, key=lambda each: number(each, "duration"))
        read = number(row, "read") * UNITS[units[place["read"]]]
        latency = number(row, "latency")
        metrics = {
            "sectors per request": f"{number(row, 'sectors'):.3g}",
            "bytes from memory, of those of A": f"{read / nbytes:.2f}",
            "warps, of those there is room for": f"{number(row, 'occupancy'):.0f}%",
            "time of a warp: waits for memory": f"{number(row, 'memory') / latency:.0%}",
            "time of a warp: waits at barriers": f"{number(row, 'barrier') / latency:.0%}",
        }
        found.append({"name": name, "metrics": metrics})
    return found


def file_name(given: argparse.Namespace) -> str:
    """What the ladder's file for the same problem is called."""
    return f"f32{'F' if given.order == 'F' else ''}-{given.shape}.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--shape", default="8192x8192")
    parser.add_argument("--order", choices="CF", default="C")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    m, n = map(int, given.shape.split("x"))
    if given.launch:
        launch(m, n, given.order)
        return
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw"]
    command += ["--metrics", ",".join(METRICS.values())]
    again = [
        sys.executable,
        "-m",
        "benchmarks.measure.profiler",
        "--launch",
        "--shape",
        given.shape,
        "--order",
        given.order,
    ]
    run = subprocess.run([*command, *again], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"ncu failed: {run.stdout[-1500:]} {run.stderr[-1500:]}")
    from gemv.engines import backend

    version = subprocess.run(["ncu", "--version"], capture_output=True, text=True).stdout
    tool = "ncu " + re.findall(r"Version (\d+\.\d+)", version)[0]
    told = {"device": backend.engine().device().name, "tool": tool}
    told |= {"rows": parse(run.stdout, m * n * 4)}
    given.folder.mkdir(parents=True, exist_ok=True)
    write_text(given.folder / file_name(given), json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
