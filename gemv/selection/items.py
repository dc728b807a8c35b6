"""What one of many items takes: a matrix of at most 1 MiB gets a kernel that is good for that, too.

An item of a batch has the bits of the product alone, so both have one kernel and one order of sums.
A product alone leaves most of the GPU idle, and many constants take nearly the same time: that of
a launch. In a batch the same constants differ by factors, because there bandwidth counts. So the
constants of such a matrix are those with the least *cost*: the time alone, multiplied by the
eighth root of the time in a batch.

For matrices of up to 32 x 32 nothing is compared. They have two kernels with one order of sums, one
for a product alone and one for many of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gemv.core.geometry import Device, Geometry, ceil_div
from gemv.core.problem import Problem
from gemv.kernels import get
from gemv.kernels.kernel import Kernel
from gemv.kernels.small_sums import MOST
from gemv.kernels.work import Work

#: Bytes of the largest A whose time in a batch counts. Larger ones fill the GPU alone.
MOST_BYTES = 1 << 20
#: Bytes of all A of the batch that stands for any.
_BATCH_BYTES = 1 << 26
#: Which root of the time in a batch counts: a power of two.
ROOT = 8


def is_small(problem: Problem) -> bool:
    """Whether a product has the order of sums of small matrices, alone and in a batch."""
    return problem.rows <= MOST and problem.cols <= MOST


def are_small_items(problem: Problem) -> bool:
    """Whether many such products have a kernel of their own."""
    return is_small(problem) and get("small_items").accepts(problem) is None


def counts_in_batches(problem: Problem) -> bool:
    """Whether the time of one of many such problems counts."""
    fits = problem.rows * problem.cols * problem.dtype.itemsize <= MOST_BYTES
    return fits and not is_small(problem)


def work_of_batch(
    kernel: Kernel, knobs: Mapping[str, int], geometry: Geometry, problem: Problem, device: Device
) -> Work:
    """The work of a launch for a batch, from the launch for one item, with the same sums.

    A batch has other constants where these leave the sums as they are.
    """
    assert kernel.work is not None
    if kernel.in_batches is not None and not geometry.scratch:
        knobs = kernel.in_batches(problem, knobs)
        geometry = kernel.geometry(problem, device, knobs)
    one = kernel.work(problem, geometry, knobs)
    items = ceil_div(_BATCH_BYTES, problem.rows * problem.cols * problem.dtype.itemsize)
    return one._replace(
        blocks=one.blocks * items,
        bytes=one.bytes * items,
        written=one.written * items,
        scratch=one.scratch * items,
    )


def cost(alone: float, in_batch: float) -> float:
    """What is to be small, from two times in seconds; square roots have the same bits anywhere."""
    for _ in range(ROOT.bit_length() - 1):
        in_batch = math.sqrt(in_batch)
    return alone * in_batch
