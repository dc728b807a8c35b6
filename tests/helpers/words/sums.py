"""Small kernels for sums in a thread."""

from __future__ import annotations

from helpers.words.registry import ALL, OUT, THREADS, small


@small("kept", "sdcz")
def registers(spec, W):
    from gemv.language import cuda, kept, load_vectors, natural, store_vectors

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        store_vectors(y, place * OUT, 1, kept(load_vectors(a, place, 1, 5, 1)), 1)

    return made


@small("fold fold_pieces pieces_of add_each zeros", accumulates=ALL)
def trees(spec, W):
    from gemv.language import (
        add_each,
        cuda,
        fold,
        fold_pieces,
        load_vectors,
        multiply_add,
        natural,
        pieces_of,
        store_vectors,
        zeros,
    )

    zero = spec.zero

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        at = place * OUT
        one = load_vectors(a, 0, 1, 1, 1)  # numbers of A become sums, which may be wider ones
        values = multiply_add(zeros(zero, 8), load_vectors(a, place, 1, 8, 1), one, 0)
        store_vectors(y, at, 1, fold(values, 2), 1)
        tree = fold_pieces(values, 2)
        store_vectors(y, at + 2, 1, tree, 1)
        store_vectors(y, at + 4, 1, fold_pieces(pieces_of(values, 2, 2, 2), 2), 1)
        store_vectors(y, at + 6, 1, add_each(values, values), 1)
        store_vectors(y, at + 14, 1, zeros(zero, 2), 1)

    return made


@small("sums_from", accumulates=ALL)
def sums_of_the_next_lane(spec, W):
    """The lanes of a warp have one phase, and each vector has another one."""
    from gemv.language import (
        cuda,
        load_vectors,
        multiply_add,
        natural,
        store_vectors,
        stream_around,
        sums_from,
        zeros,
    )

    zero, COUNT, SUMS = spec.zero, 2, 2 * W

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        index = W + place // 32 * (32 * W + 1) + place % 32 * W
        one = load_vectors(a, 0, 1, 1, 1)
        values = stream_around(a, index, 3 * W + 1, COUNT, W, COUNT)
        sums = multiply_add(zeros(zero, SUMS), values, one, 0)
        sums = sums_from(sums, a, index, 3 * W + 1, COUNT, W)
        store_vectors(y, place * OUT, 1, sums, 1)

    return made


@small("multiply_add axpy_add", exact=True, accumulates=ALL)
def products(spec, W):
    from gemv.language import axpy_add, cuda, load_vectors, multiply_add, natural, store_vectors
    from gemv.language import zeros as zeros_

    zero, COMPLEX = spec.zero, int(spec.dtype.kind == "c")

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        at = place * OUT
        tile = load_vectors(a, place, 3, 8, 1)
        x = load_vectors(a, place + 100, 5, 4, 1)
        sums = multiply_add(zeros_(zero, 4), tile, x, 0)
        store_vectors(y, at, 1, multiply_add(sums, tile, x, COMPLEX), 1)
        more = axpy_add(zeros_(zero, 2), tile, x, 2, COMPLEX)
        store_vectors(y, at + 4, 1, axpy_add(more, tile, x, 1, 0), 1)

    return made


@small("times plus_zero", "sdcz", exact=True)
def products_of_two(spec, W):
    from gemv.language import cuda, natural, plus_zero, store, times

    zero = spec.zero

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        product = times(a[place], a[place + 7])
        store(y, place * OUT, product)
        store(y, place * OUT + 1, plus_zero(product))
        # Zeros of both signs, and those without the negative ones
        store(y, place * OUT + 2, times(a[place], zero))
        store(y, place * OUT + 3, plus_zero(times(a[place], zero)))

    return made


@small("put_unit load_units outer_add", exact=True)
def units(spec, W):
    """Factors of two columns, in shared memory, for as many vectors as a unit of 16 bytes has."""
    from gemv.language import (
        cuda,
        load_units,
        load_vectors,
        natural,
        outer_add,
        put_unit,
        store_vectors,
        zeros,
    )

    number, zero = spec.number, spec.zero
    UNIT = max(1, 16 // spec.precision.sums.itemsize)
    COMPLEX, SIZE, BOTH = int(spec.dtype.kind == "c"), 2 * THREADS * UNIT, 2 * UNIT

    def made(a, y):
        shared = cuda.shared.array(SIZE, number, alignment=16)
        tid = natural(cuda.threadIdx.x)
        place = natural(cuda.blockIdx.x) * THREADS + tid
        values = load_vectors(a, place * BOTH, 1, BOTH, 1)
        put_unit(shared, (THREADS + tid) * UNIT, values, 0, UNIT)
        put_unit(shared, tid * UNIT, values, UNIT, UNIT)
        cuda.syncthreads()
        other = (tid * 5 + 3) % THREADS * UNIT
        store_vectors(y, place * OUT, 1, load_units(shared, other, UNIT), 1)
        tile = load_vectors(a, place, 7, 4, 1)
        sums = outer_add(zeros(zero, BOTH), tile, shared, other, THREADS * UNIT, UNIT, 2, COMPLEX)
        store_vectors(y, place * OUT + UNIT, 1, sums, 1)

    return made


@small("exact_of_arrays", exact=True, accumulates=("plain", "wide"))
def factors_in_shared_memory(spec, W):
    """Numbers as they are loaded, each of them alone in a shared array, and units of them."""
    from gemv.kernels.numbers_of_x import x_element_of
    from gemv.language import cuda, load_vectors, natural, outer_add, store_vectors, zeros

    element, zero = x_element_of(spec), spec.zero
    COMPLEX, SIZE, COLUMN = int(spec.dtype.kind == "c"), 4 * THREADS, 2 * THREADS

    def made(a, y):
        xs = cuda.shared.array(SIZE, element, alignment=16)
        tid = natural(cuda.threadIdx.x)
        place = natural(cuda.blockIdx.x) * THREADS + tid
        values = load_vectors(a, place * 4, 1, 4, 1)
        xs[tid] = values[0]
        xs[THREADS + tid] = values[1]
        xs[COLUMN + tid] = values[2]
        xs[COLUMN + THREADS + tid] = values[3]
        cuda.syncthreads()
        other = (tid * 5 + 3) % THREADS * 2
        tile = load_vectors(a, place, 7, 4, 1)
        sums = outer_add(zeros(zero, 4), tile, xs, other, COLUMN, 2, 2, COMPLEX)
        store_vectors(y, place * OUT, 1, sums, 1)

    return made
