"""The programs of ``benchmarks/``, which are no part of the package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

TOP = Path(__file__).resolve().parents[2]


def program(name: str) -> ModuleType:
    """``benchmarks.NAME``; what is installed comes before the tree it lies in."""
    if str(TOP) not in sys.path:
        sys.path.append(str(TOP))
    return importlib.import_module(f"benchmarks.{name}")
