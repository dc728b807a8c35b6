"""Which of host and GPU computes a call on host arrays, where nobody has said it.

One rule serves all of them. Where a backend was asked for, where there is no GPU, and in the
simulator there is nothing to decide. An argument that only the GPU has takes the GPU: a kernel, a
home of the factors, a limit of device memory, sums that are not plain. Every other call goes where
its predicted time is the smaller one (:mod:`gemv.selection.host_or_gpu`).
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gemv.calls.bind import Call
from gemv.core import memo
from gemv.core.dtypes import DTYPES, NARROW
from gemv.core.processors import blas_threads, copying_threads
from gemv.engines import backend as engines_backend
from gemv.engines.leading import MAX_SIDE, has_lines
from gemv.selection.host_or_gpu import Comparison, Numbers, Work, compared, most_bytes

if TYPE_CHECKING:
    from gemv.calls.batched import Items
    from gemv.calls.ragged import Product


@functools.cache
def numbers() -> Numbers:
    """Those of this machine, for the threads of this process."""
    from gemv.selection.machine import host_numbers

    found = host_numbers(engines_backend.gpu_name())
    return found.with_threads(blas_threads(), copying_threads())


memo.on_forget(numbers.cache_clear)


def comparison(call: Call, kernel: Any, coefficients: Any, limit: Any) -> Comparison | None:
    """What is expected of host and GPU for a product of host arrays.

    None where there is nothing to decide: :func:`on_host` then follows the backend.
    """
    given = kernel is not None or coefficients is not None or limit is not None
    if given or not _is_open(call):
        return None
    a = np.asarray(call.a.owner)
    return _of_machine(call.routine, work(a, call.problem.dtype, call.problem.precision.sums))


def comparison_of_items(items: Items, kernel: Any) -> Comparison | None:
    """The same for the items of a batch."""
    call, batch = items.call, items.batch
    if kernel is not None or not _is_open(call):
        return None
    problem = call.problem
    a, sums = np.asarray(call.a.owner), problem.precision.sums
    matrix = a[(0,) * (a.ndim - 2)] if a.size else a
    one = work(matrix, problem.dtype, sums)
    different = batch.different("a")
    widened = one.narrow if a.dtype != problem.dtype else 0
    of_all = Work(
        # What items share is converted and sent once, and read for each of them.
        read_bytes=batch.items * one.read_bytes,
        sent_bytes=different * problem.rows * problem.cols * problem.dtype.itemsize,
        items=batch.items,
        converted=different * one.converted,
        narrow=different * one.narrow,
        gathered=batch.items * one.gathered,
        # A batch is converted and gathered by the host before it is sent.
        prepared=different * max(one.converted, one.gathered, widened),
    )
    return _of_machine(call.routine, of_all)


def comparison_of_list(product: Product) -> Comparison | None:
    """The same for the products of a list, with matrices of different sizes."""
    own, computed = product.matrices, product.computed
    plain = all(own.problems[k].accumulate == "plain" for k in computed)
    most = max((max(own.a[k].shape) for k in computed), default=0)
    if not computed or not plain or most > MAX_SIDE or not engines_backend.compares():
        return None
    each = [
        work(np.asarray(own.a[k].owner), own.precision.data, own.precision.sums) for k in computed
    ]
    of_all = Work(
        read_bytes=sum(one.read_bytes for one in each),
        sent_bytes=sum(one.sent_bytes for one in each),
        items=len(each),
        converted=sum(one.converted for one in each),
        narrow=sum(one.narrow for one in each),
        gathered=sum(one.gathered for one in each),
        # All matrices are copied into one stretch of memory before they are sent.
        prepared=sum(own.a[k].shape[0] * own.a[k].shape[1] for k in computed),
    )
    return _of_machine(own.routine, of_all)


def on_host(found: Comparison | None) -> bool:
    """Whether the host computes a call on host arrays with this comparison."""
    if found is not None:
        return found.chosen == "host"
    return engines_backend.backend() == "host"


def work(a: np.ndarray, dtype: np.dtype, sums: np.dtype) -> Work:
    """What one product with a matrix in host memory costs.

    Parameters
    ----------
    dtype : numpy.dtype
        That A is computed with on the GPU.
    sums : numpy.dtype
        That SciPy's BLAS computes in.
    """
    converted = narrow = gathered = 0
    if not a.size:
        return Work(0, 0)
    if a.dtype in NARROW:
        narrow = a.size
    elif a.dtype != sums:
        converted = a.size
    elif not has_lines(a):
        gathered = a.size
    sent = a.size * max(a.dtype.itemsize, dtype.itemsize)
    return Work(a.size * sums.itemsize, sent, 1, converted, narrow, gathered)


class Reach(NamedTuple):
    """Up to where the host computes products of A's own dtype, whatever else they are.

    Attributes
    ----------
    compares : bool
        Whether there is a GPU that could compute them as well.
    most : int
        Bytes of an A that BLAS takes as it lies.
    most_gathered : int
        Bytes of an A that the host may have to gather.
    """

    compares: bool
    most: int
    most_gathered: int

    def comparison(self, a: np.ndarray) -> Comparison | None:
        """What was expected of host and GPU for a product of `a`, for a trace."""
        return compared(numbers(), work(a, a.dtype, a.dtype)) if self.compares else None


def reach(compares: bool) -> Reach:
    """How far the host computes; everything where there is no GPU, or the host was asked for."""
    if not compares:
        return Reach(False, sys.maxsize, sys.maxsize)
    here = numbers()
    # No element that BLAS computes with is smaller than a float32, for which gathering costs most.
    return Reach(True, most_bytes(here), most_bytes(here, DTYPES["s"].itemsize))


def _is_open(call: Call) -> bool:
    """Whether the host could compute the call as well as the GPU, and nobody has decided it."""
    problem = call.problem
    return (
        call.on_host
        and problem.accumulate == "plain"
        and max(problem.m, problem.n) <= MAX_SIDE
        and engines_backend.compares()
    )


def _of_machine(routine: str, cost: Work) -> Comparison:
    try:
        return compared(numbers(), cost)
    except ValueError as error:  # a file that GEMV_MACHINE names
        raise ValueError(f"{routine}: {error}") from None
