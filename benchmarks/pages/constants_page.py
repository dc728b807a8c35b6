"""``docs/constants.md`` and ``docs/constants_x.md``, from ``benchmarks/results/constants/``.

    python -m benchmarks.pages.constants_page            prints the pages
    python -m benchmarks.pages.constants_page --write    writes them
    python -m benchmarks.pages.constants_page --check    exit status 1 if one is not up to date

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
from benchmarks.pages.page import RESULTS, TOP, command, markdown, three_digits, versions

PAGE, SECOND = (TOP / "docs" / name for name in ("constants.md", "constants_x.md"))


def titled(table) -> str:
    """A table of the homes under its title; machine code has a table of its own, for phones."""
    coded = [n for n, heading in enumerate(table.headings) if heading.startswith("machine code")]
    timed = [n for n in range(len(table.headings)) if n not in coded]
    parts = [chosen(table, timed, "f")]
    if coded:
        parts.append(chosen(table, [0, *coded], "w"))
    inside = "\n\n".join(parts)
    return f"<details><summary>{table.title}</summary>\n\n{inside}\n\n</details>"


def chosen(table, columns: list[int], kind: str) -> str:
    """Some columns of a table: words (as code) or figures behind the first one."""
    rows = [
        [
            f"`{row[n]}`" if kind == "w" and n and row[n] != "–" else row[n]
            for n in columns
        ]
        for row in table.rows
    ]  # fmt: skip
    headings = [table.headings[n] for n in columns]
    return markdown(headings, "w" + kind * (len(columns) - 1), rows)


class Figures:
    """Finds the figures that the sentences of the page need."""

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
    """The hardware counters of each launch."""
    headings = [
        "kernel, home, addresses in a warp", "constant cache", "hits", "divergent", "replays", "L1",
    ]  # fmt: skip
    rows = []
    for row in counters["rows"]:
        hits = row["constant_hits"] / row["constant_requests"]
        counts = [three_digits(row[name] / 1000) for name in (
            "constant_requests", "divergent_loads", "replays", "global_requests")]  # fmt: skip
        named = f"{row['what']}, {row['home']}, {row['lanes']}"
        rows.append([named, counts[0], f"{hits:.1%}", *counts[1:]])
    return markdown(headings, "wfffff", rows)


def page(race, counters: dict) -> tuple[str, str]:
    """Both pages; every figure in them comes from the results."""
    f = Figures(race, counters)
    made = tables(race)
    of = {
        "coefficients": [t for t in made if t.title.startswith("alpha and beta")],
        "uniform": [t for t in made if "same x[j]" in t.title and "unrolled" not in t.title],
        "unrolled": [t for t in made if "unrolled" in t.title],
        "own": [t for t in made if "reads its own" in t.title],
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
    homes = f"""\
# Constant memory and the alternatives

<!-- Written by benchmarks/pages/constants_page.py from benchmarks/results/constants/. -->

All threads of a kernel read the same alpha and beta. Where each thread computes one row, all
threads of a warp read the same x[j] at the same time. Constant memory is made for such loads. This
page compares it with the other places where a kernel can keep alpha, beta and x. Such a place,
together with the instruction that reads it, is called a *home* below. Everything was measured with
kernels of this package on one {race.device} by `python -m benchmarks constants`
({versions(race.versions)}). Times are device times; Nsight Compute read the counters.

## Homes of alpha and beta

A call can choose among three homes:

```python
import gemv

gemv.gemv(2.0, a, x)  # "arguments": kernel arguments, in constant bank 0
gemv.gemv(2.0, a, x, coefficients="constant")  # "constant": a constant symbol, in bank 3
gemv.gemv(alpha, a, x)  # "pointer": alpha is a 0-d device array, read by the read-only cache

slot = gemv.Coefficients()  # reserves a slot of the constant symbol, for CUDA graphs
gemv.gemv(2.0, a, x, y=y, overwrite_y=1, coefficients=slot, stream=capturing)
slot.set(3.0, 0.5, stream=replaying)  # the next replay of the graph reads 3.0 and 0.5
```

