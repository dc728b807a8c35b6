"""The page ``docs/constants.md`` from ``benchmarks/results/constants/``.

    python -m benchmarks.pages.constants_page            prints the page
    python -m benchmarks.pages.constants_page --write    writes it
    python -m benchmarks.pages.constants_page --check    exit status 1 if it is not up to date

``python -m benchmarks constants`` measures, ``python -m benchmarks.measure.constants_counters``
counts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks.measure.constants_records import ConstantsResults
from benchmarks.pages.constants_tables import tables
from benchmarks.pages.page import RESULTS, TOP, command, markdown, versions

PAGE = TOP / "docs" / "constants.md"


def titled(table) -> str:
    """A table of the homes under its title; what comes from the machine code is set as code."""
    code = [heading.startswith("machine code") for heading in table.headings]
    rows = [
        [
            f"`{cell}`" if is_code and cell != "–" else cell
            for cell, is_code in zip(row, code, strict=True)
        ]
        for row in table.rows
    ]
    kinds = "".join("w" if n == 0 or is_code else "f" for n, is_code in enumerate(code))
    return f"**{table.title}**\n\n" + markdown(table.headings, kinds, rows)


class Figures:
    """Look-ups in the results, for the sentences."""

    def __init__(self, race, counters: dict) -> None:
        self.race = race
        self.counters = counters

    def coefficient(self, kernel: str, size: int, home: str):
        (row,) = (
            row
            for row in self.race.coefficients
            if (row.kernel, row.size, row.home) == (kernel, size, home)
        )
        return row

    def vector(self, home: str, n: int, lanes: int, order: str, source="L2", unrolled=False):
        rows = [
            row
            for row in self.race.vector
            if (row.home, row.n, row.lanes, row.order, row.source, row.unrolled)
            == (home, n, lanes, order, source, unrolled)
        ]
        return rows[0].time_s

    def load(self, home: str, pattern: str, distinct: int) -> float:
        (row,) = (
            row
            for row in self.race.turns
            if (row.home, row.pattern, row.distinct) == (home, pattern, distinct)
        )
        return row.load_s

    def count(self, what: str, home: str, lanes: int) -> dict:
        (row,) = (
            row
            for row in self.counters["rows"]
            if (row["what"], row["home"], row["lanes"]) == (what, home, lanes)
        )
        return row


def times(value: float) -> str:
    return f"{value:.3g}"


def counter_table(counters: dict) -> str:
    """What the counters say of each launch."""
    headings = [
        "launch", "home", "addresses in a warp", "requests to the constant cache", "hits",
        "divergent loads", "replays", "requests to L1",
    ]  # fmt: skip
    rows = []
    for row in counters["rows"]:
        hits = row["constant_hits"] / row["constant_requests"]
        figures = [row["lanes"], row["constant_requests"], f"{hits:.1%}", row["divergent_loads"],
                   row["replays"], row["global_requests"]]  # fmt: skip
        rows.append([row["what"], row["home"], *map(str, figures)])
    return markdown(headings, "wwffffff", rows)


def page(race, counters: dict) -> str:
    """The whole page; every figure in it comes from the results."""
    f = Figures(race, counters)
    made = tables(race)
    of = {
        "coefficients": [t for t in made if t.title.startswith("alpha and beta")],
        "uniform": [t for t in made if "same x[j]" in t.title and "unrolled" not in t.title],
        "unrolled": [t for t in made if "unrolled" in t.title],
        "own": [t for t in made if "each at its own" in t.title],
        "lanes": [t for t in made if "threads that share a row" in t.title],
        "turns": [t for t in made if t.title.startswith("one load")],
    }
    tabled = {name: "\n\n".join(map(titled, part)) for name, part in of.items()}
    fair, large, small = "vector_rows", 8192, 64
    base = f.coefficient(fair, large, "arguments").time_s
    spread = max(
        abs(f.coefficient(fair, large, row.home).time_s / base - 1)
        for row in race.coefficients
        if row.kernel == fair and row.size == large
    )
    sizes = {row.size for row in race.coefficients}
    behind = max(
        f.coefficient(fair, size, "arguments").time_s
        / min(f.coefficient(fair, size, row.home).time_s for row in race.coefficients)
        - 1
        for size in sizes
    )
    cold_ns = 1e9 * (
        f.coefficient(fair, small, "constant").time_s
        - f.coefficient(fair, small, "arguments").time_s
    )
    plain, slot = (f.coefficient("last_block", large, home) for home in ("arguments", "constant"))
    call = {
        home: f.coefficient(fair, small, home).call_s * 1e6 for home in ("arguments", "constant")
    }
    first, last = (f.load("constant", "blocked", count) for count in (1, 32))
    halves, mixed = (f.load("constant", p, 2) for p in ("blocked", "alternating"))
    replayed = f.count("gemv", "constant", 32)
    apart = f.load("read_only", "apart", 32) / f.load("read_only", "apart", 1)
    looped = f.vector("read_only", 1024, 1, "F") / f.vector("constant", 1024, 1, "F") - 1
    direct = (
        f.vector("read_only", 16, 1, "F", unrolled=True)
        / f.vector("constant", 16, 1, "F", unrolled=True)
        - 1
    )
    uniform_n, short = 1024, 16
    return f"""\
