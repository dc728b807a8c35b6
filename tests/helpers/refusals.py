"""Calls that are refused: which error, in which words, and that no operand was written to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest


class Here(NamedTuple):
    """An operand in the place of the others: in host memory, or on the device."""

    array: Any


class Of(NamedTuple):
    """An argument that is made of the operands of the call, by their names."""

    function: Callable[[Mapping[str, Any]], Any]


def arguments(
    operands: Mapping[str, Any], changes: Mapping[str, Any], make: Callable[[Any], Any]
) -> dict[str, Any]:
    """The operands with the changes of a case; `make` makes arrays in their place."""
    found = dict(operands)
    for name, value in changes.items():
        found[name] = make(value.array) if isinstance(value, Here) else value
    return {
        name: value.function(found) if isinstance(value, Of) else value
        for name, value in found.items()
    }


def ones(*shape: int, dtype: Any = "d") -> Here:
    return Here(np.ones(shape, dtype))


def contents(array: Any) -> Any:
    """What an array holds, to be compared; None for what is no array with values to read."""
    if hasattr(array, "copy_to_host"):
        return array.copy_to_host().tobytes()
    if isinstance(array, np.ndarray) and array.dtype != object:
        return array.tobytes()
    return None


def check(
    call: Callable[[], Any],
    operands: Mapping[str, Any],
    error: type[Exception],
    words: str,
    read: Callable[[Any], Any] = contents,
) -> None:
    """Make a call that must raise `error` with `words`, and leave each operand as it was."""
    before = {name: read(array) for name, array in operands.items()}
    with pytest.raises(error, match=words) as caught:
        call()
    assert type(caught.value) is error, f"{type(caught.value).__name__} is a subclass of it"
    assert {name: read(array) for name, array in operands.items()} == before


class Fails:
    """An object each of whose promises is broken when it is used."""

    def __init__(self, *methods: str) -> None:
        self.__class__ = type("Fails", (Fails,), {name: Fails.fail for name in methods})

    def fail(self, *arguments: Any, **keywords: Any) -> Any:
        raise KeyError("no such thing")


class Broken:
    """An array that cannot even be asked where its memory is."""

    @property
    def __cuda_array_interface__(self) -> Any:
        raise OSError("the connection is gone")
