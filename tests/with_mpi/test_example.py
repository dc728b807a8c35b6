"""The example for MPI, with as many ranks as there are without ``mpiexec``: one."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest
from helpers import processes

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "mpi.py"


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_the_example_solves_its_problem():
    path = os.pathsep.join(each for each in sys.path if each)  # what this process may import
    done = processes.run(
        [sys.executable, EXAMPLE],
        env={**os.environ, "GEMV_BACKEND": "host", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    gradient = re.fullmatch(r"1 ranks, \d+ iterations, .* = (\S+)\n", done.stdout).group(1)
    assert float(gradient) < 1e-7