# Constant memory and its rivals

<!-- Written by benchmarks/pages/constants_page.py from benchmarks/results/constants/. -->

alpha and beta are the same for every thread, and so is x[j] where a thread takes a row: what
constant memory was made for. This page races it against the other places to keep them, on our own
kernels. Everything below was measured on one {race.device} by `python -m benchmarks constants`
({versions(race.versions)}); the counters are those of Nsight Compute. Times are device times.

## Three homes for alpha and beta

```python
import gemv

gemv.gemv(2.0, a, x)  # among the arguments of the kernel: constant bank 0
gemv.gemv(2.0, a, x, coefficients="constant")  # in a constant symbol: bank 3
gemv.gemv(alpha, a, x)  # alpha a 0-d device array: through the read-only cache

place = gemv.Coefficients()  # a slot of the symbol that stays yours, for CUDA graphs
gemv.gemv(2.0, a, x, y=y, overwrite_y=1, coefficients=place, stream=capturing)
place.set(3.0, 0.5, stream=replaying)  # the next replay reads these
```

All three give the same values, alpha = 0 and beta = 0 mean the same in each of them, and
`gemv.explain` says which one a call uses. A constant symbol belongs to a loaded module and is
shared by all launches of its kernel, so it is a row of slots: a slot has one owner, and is written
again only behind an event of its last reader. A write is never captured into a graph.

{tabled["coefficients"]}

*launch* is the kernel alone, *call* is one of many calls enqueued by Python one after the other.
*loads in a row* counts the loads that the machine code issues before it needs the first of them.

- Where the loads come in batches that the source asks for (`{fair}`), the home makes no
  difference: at {large}² all five are within {spread:.1%}. The slot of the symbol costs
  {cold_ns:.0f} ns at {small}², where a first read has to fetch it and nothing hides that.
- The large differences of the other kernels are not the home's. With alpha elsewhere the compiler
  orders the same loop differently: `last_block` at {large}² takes {plain.time_s * 1e6:.0f} us with
  {plain.in_flight} loads in a row, and {slot.time_s * 1e6:.0f} us with {slot.in_flight}.
- Each call with a slot brings a write and an event along:
  {call["constant"]:.0f} us a call instead of {call["arguments"]:.0f} at {small}².

**The default is the arguments**: in `{fair}` at most {behind:.1%} behind the fastest home at any
size, with nothing to write and nothing to own. A literal wins nothing that would pay for compiling
anew with each alpha.

## What a load costs

One warp asks for 1, 2, 4 ... 32 different addresses, and does nothing but load. *blocked* gives
neighbouring threads the same address, *alternating* deals them out in turn; both stay within one
cache line, *apart* puts 64 bytes between them.

{tabled["turns"]}

- **Broadcast and serialisation.** A load from constant memory takes {first * 1e9:.2f} ns when all
  threads of a warp ask for one address, and {times((last - first) / 31 * 1e9)} ns for every further
  address: {times(last / first)} times as long for 32. Parameters by value behave the same: it is
  the same cache.
