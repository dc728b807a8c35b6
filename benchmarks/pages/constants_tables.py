"""Tables of the times with alpha, beta and x in each of their homes.

A *home* is the memory that a value is kept in, with the instruction that reads it from there.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.measure.constants_records import (
    LENGTH_OF_LANES,
    CoefficientRow,
    ConstantsResults,
    TurnRow,
    VectorRow,
)
from gemv.kernels.t06_where_x_lives import KERNEL as WHERE_X_LIVES

# Tables and the picture -----------------------------------------------------------------------


@dataclass(slots=True)
class Table:
    """Rows of text under headings; the first `left` columns are words, the others figures."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    left: int = 1


def _figure(value: float | None, scale: float = 1.0, digits: int = 3) -> str:
    """Three digits, whatever the size; a dash where nothing was measured."""
    if value is None:
        return "–"
    scaled = value * scale
    return f"{scaled:.0f}" if scaled >= 10**digits else f"{float(f'{scaled:.{digits}g}'):g}"


def tables(measured: ConstantsResults) -> list[Table]:
    """What the command prints and the documentation shows."""
    return [
        *_coefficient_tables(measured.coefficients),
        *_vector_tables(measured.vector),
        *_turn_tables(measured.turns),
    ]


def _coefficient_tables(rows: list[CoefficientRow]) -> list[Table]:
    made = []
    cases = list(dict.fromkeys((row.kernel, row.order) for row in rows))
    sizes = list(dict.fromkeys(row.size for row in rows))
    for kernel, order in cases:
        table = Table(
            f"alpha and beta in {kernel}, float32, order {order}: µs for the kernel alone, and for"
            " a whole call",
            ["home", *(f"{size}² {what}" for size in sizes for what in ("kernel", "call"))],
            [],
        )
        table.headings += ["loads in flight", "machine code that reads alpha"]
        for home in dict.fromkeys(row.home for row in rows):
            found = {
                row.size: row
                for row in rows
                if (row.kernel, row.order, row.home) == (kernel, order, home)
            }
            cells = [home]
            for size in sizes:
                cells += [
                    _figure(found[size].time_s, 1e6, 4),
                    _figure(found[size].call_s, 1e6, 4),
                ]
            some = next(iter(found.values()))
            flight = "–" if some.in_flight is None else str(some.in_flight)
            table.rows.append([*cells, flight, some.code or "–"])
        made.append(table)
    return made


def _vector_tables(rows: list[VectorRow]) -> list[Table]:
    made = []
    looped = [row for row in rows if not row.unrolled]
    over_n = [r for r in looped if (r.lanes, r.order) in ((1, "F"), (32, "C"))]
    unrolled = [row for row in rows if row.unrolled]
    for lanes, order, source in dict.fromkeys((r.lanes, r.order, r.source) for r in over_n):
        part = [r for r in over_n if (r.lanes, r.order, r.source) == (lanes, order, source)]
        lengths = list(dict.fromkeys(row.n for row in part))
        threads = (
            "all threads of a warp read the same x[j]"
            if lanes == 1
            else "each thread reads its own x[j]"
        )
        table = Table(
            f"x in {WHERE_X_LIVES.name}, A of {order} order from {source}, {threads}:"
            " µs for each length n of x",
            [
                "home of x",
                *(f"n = {n}" for n in lengths),
                "loads in flight",
                "machine code that reads x",
            ],
            [],
        )
        for home in dict.fromkeys(row.home for row in part):
            found = {row.n: row for row in part if row.home == home}
            cells = [
                "does not fit" if found[n].refused else _figure(found[n].time_s, 1e6, 4)
                for n in lengths
            ]
            some = next((row for row in found.values() if row.code), part[0])
            flight = "–" if some.in_flight is None else str(some.in_flight)
            table.rows.append([home, *cells, flight, some.code or "–"])
        made.append(table)
    if unrolled:
        lengths = list(dict.fromkeys(row.n for row in unrolled))
        table = Table(
            f"x in {WHERE_X_LIVES.name}, A of F order from L2, all threads of a warp read the same"
            " x[j], the loop unrolled: µs for each length n of x",
            ["home of x", *(f"n = {n}" for n in lengths), "machine code of a product"],
            [],
        )
        for home in dict.fromkeys(row.home for row in unrolled):
            found = {row.n: row for row in unrolled if row.home == home}
            cells = [_figure(found[n].time_s, 1e6, 4) for n in lengths]
            table.rows.append([home, *cells, found[lengths[0]].code or "–"])
        made.append(table)
    by_lanes = [row for row in looped if row.n == LENGTH_OF_LANES and row.order == "C"]
    by_lanes = [row for row in by_lanes if row.source == "L2"]
    lanes_seen = sorted({row.lanes for row in by_lanes})
    if len(lanes_seen) > 1:
        table = Table(
            f"x in {WHERE_X_LIVES.name}, A of C order from L2, n = {LENGTH_OF_LANES}: µs for each"
            " number of threads that share a row, which is the number of different x[j] that a warp"
            " reads at once",
            ["home of x", *map(str, lanes_seen)],
            [],
        )
        for home in dict.fromkeys(row.home for row in by_lanes):
            times = {row.lanes: row.time_s for row in by_lanes if row.home == home}
            table.rows.append([home, *(_figure(times.get(n), 1e6, 4) for n in lanes_seen)])
        made.append(table)
    return made


def _turn_tables(rows: list[TurnRow]) -> list[Table]:
    made = []
    for pattern in dict.fromkeys(row.pattern for row in rows):
        part = [row for row in rows if row.pattern == pattern]
        counts = list(dict.fromkeys(row.distinct for row in part))
        table = Table(
            f"one load of a warp, {pattern}: ns on a multiprocessor for each number of different"
            " addresses in the warp",
            ["home", *map(str, counts), "32 : 1", "machine code"],
            [],
        )
        for home in dict.fromkeys(row.home for row in part):
            found = {row.distinct: row for row in part if row.home == home}
            cells = [_figure(found[n].load_s, 1e9) for n in counts]
            first, last = found[counts[0]].load_s, found[counts[-1]].load_s
            ratio = last / first if first and last else None
            table.rows.append([home, *cells, _figure(ratio), found[counts[0]].code or "–"])
        made.append(table)
    return made
