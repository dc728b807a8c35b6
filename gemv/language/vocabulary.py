"""Every device function that kernels call, declared once: name, parameters, and what it does.

Two packages implement the declarations: :mod:`gemv.language.numba_cuda` as instructions of a GPU,
and :mod:`gemv.language.simulator` in plain Python. Numba decides which of the two a process has
when it is imported: the simulator if ``NUMBA_ENABLE_CUDASIM=1`` is set. Each name below is bound to
the function of that package, so a kernel is one source and never asks where it runs.

Words that the declarations share:

* A *vector* is `width` neighbouring elements of at most 16 bytes, which one load or store moves.
* Tiles of A, numbers of x and partial sums are flat tuples, because the compiler keeps each item of
  a tuple in a register of its own.
* `count`, `width`, `rows`, `lanes`, `apart`, `bytes_`, `multiple`, `divisor`, `each` and
  `conjugate` are constants when the kernel is compiled, if the function has no other use for them.
* An index, a step and a distance count elements, not bytes.
"""

from __future__ import annotations

# Names that this module hands on.
# ruff: noqa: F401
from gemv.language.declared import SIMULATOR, VOCABULARY, cuda, declared
from gemv.language.vocabulary_addresses import conjugated, elements_past, is_aligned, moved, reading
from gemv.language.vocabulary_arrivals import peek, post, take, take_rows
from gemv.language.vocabulary_clusters import (
    cluster_arrive,
    cluster_expect,
    cluster_post,
    cluster_rank,
    cluster_take,
    cluster_wait,
)
from gemv.language.vocabulary_copies import (
    copies_commit,
    copies_wait,
    copy_async,
    copy_one,
    copy_or_zeros,
    prefetch,
    staged_some,
    staged_tile,
)
from gemv.language.vocabulary_phases import stream_around, sums_from
from gemv.language.vocabulary_places import (
    from_stored,
    gather_stored,
    kept,
    pass_some,
    pass_tile,
)
from gemv.language.vocabulary_rows import (
    add_across,
    fold_first,
    load_anywhere,
    load_inside,
    multiply_inside,
    rows_inside,
    stream_rows,
)
from gemv.language.vocabulary_trees import add_each, fold, fold_pieces, pieces_of, sums_of_lane
from gemv.language.vocabulary_warps import any_of_warp, of_warp

# Called while a kernel is built -----------------------------------------------------------------


@declared
def device(function):
    """Mark `function` as a device function: the kernels that call it are compiled with it."""


@declared
def inlined(function):
    """Mark `function` as a device function that is inlined into its caller, however long it is."""


@declared
def constant_array(name, dtype, size):
    """Make ``load(index)``, which reads an array of `size` elements in constant memory.

    The array is a symbol called `name` in the module of the kernel that calls ``load``. The host
    writes the symbol before a launch, so the values are not fixed when the kernel is compiled, as
    those of ``cuda.const.array_like`` are.
    """


@declared
def element_of_arrays(sums):
    """The type of shared and local arrays that hold sums of two numbers; `sums` is their dtype."""


@declared
def exact_of_arrays(sums):
    """The type of shared arrays that hold elements of A or x, which are added up in such sums."""


# Integers ---------------------------------------------------------------------------------------


@declared
def short(number):
    """`number`, which must be at least 0 and below 2**32, as an integer known to be that.

    Kernels count in 64 bits. Where the compiler knows that the upper half of a number is zero, it
    compares, adds and multiplies by instructions of 32 bits.
    """


@declared
def natural(number):
    """`number`, which must not be negative, as an integer that the compiler knows not to be.

    Python rounds a quotient down, a processor towards zero. For a number that may be negative, as
    ``threadIdx.x`` may for the compiler, ``//`` and ``%`` by a power of two therefore take a dozen
    64-bit instructions; for a natural number they are a 32-bit shift and a mask.
    """


@declared
def quotient(number, divisor):
    """``number // divisor`` for a constant divisor; a shift if that is a power of two."""


@declared
def rounded_down(number, multiple):
    """``number // multiple * multiple`` for a constant; a mask if that is a power of two."""


