"""Hardware counters of constant memory and the other homes of x, by Nsight Compute (``ncu``).

    python -m benchmarks.measure.constants_counters FILE.json     needs the right to count

Counted are single launches: ``where_x_lives`` on a matrix in L2, with all threads of a warp at
the same x[j] and each at its own, and loads alone with 1, 2 and 32 addresses in a warp.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys

#: Column of ncu, and what the results call it.
METRICS = {
    "idc__requests.sum": "constant_requests",
    "idc__requests_lookup_hit.sum": "constant_hits",
    "sm__idc_divergent_instructions.sum": "divergent_loads",
    "sm__idc_divergent_instruction_replays.sum": "replays",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "global_requests",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "global_sectors",
}
M, N = 8192, 1024
ORDERS = ((1, "F"), (32, "C"))
ADDRESSES = (1, 2, 32)
ALONE = ("constant", "read_only")


def cases() -> list[dict]:
    """What is launched, in order."""
    from gemv.kernels.t06_where_x_lives import HOMES

    gemv = [{"what": "gemv", "home": h, "lanes": lanes} for h in HOMES for lanes, _ in ORDERS]
    alone = [{"what": "loads", "home": h, "lanes": count} for h in ALONE for count in ADDRESSES]
    return gemv + alone


def launch() -> None:
    """Launch every case once; this is what ncu watches."""
    from benchmarks.measure.constants_records import SINGLE as single
    from benchmarks.measure.constants_turns import ROUNDS, loading_kernel
    from gemv.engines import backend
    from gemv.kernels.spec import Spec
    from gemv.kernels.t06_where_x_lives import HOMES
    from gemv.measure.inputs import as_buffer, make_problem
    from gemv.measure.plain import launcher, loaded
    from gemv.selection.select import select

    engine = backend.engine()
    device = engine.device()
    a, x, y = (as_buffer(engine.zeros(size, single)) for size in (M * N, N, M))
    for case in cases():
        if case["what"] == "gemv":
            problem = make_problem(M, N, single, dict(ORDERS)[case["lanes"]], "N")
            knobs = {"X_HOME": HOMES.index(case["home"]), "LANES_PER_ROW": case["lanes"]}
            choice = select(problem, device, "where_x_lives", knobs | {"VALUE_BYTES": 4 * N})
            engine.run(choice, problem, single.type(1), a, x, single.type(0), y)
            continue
        kernel = loading_kernel(case["home"], Spec(single, False, "strided", ()))
        function = loaded(engine, kernel, single, early_start=False)
        values = {"rounds": ROUNDS, "mask": 1, "step": 1, "x": x.pointer, "y": y.pointer}
        values |= {"share": 32 // case["lanes"], "distinct": case["lanes"]}
        grid = (2 * device.multiprocessors, 1, 1)
        launcher(engine, function, grid, (1024, 1, 1), values)(0)
    engine.to_host(y.owner)  # waits


def parse(text: str, launched: list[dict]) -> list[dict]:
    """Rows of ncu's raw CSV page, one a launch."""
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    headings, _units, *data = rows
    if len(data) != len(launched):
        raise ValueError(f"{len(launched)} launches, but ncu counted {len(data)}")
    place = {name: headings.index(name) for name in METRICS}
    return [
        case | {name: int(row[place[column]].replace(",", "")) for column, name in METRICS.items()}
        for case, row in zip(launched, data, strict=True)
    ]


def main() -> None:
    if sys.argv[1:] == ["--launch"]:
        launch()
        return
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw"]
    command += ["--metrics", ",".join(METRICS), "-k", "regex:where_x_lives|through_shared|loads"]
    again = [sys.executable, "-m", "benchmarks.measure.constants_counters", "--launch"]
    run = subprocess.run([*command, *again], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"ncu failed: {run.stdout[-500:]} {run.stderr[-500:]}")
    from gemv.core.files import write_text
    from gemv.engines import backend

    counted = {"device": backend.engine().device().name, "m": M, "n": N}
    counted["rows"] = parse(run.stdout, cases())
    write_text(sys.argv[1], json.dumps(counted, indent=1) + "\n")


if __name__ == "__main__":
    main()
