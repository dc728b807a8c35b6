"""From measured times to a selection table: the rule, and nothing that measures.

``try_constants.py`` beside it measures; each of its records is one problem with the seconds of
every candidate. The rule, for each access:

1. Problems with the same length and number of lines are one cell, whatever their dtype, from memory
   or from the L2 cache. A candidate's ratio in a cell is the geometric mean, over its problems, of
   its time over the best one's.
2. Cells whose lines have the same length are a band. Going up in the number of lines, cells join as
   long as one candidate is within 2 % of the best in all of them; so do neighbouring bands, as long
   as that takes no more rows than the longer of the two has.
3. What has joined is a row. Its ends lie half-way, as a ratio, to the cells beside it.
4. Where elements of one size lose more than 2 % by a row, they get a row of their own before it.

Problems whose loads are narrower than 16 bytes, by their alignment, have rows of their own, first.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemv.core.geometry import LOAD_BYTES

#: A candidate this close to the best one is as good.
TOLERANCE = 1.02

#: Kernel and knobs.
Key = tuple[str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class _Timed:
    """One problem, and the seconds of every candidate."""

    record: Mapping[str, Any]
    seconds: Mapping[Key, float]

    def ratio(self, key: Key) -> float:
        return self.seconds.get(key, math.inf) / min(self.seconds.values())


@dataclass(frozen=True)
class _Cell:
    """The problems with lines of one length and number."""

    line_bytes: int
    lines: int
    timed: tuple[_Timed, ...]

    def ratio(self, key: Key) -> float:
        ratios = [each.ratio(key) for each in self.timed]
        return math.exp(sum(map(math.log, ratios)) / len(ratios))

    def of_size(self, size: int) -> _Cell | None:
        timed = tuple(t for t in self.timed if t.record["element_bytes"] == size)
        return _Cell(self.line_bytes, self.lines, timed) if timed else None


def _worst(cells: Sequence[_Cell], key: Key) -> float:
    """The largest loss against the best candidate of each cell."""
    return max(
        cell.ratio(key) / min(cell.ratio(other) for other in _keys([cell])) for cell in cells
    )


def _keys(cells: Iterable[_Cell]) -> list[Key]:
    return sorted({key for cell in cells for timed in cell.timed for key in timed.seconds})


def _joint(cells: Sequence[_Cell]) -> tuple[Key, float]:
    """The candidate that loses least in the cell where it loses most, and that loss."""
    losses = {key: _worst(cells, key) for key in _keys(cells)}
    key = min(losses, key=lambda each: losses[each])
    return key, losses[key]


def _segments(cells: Sequence[_Cell]) -> list[list[_Cell]]:
    """Cells of a band that can share a row, by number of lines."""
    groups: dict[int, list[_Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.lines, []).append(cell)
    found: list[list[_Cell]] = []
    for lines in sorted(groups):
        if found and _joint([*found[-1], *groups[lines]])[1] <= TOLERANCE:
            found[-1] += groups[lines]
        else:
            found.append(groups[lines])
    return found


def _bands(cells: Sequence[_Cell]) -> list[list[list[_Cell]]]:
    """Bands that can share rows, by length of the lines; each as its segments."""
    found: list[list[list[_Cell]]] = []
    for length in sorted({cell.line_bytes for cell in cells}):
        band = _segments([cell for cell in cells if cell.line_bytes == length])
        if found:
            both = _segments([cell for part in (*found[-1], *band) for cell in part])
            fits = all(_joint(part)[1] <= TOLERANCE for part in both)
            if fits and len(both) <= max(len(found[-1]), len(band)):
                found[-1] = both
                continue
        found.append(band)
    return found


def _between(low: int, high: int, unit: int) -> int:
    """The first value that belongs to the upper of two neighbours: a multiple of `unit` if any."""
    middle = round(math.sqrt(low * high) / unit) * unit
    return middle if low < middle <= high else high


def _ends(values: Sequence[tuple[int, int]], unit: int) -> list[tuple[int | None, int | None]]:
    """First and last value that each of some neighbouring ranges takes; None where it is open."""
    cuts = [
        _between(low, high, unit) for (_, low), (high, _) in zip(values, values[1:], strict=False)
    ]
    starts: list[int | None] = [None, *cuts]
    stops: list[int | None] = [*(cut - 1 for cut in cuts), None]
    return list(zip(starts, stops, strict=True))


def rows(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table, as its TOML has them, from records that have times."""
    pools: dict[tuple[bool, str], dict[tuple[int, int], list[_Timed]]] = {}
    for record in records:
        seconds: dict[Key, float] = {}
        for _, kernel, knobs, time in record["tried"]:
            if time:
                key = kernel, tuple(sorted(knobs.items()))
                seconds[key] = min(time, seconds.get(key, math.inf))
        if seconds:
            wide = record["load_bytes"] >= LOAD_BYTES
            cells = pools.setdefault((wide, record["access"]), {})
            place = record["line_bytes"], record["lines"]
            cells.setdefault(place, []).append(_Timed(record, seconds))
    found = []
    for (wide, access), cells in sorted(pools.items()):
        common: dict[str, Any] = {"access": access}
        if not wide:
            common["load_bytes_max"] = LOAD_BYTES // 2
        bands = _bands([_Cell(*place, tuple(timed)) for place, timed in sorted(cells.items())])
        lengths = [[cell.line_bytes for part in band for cell in part] for band in bands]
        along = _ends([(min(each), max(each)) for each in lengths], 16)
        for band, (shortest, longest) in zip(bands, along, strict=True):
            counts = [[cell.lines for cell in part] for part in band]
            across = _ends([(min(each), max(each)) for each in counts], 1)
            for part, (fewest, most) in zip(band, across, strict=True):
                limits = {
                    "line_bytes_min": shortest, "line_bytes_max": longest,
                    "lines_min": fewest, "lines_max": most,
                }  # fmt: skip
                limits = {name: value for name, value in limits.items() if value is not None}
                found += _rows_of(part, {**common, **limits})
    return found