The result is the same with all three, also where alpha or beta is 0. `gemv.explain` says which home
a call uses. A constant symbol belongs to a loaded module, and all launches of the module's kernel
share it. So the symbol is an array of slots. Each slot has one owner, and it is written again only
after an event says that the last kernel to read it has ended. A CUDA graph never captures such a
write.

The tables have two more homes, which no call can choose. *global* is a device array that plain
loads read, and *literal* is a number in the machine code.

{tabled["coefficients"]}

*kernel* is the time of the kernel alone, in a replayed CUDA graph. *call* is the time per call
where Python enqueues many calls one after the other. *loads in flight* is the number of loads that
the machine code issues before an instruction waits for the first of them.

- In `{fair}` the source asks for its loads in batches, and there the home makes no difference: at
  {large}² all times are within {spread:.1%} of the time with arguments. At {small}² the constant
  symbol costs {cold_ns:.0f} ns, because the first read of a slot misses the constant cache and no
  other work hides that miss.
- In the other kernels the home is not what makes the large differences. The compiler orders the
  same loop differently for another home: `last_block` at {large}² takes
  {plain.time_s * 1e6:.0f} µs with {plain.in_flight} loads in flight, and
  {slot.time_s * 1e6:.0f} µs with {slot.in_flight}.
- Each call with a slot also enqueues a write and an event. A call at {small}² takes
  {call["constant"]:.0f} µs with a slot and {call["arguments"]:.0f} µs with arguments.

**The default is the arguments.** In `{fair}` they are at most {behind:.1%} slower than the fastest
home at any size, and they need no write and no slot. A literal would need another compilation for
each alpha, and it saves too little time to pay for that.

## The time of a load

In this experiment each warp does nothing but load from 1, 2, 4, ... or 32 different addresses.
With *blocked*, neighbouring threads read the same address. With *alternating*, they read different
addresses, in turn. In both the addresses lie within one cache line. With *apart*, neighbouring
threads read the same address again, and the addresses are 64 bytes apart.

{tabled["turns"]}

- **Constant memory serves one address at a time.** A load takes {first * 1e9:.2f} ns where all
  threads of a warp read one address, and {times((last - first) / 31 * 1e9)} ns more for each
  further address. A load from 32 addresses takes {times(last / first)} times as long as from one.
  Kernel arguments (*value* in the table) behave the same, because the same cache serves them.
- **It serves whole warps, not half-warps.** With two addresses, one for each half of the warp, a
  load takes {times(halves / first)} times as long as with one address. With two addresses in turn
  it takes {times(mixed / first)} times as long. If each half-warp were served separately, the first
  of these loads would take as long as a load from one address.
- **The read-only cache serves all addresses of one cache line at once.** A load takes
  {f.load("read_only", "blocked", 32) * 1e9:.2f} ns with 1 and with 32 addresses. With the addresses
  64 bytes apart, 32 of them take {times(apart)} times as long as one.
- **A constant load is slower than a load from L1.** If the index is known only at run time, an
  instruction (`LDC`) reads constant memory. If all threads of a warp read one address, it takes
  {times(first / f.load("read_only", "blocked", 1))} times as long as a load from L1. The loop over
  shared memory computes an address for each load, and this computation limits its rate until
  several addresses fall into one bank.

[x in constant memory](constants_x.md) has the other half of the comparison.
"""
    return (
        homes,
        f"""\
# x in constant memory

<!-- Written by benchmarks/pages/constants_page.py from benchmarks/results/constants/. -->

This page goes on where [Constant memory and the alternatives](constants.md) ends, with the same
words and conditions. The kernel `where_x_lives` reads x from five homes: *global* memory by plain
loads, the *read_only* cache, *shared* memory, a *constant* symbol, and kernel arguments (*value*).
In the first tables A is stored by columns and each thread computes one row, so all threads of a
warp read the same x[j].

