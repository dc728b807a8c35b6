"""Small kernels for rows that begin anywhere."""

from __future__ import annotations

from helpers.words.registry import ALL, OUT, THREADS, small


@small("stream_rows")
def aligned_rows(spec, W):
    from gemv.language import cuda, natural, store_vectors, stream_rows

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        starts = (W + place * 5 % 400, 3 + place * 7 % 300)
        values = stream_rows(a, starts, place % 2 * W, 3 * W, 2, W, place % 4 - 1)
        store_vectors(y, place * OUT, 1, values, 1)

    return made


@small("rows_inside")
def rows_where_memory_ends(spec, W):
    from gemv.language import cuda, natural, rows_inside, store_vectors

    COUNT = 2 * W

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        starts = (W + place * 5 % 400, 30 + place * 7 % 300)
        values = rows_inside(a, starts, place % 23 - W, COUNT, place % 19)
        store_vectors(y, place * OUT, 1, values, 1)

    return made


@small("load_anywhere load_inside")
def numbers_of_x_anywhere(spec, W):
    from gemv.language import cuda, load_anywhere, load_inside, natural, store_vectors

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        at = place * OUT
        store_vectors(y, at, 1, load_anywhere(a, 3 + place * 5 % 400, 2 * W + 1, 2, W), 1)
        first, limit = place % 31 - W, place % 23
        store_vectors(y, at + 2 * W, 1, load_inside(a, first, 2 * W + 1, 2, W, limit), 1)

    return made


@small("multiply_inside", exact=True, accumulates=ALL)
def products_inside_a_row(spec, W):
    from gemv.language import cuda, load_vectors, multiply_inside, natural, store_vectors, zeros

    zero, COMPLEX = spec.zero, int(spec.dtype.kind == "c")

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        at = place * OUT
        tile = load_vectors(a, place, 3, 8, 1)
        x = load_vectors(a, place + 100, 5, 4, 1)
        sums = multiply_inside(zeros(zero, 4), tile, x, place % 7 - 4, 5, 2, place % 9, 0)
        store_vectors(y, at, 1, sums, 1)
        sums = multiply_inside(sums, tile, x, place % 5 - 2, 3, 1, place % 11, COMPLEX)
        store_vectors(y, at + 4, 1, sums, 1)

    return made


@small("add_across fold_first", accumulates=ALL)
def trees_of_first_sums(spec, W):
    from gemv.language import (
        add_across,
        cuda,
        fold_first,
        load_vectors,
        multiply_add,
        natural,
        store_vectors,
        zeros,
    )

    zero = spec.zero

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        at = place * OUT
        one = load_vectors(a, 0, 1, 1, 1)
        values = multiply_add(zeros(zero, 8), load_vectors(a, place, 1, 8, 1), one, 0)
        store_vectors(y, at, 1, add_across(values, 1), 1)
        store_vectors(y, at + 8, 1, add_across(values, 4), 1)
        store_vectors(y, at + 16, 1, fold_first(values, 2, 1), 1)
        store_vectors(y, at + 18, 1, fold_first(values, 2, 2), 1)
        store_vectors(y, at + 20, 1, fold_first(values, 1, 4), 1)

    return made
