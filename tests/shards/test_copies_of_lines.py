"""Copies of lines between GPUs: partial sums of shards, and vectors with gaps between them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.problems import random_array

import gemv
from gemv.core.operand import Operand
from gemv.engines import backend

if backend.backend() != "simulator":
    pytest.skip("with a GPU the real driver is tested", allow_module_level=True)

from helpers.virtual_gpus import Array

DRIVER = ("cuMemcpyAsync", "cuMemcpy2DAsync")
VECTORS = 3


def numbers(shape, seed=0, dtype="f"):
    return np.asarray(random_array(np.random.default_rng(seed), shape, np.dtype(dtype)))


def driver_copies(virtual):
    """Names of the driver's copies since this was asked for last, with the GPU of each."""
    found = [call for call in virtual.calls if call[0] in DRIVER]
    virtual.calls.clear()
    return found


def columns(virtual, y):
    """The bits of each column, for who waits for the default stream of the first GPU."""
    virtual.current = 0
    virtual.cuStreamSynchronize(0)
    return [np.ascontiguousarray(each).tobytes() for each in y.values().T]


def summed_across(virtual, devices, dtype="f"):
    """A matrix whose sums go across shards, vectors on the first GPU, and the bits of their y."""
    a, x = numbers((5, 416), 0, dtype), np.asfortranarray(numbers((416, VECTORS), 1, dtype))
    several = gemv.Matrix(a, devices=devices, split="columns", kernel="vector_rows")
    expected = [several.matvec(np.ascontiguousarray(each)).tobytes() for each in x.T]
    given = Array(virtual, x)
    several @ given  # what is done once is done
    virtual.calls.clear()
    virtual.engine.copied.clear()
    return several, given, expected


@pytest.mark.usefixtures("small_knobs", "small_blocks")
def test_a_kernel_copies_all_sums_of_a_shard(virtual_gpus):
    several, given, expected = summed_across(virtual_gpus, [0, 1, 2])
    with gemv.trace() as calls:
        y = several @ given
    assert [call.kernel for call in calls] == ["several_rows"]
    assert len(virtual_gpus.engine.copied) == 2 + 2, "x for two GPUs, and the sums of both"
    assert not driver_copies(virtual_gpus) and columns(virtual_gpus, y) == expected
    plan = several.plan(given, Array(virtual_gpus, np.zeros((5, VECTORS), "f", order="F")))
    assert plan.is_graph and columns(virtual_gpus, plan()) == expected


@pytest.mark.usefixtures("small_knobs", "small_blocks")
@pytest.mark.parametrize("devices, apart", [([0, 1], {(0, 1)}), ([0, 0], set())])
def test_the_driver_copies_them_at_once_where_kernels_do_not(devices, apart, virtual_gpus):
    virtual_gpus.engine.apart = apart
    several, given, expected = summed_across(virtual_gpus, devices)
    copied, heights = virtual_gpus.cuMemcpy2DAsync, []

    def noted(lines, stream):
        heights.append(lines.Height)
        return copied(lines, stream)

    virtual_gpus.cuMemcpy2DAsync = noted
    y = several @ given
    assert heights.count(VECTORS * 5) == 1, "a line for each row of each vector"
    assert set(heights) <= {VECTORS * 5, VECTORS} and len(driver_copies(virtual_gpus)) <= 3
    assert columns(virtual_gpus, y) == expected


@pytest.mark.usefixtures("small_knobs", "small_blocks")
@pytest.mark.parametrize("dtype", ["f", "d", "D"])
def test_words_of_lines_are_as_long_as_all_of_them_allow(dtype, virtual_gpus, monkeypatch):
    several, given, expected = summed_across(virtual_gpus, [0, 1], dtype)
    made, used = virtual_gpus.engine.line_copying_block, []

    def noted(word, *lines):
        used.append((word.itemsize, *lines))
        return made(word, *lines)

    monkeypatch.setattr(virtual_gpus.engine, "line_copying_block", noted)
    for place in several._fabric.places:
        place._copies._of_lines.clear()
    with gemv.trace() as calls:
        for _ in range(2):
            assert columns(virtual_gpus, several @ given) == expected
    splits = calls[0].geometry.sizes["splits"]
    assert len(used) == len(set(used)) == 2, "those of x and of sums are made once"
    ((word, _, length, *steps),) = (each for each in used if each[1] == VECTORS * 5)
    assert steps == [splits * np.dtype(dtype).itemsize // word] * 2
    assert 0 < length < steps[0]
    sizes = (length * word, steps[0] * word)
    assert word == 8 or any(each % (2 * word) for each in sizes), "no longer word divides them"


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_vectors_with_gaps_are_copied_at_once(split, virtual_gpus):
    a, x = numbers((24, 20)), np.zeros((23, VECTORS), "f", order="F")
    x[:20] = numbers((20, VECTORS), 1)
    several = gemv.Matrix(a, devices=[0, 1], split=split, reproducible=False)
    expected = [several.matvec(np.ascontiguousarray(each)).tobytes() for each in x[:20].T]
    wide = Array(virtual_gpus, x)
    given = wide._view((20, VECTORS), wide.strides)
    y = several @ given
    assert columns(virtual_gpus, y) == expected
    virtual_gpus.calls.clear()
    virtual_gpus.engine.copied.clear()
    y = several @ given
    assert len(virtual_gpus.engine.copied) + len(driver_copies(virtual_gpus)) <= 3
    assert columns(virtual_gpus, y) == expected


@pytest.mark.parametrize("step", [0, -24, 2**31])
def test_the_driver_copies_lines_one_by_one_where_it_takes_no_pitch(step, virtual_gpus):
    """Those that are one line again and again, in the other order, or too far apart."""
    import sys

    memory = sys.modules["gemv.driver.memory"]
    told = []
    virtual_gpus.cuMemcpyAsync = lambda to, of, nbytes, stream: (
        told.append((to, of, nbytes)) or (virtual_gpus._said(0))
    )
    first, last = 1 << 40, 1 << 20
    source, target = (
        Operand("numba", np.dtype("u1"), (3, 20), (each, 1), pointer, False, None)
        for each, pointer in ((step, first), (20, last))
    )
    memory.copy_lines(source, target, 0)
    assert told == [(last + 20 * line, first + step * line, 20) for line in range(3)]


def test_no_lines_need_no_copy(virtual_gpus):
    several = gemv.Matrix(numbers((24, 20)), devices=[0, 1])
    (here, there) = several._fabric.places
    source, target = (
        place.vector(8, np.dtype("f"))._replace(shape=shape, strides=(4, 1))
        for place, shape in ((here, (0, 3)), (there, (0, 3)))
    )
    virtual_gpus.calls.clear()
    virtual_gpus.engine.copied.clear()
    here.copy_lines(source, target)
    assert not virtual_gpus.engine.copied and not driver_copies(virtual_gpus)
