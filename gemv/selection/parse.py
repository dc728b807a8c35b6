"""Selection tables as they are written: TOML, read and checked row by row."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from gemv.core import rules
from gemv.core.dtypes import ACCUMULATE
from gemv.kernels import REGISTRY, get
from gemv.kernels.kernel import accepts_all
from gemv.selection.row import CONDITIONS, LETTERS, RANGES, Row


def _one_of(*words: str) -> tuple[Callable[[Any], bool], str]:
    known = ", ".join(f'"{word}"' for word in words)
    return lambda value: isinstance(value, str) and value in words, f"one of {known}"


_TEXT = (lambda value: isinstance(value, str), "a string")
_SIZE = (
    lambda value: type(value) is int and 1 <= value <= sys.maxsize,
    f"an integer from 1 to {sys.maxsize}",
)
#: All fields of a row, each with the test that its value must pass, and the rule in words.
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kernel": _TEXT,
    "reason": _TEXT,
    "figure": _TEXT,
    "knobs": (lambda value: isinstance(value, dict), "a table of constants"),
    "access": _one_of("dot", "axpy", "strided"),
    "dtype": (
        lambda value: isinstance(value, str) and value != "" and set(value) <= set(LETTERS),
        f"one or more of the letters {', '.join(LETTERS)}",
    ),
    "accumulate": _one_of(*ACCUMULATE),
    **{f"{name}_{end}": _SIZE for name in RANGES for end in ("min", "max")},
}
_NEEDED = ("kernel", "reason")


def parse(text: str, last: bool = True, source: str = "of this text") -> tuple[Row, ...]:
    """The rows of a table.

    Parameters
    ----------
    text : str
        The table as TOML.
    last : bool
        Whether it is the last of all tables, which must end with a row that every problem fits.
    source : str
        Its file, for error texts.

    Raises
    ------
    ValueError
        If it cannot be used; the text names file, row and rule.
    """
    place = f"selection table {source}"
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: it is not valid TOML: {error}") from error
    _refuse_unknown(place, set(content) - {"row", "about"})
    entries = content.get("row", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{place}: row must be an array of tables: write [[row]] above each")
    if not entries:
        raise ValueError(f"{place}: it has no [[row]]")
    if not isinstance(content.get("about", {}), dict):
        raise ValueError(f"{place}: about must be a table, got {rules.typed(content['about'])}")
    rows = tuple(_row(entry, source, number) for number, entry in enumerate(entries, start=1))
    if last:
        final = rows[-1]
        if final.conditions or REGISTRY[final.kernel].accepts is not accepts_all:
            raise ValueError(
                f"{final.place}: the last row must accept every problem, so it has no condition,"
                " and a kernel that refuses none"
            )
    return rows


def _row(entry: Mapping[str, Any], source: str, number: int) -> Row:
    """A row, from its entry in the TOML."""
    place = f"selection table {source}, row {number}"
    _refuse_unknown(place, set(entry) - set(_FIELDS))
    for name in _NEEDED:
        if name not in entry:
            raise ValueError(f"{place}: {name} is missing")
    for name, value in entry.items():
        is_right, rule = _FIELDS[name]
        if not is_right(value):
            raise ValueError(f"{place}: {name} must be {rule}, got {rules.typed(value)}")
    for name in RANGES:
        low, high = (entry.get(f"{name}_{end}") for end in ("min", "max"))
        if low is not None and high is not None and low > high:
            raise ValueError(f"{place}: {name}_min = {low} is larger than {name}_max = {high}")
    knobs = entry.get("knobs", {})
    try:
        kernel = get(entry["kernel"])
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    if kernel.teaching:
        raise ValueError(
            f"{place}: kernel {kernel.name!r} is there to be read and cannot be selected"
        )
    objection = kernel.objection(knobs)
    if objection:
        raise ValueError(f"{place}: {objection}")
    values = tuple(entry.get(name) for name in CONDITIONS)
    figure = entry.get("figure")
    return Row(kernel.name, entry["reason"], values, knobs, figure, source, number)


def _refuse_unknown(place: str, names: set[str]) -> None:
    if names:
        raise ValueError(f"{place}: unknown field {', '.join(map(repr, sorted(names)))}")
