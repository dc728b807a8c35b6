"""Small kernels for what threads of a warp, a block, a cluster or a grid do together."""

from __future__ import annotations

import numpy as np

from gemv.kernels.staging import COPIES
from helpers.words.registry import ALL, CLUSTER, OUT, PLACES, THREADS, small


@small(
    "butterfly scatter_sums sums_of_lane put_pieces put_units element_of_arrays", accumulates=ALL
)
def lanes(spec, W):
    from gemv.language import (
        butterfly,
        cuda,
        load_vectors,
        multiply_add,
        natural,
        put_pieces,
        put_units,
        scatter_sums,
        store_vectors,
        sums_of_lane,
        zeros,
    )

    number, zero, PITCH = spec.number, spec.zero, 2 * THREADS

    def made(a, y):
        shared = cuda.shared.array((2, PITCH), number, alignment=16)
        tid = natural(cuda.threadIdx.x)
        place = natural(cuda.blockIdx.x) * THREADS + tid
        at = place * OUT
        one = load_vectors(a, 0, 1, 1, 1)
        values = multiply_add(zeros(zero, 4), load_vectors(a, place * 4, 1, 4, 1), one, 0)
        store_vectors(y, at, 1, butterfly(values, 32, 1), 1)
        store_vectors(y, at + 4, 1, butterfly(values, 16, 4), 1)
        store_vectors(y, at + 8, 1, scatter_sums(values, tid, 1, 32, 1), 1)
        store_vectors(y, at + 12, 1, scatter_sums(values, tid, 2, 8, 2), 1)
        store_vectors(y, at + 16, 1, sums_of_lane(values, (tid * 5 + 3) % 32), 1)
        # two pieces of two numbers, THREADS apart
        if tid % 2 == 0:
            put_pieces(shared, 0, tid, values, THREADS, 2)
        else:
            put_units(shared, 1, tid - 1, values, THREADS, 2)
        cuda.syncthreads()
        other = (tid * 7 + 1) % THREADS
        y[at + 20] = shared[0, other]
        y[at + 21] = shared[1, THREADS + other]

    return made


