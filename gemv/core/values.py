"""What a user passed, as texts tell it: none of them is long, and no object can make one fail.

Importing this does not import NumPy, which may be what is broken.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any

#: A longer text of a value says less than its type.
_MOST = 40


def typed(value: Any) -> str:
    """An object as ``type value``; its type alone where the value is long."""
    if value is None:
        return "None"
    text = _short(value)
    return _type_name(value) if text is None else f"{_type_name(value)} {text}"


def shown(value: Any) -> str:
    """An object as it is written, in place of a word or a number; its type where that is long."""
    text = _short(value)
    return _type_name(value) if text is None or " at 0x" in text else text


def _short(value: Any) -> str | None:
    """The ``repr`` of an object, if it has one that is short."""
    try:
        text = repr(value)
    except Exception:  # an object's own, or an int that Python finds too long to write
        return None
    return None if len(text) > _MOST or "\n" in text else text


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def digits(value: int) -> str:
    """An int; one of 256 bits or more is told by its size."""
    return str(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"


def number_of(number: int, one: str, several: str = "") -> str:
    """``1 item``, ``3 items``; `several` where that is not `one` with an s."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def is_word(value: Any, known: Sequence[str]) -> bool:
    """Whether `value` is one of these words; an array, for example, is not compared with them."""
    return isinstance(value, str) and value in known


def is_integer(value: Any) -> bool:
    """Whether `value` is an integer of Python or NumPy, and neither a flag nor a duration."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return False
    try:
        operator.index(value)
    except TypeError:  # NumPy says that its durations are integers
        return False
    return True