@declared
def row_starts(first, step, last, stride, rows):
    """Where the rows of a tile begin: ``min(first + r*step, last) * stride`` for r below `rows`.

    A tile that hangs over the edge of A reads row `last` again, and no memory behind A. The
    difference ``(rows - 1) * step`` must fit 31 bits.
    """


@declared
def rolled():
    """Keep the compiler from unrolling the loop that the call stands in; nothing is executed."""


# One element ------------------------------------------------------------------------------------


@declared
def read_only_load(pointer, index):
    """``pointer[index]`` through the read-only cache, for memory that no thread writes."""


@declared
def parameter_load(pointer, index):
    """``x[index]`` where x is an array that was passed by value, as a parameter of the kernel."""


@declared
def store(pointer, index, value):
    """``pointer[index] = value`` for y, which the kernel does not read again.

    The line leaves the L2 cache before lines that somebody may want again.
    """


@declared
def atomic_add(pointer, index, value):
    """Add `value` to ``pointer[index]`` atomically; a complex value as two real numbers."""


@declared
def atomic_inc(pointer, index, limit):
    """Increment ``pointer[index]`` atomically, from `limit` to 0, and return the old value."""


# Tiles of A -------------------------------------------------------------------------------------


@declared
def stream_tile(pointer, starts, index, step, count, width):
    """Load a tile of A: from each of `starts`, the `count` vectors that begin `step` apart.

    Vector k of a row is ``pointer[start + index + k*step : ... + width]``, its address a multiple
    of its size. All loads are independent, so they are in flight together. They do not settle in
    the L1 cache, because A is read once. The tuple has the rows outermost.
    """


@declared
def stream_some(pointer, starts, index, step, count, width, valid):
    """:func:`stream_tile` with zeros in place of vector `valid` of each row and those behind it.

    Nothing is loaded for these.
    """


@declared
def stream_inside(pointer, starts, index, width, limit):
    """Load a vector of A for each of `starts` element by element, where the line may end within it.

    Element l is ``pointer[index + start + l]`` if ``0 <= start + l < limit``; otherwise it is zero,
    and nothing is loaded.
    """


# Numbers of x, and old ones of y ----------------------------------------------------------------


@declared
def load_vectors(pointer, index, step, count, width):
    """Load `count` vectors that begin `step` apart, the first one at ``pointer[index]``.

    All loads are independent, so they are in flight together. The address of each vector must be a
    multiple of its size. They may stay in the L1 cache: the next row wants x again.
    """


@declared
def load_some(pointer, index, step, count, width, valid):
    """:func:`load_vectors` with zeros in place of vector `valid` and those behind it.

    Nothing is loaded for these.
    """


@declared
def load_back(pointer, index, step, count, width):
    """:func:`load_vectors` for memory that the kernel also writes: y."""


@declared
def load_old(pointer, index, present):
    """``pointer[index]`` for y, where `present` is true; else zero, and nothing is loaded.

    There is no branch that a kernel could wait at, so the load goes out with those of A.
    """


@declared
def load_shifted(pointer, index, step, count, width, shift):
    """:func:`load_vectors` for vectors that begin `shift` elements behind a multiple of their size.

    A vector is put together from the two aligned vectors that it lies in; both are read whole.
    `shift` is below `width` and the same in all lanes of the warp.
    """


@declared
def gather(pointer, index, step, count, increment, width):
    """Load what :func:`load_vectors` does, element by element, from memory with any increment.

    Element l of group k is ``pointer[(index + k*step + l) * increment]``.
    """


@declared
def gather_some(pointer, index, step, count, increment, width, valid):
    """:func:`gather` with zeros in place of group `valid` and those behind it.

    Nothing is loaded for these.
    """


@declared
def gather_inside(pointer, index, step, count, increment, width, valid, limit):
    """:func:`gather_some` with zeros also for elements whose ``index + k*step + l >= limit``."""


