"""Small kernels for loads, stores, pointers."""

from __future__ import annotations

from helpers.words.registry import OUT, THREADS, small


def _tiles(word, width=None):
    """Two lines of two or three vectors, of which a thread asks for more, fewer or none."""

    def build(spec, W):
        from gemv import language
        from gemv.language import cuda, natural, store_vectors

        load, some, WIDTH = getattr(language, word), word.endswith("some"), width or W
        COUNT = 2 if width is None else 3  # OUT has room for as many

        def tile(a, y):
            place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
            starts = (place * 5 % 400 * WIDTH, place * 7 % 300 * WIDTH)
            values = load(a, starts, WIDTH, 3 * WIDTH, COUNT, WIDTH)
            store_vectors(y, place * OUT, 1, values, 1)

        def tile_of_some(a, y):
            place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
            starts = (place * 5 % 400 * WIDTH, place * 7 % 300 * WIDTH)
            values = load(a, starts, WIDTH, 3 * WIDTH, COUNT, WIDTH, place % 5 - 1)
            store_vectors(y, place * OUT, 1, values, 1)

        return tile_of_some if some else tile

    build.__name__ = f"{word}_{width or 'wide'}"
    return build


for _word in ("stream_tile", "stream_some", "pass_tile", "pass_some"):
    small(_word)(_tiles(_word))
    small(_word)(_tiles(_word, 1))


@small("stream_inside")
def inside_of_a_line(spec, W):
    from gemv.language import cuda, natural, store_vectors, stream_inside

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        starts = (place % 11 - 5, place % 7 + 1)
        values = stream_inside(a, starts, 8 + place, W, place % 9)
        store_vectors(y, place * OUT, 1, values, 1)

    return made


@small("stream_around")
def around_an_element(spec, W):
    from gemv.language import cuda, natural, store_vectors, stream_around

    COUNT = 3

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        index = W + place * 5 % 400
        values = stream_around(a, index, 3 * W + 1, COUNT, W, place % (COUNT + 1))
        store_vectors(y, place * OUT, 1, values, 1)

    return made


@small("load_vectors load_some")
def vectors(spec, W):
    from gemv.language import cuda, load_some, load_vectors, natural, store_vectors

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        first = place * 3 % 200 * W
        store_vectors(y, place * OUT, 1, load_vectors(a, first, 2 * W, 2, W), 1)
        some = load_some(a, first + W, 2 * W, 2, W, place % 4 - 1)
        store_vectors(y, place * OUT + 2 * W, 1, some, 1)

    return made


@small("load_back load_old store store_vectors", own_y=True)
def old_ones_of_y(spec, W):
    """From the thread's own part of y, before anything is stored there."""
    from gemv.language import cuda, load_back, load_old, natural, store, store_vectors

    def made(y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        at = place * OUT
        several = load_back(y, at, 2 * W, 2, W)
        one = load_old(y, at + place % 7, place % 3 > 0)
        store_vectors(y, at + W, 2 * W, several, W)
        store(y, at + OUT - 1, one)

    return made


@small("reading", own_y=True)
def old_ones_elsewhere(spec, W):
    """From some elements further on in the thread's own part of y, before any are stored."""
    from gemv.language import (
        cuda,
        is_aligned,
        load_back,
        load_old,
        moved,
        natural,
        reading,
        store,
        store_vectors,
    )

    def made(y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        at = place * OUT
        both = reading(y, moved(y, 2 * W))
        several = load_back(both, at, W, 2, W)
        one, other = load_old(both, at + place % 7, place % 3 > 0), both[at + place % 5]
        store_vectors(both, at, W, several, W)
        store(both, at + OUT - 1, one)
        both[at + OUT - 2] = other
        if is_aligned(reading(moved(y, place), moved(y, place // 16)), 16):
            both[at + OUT - 3] = other

    return made


@small("load_shifted", "sdchb")
def vectors_at_any_element(spec, W):
    """A shift for each warp; there are as many warps as elements in the longest vector."""
    from gemv.language import cuda, load_shifted, natural, store_vectors

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        shift = place // 32 % W
        values = load_shifted(a, place * 3 % 200 * W + shift, 2 * W, 2, W, shift)
        store_vectors(y, place * OUT, 1, values, 1)

    return made


@small("gather gather_some gather_inside")
def one_by_one(spec, W):
    from gemv.language import (
        cuda,
        gather,
        gather_inside,
        gather_some,
        natural,
        store_vectors,
    )

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        at = place * OUT
        store_vectors(y, at, 1, gather(a, place, 5, 3, 3, 2), 1)
        store_vectors(y, at + 6, 1, gather_some(a, place, 5, 3, 2, 2, place % 5 - 1), 1)
        limit = place + place % 13
        inside = gather_inside(a, place, 5, 3, 2, 2, place % 5 - 1, limit)
        store_vectors(y, at + 12, 1, inside, 1)

    return made


@small("gather_stored from_stored")
def numbers_as_stored(spec, W):
    from gemv.language import cuda, from_stored, gather_stored, natural, store_vectors

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        numbers = gather_stored(a, place, 5, 3, 2, place % 5 - 1)
        store_vectors(y, place * OUT, 1, from_stored(a, numbers), 1)

    return made


@small("spread")
def numbers_for_short_columns(spec, W):
    from gemv.language import cuda, load_vectors, natural, spread, store_vectors

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        factors = load_vectors(a, place, 1, 6, 1)
        values = spread(factors, 3, 8, place % 4, 1 + place % 5)
        store_vectors(y, place * OUT, 1, values, 1)

    return made


@small("vector_load", "sd")
def vector_of_reals(spec, W):
    from gemv.language import cuda, natural, store_vectors, vector_load

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        store_vectors(y, place * OUT, 1, vector_load(a, place * 5 % 300 * W, W), 1)

    return made


@small("read_only_load moved conjugated", "sdcz")
def pointers(spec, W):
    from gemv.language import conjugated, cuda, moved, natural, read_only_load, store

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        store(y, place * OUT, read_only_load(a, place * 3))
        store(y, place * OUT + 1, moved(a, place * 5)[2])
        store(y, place * OUT + 2, conjugated(moved(a, place))[1])

    return made
