"""A machine's file as text: the TOML that :mod:`gemv.selection.parse` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gemv.selection.formula import Machine
from gemv.selection.host_or_gpu import Numbers
from gemv.selection.machine import Constants
from gemv.selection.row import Row

_HEAD = """\
# What selection knows of the {gpu}: see docs/selection.md. {made}
#
# numbers    of the formula: seconds, bytes per second, and weights (gemv/selection/formula.py)
# factors    for each kernel: of its start, and of its issue of instructions
# portfolio  sets of constants, in the order of preference where predicted times are equal, and the
#            registers of a thread by what the code is for: the letter of the dtype, elements of a
#            load of A, x if x is loaded as wide, w if lines are whole vectors; 0 needs local memory
# host       what decides whether SciPy's BLAS or the GPU computes a call on host arrays: seconds,
#            and bytes of A per second (gemv/selection/host_or_gpu.py)
# row        exceptions that come before the formula
"""


def fitted(
    made: str,
    about: Mapping[str, Any],
    numbers: Machine,
    factors: Mapping[str, tuple[float, float]],
    constants: Iterable[Constants],
) -> str:
    """The beginning of a machine's file, up to its portfolio.

    Parameters
    ----------
    made : str
        A sentence that says what wrote the file; it follows the name of the GPU in a comment.
    about : mapping
        Where the file comes from; ``gpu`` is the name of the GPU.
    numbers, factors, constants
        As :class:`~gemv.selection.machine.MachineFile` has them.
    """
    lines = [_HEAD.format(gpu=about["gpu"], made=made), "[about]"]
    lines += _fields(about)
    lines += ["", "[numbers]", *_fields(numbers._asdict())]
    lines += ["", "[factors]"]
    lines += _fields(
        {kernel: {"start": start, "issue": issue} for kernel, (start, issue) in factors.items()}
    )
    lines += ["", "[portfolio]", "constants = ["]
    return "\n".join([*lines, *map(_set, constants), "]"]) + "\n"


def with_sets(text: str, constants: Iterable[Constants]) -> str:
    """A machine's file with further sets of constants at the end of its portfolio."""
    begin, portfolio, rest = text.partition("\n[portfolio]\n")
    return (
        begin + portfolio + rest.replace("\n]\n", "\n".join(["", *map(_set, constants), "]\n"]), 1)
    )


def _set(constants: Constants) -> str:
    """A line of the portfolio."""
    knobs, registers = (
        dict(sorted(each.items())) for each in (constants.knobs, constants.registers)
    )
    entry = {"kernel": constants.name, "knobs": knobs, "registers": registers}
    return f"    {_value(entry)},"


def kept(host: Numbers | None, rows: Iterable[Row]) -> str:
    """The rest of a machine's file, which no fit finds: numbers for host arrays, exceptions."""
    lines = [] if host is None else ["", "[host]", *_fields(host._asdict())]
    for row in rows:
        stated = {**row.conditions, "kernel": row.kernel}
        stated |= {"knobs": dict(row.knobs)} if row.knobs else {}
        stated |= {"reason": row.reason}
        stated |= {} if row.figure is None else {"figure": row.figure}
        lines += ["", "[[row]]", *_fields(stated)]
    return "".join(f"{line}\n" for line in lines)


def _fields(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_value(value)}" for name, value in table.items()]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(_fields(value))
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return _string(value) if isinstance(value, str) else repr(value)


def _string(text: str) -> str:
    """A string of TOML: JSON's, but for a character that only TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    is_bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if is_bare else _string(key)
