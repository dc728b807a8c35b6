"""What kernels are written in: CUDA's names, and device functions for what Numba has no name for.

Importing this package imports Numba, so kernel files do it inside ``build``.
"""

from __future__ import annotations

from gemv.language.common import (
    FULL_WARP as FULL_WARP,
)
from gemv.language.common import (
    conjugate as conjugate,
)
from gemv.language.common import (
    global_load as global_load,
)
from gemv.language.common import (
    same as same,
)
from gemv.language.common import (
    shfl_xor_complex as shfl_xor_complex,
)
from gemv.language.common import (
    shfl_xor_real as shfl_xor_real,
)
from gemv.language.epilogue import (
    blended as blended,
)
from gemv.language.epilogue import (
    scaled as scaled,
)
from gemv.language.epilogue import (
    unrolled as unrolled,
)
from gemv.language.epilogue import (
    update as update,
)
from gemv.language.epilogue import (
    update_streaming as update_streaming,
)
from gemv.language.vocabulary import (
    SIMULATOR as SIMULATOR,
)
from gemv.language.vocabulary import (
    atomic_add as atomic_add,
)
from gemv.language.vocabulary import (
    atomic_inc as atomic_inc,
)
from gemv.language.vocabulary import (
    axpy_add as axpy_add,
)
from gemv.language.vocabulary import (
    butterfly as butterfly,
)
from gemv.language.vocabulary import (
    constant_array as constant_array,
)
from gemv.language.vocabulary import (
    cuda as cuda,
)
from gemv.language.vocabulary import (
    device as device,
)
from gemv.language.vocabulary import (
    element_of_arrays as element_of_arrays,
)
from gemv.language.vocabulary import (
    elements_past as elements_past,
)
from gemv.language.vocabulary import (
    fold as fold,
)
from gemv.language.vocabulary import (
    gather as gather,
)
from gemv.language.vocabulary import (
    gather_inside as gather_inside,
)
from gemv.language.vocabulary import (
    gather_some as gather_some,
)
from gemv.language.vocabulary import (
    inlined as inlined,
)
from gemv.language.vocabulary import (
    is_aligned as is_aligned,
)
from gemv.language.vocabulary import (
    load_back as load_back,
)
from gemv.language.vocabulary import (
    load_shifted as load_shifted,
)
from gemv.language.vocabulary import (
    load_some as load_some,
)
from gemv.language.vocabulary import (
    load_vectors as load_vectors,
)
from gemv.language.vocabulary import (
    multiply_add as multiply_add,
)
from gemv.language.vocabulary import (
    natural as natural,
)
from gemv.language.vocabulary import (
    parameter_load as parameter_load,
)
from gemv.language.vocabulary import (
    post as post,
)
from gemv.language.vocabulary import (
    put_pieces as put_pieces,
)
from gemv.language.vocabulary import (
    quotient as quotient,
)
from gemv.language.vocabulary import (
    read_only_load as read_only_load,
)
from gemv.language.vocabulary import (
    rolled as rolled,
)
from gemv.language.vocabulary import (
    rounded_down as rounded_down,
)
from gemv.language.vocabulary import (
    row_starts as row_starts,
)
from gemv.language.vocabulary import (
    scatter_sums as scatter_sums,
)
from gemv.language.vocabulary import (
    spread as spread,
)
from gemv.language.vocabulary import (
    store as store,
)
from gemv.language.vocabulary import (
    store_vectors as store_vectors,
)
from gemv.language.vocabulary import (
    stream_inside as stream_inside,
)
from gemv.language.vocabulary import (
    stream_some as stream_some,
)
from gemv.language.vocabulary import (
    stream_tile as stream_tile,
)
from gemv.language.vocabulary import (
    take as take,
)
from gemv.language.vocabulary import (
    vector_load as vector_load,
)
from gemv.language.vocabulary import (
    zeros as zeros,
)
