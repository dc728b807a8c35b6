"""The device functions that kernels call, for the GPU or for the simulator.

Numba decides as it is imported which of the two a process has. Both halves define the same names,
so a kernel is one source and never asks where it runs.
"""

from __future__ import annotations

from numba import cuda as cuda
from numba.cuda.core import config

#: Whether kernels run in the simulator, in plain Python.
SIMULATOR = bool(config.ENABLE_CUDASIM)

if SIMULATOR:
    from gemv.language.simulator.arrivals import (
        take as take,
    )
    from gemv.language.simulator.atomics import (
        atomic_add as atomic_add,
    )
    from gemv.language.simulator.atomics import (
        atomic_inc as atomic_inc,
    )
    from gemv.language.simulator.atomics import (
        post as post,
    )
    from gemv.language.simulator.intrinsics import (
        constant_array as constant_array,
    )
    from gemv.language.simulator.intrinsics import (
        device as device,
    )
    from gemv.language.simulator.intrinsics import (
        inlined as inlined,
    )
    from gemv.language.simulator.intrinsics import (
        natural as natural,
    )
    from gemv.language.simulator.intrinsics import (
        parameter_load as parameter_load,
    )
    from gemv.language.simulator.intrinsics import (
        quotient as quotient,
    )
    from gemv.language.simulator.intrinsics import (
        read_only_load as read_only_load,
    )
    from gemv.language.simulator.intrinsics import (
        rolled as rolled,
    )
    from gemv.language.simulator.intrinsics import (
        rounded_down as rounded_down,
    )
    from gemv.language.simulator.memory import (
        vector_load as vector_load,
    )
    from gemv.language.simulator.twofold import (
        element_of_arrays as element_of_arrays,
    )
    from gemv.language.simulator.vectors import (
        axpy_add as axpy_add,
    )
    from gemv.language.simulator.vectors import (
        butterfly as butterfly,
    )
    from gemv.language.simulator.vectors import (
        elements_past as elements_past,
    )
    from gemv.language.simulator.vectors import (
        fold as fold,
    )
    from gemv.language.simulator.vectors import (
        gather as gather,
    )
    from gemv.language.simulator.vectors import (
        gather_inside as gather_inside,
    )
    from gemv.language.simulator.vectors import (
        gather_some as gather_some,
    )
    from gemv.language.simulator.vectors import (
        is_aligned as is_aligned,
    )
    from gemv.language.simulator.vectors import (
        load_back as load_back,
    )
    from gemv.language.simulator.vectors import (
        load_shifted as load_shifted,
    )
    from gemv.language.simulator.vectors import (
        load_some as load_some,
    )
    from gemv.language.simulator.vectors import (
        load_vectors as load_vectors,
    )
    from gemv.language.simulator.vectors import (
        multiply_add as multiply_add,
    )
    from gemv.language.simulator.vectors import (
        put_pieces as put_pieces,
    )
    from gemv.language.simulator.vectors import (
        row_starts as row_starts,
    )
    from gemv.language.simulator.vectors import (
        scatter_sums as scatter_sums,
    )
    from gemv.language.simulator.vectors import (
        spread as spread,
    )
    from gemv.language.simulator.vectors import (
        store as store,
    )
    from gemv.language.simulator.vectors import (
        store_vectors as store_vectors,
    )
    from gemv.language.simulator.vectors import (
        stream_inside as stream_inside,
    )
    from gemv.language.simulator.vectors import (
        stream_some as stream_some,
    )
    from gemv.language.simulator.vectors import (
        stream_tile as stream_tile,
    )
    from gemv.language.simulator.vectors import (
        zeros as zeros,
    )
else:
    from gemv.language.numba_cuda.arrivals import (
        post as post,
    )
    from gemv.language.numba_cuda.arrivals import (
        take as take,
    )
    from gemv.language.numba_cuda.gathers import (
        gather as gather,
    )
    from gemv.language.numba_cuda.gathers import (
        gather_inside as gather_inside,
    )
    from gemv.language.numba_cuda.gathers import (
        gather_some as gather_some,
    )
    from gemv.language.numba_cuda.gathers import (
        spread as spread,
    )
    from gemv.language.numba_cuda.intrinsics import (
        atomic_add as atomic_add,
    )
    from gemv.language.numba_cuda.intrinsics import (
        atomic_inc as atomic_inc,
    )
    from gemv.language.numba_cuda.intrinsics import (
        constant_array as constant_array,
    )
    from gemv.language.numba_cuda.intrinsics import (
        device as device,
    )
    from gemv.language.numba_cuda.intrinsics import (
        inlined as inlined,
    )
    from gemv.language.numba_cuda.intrinsics import (
        natural as natural,
    )
    from gemv.language.numba_cuda.intrinsics import (
        parameter_load as parameter_load,
    )
    from gemv.language.numba_cuda.intrinsics import (
        quotient as quotient,
    )
    from gemv.language.numba_cuda.intrinsics import (
        read_only_load as read_only_load,
    )
    from gemv.language.numba_cuda.intrinsics import (
        rolled as rolled,
    )
    from gemv.language.numba_cuda.intrinsics import (
        rounded_down as rounded_down,
    )
    from gemv.language.numba_cuda.intrinsics import (
        vector_load as vector_load,
    )
    from gemv.language.numba_cuda.loads import (
        elements_past as elements_past,
    )
    from gemv.language.numba_cuda.loads import (
        is_aligned as is_aligned,
    )
    from gemv.language.numba_cuda.loads import (
        load_back as load_back,
    )
    from gemv.language.numba_cuda.loads import (
        load_shifted as load_shifted,
    )
    from gemv.language.numba_cuda.loads import (
        load_some as load_some,
    )
    from gemv.language.numba_cuda.loads import (
        load_vectors as load_vectors,
    )
    from gemv.language.numba_cuda.loads import (
        row_starts as row_starts,
    )
    from gemv.language.numba_cuda.loads import (
        store as store,
    )
    from gemv.language.numba_cuda.loads import (
        store_vectors as store_vectors,
    )
    from gemv.language.numba_cuda.loads import (
        stream_inside as stream_inside,
    )
    from gemv.language.numba_cuda.loads import (
        stream_some as stream_some,
    )
    from gemv.language.numba_cuda.loads import (
        stream_tile as stream_tile,
    )
    from gemv.language.numba_cuda.registers import (
        put_pieces as put_pieces,
    )
    from gemv.language.numba_cuda.registers import (
        zeros as zeros,
    )
    from gemv.language.numba_cuda.sums import (
        axpy_add as axpy_add,
    )
    from gemv.language.numba_cuda.sums import (
        butterfly as butterfly,
    )
    from gemv.language.numba_cuda.sums import (
        fold as fold,
    )
    from gemv.language.numba_cuda.sums import (
        multiply_add as multiply_add,
    )
    from gemv.language.numba_cuda.sums import (
        scatter_sums as scatter_sums,
    )
    from gemv.language.numba_cuda.twofold import (
        element_of_arrays as element_of_arrays,
    )
