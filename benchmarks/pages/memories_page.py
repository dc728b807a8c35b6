"""The pages ``docs/memories.md`` and ``docs/solvers.md`` from ``benchmarks/results/``.

    python -m benchmarks.pages.memories_page            prints the pages
    python -m benchmarks.pages.memories_page --write    writes them
    python -m benchmarks.pages.memories_page --check    exit status 1 if one is not up to date

``python -m benchmarks memories`` measures the first, ``python -m benchmarks.measure.solvers`` the
second.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.measure.memories import MemoryResults
from benchmarks.pages import grid_page, solver_gains
from benchmarks.pages.page import (
    RESULTS,
    TOP,
    command,
    duration,
    markdown,
    number,
    versions,
)
from benchmarks.pages.page import (
    three_digits as rate,
)

MEMORIES = TOP / "docs" / "memories.md"
SOLVERS = TOP / "docs" / "solvers.md"


# --- memories -------------------------------------------------------------------------------------


def memories() -> str:
    text = (RESULTS / "memories" / "h200.json").read_text(encoding="utf-8")
    found = MemoryResults.from_json(text)
    pinned = found.row("pinned", "driver's copy")
    pageable = found.row("pageable", "driver's copy")
    ours_pinned = found.row("pinned", "gemv.gemv")
    ours = found.row("pageable", "gemv.gemv")
    host = found.row("pageable", "SciPy")
    apart = found.row("peer", "kernel, x and y there")
    alone = "" if apart.time_s else " It was not measured, because the host had one GPU."
    titles = {
        "link": "The link alone: the driver copies A, nothing is computed",
        "call": "One call on host arrays: A is copied to the GPU while the kernel runs, and y is"
        " copied back",
        "in place": "The kernel reads A in place: no copy is made first",
        "host": "The CPU multiplies: no GPU takes part",
    }
    parts = []
    for group, title in titles.items():
        rows = [
            [
                row.memory, f"{row.way} ({row.note})" if row.note else row.way,
                duration(row.time_s), rate(row.gb_per_s),
            ]
            for row in found.rows
            if row.group == group
        ]  # fmt: skip
        headings = ["A is in", "read by", "time", "GB/s of A"]
        parts.append(f"**{title}**\n\n" + markdown(headings, "wwff", rows))
    sizes = [
        [
            f"{s.n} x {s.n}",
            duration(s.host_s),
            duration(s.call_s),
            duration(s.kept_s),
            "CPU" if s.host_s < s.call_s else "GPU",
            "CPU" if s.host_s < s.kept_s else "GPU",
        ]
        for s in found.sizes
    ]
    headings = [
        "float32", "SciPy", "gemv.gemv", "Matrix @ x", "faster for one product", "faster for many",
    ]  # fmt: skip
    wins = [s for s in found.sizes if s.kept_s < s.host_s]
    loses = [s for s in found.sizes if s.call_s < s.host_s]
    once = (
        "At no measured size is a call on host arrays faster than SciPy on this host's CPU."
        if not loses
        else f"A call on host arrays is faster than SciPy from {loses[0].n} x {loses[0].n} on."
    )
    kept = (
        f"A product with a matrix that stays on the GPU is faster than SciPy from {wins[0].n} x"
        f" {wins[0].n} on."
        if wins
        else "Nor is a product with a matrix that stays on the GPU."
    )
    bits = all(row.same_bits for row in found.rows if row.same_bits is not None)
    return f"""# Memories

<!-- Written by benchmarks/pages/memories_page.py from benchmarks/results/memories/. -->

A product reads A once, so its time is the time to read A from the memory that A is in. For a
matrix in host memory the link between host and GPU sets that time. This page times one product,
{found.order} x {found.order} float32, with A in each kind of memory that CUDA has. All of it was
measured in one run of `python -m benchmarks memories` on one {found.device} with {found.cpus} CPU
cores ({versions(found.versions)}). Times are medians of wall time.
{"All results agree to the last bit." if bits else "Not all results agree to the last bit."}

{chr(10).join(part + chr(10) for part in parts)}
- **Pinned** memory (`numba.cuda.pinned_array`, CuPy's and PyTorch's pinned arrays, or
  `cudaHostRegister`) is host memory that the operating system cannot move, so the GPU's copy
  engine reads it directly. A call of `gemv.gemv` reaches
  {ours_pinned.gb_per_s / pinned.gb_per_s:.0%} of the rate of the driver's copy. The table lists
  memory that `cudaHostRegister` pinned as *registered*.
