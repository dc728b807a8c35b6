"""The simulator runs right kernels right under every schedule, and finds planted faults.

The faulty kernels here each lack one thing that a correct twin has. A simulator that lets one of
them pass would let the same fault pass in a kernel of the package.
"""

import gc
import os
import sys
import threading
import time

import numpy as np
import pytest
from helpers import processes
from numba import config, types

if not config.ENABLE_CUDASIM:
    pytest.skip("needs NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from numba import cuda

from gemv.language.simulator.atomics import atomic_add, atomic_inc, threadfence
from gemv.language.simulator.memory import Pointer, pointer_to, vector_load, vector_store
from gemv.language.simulator.pointers import moved
from gemv.language.simulator.scheduler import Schedule, launch, scheduled
from gemv.language.simulator.thread import SimulatorError
from gemv.language.simulator.vectors import put_units

FULL = 0xFFFFFFFF
SCHEDULES = [Schedule("forward"), Schedule("reversed")]
SCHEDULES += [Schedule("random", seed) for seed in range(10)]
EVERY = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.order}-{s.seed}")


def run(kernel, size, *args, grid=1, block=32, dtype=np.float64, schedule=None, shared=0):
    """Launch ``kernel(out, *args)`` and return `out`, which starts as zeros."""
    out = np.zeros(size, dtype)
    launch(kernel, grid, block, (pointer_to(out, name="out"), *args), schedule, shared)
    return out


# --- pointers -------------------------------------------------------------------------------------


def test_pointer_reads_and_writes_relative_to_its_origin():
    flat = np.arange(6, dtype=np.float32)
    p = Pointer(flat, origin=2)
    assert p[-2] == 0 and p[np.int64(3)] == 5 and p[np.uint32(1)] == 3
    assert type(p[0]) is np.float32
    p[-1] = 10
    assert flat[1] == 10


@pytest.mark.parametrize("i", [17, -4, np.int32(17)])
def test_pointer_out_of_range(i):
    p = Pointer(np.zeros(20), origin=3, name="y")
    with pytest.raises(SimulatorError, match=rf"read out of range: y\[{i}\], valid -3 \.\. 16"):
        p[i]
    with pytest.raises(SimulatorError, match=r"write out of range"):
        p[i] = 1


def test_pointer_read_only():
    for p in (Pointer(np.zeros(2), writable=False), Pointer(np.broadcast_to(0.0, 1))):
        with pytest.raises(SimulatorError, match="read-only"):
            p[0] = 1


def test_pointer_needs_a_flat_array_and_whole_indices():
    with pytest.raises(ValueError, match="one-dimensional"):
        Pointer(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="contiguous"):
        Pointer(np.zeros(6)[::2])
    with pytest.raises(TypeError):
        Pointer(np.zeros(2))[0.0]


BASE = np.arange(60.0).reshape(5, 12)


