"""Copies between GPUs: by a kernel where it reaches both memories, else by the driver."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from helpers.problems import random_array

import gemv
from gemv.engines import backend

#: How a product runs: arguments of the matrix, its shape, and the form that is multiplied.
FORMS = {
    "within": ({"split": "rows"}, (37, 21)),
    "everywhere": ({"split": "rows", "gather": "all"}, (37, 20)),
    "in order": ({"split": "columns", "reproducible": False}, (20, 37)),
    "across": ({"split": "columns", "kernel": "vector_rows"}, (5, 411)),
}


def numbers(shape, seed=0, dtype="f"):
    return np.asarray(random_array(np.random.default_rng(seed), shape, np.dtype(dtype)))


def driver_copies(virtual):
    """The GPUs on whose streams the driver copied since this was asked for last."""
    found = [device for name, device in virtual.calls if name == "cuMemcpyAsync"]
    virtual.calls.clear()
    return found


def bits(virtual, y):
    """Those of a y on cuda:0, for who waits for its default stream."""
    virtual.current = 0
    virtual.cuStreamSynchronize(0)
    return y.values().tobytes()


@pytest.fixture(params=FORMS)
def product(request, small_knobs, virtual_gpus):
    """A matrix on three GPUs, x on the first one, and the bits of their product."""
    options, shape = FORMS[request.param]
    x = numbers(shape[1], 1)
    several = gemv.Matrix(numbers(shape), devices=[0, 1, 2], **options)
    expected = several.matvec(x).tobytes()
    virtual_gpus.calls.clear()
    virtual_gpus.engine.copied.clear()
    return several, x, expected


def test_kernels_copy_between_gpus_that_reach_each_other(product, virtual_gpus):
    several, x, expected = product
    given = on_first_gpu(virtual_gpus, x)
    y = several @ given
    assert virtual_gpus.engine.copied and not driver_copies(virtual_gpus)
    assert bits(virtual_gpus, y[0] if isinstance(y, list) else y) == expected


def test_graphs_have_such_kernels_as_well(product, virtual_gpus):
    several, x, expected = product
    given = on_first_gpu(virtual_gpus, x)
    y = on_first_gpu(virtual_gpus, np.zeros(several.shape[0], "f"))
    plan = several.plan(given, y)
    assert plan.is_graph and virtual_gpus.engine.copied and not driver_copies(virtual_gpus)
    for factor in (1, 2):
        given.values()[...] = factor * x
        assert bits(virtual_gpus, plan()) == several.matvec(factor * x).tobytes()


def test_the_kernel_is_there_before_anything_is_captured(virtual_gpus):
    several = gemv.Matrix(numbers((37, 20)), devices=[0, 1, 2])
    y = on_first_gpu(virtual_gpus, np.zeros(37, "f"))
    assert several.plan(on_first_gpu(virtual_gpus, numbers(20)), y).is_graph
    assert virtual_gpus.engine.copied, "the stand-in lets nothing be loaded in a capture"


def test_the_driver_copies_what_a_gpu_does_not_reach(product, virtual_gpus):
    several, x, expected = product
    virtual_gpus.engine.apart = {(1, 0), (0, 1)}
    given = on_first_gpu(virtual_gpus, x)
    y = several @ given
    by_driver = driver_copies(virtual_gpus)
    assert by_driver and 2 not in by_driver and virtual_gpus.engine.copied
    assert bits(virtual_gpus, y[0] if isinstance(y, list) else y) == expected


def test_the_driver_copies_memory_with_rights_of_its_own(virtual_gpus, monkeypatch):
    """The memory of a library's pool, which other GPUs may not be allowed to read."""
    several, x = gemv.Matrix(numbers((37, 20)), devices=[0, 1, 2]), numbers(20, 1)
    expected = several.matvec(x).tobytes()
    given = on_first_gpu(virtual_gpus, x)
    of_pool, _ = given.interface["data"]
    room = sys.modules["gemv.shards.cuda"]
    monkeypatch.setattr(room, "is_plain_memory", lambda pointer: pointer != of_pool)
    virtual_gpus.calls.clear()
    virtual_gpus.engine.copied.clear()
    y = several @ given
    assert driver_copies(virtual_gpus) == [2, 1] and not virtual_gpus.engine.copied
    assert bits(virtual_gpus, y) == expected


