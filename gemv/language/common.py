"""Device functions on single numbers: conjugates, shuffles of a full warp, plain loads.

A :class:`~gemv.kernels.spec.Spec` hands kernels the ones for their dtype.
"""

from __future__ import annotations

from gemv.language.vocabulary import cuda, device

#: The mask of all 32 lanes.
FULL_WARP = 0xFFFFFFFF


@device
def same(value):
    """`value` itself: the operation of gemv without conjugation."""
    return value


@device
def conjugate(value):
    """The complex conjugate."""
    return value.conjugate()


@device
def shfl_xor_real(value, lane_mask):
    """`value` of lane ``lane ^ lane_mask``, for a real number."""
    return cuda.shfl_xor_sync(FULL_WARP, value, lane_mask)


@device
def shfl_xor_complex(value, lane_mask):
    """`value` of lane ``lane ^ lane_mask``, for a complex number."""
    # Shuffles move 32 or 64 bits, so a complex number travels as its two halves.
    real = cuda.shfl_xor_sync(FULL_WARP, value.real, lane_mask)
    imag = cuda.shfl_xor_sync(FULL_WARP, value.imag, lane_mask)
    return complex(real, imag)


@device
def of_lane(value, lane):
    """`value` of `lane`, for an integer: each lane keeps one of the numbers that all need."""
    return cuda.shfl_sync(FULL_WARP, value, lane)


@device
def global_load(pointer, index):
    """``pointer[index]`` by an ordinary load."""
    return pointer[index]
