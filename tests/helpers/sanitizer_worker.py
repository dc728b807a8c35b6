"""Runs kernels on exactly sized allocations, for test_sanitizer under compute-sanitizer.

Arguments are names of kernels. ``planted FAULT`` runs a kernel with a fault in it instead, which
the tools must find: see :func:`planted`. ``lists`` and the letter of a dtype run lists of matrices,
``families`` batches and several vectors, ``shards`` a matrix of several parts.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import LOAD_BYTES, Geometry, Launch
from gemv.engines import workspaces
from gemv.engines.backend import engine
from gemv.kernels import REGISTRY, get
from gemv.kernels.kernel import Kernel
from gemv.selection.select import select
from gemv.shards import cut

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.families import CALLS, host
from helpers.family_cases import every_family
from helpers.lists import run_together
from helpers.problems import Case


class ExactWorkspace(workspaces.Workspace):
    """Scratch memory and counters without a byte to spare, new for each call."""

    def reserve(self, scratch_bytes, counters, stream, posts=False):
        self.scratch = cuda.device_array(max(scratch_bytes, 1), np.uint8)
        if posts:
            self.scratch.copy_to_device(np.full(self.scratch.size, 0xFF, np.uint8))
        self.counters = cuda.to_device(np.zeros(max(counters, 1), np.uint32))
        return workspaces.address_of(self.scratch), workspaces.address_of(self.counters)


def shapes(kernel):
    tile_rows, tile_cols = kernel.tile(kernel.knobs)
    around = [
        (1, 1), (tile_rows + 1, tile_cols + 1), (2 * tile_rows + 3, 3), (tile_cols + 1, 5),
        (3, 9 * tile_cols + 5), (9 * tile_rows + 5, tile_cols - 1),
    ]  # fmt: skip
    return [(max(m, 1), max(n, 1)) for m, n in around]


def cases(kernel):
    """Every dtype, order and operation over the shapes; then every alignment, and increments."""
    tile_rows, tile_cols = kernel.tile(kernel.knobs)
    for dtype, element in DTYPES.items():
        operations = [("N", "C"), ("N", "F"), ("C" if element.kind == "c" else "T", "C")]
        for op, order in operations:
            for m, n in shapes(kernel) if dtype in "sz" else shapes(kernel)[1:4]:
                yield Case(m, n, dtype, order, op, alpha=1.5, beta=0.5)
            # Lines of a whole number of loads, so that all of A is off by as much as its start.
            m, n = 4 * (tile_rows // 4 + 2), 4 * (tile_cols // 4 + 2)
            for shift in range(max(LOAD_BYTES // element.itemsize, 1)):
                yield Case(m, n, dtype, order, op, alpha=1.5, beta=0, shift=shift)
            for rows, cols in ((tile_rows + 1, tile_cols + 1), (3, 9 * tile_cols + 5)):
                yield Case(rows, cols, dtype, order, op, alpha=1.5, beta=0.5, accumulate="wide")
            for incx, incy in ((2, -1), (-1, 3)):
                yield Case(
                    tile_rows + 1, tile_cols + 1, dtype, order, op, incx=incx, incy=incy, beta=1
                )


def every_case(names):
    count = 0
    for kernel in map(get, names):
        for case in cases(kernel):
            for half in (False, True) if case.element.kind == "c" and case.shift == 0 else (False,):
                made = exact(case, half)
                problem = case.problem.at(address_in_memory(made), 0)
                if kernel.accepts(problem) is None:
                    made.check(kernel.name)
                    count += 1
    print("checked", count, "cases of", len(names), "kernels")


def every_list(dtype):
    """Lists of matrices along rows and down columns, in which no operand is followed by anything.

    Most of their items are computed by the kernels for lists.
    """
    together = 0
    sizes = [(1, 1), (5, 7), (33, 36), (64, 17), (3, 90), (90, 2), (40, 64), (17, 33)]
    for order in "CF":
        cases = [
            exact(Case(m, n, dtype, order, alpha=1.5, beta=k % 2, shift=(0, 1, 0, 2)[k % 4]))
            for k, (m, n) in enumerate(sizes)
        ]
        groups, found = run_together(cases)
        for group in groups:
            if group.choice.kernel.name in ("list_rows", "list_columns", "list_in_order"):
                together += len(group.items)
            for k, single in zip(group.items, group.singles, strict=True):
                alone = cases[k].check(single.kernel.name, single.knobs)
                assert found[k].tobytes() == alone.tobytes(), cases[k]
    print("checked", together, "items of lists")


def every_product_of_shards(patch):
    """With copies between parts, sums that cross them, and plans."""

    def with_small_knobs(problem, device, kernel=None, **other):
        """So small that few columns are those of several parts."""
        knobs = dict(REGISTRY[kernel].small_knobs) if kernel else None
        return select(problem, device, kernel=kernel, knobs=knobs, **other)

    patch.setattr(cut, "select", with_small_knobs)
    names = [name for name in CALLS if "shards" in name]
    for name in names:
        call, expected, _ = CALLS[name]()
        for _ in range(3):  # the second and the third are remembered
            assert np.array_equal(host(call()), expected), name
    print("checked shards:", *names)


def address_in_memory(case):
    """How A starts from its allocation on, which the device aligns for any load."""
    pointers = [array.__array_interface__["data"][0] for array in (case.a, case.a_buffer)]
    return pointers[0] - pointers[1] + 256


def exact(case, half=False):
    """The case without guard zones: buffers end where the operands end.

    `half` moves A by half of a complex element, which is as much as its alignment allows.
    """
    elements = case.shift + case.m * case.n
    if half:
        memory = np.full(2 * elements + 1, np.nan, case.element.type(0).real.dtype)
        whole = memory[1:].view(case.element)
        whole[:] = case.a_buffer[:elements]
        case.a_buffer = memory
    else:
        case.a_buffer = whole = np.ascontiguousarray(case.a_buffer[:elements])
    outer, inner = (case.m, case.n) if case.order == "C" else (case.n, case.m)
    matrix = whole[case.shift :].reshape(outer, inner)
    case.a = matrix if case.order == "C" else matrix.T
    for name, length, inc in (("x", case.cols, case.incx), ("y", case.rows, case.incy)):
        offset, reach = getattr(case, f"{name}_offset"), 1 + (length - 1) * abs(inc)
        low = offset if inc > 0 else offset - reach + 1
        buffer = getattr(case, f"{name}_buffer")[low - case.shift : low + reach]
        setattr(case, f"{name}_buffer", np.ascontiguousarray(buffer))
        setattr(case, f"{name}_offset", offset - low + case.shift)
    return case


def planted(fault):
    """A kernel with a fault: its own, or, by a kernel's name, that its A has a column less."""
    if fault in REGISTRY:
        order = "C" if REGISTRY[fault].accepts(Case(40, 300).problem) is None else "F"
        case = exact(Case(40, 300, order=order))
        case.__class__ = type("Wider", (Case,), {"problem": property(one_column_more)})
        run_planted(case, fault)
        return
    good = REGISTRY["block_per_row"]

    def build(spec):
        number, zero = spec.number, spec.zero

        def read(rows, cols, a, row_stride, col_stride, x, incx, y, incy):
            total = zero
            for j in range(cuda.threadIdx.x, cols + 1, 256):
                total += a[cuda.blockIdx.x * row_stride] * x[j * incx]
            if total == 0.123:
                y[0] = total

        def race(rows, cols, a, row_stride, col_stride, x, incx, y, incy):
            sums = cuda.shared.array(256, number)
            tid = cuda.threadIdx.x
            sums[tid] = x[tid % cols]
            # the barrier that belongs here is left out
            y[cuda.blockIdx.x * incy] = sums[255 - tid]

        def uninitialised(rows, cols, a, row_stride, col_stride, x, incx, y, incy, scratch):
            if cuda.threadIdx.x == 0:
                y[cuda.blockIdx.x * incy] = scratch[cuda.blockIdx.x]  # that nobody has written

        def barrier(rows, cols, a, row_stride, col_stride, x, incx, y, incy):
            sums = cuda.shared.array(256, number)
            tid = cuda.threadIdx.x
            sums[tid] = x[tid % cols]
            cuda.syncwarp(1)  # which only the first lane of a warp may call
            if tid == 0:
                y[cuda.blockIdx.x * incy] = sums[0]

        faults = {"read": read, "race": race, "uninitialised": uninitialised, "barrier": barrier}
        return (faults[fault],)

    def geometry(problem, device, knobs):
        launches = (Launch((problem.rows, 1, 1), (256, 1, 1)),)
        return Geometry(launches, scratch=problem.rows if fault == "uninitialised" else 0)

    REGISTRY["planted"] = Kernel(
        name="planted", rung=99, build=build, geometry=geometry, tile=good.tile, doc="planted",
        knobs=good.knobs,
    )  # fmt: skip
    run_planted(exact(Case(3, 300)), "planted")


def one_column_more(case):
    """The problem of a case whose A ends a column before the kernel is told that it does."""
    problem = Case.problem.fget(case)
    return problem._replace(n=problem.n + 1, cols=problem.cols + 1)


def run_planted(case, kernel):
    case.run(kernel)
    engine().to_host(cuda.to_device(np.zeros(1)))
    print("ran the planted fault")


if __name__ == "__main__":
    workspaces.Workspace = ExactWorkspace
    if sys.argv[1] == "planted":
        planted(sys.argv[2])
    elif sys.argv[1] == "families":
        with pytest.MonkeyPatch.context() as patch:
            made = every_family(patch)
        print("checked the families:", *sorted(made))
    elif sys.argv[1] == "shards":
        with pytest.MonkeyPatch.context() as patch:
            every_product_of_shards(patch)
    elif sys.argv[1] == "lists":
        every_list(sys.argv[2])
    else:
        every_case(sys.argv[1:])
