"""Copies from memory to shared memory that nobody waits for until their numbers are needed."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers.codegen import disassemble
from helpers.problems import ALL_ROWS

from gemv.engines import backend
from gemv.kernels import get

STAGED = ("staged_rows", "staged_columns")


# Machine code -----------------------------------------------------------------------------------


DTYPES = ("float32", "float64", "complex64", "complex128", "bfloat16")


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_pass_registers_by(name, dtype, compiler):
    """They are of 16 bytes, past the L1 cache, in code without a stack or spills.

    Loads of one element and of 16 bytes are with every other dtype, for one kernel with those that
    the other one does not have them with; all with all on a GPU or with ``GEMV_ALL_ROWS=1``.
    """
    kernel = get(name)
    # As many sums as a thread has registers for: the constants of a batch have no more.
    few = name == "staged_columns" and dtype == "complex128"
    turn = (DTYPES.index(dtype) + STAGED.index(name)) % 2
    for widths in ((1, 0), None) if ALL_ROWS else (((1, 0), None)[turn],):
        knobs = {"GROUPS": 16} if few else {}
        (function,) = compiler(kernel, dtype, knobs=knobs, widths=widths, whole=widths is None)
        assert (function["stack"], function["spills"]) == (0, 0)
        code = disassemble(function)
        copies = re.findall(r"LDGSTS\S*", code)
        assert copies and set(copies) == {"LDGSTS.E.BYPASS.LTC128B.128"}
        waits = re.findall(r"cp\.async\.wait_group (\d+);", function["ptx"])
        assert set(waits) == {str(kernel.knobs["STAGES"] - 2)}
        assert function["ptx"].count("cp.async.commit_group") >= 1


@pytest.mark.parametrize("name", [*STAGED, "several_short_rows"])
@pytest.mark.parametrize("compute_capability", [(8, 0), (8, 9), (10, 0)])
def test_other_gpus_have_them_too(name, compute_capability, compiler):
    (function,) = compiler(get(name), "float32", compute_capability=compute_capability)
    assert "cp.async.cg.shared.global" in function["ptx"]
    assert (function["stack"], function["spills"]) == (0, 0)


# The simulator ----------------------------------------------------------------------------------

if backend.backend() == "simulator":
    from gemv.language import (
        conjugated,
        copies_commit,
        copies_wait,
        copy_async,
        copy_one,
        copy_or_zeros,
        cuda,
        staged_some,
        staged_tile,
        store,
        store_vectors,
    )
    from gemv.language.simulator.memory import pointer_to
    from gemv.language.simulator.scheduler import launch
    from gemv.language.simulator.thread import SimulatorError

    def run(kernel, x, length=8, threads=1):
        """What `kernel` stores in `length` numbers, from 16 bytes and more of `x`."""
        y = np.zeros(length, x.dtype)
        launch(kernel, 1, threads, [pointer_to(x, name="x"), pointer_to(y, name="y")])
        return y

    def numbers(count, dtype="f4"):
        """From 1 on, at a multiple of 16 bytes."""
        memory = np.zeros(count + 16, dtype)
        first = -memory.__array_interface__["data"][0] % 16 // memory.itemsize
        memory[first : first + count] = np.arange(1, count + 1)
        return memory[first : first + count]

    def test_numbers_are_there_when_they_have_been_waited_for():
        def kernel(x, y):
            stage = cuda.shared.array(64, np.uint8, alignment=16)
            for k in range(4):
                copy_async(stage, 4 * k, x, 4 * k)
                copies_commit()
            copies_wait(3)
            store(y, 0, staged_tile(stage, x, (0,), 3, 0, 1, 1)[0])
            store(y, 1, staged_tile(stage, x, (0,), 4, 0, 1, 1)[0])  # on its way
            copies_wait(1)
            store(y, 2, staged_tile(stage, x, (0,), 11, 0, 1, 1)[0])
            store(y, 3, staged_tile(stage, x, (0,), 12, 0, 1, 1)[0])  # on its way
            copies_wait(0)
            store(y, 4, staged_tile(stage, x, (0,), 15, 0, 1, 1)[0])
            copy_async(stage, 12, x, 0)  # nobody has closed its group
            copies_wait(0)
            store(y, 5, staged_tile(stage, x, (0,), 15, 0, 1, 1)[0])

        y = run(kernel, numbers(16))
        assert y[[0, 2, 4]].tolist() == [4, 12, 16] and np.isnan(y[[1, 3, 5]]).all()

    def test_tiles_of_a_stage_are_those_of_memory():
        def kernel(x, y):
            stage = cuda.shared.array(64, np.uint8, alignment=16)
            copy_async(stage, 0, x, 0)
            copy_async(stage, 4, x, 4)
            copy_one(stage, 9, x, 7)
            copies_commit()
            copies_wait(0)
            store_vectors(y, 0, 2, staged_some(stage, x, (0, 4), 0, 2, 2, 2, 1), 2)
            store(y, 8, staged_tile(stage, x, (9,), 0, 0, 1, 1)[0])

        assert run(kernel, numbers(8), 10).tolist() == [1, 2, 0, 0, 5, 6, 0, 0, 8, 0]

    @pytest.mark.parametrize("present", [False, True])
    def test_a_copy_that_is_not_present_brings_zeros_and_reads_nothing(present):
        def kernel(x, y):
            stage = cuda.shared.array(16, np.uint8, alignment=16)
            copy_or_zeros(stage, 0, x, 4 if present else 400, present)
            store(y, 4, staged_tile(stage, x, (0,), 0, 0, 1, 1)[0])  # on its way
            copies_commit()
            copies_wait(0)
            store_vectors(y, 0, 4, staged_tile(stage, x, (0,), 0, 0, 1, 4), 4)

        y = run(kernel, numbers(8), 5)
        assert y[:4].tolist() == ([5, 6, 7, 8] if present else [0, 0, 0, 0]) and np.isnan(y[4])

    def test_conjugates_are_made_where_a_stage_is_read():
        def kernel(x, y):
            stage = cuda.shared.array(32, np.uint8, alignment=16)
            copy_async(stage, 0, conjugated(x), 0)
            copies_commit()
            copies_wait(0)
            store_vectors(y, 0, 2, staged_tile(stage, conjugated(x), (0,), 0, 0, 1, 2), 2)

        x = numbers(2, "c8")
        x += np.complex64(1j)
        assert run(kernel, x, 2).tolist() == [1 - 1j, 2 - 1j]

    @pytest.mark.parametrize("copy", [copy_async, copy_or_zeros])
    @pytest.mark.parametrize(
        "index, at, text",
        [
            (1, 0, "copy to byte 4, no multiple of 16"),
            (0, 2, "copy from address .*, no multiple of 16"),
            (0, 8, r"read out of range: x\[11\]"),
            (12, 0, "bytes 48 to 64 of a stage of 48"),
        ],
    )
    def test_copies_that_a_gpu_would_not_make(index, at, text, copy):
        present = () if copy is copy_async else (True,)

        def kernel(x, y):
            copy(cuda.shared.array(48, np.uint8, alignment=16), index, x, at, *present)

        with pytest.raises(SimulatorError, match=text):
            run(kernel, numbers(10))

    def test_stages_are_bytes_and_vectors_of_them_are_aligned():
        def of_floats(x, y):
            copy_one(cuda.shared.array(8, np.float32, alignment=16), 0, x, 0)

        def odd(x, y):
            stage = cuda.shared.array(32, np.uint8, alignment=16)
            store_vectors(y, 0, 2, staged_tile(stage, x, (1,), 0, 0, 1, 2), 2)

        for kernel, text in ((of_floats, "an array of bytes"), (odd, "2 elements of a stage at 1")):
            with pytest.raises(SimulatorError, match=text):
                run(kernel, numbers(8))