@pytest.mark.parametrize(
    ("dtype", "cols", "words"),
    [("f", 20, 8), ("f", 21, 4), ("d", 21, 8), ("F", 21, 8), ("D", 3, 8)],
)
def test_words_are_as_long_as_the_vector_allows(dtype, cols, words, virtual_gpus, monkeypatch):
    several = gemv.Matrix(numbers((16, cols), 0, dtype), devices=[0, 1])
    x = numbers(cols, 1, dtype)
    expected, used = several.matvec(x).tobytes(), []
    made = virtual_gpus.engine.copying_block

    def noted(word, count):
        used.append((word.itemsize, count))
        return made(word, count)

    monkeypatch.setattr(virtual_gpus.engine, "copying_block", noted)
    for place in several._fabric.places:
        place._copies._blocks.clear()
    for _ in range(2):
        y = several @ on_first_gpu(virtual_gpus, x)
        assert bits(virtual_gpus, y) == expected
    assert used == [(words, x.nbytes // words)], "made once"


def test_one_gpu_that_plays_several_parts_needs_no_kernel(small_knobs, virtual_gpus):
    options, (rows, cols) = FORMS["across"]
    several = gemv.Matrix(numbers((rows, cols)), devices=[0, 0], **options)
    x = numbers(cols, 1)
    expected = several.matvec(x).tobytes()
    virtual_gpus.engine.copied.clear()
    virtual_gpus.calls.clear()
    assert bits(virtual_gpus, several @ on_first_gpu(virtual_gpus, x)) == expected
    assert set(driver_copies(virtual_gpus)) == {0} and not virtual_gpus.engine.copied


def test_vectors_of_shards_are_written_beside_each_other(virtual_gpus):
    """Where sums go in the order of the shards: nothing is copied but x."""
    options, (_, cols) = FORMS["in order"]
    several = gemv.Matrix(numbers((20, cols)), devices=[0, 1, 2], **options)
    x = numbers(cols, 1)
    expected = several.matvec(x).tobytes()
    for apart, copies in ((set(), 2), ({(1, 0)}, 3)):
        virtual_gpus.engine.apart = apart
        virtual_gpus.engine.copied.clear()
        virtual_gpus.calls.clear()
        y = several @ on_first_gpu(virtual_gpus, x)
        by_driver = driver_copies(virtual_gpus)
        assert len(virtual_gpus.engine.copied) + len(by_driver) == copies
        assert bits(virtual_gpus, y) == expected


def on_first_gpu(virtual, values):
    from helpers.virtual_gpus import Array  # which imports the simulator

    return Array(virtual, values)


@pytest.mark.gpu
@pytest.mark.parametrize("split", ["rows", "columns"])
def test_a_graph_on_two_gpus_has_no_copies(split):
    """Of a real driver: every node that copies is one that a kernel could not be."""
    if backend.backend() != "cuda":
        pytest.skip("needs an NVIDIA GPU")
    from cuda.bindings import driver
    from numba import cuda

    from gemv.driver import devices
    from gemv.driver.libcuda import check

    engine = backend.engine()
    if devices.count() < 2:
        pytest.skip("needs two GPUs")
    try:
        for pair in ((0, 1), (1, 0)):
            engine.reach("test", *pair)
    except ValueError:
        pytest.skip("needs two GPUs that reach each other's memory")
    a, x = numbers((4100, 4099)), numbers(4099, 1)
    several = gemv.Matrix(a, devices=[0, 1], split=split, reproducible=False)
    expected = several.matvec(x).tobytes()
    plan = several.plan(cuda.to_device(x), cuda.device_array(4100, np.float32))
    many = 100  # more than there are
    nodes = [node for node in check(driver.cuGraphGetNodes(plan._graph._graph, many)) if int(node)]
    kinds = [check(driver.cuGraphNodeGetType(node)) for node in nodes]
    assert 2 <= len(kinds) < many
    assert driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMCPY not in kinds
    for _ in range(3):
        assert plan().copy_to_host().tobytes() == expected