@pytest.mark.parametrize(
    "view",
    [
        BASE,
        BASE.T,
        BASE[::-1],
        BASE[1:4, 10:2:-3],
        BASE[::-2, ::-1],
        BASE[:, 3],
        BASE[2:3, 2:3],
        BASE[1, 2, ...],
        np.broadcast_to(BASE[:, 1:2], (5, 4)),
        np.broadcast_to(BASE[::-1, 1], (3, 5)),
    ],
    ids=range(10),
)
def test_pointer_to_covers_exactly_the_view(view):
    view = np.asarray(view)
    p = pointer_to(view)
    assert np.shares_memory(p.flat, BASE)
    strides = [stride // view.itemsize for stride in view.strides]
    touched = [np.dot(at, strides).astype(int) for at in np.ndindex(view.shape)] or [0]
    for at, i in zip(np.ndindex(view.shape), touched, strict=True):
        assert p[i] == view[at]
    for beyond in (min(touched) - 1, max(touched) + 1):
        with pytest.raises(SimulatorError, match="out of range"):
            p[beyond]
    assert p.writable == view.flags.writeable
    assert not pointer_to(view, writable=False).writable


def test_pointer_to_with_an_offset():
    x = np.arange(5.0)
    p = pointer_to(x[::-1], offset=-4, name="x")
    assert p[0] == 0 and p[4] == 4
    assert pointer_to(x, 2)[-2] == 0


def test_pointer_to_odd_arrays():
    with pytest.raises(ValueError, match="strides"):
        pointer_to(np.zeros(4, "f4,f8")["f1"])
    with pytest.raises(SimulatorError, match="empty"):
        pointer_to(np.zeros((0, 3)))[0]


# --- what kernels call ----------------------------------------------------------------------------


def test_indices():
    def kernel(out):
        t = cuda.threadIdx.x + cuda.blockDim.x * (
            cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z
        )
        b = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
        assert cuda.laneid == t % 32 and cuda.warpsize == 32
        assert cuda.lanemask_lt() == (1 << t % 32) - 1
        x, y, z = cuda.grid(3)
        nx, ny, nz = cuda.gridsize(3)
        assert cuda.grid(1) == x and cuda.gridsize(2) == (nx, ny)
        out[b * 70 + t] += x + nx * (y + ny * z) + 1

    for schedule in SCHEDULES[:3]:
        out = run(kernel, 70 * 6, grid=(3, 1, 2), block=(7, 5, 2), schedule=schedule)
        assert sorted(out) == list(range(1, 421))


def test_values_keep_the_type_of_the_pointer():
    def kernel(out, x):
        value = x[0] * x[1]
        assert type(value) is np.float32
        out[0] = value

    x = np.float32([1 / 3, 1e30])
    assert run(kernel, 1, pointer_to(x), block=1, dtype=np.float32)[0] == x[0] * x[1]


def test_floating_point_exceptions_are_silent():
    def kernel(out, x):
        cuda.syncthreads()
        out[0] = x[0] / np.float64(0)
        out[1] = x[1] * np.float64(1e300)

    with np.errstate(all="raise"):
        out = run(kernel, 2, pointer_to(np.float64([0, 1e300])), block=1)
    assert np.isnan(out[0]) and np.isinf(out[1])


@EVERY
def test_shuffles(schedule):
    def kernel(out, x):
        lane = cuda.laneid
        v = x[lane]
        out[lane] = cuda.shfl_sync(FULL, v, 5)
        out[32 + lane] = cuda.shfl_up_sync(FULL, v, 3)
        out[64 + lane] = cuda.shfl_down_sync(FULL, v, 3)
        out[96 + lane] = cuda.shfl_xor_sync(-1, v, 9)
        out[128 + lane] = cuda.shfl_sync(FULL, v, lane + 33)

    lanes = np.arange(32)
    x = np.random.default_rng(0).standard_normal(32).astype(np.float32)
    out = run(kernel, 160, pointer_to(x), dtype=np.float32, schedule=schedule).reshape(5, 32)
    up = np.where(lanes < 3, lanes, lanes - 3)
    down = np.where(lanes > 28, lanes, (lanes + 3) % 32)
    np.testing.assert_array_equal(out[0], x[5])
    np.testing.assert_array_equal(out[1:], x[[up, down, lanes ^ 9, (lanes + 1) % 32]])


@EVERY
def test_votes(schedule):
    def kernel(out):
        lane = cuda.laneid
        got = (
            cuda.all_sync(FULL, lane >= 0) and not cuda.all_sync(FULL, lane),
            cuda.any_sync(FULL, lane == 7) and not cuda.any_sync(FULL, 0),
            cuda.eq_sync(FULL, lane < 40) and not cuda.eq_sync(FULL, lane < 4),
            cuda.ballot_sync(FULL, lane in (0, 4)) == 17,
            cuda.ballot_sync(FULL, True) == -1,
            cuda.match_any_sync(FULL, lane % 16) == np.int32(np.uint32(0x10001 << lane % 16)),
            cuda.activemask() >> lane & 1,
        )
        out[lane] = all(got)

    assert run(kernel, 32, schedule=schedule).all()


@EVERY
def test_a_part_of_a_warp_may_shuffle_on_its_own(schedule):
    def exact(out):
        lane = cuda.laneid
        if lane in (4, 5):
            out[lane] = cuda.shfl_xor_sync(0x30, lane, 1)
        cuda.syncwarp(0x3F)

    def too_far(out):
        if cuda.laneid < 4:
            cuda.shfl_down_sync(0xF, 1.0, 1)

    assert list(run(exact, 6, block=6, schedule=schedule)) == [0, 0, 0, 0, 5, 4]
    with pytest.raises(SimulatorError, match="lane 3 reads lane 4, not in the mask"):
        run(too_far, 6, block=6, schedule=schedule)


@EVERY
def test_sums_of_a_warp_are_those_of_its_shuffles(schedule):
    from gemv.language import butterfly, scatter_sums

    def kernel(out, shuffled):
        tid = cuda.threadIdx.x
        values = (1.5 + tid, 0.1 * tid, -1e9 * tid, 7.0)
        out[tid] = butterfly(values, 32, 4)[1]
        out[64 + tid] = scatter_sums(values, tid, 1, 32, 1)[0]
        total, step = values[1], 16
        while step >= 4:
            total += cuda.shfl_xor_sync(FULL, total, step)
            step //= 2
        shuffled[tid] = total

    shuffled = np.zeros(64)
    out = run(kernel, 128, pointer_to(shuffled), block=64, schedule=schedule)
    assert np.array_equal(out[:64], shuffled)
    for warp in (0, 32):
        lanes = range(warp, warp + 32)
        sums = [sum(1.5 + t for t in lanes), 0.1 * sum(lanes), -1e9 * sum(lanes), 224.0]
        scattered = {round(float(each), 6) for each in out[64 + warp : 96 + warp]}
        assert scattered == {round(each, 6) for each in sums}


@EVERY
def test_lanes_that_add_up_different_numbers_of_sums_are_refused(schedule):
    from gemv.language import butterfly

    def kernel(out):
        butterfly((1.0,) * (1 + (cuda.laneid == 3)), 32, 1)

    def lacking(out):
        if cuda.laneid != 3:
            butterfly((1.0,), 32, 1)

    with pytest.raises(SimulatorError, match="lanes exchange 1 and 2 values"):
        run(kernel, 1, schedule=schedule)
    with pytest.raises(SimulatorError, match="butterfly at .*test_simulator.* missing lanes: 3"):
        run(lacking, 1, schedule=schedule)


@EVERY
def test_block_votes(schedule):
    def kernel(out):
        t = cuda.threadIdx.x
        out[t] = (
            cuda.syncthreads_count(t % 3 == 0) == 24
            and cuda.syncthreads_and(t < 70) == 1
            and cuda.syncthreads_and(t) == 0
            and cuda.syncthreads_or(t == 69) == 1
            and cuda.syncthreads_or(0) == 0
        )

    assert run(kernel, 70, block=70, schedule=schedule).all()


@EVERY
def test_atomics(schedule):
    def kernel(out, ticket, seen):
        shared = cuda.shared.array(1, np.float64)
        if cuda.threadIdx.x == 0:
            shared[0] = 0
        cuda.syncthreads()
        atomic_add(shared, 0, 1)
        seen[atomic_inc(ticket, 0, 65)] += 1
        cuda.atomic.add(out, 0, 1.0)
        cuda.atomic.sub(out, 1, 1.0)
        cuda.atomic.max(out, 2, cuda.grid(1))
        cuda.atomic.min(out, 3, -cuda.grid(1))
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(out, 4, shared[0])

    ticket, seen = np.zeros(1, np.uint32), np.zeros(66, np.uint32)
    args = pointer_to(ticket), pointer_to(seen)
    out = run(kernel, 5, *args, grid=3, block=22, schedule=schedule)
    assert list(out) == [66, -66, 65, -65, 66]
    # 66 threads take tickets 0 .. 65 and the last one winds the counter back.
    assert ticket[0] == 0 and (seen == 1).all()


def test_integer_atomics_and_complex_ones():
    def kernel(out, z):
        out[1] = cuda.atomic.cas(out, 0, 0, 12)
        out[2] = cuda.atomic.cas(out, 0, 0, 99)
        out[3] = cuda.atomic.exch(out, 0, 13)
        cuda.atomic.and_(out, 0, 7)
        cuda.atomic.or_(out, 0, 8)
        cuda.atomic.xor(out, 0, 1)
        out[4] = cuda.atomic.inc(out, 0, 12)
        atomic_add(z, 0, 1 + 2j)

    z = np.zeros(1, np.complex64)
    out = run(kernel, 5, pointer_to(z), block=1, dtype=np.uint32)
    assert list(out) == [0, 0, 12, 12, 12] and z[0] == 1 + 2j
    with pytest.raises(SimulatorError, match="TypeError"):
        launch(lambda z: cuda.atomic.add(z, 0, 1j), 1, 1, (pointer_to(z),))


def test_arithmetic():
    def kernel(out):
        assert [cuda.popc(v) for v in (0, 255, -1, np.uint64(2**63))] == [0, 8, 32, 1]
        assert [cuda.clz(v) for v in (0, 1, np.int64(1), -1)] == [32, 31, 63, 0]
        assert [cuda.ffs(v) for v in (0, 1, 12)] == [0, 1, 3]
        assert cuda.selp(True, 1, 2) == 1 and cuda.selp(0, 1, 2) == 2
        a = np.float32(1 + 2**-12)
        # 1 + 2**-11 + 2**-24, less 1: a separate product would lose the last term.
        assert cuda.fma(a, a, np.float32(-1)) == np.float32(2**-11 + 2**-24)
        assert cuda.fma(2.0, 3.0, 4.0) == 10.0
        out[0] = 1

    assert run(kernel, 1, block=1)[0] == 1


def test_arrays_of_a_kernel():
    def kernel(out):
        t = cuda.threadIdx.x
        a, b = cuda.shared.array(2, np.float32), cuda.shared.array(2, types.float32)
        m = cuda.shared.array((2, 3), np.complex64)
        k = cuda.local.array(2, np.int32)
        out[3 * t] = np.isnan(a[t]) and np.isnan(m[1, 2]) and k[0] == k[1] != 0
        a[t], k[t], m[t, 2] = t + 10, t, t + 20
        k[t] += 5
        cuda.syncthreads()
        out[3 * t + 1] = a[1 - t] == 11 - t and np.isnan(b[t]) and m[1 - t, 2] == 21 - t
        out[3 * t + 2] = m[1 - t][2] == 21 - t and k[t] == t + 5 and len(m) == 2
        assert type(a[0]) is np.float32 and a.shape == (2,)

    # Two blocks: the second one must find poison again.
    assert run(kernel, 6, grid=2, block=2).all()


@pytest.mark.parametrize("i", [-1, 4, (0, 0, 0), (0, -1), (1, 4), (np.int64(2), 0)])
def test_arrays_of_a_kernel_check_indices(i):
    def read(out):
        cuda.shared.array((2, 4), np.float32)[i]

    def write(out):
        cuda.local.array((2, 4), np.float32)[i] = 0

    for kernel in (read, write):
        with pytest.raises(SimulatorError, match="out of range for an array"):
            run(kernel, 1, block=1)


def test_dynamic_shared_memory_is_one_array_of_the_block_for_all_types():
    """Its bytes begin as NaN in each block, and another one has its own."""

    def kernel(out):
        t = cuda.threadIdx.x
        numbers, raw = cuda.shared.array(0, np.float32), cuda.shared.array(0, np.uint8)
        again = cuda.shared.array(0, np.float64)
        out[3 * t] = len(numbers) == 5 and len(raw) == 20 and len(again) == 2
        out[3 * t + 1] = np.isnan(numbers[t]) and np.isnan(again[t]) and raw[19 - t] == 0xFF
        cuda.syncthreads()
        numbers[4 - t] = 1.5 + t
        cuda.syncthreads()
        out[3 * t + 2] = cuda.shared.array(0, np.float32)[3 + t] == 2.5 - t and raw[18 - 4 * t] > 0

    assert run(kernel, 6, grid=2, block=2, shared=20).all()


@pytest.mark.parametrize("i", [-1, 5])
def test_dynamic_shared_memory_ends_where_the_launch_says(i):
    def kernel(out):
        cuda.shared.array(0, np.float32)[i] = 1

    with pytest.raises(SimulatorError, match="out of range for an array"):
        run(kernel, 1, block=1, shared=20)
    with pytest.raises(SimulatorError, match="out of range for an array"):
        run(kernel, 1, block=1)


@pytest.mark.parametrize("nbytes", [-1, 232_449])
def test_a_block_has_no_more_dynamic_shared_memory_than_a_gpu_gives(nbytes):
    with pytest.raises(ValueError, match=f"{nbytes} bytes of dynamic shared memory: at most 2324"):
        run(lambda out: None, 1, block=1, shared=nbytes)


def test_shared_memory_is_limited():
    def kernel(out):
        cuda.shared.array(3000, np.float64)
        cuda.shared.array(3200, np.float64)

    with pytest.raises(SimulatorError, match="49600 bytes of shared memory"):
        run(kernel, 1, block=1)


def test_vector_load_and_store():
    flat = np.zeros(40, np.float32)
    start = -(flat.ctypes.data // 4) % 4
    flat = flat[start : start + 20]
    flat[:] = np.arange(20)

    def kernel(p, first, count):
        values = vector_load(p, first, count)
        assert type(values) is tuple and type(values[0]) is np.float32
        vector_store(p, first, [2 * v for v in values])

    launch(kernel, 1, 1, (Pointer(flat, 1), 3, 4))
    assert list(flat[3:9]) == [3, 8, 10, 12, 14, 8]
    with pytest.raises(SimulatorError, match=r"misaligned vector read: a\[4\] is 4 bytes past"):
        launch(kernel, 1, 1, (Pointer(flat, 1, name="a"), 4, 4))
    with pytest.raises(SimulatorError, match=r"out of range: pointer\[18\], valid -2 \.\. 15"):
        launch(kernel, 1, 1, (Pointer(flat[:18], 2), 18, 4))
    with pytest.raises(SimulatorError, match=r"out of range: pointer\[19\], valid 0 \.\. 17"):
        launch(kernel, 1, 1, (Pointer(flat[:18]), 16, 4))
    with pytest.raises(SimulatorError, match="read-only"):
        launch(kernel, 1, 1, (Pointer(flat, 0, writable=False), 0, 2))


def test_vectors_are_aligned_by_their_addresses_and_not_by_their_indices():
    flat = np.zeros(40, np.float32)
    start = -(flat.ctypes.data // 4) % 4
    behind = flat[start + 1 : start + 17]
    launch(lambda p: vector_load(p, 3, 4), 1, 1, (Pointer(behind),))
    with pytest.raises(SimulatorError, match="misaligned vector read"):
        launch(lambda p: vector_load(p, 4, 4), 1, 1, (Pointer(behind),))


@pytest.mark.parametrize("column, distance, length", [(2, 4, 16), (4, 6, 16), (4, 8, 18)])
def test_units_of_a_row_begin_at_multiples_of_their_width(column, distance, length):
    """Eight numbers are two pieces of four: where they begin, how far apart, how long a row is."""

    def store(column, distance, length):
        def kernel(out):
            shared = cuda.shared.array((2, length), np.float32)
            put_units(shared, 1, column, tuple(range(8)), distance, 4)
            for k in range(8):
                out[k] = shared[1, column + k // 4 * distance + k % 4]

        return run(kernel, 8, block=1).tolist()

    assert store(4, 8, 16) == list(range(8))
    with pytest.raises(SimulatorError, match="which is no multiple"):
        store(column, distance, length)


def test_a_pointer_is_moved_both_ways_within_its_bounds():
    pointer = moved(moved(Pointer(np.arange(5.0), 1, name="a"), 3), -2)
    assert [pointer[k] for k in (-2, 0, 2)] == [0, 2, 4]
    for index in (-3, 3):
        with pytest.raises(SimulatorError, match=r"valid -2 \.\. 2"):
            pointer[index]


def test_elements_that_are_read_together_lie_inside():
    pointer = Pointer(np.arange(5.0), 1, name="a")
    assert list(pointer.elements(-1, 5)) == [0, 1, 2, 3, 4]
    for first, count in ((-2, 2), (0, 5), (4, 1)):
        with pytest.raises(SimulatorError, match="read out of range"):
            pointer.elements(first, count)


# --- schedules ------------------------------------------------------------------------------------


def recorder(order):
    def kernel():
        order.append((cuda.blockIdx.x, cuda.threadIdx.x))

    return kernel


def test_order_of_threads_and_blocks():
    ascending = [(b, t) for b in range(3) for t in range(4)]
    seen = {}
    for schedule in SCHEDULES:
        order = []
        launch(recorder(order), 3, 4, (), schedule)
        assert sorted(order) == ascending
        seen[schedule] = order
    assert seen[SCHEDULES[0]] == ascending
    assert seen[SCHEDULES[1]] == ascending[::-1]
    assert len({tuple(order) for order in seen.values()}) == len(SCHEDULES)
    # Blocks are interleaved: some block starts before another one has ended.
    assert any([b for b, _ in order] != sorted(b for b, _ in order) for order in seen.values())
    again = []
    launch(recorder(again), 3, 4, (), SCHEDULES[5])
    assert again == seen[SCHEDULES[5]]


def test_scheduled_sets_the_default():
    order = []
    with scheduled(Schedule("reversed")):
        with scheduled(Schedule("forward")):
            pass
        launch(recorder(order), 1, 3, ())
        launch(recorder(order), 1, 3, (), Schedule("forward"))
    launch(recorder(order), 1, 3, ())
    assert [t for _, t in order] == [2, 1, 0, 0, 1, 2, 0, 1, 2]


def test_bad_launches():
    with pytest.raises(ValueError, match="order"):
        Schedule("sideways")
    for grid, block in [(0, 1), (1, 0), (1, 1025), (1, (32, 33)), ((1, 65536), 1), (1, (1,) * 4)]:
        with pytest.raises(ValueError, match="grid|block"):
            launch(lambda: None, grid, block, ())
    with pytest.raises(TypeError, match="pointer_to"):
        launch(lambda x: None, 1, 1, (np.zeros(1),))


# --- planted faults -------------------------------------------------------------------------------


def wrong_somewhere(kernel, expected, *args, **shape):
    """Whether at least one schedule gives another result than `expected`."""
    results = [run(kernel, len(expected), *args, schedule=s, **shape) for s in SCHEDULES]
    return any(not np.array_equal(result, expected) for result in results)


def make_tree(inner_barrier, first_barrier=True):
    def kernel(out, x):
        t = cuda.threadIdx.x
        part = cuda.shared.array(64, np.float64)
        part[t] = x[t]
        if first_barrier:
            cuda.syncthreads()
        step = 32
        while step:
            if t < step:
                part[t] += part[t + step]
            if inner_barrier:
                cuda.syncthreads()
            step //= 2
        if t == 0:
            out[0] = part[0]

    return kernel


@EVERY
def test_tree_reduction(schedule):
    x = np.arange(64.0)
    assert run(make_tree(True), 1, pointer_to(x), block=64, schedule=schedule)[0] == x.sum()


@pytest.mark.parametrize("barriers", [(True, False), (False, True), (False, False)])
def test_tree_reduction_without_a_barrier_is_found(barriers):
    x = np.arange(64.0)
    assert wrong_somewhere(make_tree(*barriers), [x.sum()], pointer_to(x), block=64)


def make_exchange(barrier):
    """Threads swap values through global memory."""

    def kernel(out, scratch):
        t = cuda.threadIdx.x
        scratch[t] = t + 1
        barrier()
        out[t] = scratch[t ^ 1]

    return kernel


@EVERY
@pytest.mark.parametrize("name", ["syncthreads", "syncwarp"])
def test_exchange_through_global_memory(name, schedule):
    kernel = make_exchange(getattr(cuda, name))
    scratch = pointer_to(np.zeros(64))
    out = run(kernel, 64, scratch, block=64, schedule=schedule)
    np.testing.assert_array_equal(out, (np.arange(64) ^ 1) + 1)
    # Stores also reach memory, for the next launch.
    np.testing.assert_array_equal(scratch.flat, np.arange(64) + 1)


@EVERY
def test_exchange_without_a_barrier_reads_old_values(schedule):
    scratch = pointer_to(np.zeros(64))
    out = run(make_exchange(lambda: None), 64, scratch, block=64, schedule=schedule)
    assert not out.any()


@EVERY
def test_syncwarp_is_no_barrier_for_other_warps(schedule):
    def kernel(out, scratch):
        t = cuda.threadIdx.x
        scratch[t] = 1
        cuda.syncwarp()
        out[t] = scratch[t ^ 32]

    assert not run(kernel, 64, pointer_to(np.zeros(64)), block=64, schedule=schedule).any()


def make_last_block(fence, barrier=True):
    """Each block adds up a part; the block that takes the last ticket adds up the parts."""

    def kernel(out, x, parts, ticket):
        t = cuda.threadIdx.x
        last = cuda.shared.array(1, np.int32)
        parts[2 * cuda.blockIdx.x + t] = x[cuda.grid(1)]
        if barrier:
            cuda.syncthreads()
        if t == 0:
            if fence:
                threadfence()
            last[0] = atomic_inc(ticket, 0, cuda.gridDim.x - 1) == cuda.gridDim.x - 1
        cuda.syncthreads()
        if last[0] and t == 0:
            total = 0.0
            for i in range(2 * cuda.gridDim.x):
                total += parts[i]
            out[0] = total

    return kernel


def last_block_args():
    return pointer_to(np.arange(1.0, 11)), pointer_to(np.zeros(10)), pointer_to(np.zeros(1, "u4"))


@EVERY
def test_last_block_reduction(schedule):
    args = last_block_args()
    out = run(make_last_block(True), 1, *args, grid=5, block=2, schedule=schedule)
    assert out[0] == 55 and args[2].flat[0] == 0


@EVERY
def test_last_block_reduction_without_a_fence_is_found(schedule):
    out = run(make_last_block(False), 1, *last_block_args(), grid=5, block=2, schedule=schedule)
    assert out[0] < 55


def test_a_fence_writes_the_newest_store_last():
    def kernel(p):
        p[0] = 1.0
        cuda.syncwarp(1)
        p[0] = 2.0
        cuda.syncthreads()  # what it has shown to others is older than what follows
        p[0] = 3.0
        cuda.threadfence()

    flat = np.zeros(1)
    launch(kernel, 1, 1, (Pointer(flat),))
    assert flat[0] == 3


@EVERY
def test_a_fence_does_not_stand_in_for_a_barrier(schedule):
    # Thread 0 fences its own store; that of thread 1 it has not seen yet.
    args = last_block_args()
    out = run(make_last_block(True, False), 1, *args, grid=5, block=2, schedule=schedule)
    assert out[0] < 55


def test_threadfence_block_shows_stores_to_the_block_only():
    def kernel(out, scratch):
        t = cuda.threadIdx.x
        if cuda.blockIdx.x == 0 and t == 0:
            scratch[0] = 7
            cuda.threadfence_block()
        cuda.syncwarp(3)
        out[2 * cuda.blockIdx.x + t] = scratch[0]

    def other_warp(out, scratch):
        if cuda.threadIdx.x == 0:
            scratch[0] = 7
            cuda.threadfence_block()
            cuda.atomic.add(out, 0, 1)
        elif cuda.threadIdx.x == 40:
            while cuda.atomic.add(out, 0, 0) == 0:
                pass
            out[1] = scratch[0]

    assert list(run(kernel, 4, pointer_to(np.zeros(1)), grid=2, block=2)) == [7, 7, 0, 0]
    assert list(run(other_warp, 2, pointer_to(np.zeros(1)), block=64)) == [1, 7]


@EVERY
def test_an_atomic_carries_along_the_own_store(schedule):
    def kernel(out, scratch):
        b = cuda.blockIdx.x
        scratch[b] = 5
        out[b] = atomic_add(scratch, b, 1) * 10 + scratch[b]

    scratch = np.zeros(4)
    out = run(kernel, 4, pointer_to(scratch), grid=4, block=1, schedule=schedule)
    assert list(out) == [56] * 4 and list(scratch) == [6] * 4


def test_overlapping_pointers_agree():
    def kernel(out, shifted):
        out[3] = 8
        shifted[0] = shifted[1] + 1
        out[0] = out[2]

    out = np.zeros(4)
    launch(kernel, 1, 1, (pointer_to(out), pointer_to(out[2:])))
    assert list(out) == [9, 0, 9, 8]


def test_stores_to_memory_seen_with_another_type_are_refused():
    def kernel(p, q):
        q[1]
        p[0] = 1

    z = np.zeros(2, np.complex64)
    with pytest.raises(SimulatorError, match="another data type"):
        launch(kernel, 1, 1, (pointer_to(z), pointer_to(z.view(np.float32))))
    launch(kernel, 1, 1, (pointer_to(z[:1]), pointer_to(z[1:].view(np.float32))))


@EVERY
def test_divergent_barrier_at_two_lines(schedule):
    def kernel(out):
        if cuda.threadIdx.x < 3:
            cuda.syncthreads()
        else:
            cuda.syncthreads()

    line = kernel.__code__.co_firstlineno
    with pytest.raises(SimulatorError, match="divergent barrier") as caught:
        run(kernel, 1, grid=(1, 1), block=5, schedule=schedule)
    text = str(caught.value)
    assert text.startswith("block (0, 0, 0), thread (0, 0, 0): ")
    assert f"(2, 0, 0): waits in syncthreads at {__file__}:{line + 2}" in text
    assert f"(4, 0, 0): waits in syncthreads at {__file__}:{line + 4}" in text


@EVERY
def test_barrier_that_a_thread_skips(schedule):
    def kernel(out):
        if cuda.threadIdx.x == 4:
            return
        cuda.syncthreads()

    with pytest.raises(SimulatorError, match=r"divergent barrier.*\(4, 0, 0\): returned"):
        run(kernel, 1, block=5, schedule=schedule)


def shuffle_with_mask(mask):
    def kernel(out):
        out[0] = cuda.shfl_xor_sync(mask, 1.0, 1)

    return kernel


@EVERY
def test_wrong_masks(schedule):
    with pytest.raises(SimulatorError, match="wrong mask 0x0000ffff .* lacks lane (1[6-9]|2|3)"):
        run(shuffle_with_mask(0xFFFF), 1, schedule=schedule)
    with pytest.raises(SimulatorError, match="wrong mask 0xffffffff .* has 8 lanes"):
        run(shuffle_with_mask(FULL), 1, block=40, schedule=schedule)


@EVERY
def test_shuffles_that_lanes_miss(schedule):
    def returned(out):
        if cuda.laneid != 3:
            cuda.shfl_down_sync(FULL, 1.0, 1)

    def elsewhere(out):
        if cuda.laneid < 30:
            cuda.syncwarp()
        else:
            cuda.syncthreads()

    with pytest.raises(SimulatorError, match=r"mask 0xffffffff never .* lanes: 3: returned$"):
        run(returned, 1, schedule=schedule)
    with pytest.raises(SimulatorError, match=r"syncwarp .*: 30, 31: waits in syncthreads at"):
        run(elsewhere, 1, schedule=schedule)


@pytest.mark.parametrize("value", [1j, np.complex64(1), np.uint32(1), np.float16(1), True])
def test_shuffles_refuse_what_numba_refuses(value):
    def kernel(out):
        cuda.shfl_sync(FULL, value, 0)

    with pytest.raises(SimulatorError, match="TypeError: .* not ") as caught:
        run(kernel, 1)
    assert isinstance(caught.value.__cause__, TypeError)


@EVERY
def test_exceptions_name_block_and_thread(schedule):
    def kernel(out):
        cuda.syncthreads()
        if cuda.blockIdx.y == 1 and cuda.threadIdx.z == 2:
            raise LookupError("lost")
        cuda.syncthreads()

    with pytest.raises(SimulatorError) as caught:
        run(kernel, 1, grid=(1, 2), block=(1, 1, 4), schedule=schedule)
    assert str(caught.value) == "block (0, 1, 0), thread (0, 0, 2): LookupError: lost"
    assert isinstance(caught.value.__cause__, LookupError)


def test_faults_of_pointers_name_block_and_thread():
    def kernel(out):
        out[5] = 1

    with pytest.raises(SimulatorError, match=r"^block \(0, 0, 0\), thread \(0, 0, 0\): write out"):
        run(kernel, 5, block=1)


def test_all_threads_end_after_a_fault():
    ended = []

    def kernel(out):
        try:
            cuda.syncthreads()
            if cuda.threadIdx.x == 1:
                raise ValueError
            cuda.syncthreads()
        finally:
            ended.append(cuda.threadIdx.x)

    with pytest.raises(SimulatorError):
        run(kernel, 1, block=5)
    assert sorted(ended) == [0, 1, 2, 3, 4]


@EVERY
def test_a_kernel_that_spins_is_stopped(schedule):
    def kernel(out):
        if cuda.threadIdx.x:
            while cuda.atomic.add(out, 0, 0) == 0:
                pass
        cuda.syncthreads()

    limited = Schedule(schedule.order, schedule.seed, max_switches=1000)
    with pytest.raises(SimulatorError, match="spins"):
        run(kernel, 1, block=4, schedule=limited)


@EVERY
def test_a_spin_lock_inside_a_block_ends(schedule):
    def kernel(out):
        while cuda.atomic.cas(out, 0, 0, 1) == 1:
            pass
        out[1] += 1  # plain, so the lock has to be handed over with a fence
        threadfence()
        cuda.atomic.exch(out, 0, 0)

    assert run(kernel, 2, grid=3, block=8, dtype=np.int32, schedule=schedule)[1] == 24


# --- around the kernels ---------------------------------------------------------------------------


def test_two_host_threads_launch_the_same_kernel_at_once():
    kernel, failures = make_tree(True), []

    def work(seed):
        try:
            x = np.random.default_rng(seed).integers(0, 100, 64).astype(float)
            schedule = Schedule("random", seed)
            for _ in range(5):
                assert run(kernel, 1, pointer_to(x), block=64, schedule=schedule)[0] == x.sum()
        except Exception as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures


def test_a_kernel_may_launch_another():
    inner = make_tree(True)

    def kernel(out, x):
        if cuda.threadIdx.x == 1:
            launch(inner, 1, 64, (out, x))
        cuda.syncthreads()
        assert cuda.blockDim.x == 3

    assert run(kernel, 1, pointer_to(np.arange(64.0)), block=3)[0] == 2016


def test_kernel_functions_do_not_work_on_the_host():
    for use in (lambda: cuda.threadIdx.x, cuda.syncthreads, lambda: cuda.grid(1)):
        with pytest.raises(SimulatorError, match="simulated kernel only"):
            use()
    assert not hasattr(cuda, "laneid") and not hasattr(cuda, "no_such_name")


def test_numbas_own_simulator_still_works():
    @cuda.jit
    def kernel(out):
        shared = cuda.shared.array(4, np.float64)
        shared[cuda.threadIdx.x] = cuda.laneid
        cuda.syncthreads()
        out[cuda.grid(1)] = shared[-1]

    out = np.zeros(4)
    kernel[1, 4](out)
    assert list(out) == [3] * 4


def test_needs_the_simulator():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    code = "import gemv.language.simulator.scheduler"
    result = processes.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "RuntimeError: gemv.language.simulator needs" in result.stderr


def test_speed():
    def kernel(out):
        t = cuda.threadIdx.x
        part = cuda.shared.array(256, np.float32)
        for i in range(10):
            part[t] = i
            cuda.syncthreads()
        out[t] = part[t]

    times = []
    gc.collect()
    for _ in range(5):
        start = time.thread_time()  # not that of other processes
        run(kernel, 256, block=256)
        times.append(time.thread_time() - start)
    # About 13 ms on an ordinary machine; the bound is for a slow one.
    assert min(times) < 0.06
