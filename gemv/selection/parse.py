"""Machines as they are written: TOML, read and checked field by field."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from gemv.core import rules
from gemv.core.dtypes import ACCUMULATE
from gemv.kernels import get
from gemv.selection.formula import Machine
from gemv.selection.host_or_gpu import Numbers
from gemv.selection.row import CONDITIONS, LETTERS, RANGES


def _one_of(*words: str) -> tuple[Callable[[Any], bool], str]:
    known = ", ".join(f'"{word}"' for word in words)
    return lambda value: isinstance(value, str) and value in words, f"one of {known}"


_TEXT = (lambda value: isinstance(value, str), "a string")
_SIZE = (
    lambda value: type(value) is int and 1 <= value <= sys.maxsize,
    f"an integer from 1 to {sys.maxsize}",
)
_TABLE = (lambda value: isinstance(value, dict), "a table")
_POSITIVE = (
    # A comparison, since an integer of TOML may be larger than any float.
    lambda value: type(value) in (int, float) and 0 <= value <= sys.float_info.max,
    "a number that is finite and not negative",
)
#: All fields of a row, each with the test that its value must pass, and the rule in words.
_ROW: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kernel": _TEXT,
    "reason": _TEXT,
    "figure": _TEXT,
    "knobs": (_TABLE[0], "a table of constants"),
    "access": _one_of("dot", "axpy", "strided"),
    "dtype": (
        lambda value: isinstance(value, str) and value != "" and set(value) <= set(LETTERS),
        f"one or more of the letters {', '.join(LETTERS)}",
    ),
    "accumulate": _one_of(*ACCUMULATE),
    **{f"{name}_{end}": _SIZE for name in RANGES for end in ("min", "max")},
}
_CONSTANTS = {
    "kernel": _TEXT,
    "knobs": _ROW["knobs"],
    "registers": (
        lambda value: (
            isinstance(value, dict)
            and all(type(each) is int and 0 <= each <= 255 for each in value.values())
        ),
        "a table of integers from 0 to 255",
    ),
}


def parse(text: str, source: str = "of this text") -> dict[str, Any]:
    """The content of a machine's file.

    Parameters
    ----------
    text : str
        The file: TOML.
    source : str
        Its name, for error texts.

    Returns
    -------
    dict
        ``numbers``, ``factors``, ``constants``, ``rows`` and ``host``, as JSON can hold them.

    Raises
    ------
    ValueError
        If it cannot be used; the text names the file, the field and the rule.
    """
    place = f"machine {source}"
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: it is not valid TOML: {error}") from error
    tables = ("about", "numbers", "factors", "portfolio", "host")
    _refuse_unknown(place, set(content) - {*tables, "row"})
    for name in tables:
        if not isinstance(content.get(name, {}), dict):
            raise ValueError(f"{place}: {name} must be a table, got {rules.typed(content[name])}")
    portfolio = content.get("portfolio", {})
    _refuse_unknown(f"{place}: portfolio", set(portfolio) - {"constants"})
    sets = _entries(f"{place}: portfolio", portfolio, "constants")
    if not sets:
        raise ValueError(f"{place}: portfolio: constants are missing")
    return {
        "numbers": _numbers(place, content.get("numbers", {})),
        "factors": _factors(place, content.get("factors", {})),
        "constants": [
            _constants(f"{place}, constants {number}", entry)
            for number, entry in enumerate(sets, 1)
        ],
        "rows": [
            _row(f"{place}, row {number}", entry)
            for number, entry in enumerate(_entries(place, content, "row"), 1)
        ],
        "host": _host(place, content["host"]) if "host" in content else None,
    }


def _entries(place: str, content: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    entries = content.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{place}: {name} must be an array of tables: write [[{name}]] above each")
    return entries


def _numbers(place: str, table: Mapping[str, Any]) -> dict[str, float]:
    _refuse_unknown(f"{place}: numbers", set(table) - set(Machine._fields))
    for name in Machine._fields:
        if name not in table:
            raise ValueError(f"{place}: numbers: {name} is missing")
        _check(f"{place}: numbers", name, table[name], _POSITIVE)
    for name in ("memory_rate", "cache_rate"):
        if table[name] <= 0:
            raise ValueError(f"{place}: numbers: {name} must be more than 0, got {table[name]!r}")
    return {name: float(table[name]) for name in Machine._fields}


def _host(place: str, table: Mapping[str, Any]) -> dict[str, float]:
    """The numbers for host arrays; a file has all of them or none."""
    within = f"{place}: host"
    _refuse_unknown(within, set(table) - set(Numbers._fields))
    for name in Numbers._fields:
        if name not in table:
            raise ValueError(f"{within}: {name} is missing")
        _check(within, name, table[name], _POSITIVE)
        if name.endswith("rate") and table[name] <= 0:
            raise ValueError(f"{within}: {name} must be more than 0, got {table[name]!r}")
    return {name: float(table[name]) for name in Numbers._fields}


def _factors(place: str, table: Mapping[str, Any]) -> dict[str, list[float]]:
    found = {}
    for name, pair in table.items():
        _kernel(f"{place}: factors", name)
        within = f"{place}: factors.{name}"
        _check(f"{place}: factors", name, pair, _TABLE)
        _refuse_unknown(within, set(pair) - {"start", "issue"})
        for key in ("start", "issue"):
            _check(within, key, pair.get(key), _POSITIVE)
        found[name] = [float(pair["start"]), float(pair["issue"])]
    return found


def _constants(place: str, entry: Mapping[str, Any]) -> list[Any]:
    _refuse_unknown(place, set(entry) - set(_CONSTANTS))
    for name in ("kernel", "registers"):
        if name not in entry:
            raise ValueError(f"{place}: {name} is missing")
    for name, value in entry.items():
        _check(place, name, value, _CONSTANTS[name])
    knobs = _kernel(place, entry["kernel"], entry.get("knobs", {}))
    return [entry["kernel"], knobs, entry["registers"]]


def _row(place: str, entry: Mapping[str, Any]) -> list[Any]:
    """The fields of a :class:`~gemv.selection.row.Row`, from its entry in the TOML."""
    _refuse_unknown(place, set(entry) - set(_ROW))
    for name in ("kernel", "reason"):
        if name not in entry:
            raise ValueError(f"{place}: {name} is missing")
    for name, value in entry.items():
        _check(place, name, value, _ROW[name])
    for name in RANGES:
        low, high = (entry.get(f"{name}_{end}") for end in ("min", "max"))
        if low is not None and high is not None and low > high:
            raise ValueError(f"{place}: {name}_min = {low} is larger than {name}_max = {high}")
    knobs = entry.get("knobs", {})
    _kernel(place, entry["kernel"], knobs)
    values = [entry.get(name) for name in CONDITIONS]
    return [entry["kernel"], entry["reason"], values, knobs, entry.get("figure")]


def _kernel(place: str, name: str, knobs: Mapping[str, Any] | None = None) -> dict[str, int]:
    """All constants of a kernel that can be selected, with `knobs` in place of its defaults."""
    try:
        kernel = get(name)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    if kernel.teaching:
        raise ValueError(
            f"{place}: kernel {kernel.name!r} is there to be read and cannot be selected"
        )
    objection = kernel.objection(knobs or {})
    if objection:
        raise ValueError(f"{place}: {objection}")
    return {**kernel.knobs, **(knobs or {})}


def _check(place: str, name: str, value: Any, rule: tuple[Callable[[Any], bool], str]) -> None:
    is_right, words = rule
    if not is_right(value):
        raise ValueError(f"{place}: {name} must be {words}, got {rules.typed(value)}")


def _refuse_unknown(place: str, names: set[str]) -> None:
    if names:
        raise ValueError(f"{place}: unknown field {', '.join(map(repr, sorted(names)))}")