@small("of_warp")
def votes(spec, W):
    from gemv.language import cuda, natural, of_warp, store

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        if of_warp(place // 32 % 3 == 1):
            store(y, place * OUT, a[place])
        elif of_warp(place // 32 % 3 == 2):
            store(y, place * OUT, a[place + 1000])

    return made


@small("any_of_warp")
def votes_of_any(spec, W):
    """In some warps one lane has a condition that is true, in some none has."""
    from gemv.language import any_of_warp, cuda, natural, store

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        if any_of_warp(place % 77 == 5):
            store(y, place * OUT, a[place])
        else:
            store(y, place * OUT, a[place + 1000])

    return made


@small("post take", accumulates=ALL, scratch=2 * PLACES)
def posts(spec, W):
    """Each thread takes what two others of its warp have posted; then only one of two."""
    from gemv.language import (
        cuda,
        load_vectors,
        multiply_add,
        natural,
        post,
        store_vectors,
        take,
        zeros,
    )

    zero = spec.zero

    def made(a, y, scratch):
        tid = natural(cuda.threadIdx.x)
        place = natural(cuda.blockIdx.x) * THREADS + tid
        one = load_vectors(a, 0, 1, 1, 1)
        values = multiply_add(zeros(zero, 2), load_vectors(a, place * 2, 1, 2, 1), one, 0)
        post(scratch, place, values[0])
        post(scratch, PLACES + place, values[1])
        other = place // 32 * 32 + (place * 5 + 3) % 32
        valid = 2 - place % 2
        found = take(zero, scratch, other, PLACES, 2, valid)
        store_vectors(y, place * OUT, 1, found, 1)
        rest = take(zero, scratch, PLACES + other, 1, 1, 2 - valid)
        store_vectors(y, place * OUT + 2, 1, rest, 1)

    return made


@small("post take_rows", accumulates=ALL, scratch=4 * PLACES)
def posts_of_rows(spec, W):
    """Each thread takes two rows of two sums that another one of its warp has posted, or fewer."""
    from gemv.language import (
        cuda,
        load_vectors,
        multiply_add,
        natural,
        post,
        store_vectors,
        take,
        take_rows,
        zeros,
    )

    zero = spec.zero

    def made(a, y, scratch):
        tid = natural(cuda.threadIdx.x)
        place = natural(cuda.blockIdx.x) * THREADS + tid
        one = load_vectors(a, 0, 1, 1, 1)
        values = multiply_add(zeros(zero, 4), load_vectors(a, place * 4, 1, 4, 1), one, 0)
        for k in range(4):
            post(scratch, k * PLACES + place, values[k])
        other = place // 32 * 32 + (place * 5 + 3) % 32
        valid = 2 - place % 2
        present = 2 - place // 2 % 2
        found = take_rows(zero, scratch, other, PLACES, 2, valid, 2 * PLACES, 2, present)
        store_vectors(y, place * OUT, 1, found, 1)
        for k in range(4):  # what was not to be taken is still there
            if k % 2 >= valid or k // 2 >= present:
                rest = take(zero, scratch, k * PLACES + other, 1, 1, 1)
                store_vectors(y, place * OUT + 4 + k, 1, rest, 1)

    return made


@small("atomic_add", "sdcz")
def atomics(spec, W):
    """One thread for each place, so that there is one order of sums."""
    from gemv.language import atomic_add, cuda, natural

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        atomic_add(y, place * OUT + place % OUT, a[place])

    return made


@small("atomic_inc", "sd", counters=1)
def tickets(spec, W):
    """Each number is drawn once, by whichever thread; the last one clears the counter."""
    from gemv.language import atomic_inc, cuda, natural

    number = spec.number

    def made(y, counters):
        drawn = natural(atomic_inc(counters, 0, PLACES - 1))
        y[drawn * OUT + cuda.gridDim.y] = number(drawn)

    return made


@small("peek", "sd", counters=PLACES)
def peeks(spec, W):
    """Each thread looks at a counter of its own, where it draws a number, or all there are."""
    from gemv.language import atomic_inc, cuda, natural, peek

    number = spec.number

    def made(y, counters):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        limit = np.uint32(place % 3)
        for drawn in range(limit + 1):
            atomic_inc(counters, place, limit)
            y[place * OUT + drawn] = number(peek(counters, place) + 1)

    return made


@small("copy_async copy_one copies_commit copies_wait staged_tile staged_some", capability=COPIES)
def stages(spec, W):
    from gemv.language import (
        copies_commit,
        copies_wait,
        copy_async,
        copy_one,
        cuda,
        moved,
        natural,
        staged_some,
        staged_tile,
        store_vectors,
    )

    HALF, BYTES = THREADS * W, 3 * THREADS * 16

    def made(a, y):
        stage = cuda.shared.array(BYTES, np.uint8, alignment=16)
        tid = natural(cuda.threadIdx.x)
        place = natural(cuda.blockIdx.x) * THREADS + tid
        at = place * OUT
        # First, because they take as long as the others need to arrive.
        for k in range(W):
            copy_one(stage, 2 * HALF + tid * W + k, moved(a, 5), place * W + k)
        copy_async(stage, tid * W, a, place * W)
        copies_commit()
        copy_async(stage, HALF + tid * W, a, (place * 3 + 1) * W)
        copies_commit()
        copies_wait(1)
        store_vectors(y, at, 1, staged_tile(stage, a, (tid * W,), 0, W, 1, W), 1)
        copies_wait(0)
        cuda.syncthreads()
        other = (tid * 7 + 1) % THREADS * W
        some = staged_some(stage, a, (other,), HALF, HALF, 2, W, place % 4 - 1)
        store_vectors(y, at + W, 1, some, 1)
        one = staged_tile(stage, a, (other,), HALF + tid % W, HALF, 2, 1)
        store_vectors(y, at + 3 * W, 1, one, 1)

    return made


@small("copy_or_zeros", capability=COPIES)
def some_copies(spec, W):
    """A third of the threads copies zeros, from places far behind A."""
    from gemv.language import (
        copies_commit,
        copies_wait,
        copy_or_zeros,
        cuda,
        natural,
        staged_tile,
        store_vectors,
    )

    BYTES = THREADS * 16

    def made(a, y):
        stage = cuda.shared.array(BYTES, np.uint8, alignment=16)
        tid = natural(cuda.threadIdx.x)
        place = natural(cuda.blockIdx.x) * THREADS + tid
        present = place % 3 != 1
        copy_or_zeros(stage, tid * W, a, place * W if present else 1 << 30, present)
        copies_commit()
        copies_wait(0)
        store_vectors(y, place * OUT, 1, staged_tile(stage, a, (tid * W,), 0, W, 1, W), 1)

    return made


@small("prefetch", capability=(9, 0))
def fetched(spec, W):
    """Numbers are what they are, whether they come from memory or from the L2 cache."""
    from gemv.language import cuda, load_vectors, natural, prefetch, store_vectors

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        prefetch(a, place * W, 16)
        store_vectors(y, place * OUT, 1, load_vectors(a, place * W, W, 1, W), 1)

    return made


@small(
    "cluster_rank cluster_arrive cluster_wait cluster_expect cluster_post cluster_take",
    accumulates=ALL, cluster=CLUSTER, capability=(9, 0),
)  # fmt: skip
def clusters(spec, W):
    """Both blocks send sums of 61 rows: half of them to the block itself, half to the other."""
    from gemv.language import (
        cluster_arrive,
        cluster_expect,
        cluster_post,
        cluster_rank,
        cluster_take,
        cluster_wait,
        cuda,
        load_vectors,
        multiply_add,
        natural,
        zeros,
    )

    number, zero = spec.number, spec.zero
    EACH = THREADS // CLUSTER
    LIMIT = THREADS - 3

    def made(a, y):
        sums = cuda.shared.array((EACH, CLUSTER), number)
        box = cuda.shared.array(1, np.uint64)
        tid = natural(cuda.threadIdx.x)
        rank = cluster_rank()
        if tid == 0:
            cluster_expect(box, sums, (min(LIMIT, (rank + 1) * EACH) - rank * EACH) * CLUSTER)
        cluster_arrive()
        place = natural(cuda.blockIdx.x) * THREADS + tid
        one = load_vectors(a, 0, 1, 1, 1)
        first = (place + rank * PLACES) * 2
        values = multiply_add(zeros(zero, 2), load_vectors(a, first, 1, 2, 1), one, 0)
        cluster_wait()
        if tid % 2 == 0:  # two rows, which are neighbours
            cluster_post(box, sums, rank, tid, values, 1, 1, EACH, LIMIT)
        cluster_take(box)
        row = rank * EACH + tid
        if tid < EACH and row < LIMIT:
            at = (natural(cuda.blockIdx.x) * THREADS + row) * OUT
            y[at] = sums[tid, 0]
            y[at + 1] = sums[tid, 1]

    return made
