"""Parametrized tests that have only the cases that there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def of_all(is_case: Callable[..., bool], **values: Iterable[Any]) -> Any:
    """A mark for all combinations of some arguments of a test that are cases of it.

    Parameters
    ----------
    is_case : callable
        Called with the values in the order of their names.
    values : iterable
        What each argument may be. An object is known by its name, if it has one.
    """
    cases = [each for each in itertools.product(*values.values()) if is_case(*each)]
    names = ["-".join(map(_name, each)) for each in cases]
    return pytest.mark.parametrize(tuple(values), cases, ids=names)


def _name(value: Any) -> str:
    return str(getattr(value, "name", getattr(value, "__name__", value)))