{tabled["uniform"]}

With A in the L2 cache, constant memory is {looped:.0%} faster than the read-only cache at
n = {uniform_n}. Where x is short and its addresses are known when the kernel is compiled, a
multiply-add needs no load of x at all: it reads x from a uniform register, which the hardware fills
once for the whole warp.

{tabled["unrolled"]}

A published comparison found the constant cache far ahead in this case. Here it is {direct:.0%}
faster than the read-only cache at n = {short}.

In the next tables A is stored by rows, so neighbouring threads take neighbouring columns and each
reads its own x[j].

{tabled["own"]}

At n = {uniform_n} constant memory takes
{times(f.vector("constant", uniform_n, 32, "C") / f.vector("global", uniform_n, 32, "C"))} times as
long as a plain load with A in L2, and
{
            times(
                f.vector("constant", uniform_n, 32, "C", "memory")
                / f.vector("global", uniform_n, 32, "C", "memory")
            )
        } times as long with A in memory: the loads of x limit the kernel, not those of A. The last
table has the cases between one row per thread and one row per warp:

{tabled["lanes"]}

Some of these differences come from the compiler: the read-only load and the plain load use the
same cache, but their loops have different numbers of loads in flight. The counters explain the
rest. A load from constant memory with several addresses in a warp is *divergent*, and the hardware
replays it once for each further address. It made {replayed["replays"]} replays for
{replayed["divergent_loads"]} loads with 32 addresses, which is
{replayed["replays"] / replayed["divergent_loads"]:.0f} replays per load. In the table, *constant
cache* and *L1* are thousands of requests, *hits* are those of the constant cache, *divergent* are
thousands of loads, and *replays* are thousands as well. The kernel *gemv* is `where_x_lives`, and
*loads* only loads:

{counter_table(counters)}

## Limits of size

A module can have 64 KB of constant memory. A longer array is an error, and is not placed in other
memory instead:

- `where_x_lives` says: {race.limits["x"]}.
- The assembler says: `{race.limits["assembler"]}`

The arguments of a kernel can take 32764 bytes in all; before CUDA 12.1 it was 4096.

## Claims of others, and what we measured

| claim | measured here |
| --- | --- |
| "One value for the whole warp takes one turn, N values take N" (Constant Cache vs. Read-Only \
Cache, Acceleware) | true: 32 values take {times(last / first)} times as long as one |
| "The constant cache wins when all threads read the same coefficient" (the same) | true by \
{looped:.0%} in a loop, and by {direct:.0%} where the compiler knows the address; a single load is \
slower than one from L1 |
| "Half-warps are served" (J. Sanders and E. Kandrot, CUDA by Example) | false on this GPU: whole \
warps are served |
| "Arguments of a kernel live in constant memory" (Constant memory, an exercise of EPCC) | true: \
`{f.coefficient(fair, large, "arguments").code}` |
| "What is too large will probably spill into global memory" (the same) | false: it is an error |
""",
    )


def load() -> tuple[str, str]:
    """Both pages from the stored results."""
    folder = RESULTS / "constants"
    race = ConstantsResults.from_json((folder / "h200.json").read_text(encoding="utf-8"))
    if race.backend != "cuda":
        raise ValueError("figures without a GPU belong on no page")
    counters = json.loads((folder / "h200-counters.json").read_text(encoding="utf-8"))
    return page(race, counters)


def pages() -> dict[Path, str]:
    """The pages as they should be."""
    return dict(zip((PAGE, SECOND), load(), strict=True))


if __name__ == "__main__":
    # The tables need no GPU; Numba looks for one unless it simulates. Not in load(): a process that
    # has Numba already would take up the variable half-way, as it compiles the next kernel.
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
    sys.exit(command(__doc__ or "", sys.argv[1:], pages))