def _rows_of(cells: list[_Cell], conditions: dict[str, Any]) -> list[dict[str, Any]]:
    """The row of what has joined, behind those of elements that lose by it."""
    key = _joint(cells)[0]
    found = []
    for size in sorted({t.record["element_bytes"] for cell in cells for t in cell.timed}):
        own = [sub for sub in (cell.of_size(size) for cell in cells) if sub is not None]
        other, loss = _joint(own)
        if _worst(own, key) > TOLERANCE * loss:
            only = {"element_bytes_min": size, "element_bytes_max": size}
            found.append(_row(own, other, {**conditions, **only}))
    found.append(_row(cells, key, conditions))
    return found


def _row(cells: list[_Cell], key: Key, conditions: dict[str, Any]) -> dict[str, Any]:
    kernel, knobs = key
    timed = [each for cell in cells for each in cell.timed]
    shown = max(timed, key=lambda each: each.record["bytes"]).record
    seconds = next(t.seconds[key] for t in timed if t.record is shown)
    rate = shown["bytes"] / seconds / 1e9
    figure = f"{shown['dtype']} {shown['m']} x {shown['n']} {shown['op']}: {rate:.0f} GB/s"
    if shown.get("read_gb_per_s"):
        figure += f", {rate / shown['read_gb_per_s']:.0%} of the read rate"
    worst = max(each.ratio(key) for each in timed)
    return {
        **conditions,
        "kernel": kernel,
        "knobs": dict(knobs),
        "reason": f"{_words(conditions)}: measured, at most {worst - 1:.0%} behind the fastest",
        "figure": figure,
    }


def _words(conditions: Mapping[str, Any]) -> str:
    """The conditions as a reader says them; no two rows share all of them."""

    def span(name: str) -> str:
        low, high = conditions.get(f"{name}_min"), conditions.get(f"{name}_max")
        if low is None and high is None:
            return ""
        if low is None:
            return f"up to {high}"
        return f"{low} and more" if high is None else f"{low} to {high}"

    kind = {"dot": "rows", "axpy": "columns"}.get(conditions["access"], "lines")
    count, length = span("lines"), span("line_bytes")
    said = f"{count or 'any number of'} {kind} of {length + ' bytes' if length else 'any length'}"
    if "element_bytes_min" in conditions:
        said += f", elements of {conditions['element_bytes_min']}"
    if "load_bytes_max" in conditions:
        said += ", narrow loads"
    return said


def _line(name: str, value: Any) -> str:
    return f"{name if re.fullmatch('[A-Za-z0-9_-]+', name) else json.dumps(name)} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_line(name, each) for name, each in value.items()) + " }"
    return json.dumps(value)


def to_toml(found: Iterable[Mapping[str, Any]], about: Mapping[str, Any]) -> str:
    """A table's text: where it comes from, then its rows."""
    lines = ["# Made by benchmarks/tune/try_constants.py, by the rule in benchmarks/tune/rows.py."]
    lines += ["", "[about]", *(_line(*each) for each in about.items())]
    for row in found:
        lines += ["", "[[row]]", *(_line(*each) for each in row.items())]
    return "\n".join(lines) + "\n"
