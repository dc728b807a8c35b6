"""The functions of :mod:`gemv.language.vocabulary` in plain Python, gathered from this folder."""

# ruff: noqa: F401

from __future__ import annotations

from gemv.language.simulator.atomics import atomic_add, atomic_inc, peek, post, take, take_rows
from gemv.language.simulator.clusters import (
    cluster_arrive,
    cluster_expect,
    cluster_post,
    cluster_rank,
    cluster_take,
    cluster_wait,
)
from gemv.language.simulator.copies import (
    copies_commit,
    copies_wait,
    copy_async,
    copy_one,
    copy_or_zeros,
    prefetch,
    staged_some,
    staged_tile,
)
from gemv.language.simulator.intrinsics import (
    constant_array,
    device,
    element_of_arrays,
    exact_of_arrays,
    inlined,
    natural,
    parameter_load,
    quotient,
    read_only_load,
    rolled,
    rounded_down,
    short,
)
from gemv.language.simulator.memory import vector_load
from gemv.language.simulator.phases import stream_around, sums_from
from gemv.language.simulator.pointers import conjugated, moved, reading
from gemv.language.simulator.rows import (
    add_across,
    fold_first,
    load_anywhere,
    load_inside,
    multiply_inside,
    rows_inside,
    stream_rows,
)
from gemv.language.simulator.vectors import (
    add_each,
    axpy_add,
    butterfly,
    elements_past,
    fold,
    fold_pieces,
    from_stored,
    gather,
    gather_inside,
    gather_some,
    gather_stored,
    is_aligned,
    kept,
    load_back,
    load_old,
    load_shifted,
    load_some,
    load_units,
    load_vectors,
    multiply_add,
    outer_add,
    pass_some,
    pass_tile,
    pieces_of,
    plus_zero,
    put_pieces,
    put_unit,
    put_units,
    row_starts,
    scatter_sums,
    spread,
    store,
    store_vectors,
    stream_inside,
    stream_some,
    stream_tile,
    sums_of_lane,
    times,
    zeros,
)
from gemv.language.simulator.warp import any_of_warp, of_warp