@declared
def spread(factors, count, width, first, period):
    """Repeat numbers of x for a vector of A that goes over several short columns.

    `factors` are groups of `count` numbers, one a column; each group becomes `width` numbers. Item
    l of a group is number ``(first + l) // period`` of the group, or its last one: an element whose
    vector begins in row `first` is that many columns of `period` rows further on.
    """


@declared
def vector_load(pointer, index, count):
    """``pointer[index : index + count]`` by one load of 8 or 16 bytes, aligned to its size.

    It goes through the read-only path and does not settle in the L1 cache.
    """


# Sums in a thread -------------------------------------------------------------------------------


@declared
def zeros(zero, count):
    """`count` times `zero`: partial sums to begin with."""


@declared
def multiply_add(sums, tile, x, conjugate):
    """Add the products of a tile with `x` to `sums`, for memory that runs along the rows (*dot*).

    The tile has rows of ``len(x)`` numbers, and each row has ``len(sums) / rows`` partial sums.
    Product k of a row goes to partial sum ``k % that number``, so the additions of neighbours in a
    vector do not wait for each other.
    """


@declared
def axpy_add(sums, tile, x, width, conjugate):
    """Add the products of a tile with `x` to `sums`, for memory down the columns (*axpy*).

    `sums` belong to pieces of y of `width` neighbours. The tile has, for each piece, ``len(x)``
    columns of `width` numbers, and column k is multiplied by ``x[k]``.
    """


@declared
def outer_add(sums, tile, shared, index, step, count, width, conjugate):
    """:func:`axpy_add` for `count` vectors whose numbers of x are in shared memory.

    Those for column k of the tile are side by side from ``shared[index + k*step]`` on, and one load
    moves 16 bytes of them. `sums` has the sums of one vector after those of the other.
    """


@declared
def times(factor, number):
    """``factor * number``, rounded by itself.

    A compiler may fuse a product with the sum that it goes to, and leave it alone in another kernel
    whose bits should be the same.
    """


@declared
def plus_zero(number):
    """``number + 0``: the same number, but a zero is positive, as is one in a complex number."""


# Sums between threads ---------------------------------------------------------------------------


@declared
def butterfly(values, lanes, apart):
    """Add up each of `values` over the lanes of a group whose distance is a multiple of `apart`.

    A group is `lanes` neighbouring lanes; both numbers are powers of two, 32 at most. Every lane
    ends with its sum. All 32 lanes of the warp must come here together.
    """


@declared
def scatter_sums(values, tid, width, lanes, apart):
    """:func:`butterfly`, bit for bit, but each lane ends with its share of the sums only.

    In each step two lanes halve the sums that both of them have a part of: each lane sends the half
    that the other one keeps. :func:`gemv.core.shares.shares` says how many shares there are for
    pieces of `width` sums, and :func:`gemv.core.shares.share_of_lane` which lane has which.
    """


@declared
def put_pieces(shared, row, column, values, distance, width):
    """Store pieces of `width` neighbours, `distance` apart, into a row of a shared array.

    The first one begins at ``shared[row, column]``.
    """


@declared
def put_units(shared, row, column, values, distance, width):
    """:func:`put_pieces` by stores of up to 16 bytes, where all pieces are multiples of them.

    So `column`, `distance` and the length of a row are multiples of `width`, and the array begins
    at a multiple of 16 bytes. Lanes whose pieces are neighbours meet the same banks of shared
    memory less often so: 8 float32 of each of 32 lanes take 16 steps, and 64 number by number.
    """


@declared
def put_unit(shared, index, values, first, count):
    """Store `count` of `values`, from number `first` on, at ``shared[index]``, by one store.

    They are 8 or 16 bytes, and `index` a multiple of `count`; or they are one number at any index.
    """


@declared
def load_units(shared, index, count):
    """Load `count` numbers from ``shared[index]`` on, by one load: see :func:`put_unit`."""


# Vectors of y -----------------------------------------------------------------------------------


@declared
def store_vectors(pointer, index, step, values, width):
    """Store vectors of `width` neighbours that begin `step` apart, the first at ``pointer[index]``.

    They leave the L2 cache first, as with :func:`store`.
    """
