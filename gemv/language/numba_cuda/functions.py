"""The functions of :mod:`gemv.language.vocabulary` for a GPU, gathered from this folder."""

# ruff: noqa: F401

from __future__ import annotations

from gemv.language.numba_cuda.arrivals import peek, post, take, take_rows
from gemv.language.numba_cuda.clusters import (
    cluster_arrive,
    cluster_expect,
    cluster_post,
    cluster_rank,
    cluster_take,
    cluster_wait,
)
from gemv.language.numba_cuda.copies import (
    copies_commit,
    copies_wait,
    copy_async,
    copy_one,
    copy_or_zeros,
    prefetch,
    staged_some,
    staged_tile,
)
from gemv.language.numba_cuda.formats import conjugated, moved, reading
from gemv.language.numba_cuda.gathers import (
    from_stored,
    gather,
    gather_inside,
    gather_some,
    gather_stored,
    spread,
)
from gemv.language.numba_cuda.intrinsics import (
    atomic_add,
    atomic_inc,
    constant_array,
    device,
    inlined,
    natural,
    parameter_load,
    quotient,
    read_only_load,
    rolled,
    rounded_down,
    short,
    vector_load,
)
from gemv.language.numba_cuda.loads import (
    elements_past,
    is_aligned,
    load_back,
    load_old,
    load_shifted,
    load_some,
    load_vectors,
    pass_some,
    pass_tile,
    row_starts,
    stream_inside,
    stream_some,
    stream_tile,
)
from gemv.language.numba_cuda.phases import stream_around, sums_from
from gemv.language.numba_cuda.registers import (
    kept,
    load_units,
    put_pieces,
    put_unit,
    put_units,
    zeros,
)
from gemv.language.numba_cuda.rows import (
    add_across,
    fold_first,
    load_anywhere,
    load_inside,
    multiply_inside,
    rows_inside,
    stream_rows,
)
from gemv.language.numba_cuda.stores import store, store_vectors
from gemv.language.numba_cuda.sums import (
    add_each,
    axpy_add,
    butterfly,
    fold,
    fold_pieces,
    multiply_add,
    outer_add,
    pieces_of,
    plus_zero,
    scatter_sums,
    sums_of_lane,
    times,
)
from gemv.language.numba_cuda.twofold_types import element_of_arrays, exact_of_arrays
from gemv.language.numba_cuda.votes import any_of_warp, of_warp