- **Pageable** memory is all other host memory. {found.stage_threads} threads copy it into pinned
  buffers of {found.stage_bytes // 2**20} MiB, and the GPU's copy engine reads those. That reaches
  {ours.gb_per_s / pageable.gb_per_s:.1f} times the rate of the driver's copy, which one thread
  makes. The threads also convert elements to the dtype of the product, and pack rows that do not
  follow each other in memory.
- **Mapped** memory (`numba.cuda.mapped_array`) is pinned memory that also has an address on the
  GPU. Each kernel that reads it reads it over the link.
- **Managed** memory (`numba.cuda.managed_array`, CuPy's `malloc_managed`) moves page by page to the
  processor that touches it. Pages that have moved to the GPU are read like device memory. The first
  product after the host wrote A takes longer than a call of `gemv.gemv` on pageable memory. Never
  allocate more managed memory than the GPU has free.
- **Peer** memory is the memory of another GPU. x and y may be in it if the call says `peer=True`
  ([CuPy, PyTorch, JAX: arrays where they lie](guide/libraries.md)); the product runs on the GPU
  that holds A.{alone}

Mapped and managed arrays of Numba count as device arrays: x and y must then be in device, mapped or
managed memory as well, and the call enqueues its work without waiting for it. A slice of such an
array counts as a plain host array.

## Where the CPU wins

{markdown(headings, "wfffff", sizes)}

{once}
{kept}
The link limits one product with a matrix in host memory, because the link is slower than the CPU's
own memory: SciPy reads A at {rate(host.gb_per_s)} GB/s, and the link carries
{rate(pinned.gb_per_s)} GB/s. So a call on host arrays goes to SciPy by itself where
that is expected to be faster ([Backends and errors](guide/backends.md)); the column *gemv.gemv* has
calls that were sent to the GPU by `gemv.use_backend("cuda")`. If you multiply with a host matrix
many times, keep it in a `gemv.Matrix` ([Matrices in host memory](guide/host.md)). `gemv.explain`
says whether a call copies A, and in how many panels.
"""


# --- solvers --------------------------------------------------------------------------------------

TITLES = {
    "cg": (
        "Conjugate gradients",
        "A is the covariance matrix of a Gaussian process regression, symmetric and positive"
        " definite.",
    ),
    "gmres": (
        "GMRES",
        "A comes from an integral equation of the second kind. GMRES restarts after 10 products.",
    ),
    "pagerank": (
        "PageRank by power iteration",
        "A has the links of a Matrix Market file, stored as a dense matrix. The iteration ends when"
        " the ranks change by less than 1e-6.",
    ),
    "ridge": (
        "Ridge regression by LSMR",
        "The columns of A, the features, are correlated. Each iteration multiplies with A and with"
        " its transpose.",
    ),
}


def solvers() -> str:
    text = (RESULTS / "solvers" / "h200.json").read_text(encoding="utf-8")
    found = json.loads(text)
    parts = []
    for problem, (title, about) in TITLES.items():
        rows = [row for row in found["rows"] if row["problem"] == problem]
        fastest = min(rows, key=lambda row: row["time_s"])
        cells = [
            [
                f"**{row['by']}**" if row is fastest else row["by"],
                str(row["iterations"]),
                duration(row["time_s"]),
                duration(row["time_s"] / row["iterations"]),
                f"{row['error']:.1e}",
            ]
            for row in rows
        ]
        m, n = rows[0]["shape"]
        moved = next(row["move_s"] for row in rows if row["move_s"] is not None)
        headings = ["solver, matrix", "iterations", "time to solution", "per iteration", "residual"]
        parts.append(
            f"## {title}\n\n{m} x {n} {rows[0]['dtype']}. {about} The one copy of A to the GPU took"
            f" {duration(moved)}, which the times below leave out.\n\n"
            + markdown(headings, "wffff", cells)
        )
    by = {(row["problem"], row["by"]): row["time_s"] for row in found["rows"]}
    behind = [
        TITLES[problem][0]
        for problem in TITLES
        if by[problem, "CuPy"] < min(by[problem, "gemv, CuPy"], by[problem, "gemv, SciPy"])
    ]
    cupy = (
        f"*CuPy* is the fastest way in: {', '.join(behind)}."
        if behind
        else "*CuPy* is the fastest way in none of the four problems."
    )
    cells = grid_page.timed(grid_page.of_gpus(grid_page.load()).get(found["device"], []))
    gains = solver_gains.gains(found, cells)
    lines = [[TITLES[gain.problem][0], *map(number, gain[1:])] for gain in gains]
    heads = ["problem", "the product alone", "CuPy's solver", "SciPy's solver"]
    least, most = min(gain.scipy for gain in gains), max(gain.scipy for gain in gains)
    return f"""# Solvers

<!-- Written by benchmarks/pages/memories_page.py from benchmarks/results/solvers/. -->

An iterative solver multiplies with the same matrix again and again, and `gemv.Matrix` keeps that
matrix on the GPU ([Matrices in host memory](guide/host.md)). This page solves four problems, each
in four ways. All four ways use the same algorithm, start vector and tolerance. The tolerance is
{found["tolerance"]:g} unless a section says otherwise.

- *gemv, SciPy*: SciPy's solver with a `gemv.Matrix`. Only vectors move between host and GPU.
- *gemv, CuPy*: CuPy's solver with the `cupy_operator()` of a `gemv.Matrix`. Matrix and vectors stay
  on the GPU.
- *CuPy*: CuPy's solver with a CuPy array, on the GPU without gemv.
- *SciPy*: SciPy's solver with a NumPy array, on the host's CPU.

`benchmarks/measure/solvers.py` measured this on one {found["device"]} and its host's CPU
({versions(found["versions"])}). The fastest way is in bold.

## How many times as fast

{markdown(heads, "wfff", lines)}

*The product alone* compares our kernel with cuBLAS's on a matrix of the same shape, dtype and
order, from [the grid](cells.md). *CuPy's solver* and *SciPy's solver* compare all of a solver with
gemv and without it. With a `gemv.Matrix` in place of a NumPy array, which changes one line, SciPy's
solver is {least:.0f} to {most:.0f} times as fast. {cupy} On large matrices the GPU's memory
bandwidth limits all three ways that use the GPU.

{(chr(10) * 2).join(parts)}
"""


PAGES = {MEMORIES: memories, SOLVERS: solvers}


def pages() -> dict[Path, str]:
    """Both pages as they should be."""
    return {path: make() for path, make in PAGES.items()}


if __name__ == "__main__":
    sys.exit(command(__doc__ or "", sys.argv[1:], pages))
