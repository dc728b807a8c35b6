"""Each device function of the vocabulary in both halves: on a GPU as in the simulator, bit for bit.

Where there is no GPU, the PTX of the GPU's half is run by :mod:`helpers.ptx`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import processes, ptx, words

from gemv.core.geometry import Device
from gemv.engines import backend
from gemv.language.vocabulary import VOCABULARY

WORKER = Path(words.__file__).parents[1] / "words_worker.py"
#: Functions of constant memory and of parameters: what they read is brought by an engine.
ELSEWHERE = {
    "constant_array": "tests/engines/test_coefficients.py::test_every_home_gives_the_values",
    "parameter_load": "tests/engines/test_coefficients.py::test_x_in_every_home",
}
ON_GPU = backend.backend() == "cuda"


@pytest.fixture(scope="session")
def other_half():
    """Ask a process that has the other half: for its results on a GPU, for PTX without one."""
    with processes.started(
        [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": str(int(ON_GPU))},
    ) as worker:  # fmt: skip

        def ask(*question):
            worker.stdin.write(json.dumps(question) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
            assert line, f"the other half's process ended: {worker.wait()}"
            told = json.loads(line)
            assert "error" not in told, told["error"]
            return told

        yield ask
        worker.stdin.close()
        worker.wait(timeout=60)


def interpreted(name, letter, accumulate, told):
    """All bytes of y behind the PTX of a small kernel."""
    case = words.case_of(name, letter, accumulate)
    geometry = words.kernel_of(name).geometry(case.problem, Device("any", (9, 0), 1), {})
    size = case.problem.precision.sums.itemsize
    buffers = [case.a_buffer, case.x_buffer, case.y_buffer]
    buffers.append(np.full(geometry.scratch * size, 0xFF, np.uint8))
    buffers.append(np.zeros(geometry.counters, np.uint32))
    places = {
        "a": ("buffer", 0, 0), "y": ("buffer", 2, case.y_offset * case.y_element.itemsize),
        "scratch": ("buffer", 3, 0), "counters": ("buffer", 4, 0),
    }  # fmt: skip
    (launch,) = geometry.launches
    values = [places[argument] for argument in told["arguments"]]
    program = ptx.Program(told["ptx"])
    after = ptx.launch(program, launch.grid, launch.block[:2], values, buffers)
    assert set(after[3]) <= {0xFF} and set(after[4]) <= {0}, "the next launch would find them"
    return after[2]


@pytest.mark.parametrize("name, letter, accumulate", words.cases())
def test_both_halves_give_the_same_bits(name, letter, accumulate, other_half):
    own = words.result_of(name, letter, accumulate)
    assert own != words.case_of(name, letter, accumulate).y_buffer.tobytes()
    told = other_half(name, letter, accumulate)
    other = bytes.fromhex(told["y"]) if ON_GPU else interpreted(name, letter, accumulate, told)
    if own == other:
        return
    element = words.case_of(name, letter, accumulate).y_element
    left, right = (np.frombuffer(each, element) for each in (own, other))
    places = np.flatnonzero(left.view(f"V{element.itemsize}") != right.view(f"V{element.itemsize}"))
    told = [(int(k), left[k], right[k]) for k in places[:8]]
    pytest.fail(f"{len(places)} numbers differ, here and there: {told}")


def test_every_function_has_a_small_kernel():
    tried = {word for small in words.WORDS.values() for word in small.words}
    assert tried | set(ELSEWHERE) == set(VOCABULARY) and not tried & set(ELSEWHERE)
    for test in ELSEWHERE.values():
        file, _, function = test.partition("::")
        path = Path(__file__).resolve().parents[2] / file
        assert f"def {function}(" in path.read_text(encoding="utf-8")
