"""Stores to shared memory that other threads see as late as they may."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

from gemv.engines import backend

if backend.backend() != "simulator":
    pytest.skip("only the simulator says when a store is seen", allow_module_level=True)

from gemv.language import any_of_warp, copies_commit, copies_wait, copy_async, copy_one, staged_tile
from gemv.language.simulator.atomics import atomic_add, threadfence, threadfence_block
from gemv.language.simulator.memory import pointer_to
from gemv.language.simulator.scheduler import Schedule, launch
from gemv.language.simulator.thread import SimulatorError

ORDERS = [Schedule(order, late=True) for order in ("forward", "reversed", "random")]
EVERY = pytest.mark.parametrize("schedule", ORDERS, ids=lambda each: each.order)
LATE = ORDERS[0]
DTYPES = ["u1", "f2", "f4", "f8", "c8", "c16"]


def run(kernel, *arguments, threads=64, dtype="f8", schedule=LATE, shared=0):
    """What each thread stores in its place of `out`."""
    out = np.zeros(threads, dtype)
    launch(kernel, 1, threads, [pointer_to(out), *arguments], schedule, shared)
    return out


def exchange(between, dtype="f8", apart=1, own=False):
    """Threads store their number plus 1, and then read what another one has stored."""

    def kernel(out):
        kept = cuda.shared.array(64, np.dtype(dtype))
        t = cuda.threadIdx.x
        kept[t] = 7
        cuda.syncthreads()
        kept[t] = t + 1
        between()
        out[t] = kept[t if own else t ^ apart]

    return kernel


NOTHING = {
    "nothing": lambda: None,
    "a shuffle": lambda: cuda.shfl_xor_sync(0xFFFFFFFF, 1, 1),
    "a vote of numba's": lambda: cuda.any_sync(0xFFFFFFFF, True),
    "a vote": lambda: any_of_warp(True),
}


@EVERY
@pytest.mark.parametrize("between", NOTHING.values(), ids=NOTHING)
def test_others_see_what_was_there_before(between, schedule):
    assert (run(exchange(between), schedule=schedule) == 7).all()


@EVERY
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_thread_sees_its_own_stores(dtype, schedule):
    found = run(exchange(lambda: None, dtype, own=True), dtype=dtype, schedule=schedule)
    assert (found == np.arange(1, 65)).all()


@EVERY
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name, apart", [("syncwarp", 1), ("syncthreads", 1), ("syncthreads", 32)])
def test_barriers_show_them(name, apart, dtype, schedule):
    found = run(exchange(getattr(cuda, name), dtype, apart), dtype=dtype, schedule=schedule)
    assert (found == (np.arange(64) ^ apart) + 1).all()


@EVERY
def test_syncwarp_shows_them_to_its_warp_alone(schedule):
    assert (run(exchange(cuda.syncwarp, apart=32), schedule=schedule) == 7).all()


def test_syncwarp_shows_what_its_lanes_have_stored():
    """Lanes 0 and 1 come to one, the others to none."""

    def kernel(out):
        kept = cuda.shared.array(32, np.float64)
        t = cuda.threadIdx.x
        kept[t] = t + 1
        if t < 2:
            cuda.syncwarp(3)
        cuda.shfl_xor_sync(0xFFFFFFFF, 1, 1)
        out[t] = kept[t ^ 1]

    found = run(kernel, threads=32)
    assert found[:2].tolist() == [2, 1] and np.isnan(found[2:]).all()


@pytest.mark.parametrize("fence", [threadfence, threadfence_block])
def test_a_fence_shows_what_its_thread_has_stored(fence):
    def kernel(out):
        kept = cuda.shared.array(2, np.float64)
        t = cuda.threadIdx.x
        kept[t] = t + 1
        cuda.shfl_xor_sync(3, 1, 1)  # both have stored
        if t == 0:
            fence()
        cuda.shfl_xor_sync(3, 1, 1)
        out[t] = kept[1 - t]

    found = run(kernel, threads=2)
    assert np.isnan(found[0]) and found[1] == 1


def test_a_row_is_a_view_and_is_stored_as_one():
    def kernel(out):
        kept = cuda.shared.array((64, 2), np.float32)
        t = cuda.threadIdx.x
        kept[t] = t + 1
        out[t] = kept[t][1] + kept[t ^ 1][0]
        cuda.syncthreads()
        out[t] = kept[t ^ 1][0] if out[t] != out[t] else -1

    assert (run(kernel) == (np.arange(64) ^ 1) + 1).all()


def test_all_see_an_atomic_operation_at_once():
    def kernel(out):
        count = cuda.shared.array(1, np.int32)
        t = cuda.threadIdx.x
        if t == 0:
            count[0] = 0
        cuda.syncthreads()
        atomic_add(count, 0, 1)
        cuda.shfl_xor_sync(0xFFFFFFFF, 1, 1)
        out[t] = count[0]

    assert (run(kernel, threads=32) == 32).all()


@EVERY
def test_bytes_of_one_memory_have_numbers_of_two_sizes(schedule):
    """Two threads store halves of a number, which is seen by each as far as it has stored it."""

    def kernel(out):
        whole = cuda.shared.array(0, np.uint32)
        halves = cuda.shared.array(0, np.uint16)
        t = cuda.threadIdx.x
        if t == 0:
            whole[0] = 0x11111111
        cuda.syncthreads()
        halves[t] = 0x2222 * (t + 1)
        cuda.shfl_xor_sync(3, 1, 1)
        out[t] = whole[0]
        cuda.syncthreads()
        out[t] = int(out[t]) + (int(whole[0]) << 32)

    found = run(kernel, threads=2, dtype="u8", schedule=schedule, shared=8)
    assert [hex(each) for each in found] == ["0x4444222211112222", "0x4444222244441111"]


@EVERY
def test_a_whole_number_on_a_part_of_it(schedule):
    def kernel(out):
        whole = cuda.shared.array(0, np.uint32)
        halves = cuda.shared.array(0, np.uint16)
        t = cuda.threadIdx.x
        if t == 0:
            whole[0] = 0x11111111
        cuda.syncthreads()
        if t == 0:
            halves[1] = 0x2222
            whole[0] = 0x33333333
        cuda.shfl_xor_sync(3, 1, 1)
        out[t] = whole[0]

    found = run(kernel, threads=2, dtype="u8", schedule=schedule, shared=8)
    assert [hex(each) for each in found] == ["0x33333333", "0x11111111"]


@EVERY
@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("one", [False, True])
def test_other_lanes_see_a_copy_behind_syncwarp(one, synced, schedule):
    """The thread that has waited for it sees it at once."""

    def kernel(out, x):
        stage = cuda.shared.array(32 * 16, np.uint8, alignment=16)
        t = cuda.threadIdx.x
        if one:
            copy_one(stage, 4 * t, x, 4 * t)
        else:
            copy_async(stage, 4 * t, x, 4 * t)
            copies_commit()
            copies_wait(0)
        own = staged_tile(stage, x, (4 * t,), 0, 0, 1, 1)[0]
        if synced:
            cuda.syncwarp()
        cuda.shfl_xor_sync(0xFFFFFFFF, 1, 1)
        out[t] = staged_tile(stage, x, (4 * (t ^ 1),), 0, 0, 1, 1)[0] - own + 4 * t + 1

    memory = np.zeros(32 * 4 + 4, "f4")
    first = -memory.__array_interface__["data"][0] % 16 // 4
    x = memory[first : first + 128]
    x[:] = np.arange(1, 129)
    found = run(kernel, pointer_to(x), threads=32, dtype="f4", schedule=schedule)
    right = 4 * (np.arange(32) ^ 1) + 1
    if synced:
        assert (found == right).all()
    else:  # bytes that nobody has stored in are no number, or a tiny one
        assert not (abs(found - right) < 1).any()


def test_a_copy_spoils_its_place_for_all():
    """Even if others have not seen what was stored there last."""

    def kernel(out, x):
        stage = cuda.shared.array(16, np.uint8, alignment=16)
        t = cuda.threadIdx.x
        if t == 0:
            copy_one(stage, 0, x, 1)
            copy_async(stage, 0, x, 0)
        cuda.shfl_xor_sync(3, 1, 1)
        out[t] = staged_tile(stage, x, (0,), 0, 0, 1, 1)[0]

    memory = np.ones(8, "f4")
    first = -memory.__array_interface__["data"][0] % 16 // 4
    x = pointer_to(memory[first : first + 4])
    assert np.isnan(run(kernel, x, threads=2, dtype="f4")).all()


def test_stores_are_seen_at_once_where_nothing_else_is_asked_for():
    found = run(exchange(lambda: any_of_warp(True)), schedule=Schedule())
    assert (found == (np.arange(64) ^ 1) + 1).all()


def test_indices_are_checked_all_the_same():
    def kernel(out):
        kept = cuda.shared.array(4, np.float32)
        kept[cuda.threadIdx.x + 1] = 1

    with pytest.raises(SimulatorError, match="index 4 out of range"):
        run(kernel, threads=4)
