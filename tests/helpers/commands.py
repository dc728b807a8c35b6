"""Commands of ``python -m gemv``, in this process and in one of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from gemv.cli.main import main
from helpers import processes

TOP = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(7)


def whole(*shape, dtype="float64"):
    """Small whole numbers: every sum is exact, so answers can be compared for equality."""
    values = RNG.integers(-4, 5, shape).astype(dtype)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * RNG.integers(-4, 5, shape).astype(values.real.dtype)
    return values.astype(dtype)


def python(*arguments, env=None, **options):
    """``python ARGUMENTS`` in a process of its own, output piped."""
    options = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": 300} | options
    # found from any working directory, installed or not
    path = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", **(env or {})}
    return processes.run([sys.executable, *arguments], env=environment, **options)


def refused(capsys, *arguments, command="run"):
    """Run in process; assert exit status 2 and one line on standard error; return the line."""
    try:
        status = main([command, *map(str, arguments)])
    except SystemExit as leaving:
        status = leaving.code
    out, err = capsys.readouterr()
    assert status == 2, (out, err)
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"gemv {command}: ")
    return line
