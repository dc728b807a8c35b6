"""What kernels are written in: CUDA's names, and device functions for what Numba has no name for.

:mod:`gemv.language.vocabulary` says what each function does. Importing this package imports Numba,
so kernel files do it inside ``build``.
"""

# Every import here hands a name on.
# ruff: noqa: F401

from __future__ import annotations

from gemv.language.common import (
    FULL_WARP,
    conjugate,
    global_load,
    same,
    shfl_xor_complex,
    shfl_xor_real,
)
from gemv.language.epilogue import blended, scaled, unrolled, update, update_streaming
from gemv.language.vocabulary import (
    SIMULATOR,
    VOCABULARY,
    atomic_add,
    atomic_inc,
    axpy_add,
    butterfly,
    cluster_arrive,
    cluster_expect,
    cluster_post,
    cluster_rank,
    cluster_take,
    cluster_wait,
    conjugated,
    constant_array,
    cuda,
    device,
    element_of_arrays,
    elements_past,
    fold,
    gather,
    gather_inside,
    gather_some,
    inlined,
    is_aligned,
    load_back,
    load_old,
    load_shifted,
    load_some,
    load_units,
    load_vectors,
    moved,
    multiply_add,
    natural,
    outer_add,
    parameter_load,
    post,
    put_pieces,
    put_unit,
    quotient,
    read_only_load,
    rolled,
    rounded_down,
    row_starts,
    scatter_sums,
    short,
    spread,
    store,
    store_vectors,
    stream_inside,
    stream_some,
    stream_tile,
    take,
    times,
    vector_load,
    zeros,
)
