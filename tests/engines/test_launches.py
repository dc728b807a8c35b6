"""Parameters of a launch as the driver gets them: a stand-in for it reads what is there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import processes

WORKER = Path(__file__).parents[1] / "helpers" / "launch_worker.py"


@pytest.fixture(scope="module")
def launches():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    done = processes.run(
        [sys.executable, str(WORKER)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_real_product(launches):
    first, second = launches["real"]
    assert first == {
        "function": 1, "grid": [2, 3, 1], "block": [128, 1, 1], "shared": 0, "stream": 0x55,
        "early": False,
        "values": {"rows": 5, "a": 1 << 46, "incx": -7, "alpha": 1.5, "beta": -2.0, "slot": 9},
    }  # fmt: skip
    assert second["values"] == {"scratch": 1 << 40, "y": 1 << 44, "counters": 1 << 41}
    assert second["early"], "it waits itself for the one before"


def test_a_launch_that_comes_behind_all_work_is_not_early(launches):
    """Its function waits where it ends, so nothing else would keep it behind what it reads."""
    later, first = launches["of a list"]
    assert later["early"] and not first["early"]


def test_a_complex_product(launches):
    (only,) = launches["complex"]
    assert only["values"]["alpha"] == [1.5, 2.0] and only["values"]["beta"] == [0.0, -1.0]


def test_factors_in_device_memory_and_fixed_scratch_memory(launches):
    (only,) = launches["pointers"]
    assert only["values"] == {"alpha_pointer": 1 << 42, "beta_pointer": 1 << 43, "scratch": 77}


@pytest.mark.parametrize("count", [1, 3, 1000, 1024])
def test_x_by_value(launches, count):
    """The driver reads as many bytes as the kernel declares, whatever the length of x."""
    (only,) = launches[f"value {count}"]
    values = np.frombuffer(bytes.fromhex(only["values"]["x"]), np.float32)
    assert values[:count].tolist() == list(range(1, count + 1))
    assert not values[count:].any()
    assert only["values"]["rows"] == 6


def test_a_copy_of_any_length_fits_the_grid(launches):
    small, large = launches["copies"]
    assert small["grid"] == [2, 1, 1] and small["block"] == [256, 1, 1]
    assert small["values"] == {"rows": 300, "x": 64, "incx": -3, "y": 128}
    assert large["grid"] == [2**31 - 1, 1, 1]


def test_a_copy_of_lines_has_a_thread_for_each_word_and_is_never_early(launches):
    """What it waits for may be work of another GPU."""
    (only,) = launches["lines"]
    assert only["grid"] == [66, 1, 1] and only["block"] == [256, 1, 1] and not only["early"]
    assert only["values"] == {
        "rows": 512, "cols": 33, "x": 1 << 43, "x_step": 264, "y": 1 << 44, "y_step": 40,
    }  # fmt: skip


def test_dynamic_shared_memory_is_announced_once_and_asked_for_by_each_launch(launches):
    """More than 48 KB are refused in a launch of a function whose attribute says less."""
    (only,) = launches["shared"]
    assert only["shared"] == 100_000 and only["block"] == [128, 1, 1]
    most = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert launches["loaded"] == [[1, most, 100_000]]


def test_the_copy_waits_for_the_kernel_ahead():
    """So it may start early, and is launched as the products are."""
    code = "import numpy, gemv.engines.binaries as b; print(b.copy(numpy.dtype('f'), (9, 0)).waits)"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    done = processes.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.stdout.strip() == "True", done.stderr


def test_a_copy_of_lines_waits_for_nothing():
    """It is launched behind all that it reads."""
    code = "import numpy, gemv.engines.binaries as b; f = b.copy_lines(numpy.dtype('u8'), (9, 0))"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    done = processes.run(
        [sys.executable, "-c", f"{code}; print(f.arguments, f.waits)"],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    said = "('rows', 'cols', 'x', 'x_step', 'y', 'y_step') False"
    assert done.stdout.strip() == said, done.stderr


def test_a_fetch_asks_for_pieces_and_waits_for_nothing():
    code = "import gemv.engines.binaries as b; f = b.fetch((9, 0)); print(f.arguments, f.ptx)"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    done = processes.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    names, *ptx = done.stdout.splitlines()
    assert names.startswith("('rows', 'x')"), done.stderr
    asked = [line.split() for line in ptx if "prefetch" in line]
    assert {(words[0], words[2]) for words in asked} == {
        ("cp.async.bulk.prefetch.L2.global", "2048;")
    }
    assert not any(word in line for line in ptx for word in ("griddepcontrol", "ld.global", "st."))


def test_a_refused_launch_is_an_error(launches):
    assert launches["refused"] == "status 700"
