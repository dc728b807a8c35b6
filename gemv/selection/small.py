"""Small products: one kernel, whose order of sums depends on nothing but what is multiplied."""

from __future__ import annotations

from gemv.core.problem import Problem
from gemv.kernels import get
from gemv.kernels.kernel import Kernel


def kernel_of_small(problem: Problem) -> tuple[Kernel, dict[str, int]] | None:
    """The kernel of small products with its constants; None for all others.

    They are those up to 32 x 32, and up to 64 x 64 where lines are no whole 16 bytes.

    A batch of such products reads its items as one stretch of memory, and an item is to have the
    bits of the single product. So the single one gets the same kernel, whatever the formula says.
    """
    if problem.rows > 64 or problem.cols > 64:  # first of all: most problems end here
        return None
    kernel = get("small_items")
    if kernel.accepts(problem) is not None or kernel.constants_of is None:
        return None
    return kernel, kernel.constants_of(problem)
