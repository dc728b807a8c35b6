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
from benchmarks.pages.page import (
    RESULTS,
    TOP,
    command,
    duration,
    markdown,
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
    alone = "" if apart.time_s else " It is not measured here, on one GPU."
    titles = {
        "link": "The link alone: the driver copies A, nothing is computed",
        "call": "One call on host arrays: A is copied, streamed through the kernel, y comes back",
        "in place": "The kernel reads A where it is",
        "host": "The CPU",
    }
    parts = []
    for group, title in titles.items():
        rows = [
            [row.memory, row.way, duration(row.time_s), rate(row.gb_per_s), row.note]
            for row in found.rows
            if row.group == group
        ]
        headings = ["A is in", "read by", "time", "GB/s of A", ""]
        parts.append(f"**{title}**\n\n" + markdown(headings, "wwffw", rows))
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
    headings = ["float32", "SciPy", "gemv.gemv", "Matrix @ x", "A used once", "A kept"]
    wins = [s for s in found.sizes if s.kept_s < s.host_s]
    loses = [s for s in found.sizes if s.call_s < s.host_s]
    once = (
        "In no size measured is a call on host arrays faster than this host's BLAS."
        if not loses
        else f"A call on host arrays is faster from {loses[0].n} x {loses[0].n} on."
    )
    kept = (
        f"A matrix that stays on the GPU is faster from {wins[0].n} x {wins[0].n} on."
        if wins
        else "A matrix that stays on the GPU is not faster in any of them."
    )
    bits = all(row.same_bits for row in found.rows if row.same_bits is not None)
    return f"""# Memories

<!-- Written by benchmarks/pages/memories_page.py from benchmarks/results/memories/. -->

A product reads A once, so it is as fast as the memory that A is in, or as the way from there.
This page makes one product, {found.order} x {found.order} float32, with its matrix in every
kind of memory there is. Measured on one {found.device} with {found.cpus} CPU cores by `python
-m benchmarks memories` ({versions(found.versions)}); wall times, medians, everything in one run.
{"Every result has the same bits." if bits else "Not every result has the same bits."}

{chr(10).join(part + chr(10) for part in parts)}
- **Pinned** memory (`numba.cuda.pinned_array`, CuPy's and PyTorch's pinned arrays, or
  `cudaHostRegister`) is host memory that the system cannot move, so the GPU's copy engine reads
  it by itself. A call reaches {ours_pinned.gb_per_s / pinned.gb_per_s:.0%} of what the driver's
  copy alone does.
- **Pageable** memory, all the rest, goes through a pinned ring that {found.stage_threads}
  threads fill, {found.stage_bytes // 2**20} MiB at a time:
  {ours.gb_per_s / pageable.gb_per_s:.1f} times the rate of the driver, which has one thread for
  it. Conversion and gathering happen on the way.
- **Mapped** memory (`numba.cuda.mapped_array`) is pinned memory that has an address on the GPU. The
  kernel reads it over the link, every time.
- **Managed** memory (`numba.cuda.managed_array`, CuPy's `malloc_managed`) moves page by page to
  whoever touches it; once it is on the GPU it is device memory. The first touch costs more than
  any copy. Never allocate more of it than the GPU has free.
- **Peer** memory is that of another GPU. x and y may be there if the call says `peer=True`
  ({{doc}}`guide/libraries`); A decides which GPU computes.{alone}

Mapped and managed arrays of Numba count as device arrays: x and y have to be on the GPU as well, in
whichever of these memories, and the call only enqueues its work. A slice of one is a plain host
array.

## Where the CPU wins

{markdown(headings, "wfffff", sizes)}

{once} {kept} One product of a matrix in host memory is limited by the link, which is slower
than the CPU's own memory: SciPy reads A at {rate(host.gb_per_s)} GB/s, the link carries
{rate(pinned.gb_per_s)}. No call is ever sent to the CPU behind your back, whatever its size:
its result would have other bits. Whoever multiplies a host matrix once should call SciPy, or
`gemv.use_backend("host")`; whoever multiplies it again should keep it in a `gemv.Matrix`
({{doc}}`guide/host`). `gemv.explain` says for each call whether A is copied and in how many panels.
"""


# --- solvers --------------------------------------------------------------------------------------

TITLES = {
    "cg": (
        "Conjugate gradients",
        "a kernel matrix as Gaussian process regression has it, symmetric and positive definite",
    ),
    "gmres": ("GMRES", "an integral equation of the second kind; restarted after 10 products"),
    "pagerank": (
        "PageRank by power iteration",
        "links read from a Matrix Market file, made dense; until ranks change by less than 1e-6",
    ),
    "ridge": (
        "Ridge regression by LSMR",
        "correlated features; each iteration multiplies by A and by its transpose",
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
        headings = ["by", "iterations", "time to solution", "an iteration", "residual"]
        parts.append(
            f"## {title}\n\n{m} x {n} {rows[0]['dtype']}: {about}. Moving A to the GPU once took"
            f" {duration(moved)}, which is not in the times.\n\n"
            + markdown(headings, "wffff", cells)
        )
    by = {(row["problem"], row["by"]): row["time_s"] for row in found["rows"]}
    behind = [
        TITLES[problem][0]
        for problem in TITLES
        if by[problem, "CuPy"] < min(by[problem, "gemv, CuPy"], by[problem, "gemv, SciPy"])
    ]
    cupy = f"CuPy is the fastest in: {', '.join(behind)}." if behind else "CuPy is ahead in none."
    gains = [by[p, "SciPy"] / by[p, "gemv, SciPy"] for p in TITLES]
    return f"""# Solvers

<!-- Written by benchmarks/pages/memories_page.py from benchmarks/results/solvers/. -->

An iterative solver multiplies the same matrix again and again: that is what `gemv.Matrix` is for
({{doc}}`guide/host`). Four of them, each by the same algorithm from the same start to the same
tolerance, {found["tolerance"]:g} where nothing else is said:

- *gemv, SciPy*: SciPy's solver with a `gemv.Matrix`; only vectors move
- *gemv, CuPy*: CuPy's solver with its `cupy_operator()`; nothing moves
- *CuPy*: CuPy's solver with CuPy's array
- *SciPy*: SciPy's solver with NumPy's array, on the CPU of that host

Measured on one {found["device"]} and its host's CPU by `benchmarks/measure/solvers.py`
({versions(found["versions"])}).

{(chr(10) * 2).join(parts)}

Changing one line, the matrix handed to SciPy's solver, makes it {min(gains):.0f} to
{max(gains):.0f} times as fast. {cupy} On large matrices all GPU ways end at the same place, the
GPU's memory.
"""


PAGES = {MEMORIES: memories, SOLVERS: solvers}


def pages() -> dict[Path, str]:
    """Both pages as they should be."""
    return {path: make() for path, make in PAGES.items()}


if __name__ == "__main__":
    sys.exit(command(__doc__ or "", sys.argv[1:], pages))
