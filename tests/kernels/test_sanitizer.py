"""compute-sanitizer over every kernel, and over planted faults that it has to find."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from helpers import family_cases, processes

from gemv.kernels import REGISTRY

pytestmark = pytest.mark.gpu

WORKER = str(Path(__file__).parents[1] / "helpers" / "sanitizer_worker.py")
FOUND = 86  # an exit status of no other meaning


def sanitize(tool, *arguments, options=()):
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("compute-sanitizer is not installed")
    return processes.run(
        [program, "--tool", tool, "--error-exitcode", str(FOUND), *options]
        + [sys.executable, WORKER, *arguments],
        capture_output=True, text=True, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
        timeout=600,
    )  # fmt: skip


#: So many processes share the kernels for each tool.
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_every_kernel_is_clean(tool, part):
    names = list(REGISTRY)[part::PARTS]
    run = sanitize(tool, *names)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert f"cases of {len(names)} kernels" in run.stdout


@pytest.mark.parametrize("letter", "sdczhb")
@pytest.mark.parametrize("tool", ["memcheck", "initcheck"])
def test_lists_are_clean(tool, letter):
    run = sanitize(tool, "lists", letter)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    count = int(re.search(r"checked (\d+) items of lists", run.stdout)[1])
    assert count > 8, "most of the 16 items have a kernel for lists"


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_batches_and_several_vectors_are_clean(tool):
    run = sanitize(tool, "families")
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    for name in (*family_cases.CASES, *family_cases.FURTHER):
        assert name in run.stdout


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_shards_are_clean(tool):
    # The driver is asked about memory of the host, of which its answer is an error.
    run = sanitize(tool, "shards", options=("--report-api-errors", "no"))
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert "shards_within shards_across" in run.stdout


@pytest.mark.parametrize(
    "tool, fault",
    [
        ("memcheck", "read"),
        ("memcheck", "vector_rows"),
        ("memcheck", "vector_columns"),
        ("memcheck", "phased_rows"),
        ("memcheck", "phased_columns"),
        ("memcheck", "short_columns"),
        ("racecheck", "race"),
        ("initcheck", "uninitialised"),
        ("synccheck", "barrier"),
    ],
)
def test_a_planted_fault_is_found(tool, fault):
    run = sanitize(tool, "planted", fault)
    assert run.returncode == FOUND, run.stdout[-4000:] + run.stderr[-4000:]