- **Whole warps, not half-warps.** Two addresses, one for each half of the warp, cost
  {times(halves / first)} times as much as one; dealt alternately, {times(mixed / first)} times. If
  each half were served by itself, the first would cost nothing extra.
- **The read-only cache does not mind**, as long as the addresses share a line:
  {f.load("read_only", "blocked", 32) * 1e9:.2f} ns for 1 and for 32 alike. Apart, it takes
  {times(apart)} times as long for 32.
- **A load of its own is no gift.** With an index known only at run time, constant memory is read
  by an instruction (`LDC`), and {times(first / f.load("read_only", "blocked", 1))} times as slow as
  a broadcast from L1. The loop over shared memory computes an address for each load, and that is
  its limit until several addresses fall into one bank.

## x in constant memory

The kernel `where_x_lives` reads x from five homes. In the first tables A is stored along columns
and a thread takes a row, so all threads of a warp want the same x[j].

{tabled["uniform"]}

Constant memory is ahead of the read-only cache by {looped:.0%} at n = {
        uniform_n
    }, with A in L2. Where x is short and its addresses are known when the kernel is
compiled, a product takes x without any load instruction, from a uniform register that was filled
for the whole warp:

{tabled["unrolled"]}

That is the case in which the constant cache was shown to win a race by far; here it is
{direct:.0%} at n = {short}.

Stored along rows, neighbouring threads take neighbouring columns, each its own x[j]:

{tabled["own"]}

At n = {uniform_n} constant memory takes
{times(f.vector("constant", uniform_n, 32, "C") / f.vector("global", uniform_n, 32, "C"))} times as
long as a plain load with A in L2, and
{
        times(
            f.vector("constant", uniform_n, 32, "C", "memory")
            / f.vector("global", uniform_n, 32, "C", "memory")
        )
    } times with A in memory: the loads of x, not
the matrix, are the limit. Between the two extremes:

{tabled["lanes"]}

Here, too, the compiler has its say: the read-only load and the plain one use the same cache, and
differ in how many loads the loop has in flight. The counters tell the rest. Every divergent load
is replayed for each further address, {replayed["replays"]} replays for
{replayed["divergent_loads"]} loads of 32 addresses, which is
{replayed["replays"] / replayed["divergent_loads"]:.0f} each:

{counter_table(counters)}

## What does not fit

A module has 64 KB of constant memory on a device. An array beyond that is refused, and put nowhere
else:

- `where_x_lives`: {race.limits["x"]}.
- The assembler: `{race.limits["assembler"]}`

By value, all parameters of a kernel together end at 32764 bytes; it was 4096 before CUDA 12.1.

## What was said, and what is so

| claim | here |
| --- | --- |
| "One value for the whole warp takes one turn, N values take N" (Constant Cache vs. Read-Only \
Cache, Acceleware) | so: {times(last / first)} times for 32 |
| "The constant cache wins when all threads read the same coefficient" (the same) | by little: \
{looped:.0%} in a loop, {
        direct:.0%} where the compiler knows the address; a load alone is slower than \
a broadcast from L1 |
| "Half-warps are served" (J. Sanders and E. Kandrot, CUDA by Example) | whole warps |
| "Arguments of a kernel live in constant memory" (Constant memory, an exercise of EPCC) | so: \
`{f.coefficient(fair, large, "arguments").code}` |
| "What is too large will probably spill into global memory" (the same) | refused |
"""


def load() -> str:
    """The page from the stored results."""
    folder = RESULTS / "constants"
    race = ConstantsResults.from_json((folder / "h200.json").read_text(encoding="utf-8"))
    if race.backend != "cuda":
        raise ValueError("figures without a GPU belong on no page")
    counters = json.loads((folder / "h200-counters.json").read_text(encoding="utf-8"))
    return page(race, counters)


def pages() -> dict[Path, str]:
    """The page as it should be."""
    return {PAGE: load()}


if __name__ == "__main__":
    # The tables need no GPU; Numba looks for one unless it simulates. Not in load(): a process that
    # has Numba already would take up the variable half-way, as it compiles the next kernel.
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
    sys.exit(command(__doc__ or "", sys.argv[1:], pages))
