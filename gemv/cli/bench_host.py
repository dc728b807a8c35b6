"""``python -m gemv bench --host``: calls on NumPy's arrays on the host, beside SciPy's own."""

from __future__ import annotations

import argparse

from gemv.cli.console import (
    Refused,
    Report,
    json_path,
    number,
    one_line_failures,
    progress,
    write_json,
)
from gemv.cli.options import DTYPE_OF_PREFIX

#: Options of ``bench`` that say something about a GPU, or about shapes that are no squares.
_OTHERS = ("ops", "order", "view", "hot", "beta", "random", "seed", "against", "seconds", "resume",
           "plot", "batch", "vectors", "ragged")  # fmt: skip


def bench_host(options: argparse.Namespace) -> int:
    """Measure and print a table, those that lose most first."""
    values = {name: getattr(options, name) for name in _OTHERS}
    # Not by truth: a 0 is given, too.
    given = [f"--{name}" for name, v in values.items() if v is not None and v is not False]
    if given:
        raise Refused(f"--host goes with --shapes, --dtypes and --json, not with {given[0]}")
    output = json_path(options)
    import gemv
    from gemv.measure import host_calls

    shapes = options.shapes or [(n, n) for n in host_calls.SIDES]
    letters = options.dtypes or list("sdcz")
    if any(m != n for m, n in shapes) or not set(letters) <= set("sdcz"):
        raise Refused("--host takes squares of float32, float64, complex64 and complex128")
    total = len(shapes) * len(letters) * len(host_calls.LAYOUTS) * 2
    routines = {letter: getattr(gemv, f"{letter}gemv") for letter in letters}
    measured = host_calls.here()
    with one_line_failures(), progress("gemv bench") as report:
        for row in host_calls.measure(routines, [n for n, _ in shapes], letters):
            measured.rows.append(row)
            report(len(measured.rows), total, f"{row.n} x {row.n} {row.dtype}")
    shown = [
        [
            DTYPE_OF_PREFIX[row.dtype], f"{row.n} x {row.n}", row.op, row.layout,
            number(row.ours_s, ".1f", 1e6), number(row.best_s, ".1f", 1e6), number(row.ratio),
            number(row.ours_s - row.best_s, "+.1f", 1e6), number(row.same_s, ".1f", 1e6),
        ]
        for row in sorted(measured.rows, key=lambda row: -row.ratio)
    ]  # fmt: skip
    say = Report()
    say.say("gemv bench --host: NumPy's arrays, SciPy's BLAS; those that lose most first")
    versions = ", ".join(f"{name} {version}" for name, version in measured.versions.items())
    say.say(f"{measured.machine}, {measured.cores} cores; {versions}")
    headings = ["", "shape", "op", "A", "us", "SciPy us", "ratio", "more us", "SciPy, this A"]
    say.table(headings, "wwwwfffff", shown)
    write_json(output, measured)
    return 0
