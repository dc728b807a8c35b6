"""Vectors of a pool are freed behind all work that may still use them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from helpers import processes

WORKER = Path(__file__).parents[1] / "helpers" / "pool_worker.py"


@pytest.fixture(scope="module")
def answers():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    done = processes.run(
        [sys.executable, str(WORKER)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("streams", ["legacy", "per_thread"])
def test_vectors_are_freed_on_the_stream_that_all_threads_are_ordered_with(answers, streams):
    """The handle of per-thread default streams is another stream in the thread that drops one."""
    assert answers[streams] == [[2, 0], [1, 0], [3, 0]]


def test_what_could_not_be_freed_is_freed_with_the_next_vector(answers):
    assert answers["late"] == [[2, 0], [1, 0], [2, 0], [3, 0]]
