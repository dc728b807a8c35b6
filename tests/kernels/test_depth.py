"""The depth of each kernel's sums, seen and not derived; and the error bound on ordinary data.

In the simulator a kernel can compute with any numbers. Here a number is the shape of the sum that
made it, so that what arrives in y is the depth of the tree of additions.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.bounds import choice_of, worst
from helpers.combinations import of_all
from helpers.problems import ALL_ROWS, Case, knobs_for_tests, tile_of
from helpers.selection import tuned

from gemv.core.dtypes import DTYPES, TWOFOLD
from gemv.engines import backend
from gemv.kernels import REGISTRY, get

KERNELS = list(REGISTRY.values())
SMALL = get("small_matrix")
ON_SIMULATOR = pytest.mark.skipif(
    backend.backend() != "simulator", reason="only there can a number be a tree"
)


class Tree:
    """A sum; `depth` additions are on the longest way to one of its products; -1: it is empty."""

    dtype = np.dtype(object)
    __hash__ = None
    __array_ufunc__ = None

    def __init__(self, depth=-1):
        self.depth = depth

    @property
    def real(self):
        return self

    def __add__(self, other):
        if self.depth < 0 or other.depth < 0:
            return Tree(max(self.depth, other.depth))  # adding to zero rounds nothing
        return Tree(max(self.depth, other.depth) + 1)

    def __radd__(self, zero):
        assert zero == 0
        return self

    def __mul__(self, other):
        assert self.depth < 0 and other.depth < 0, "sums are not multiplied with each other"
        return self

    def __rmul__(self, factor):
        return self

    def plus_zero(self):
        return self

    def __eq__(self, number):
        return number == 0 and self.depth < 0

    def rounded(self):
        return float(self.depth)


class Leaf:
    """An element of A or x, or the zero in place of one that is not there."""

    def __init__(self, value):
        self.there = value != 0

    def conjugate(self):
        return self

    def __mul__(self, other):
        return Tree(0 if self.there and other.there else -1)


def atomic_add(pointer, index, tree):
    """What the kernel of atomics adds to y with."""
    place = pointer.origin + index
    pointer.flat[place] = (Tree(round(pointer.flat[place])) + tree).rounded()


def depths(case, kernel, knobs):
    """The depth of each row's tree, in one run of a kernel."""
    from numba import cuda

    from gemv import language
    from gemv.engines import simulator
    from gemv.kernels import kernel as kernels_kernel
    from gemv.kernels.spec import Spec
    from gemv.language import twofold
    from gemv.language.simulator import memory

    def pointer_to(array, *arguments, number=None, **keywords):
        # Elements are trees, whatever a kernel would compute with.
        number = None if number is None else TWOFOLD
        return plain_pointer_to(array, *arguments, number=number, **keywords)

    def shfl_xor(tree, step):
        return Tree(round(cuda.shfl_xor_sync(0xFFFFFFFF, float(tree.depth), step)))

    def number_of(sums, value, exact):
        return Leaf(value) if exact else Tree(round(abs(value)) if value > 0 else -1)

    plain_pointer_to = memory.pointer_to
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "pointer_to", pointer_to)
        patch.setattr(memory, "number_of", number_of)
        patch.setattr(twofold, "zero", lambda sums: Tree())
        patch.setattr(simulator, "_scratch", lambda made, _: np.full(made.scratch, None, object))
        patch.setattr(Spec, "number", object)
        patch.setattr(Spec, "zero", property(lambda spec: Tree()))
        patch.setattr(Spec, "shfl_xor", property(lambda spec: shfl_xor))
        patch.setattr(language, "atomic_add", atomic_add)
        kernels_kernel._functions.cache_clear()
        try:
            return case.y_of(case.run(kernel.name, knobs)).real.astype(int)
        finally:
            kernels_kernel._functions.cache_clear()


def check(kernel, knobs, *shape, **options):
    """Compare what a kernel says with what it does; whether it accepts the problem.

    Where sums follow the address of A, what it says is the depth at the worst of the addresses that
    have the same alignment, so all of them are tried.
    """
    width = 16 // DTYPES[options["dtype"]].itemsize
    first = options.pop("shift", 0)
    found = {}
    for shift in range(width) if kernel.phased else [first]:
        case = Case(*shape, shift=shift, **options)
        if kernel.accepts(case.problem) is not None:
            return False
        choice, problem = choice_of(case, kernel.name, knobs)
        stated = kernel.depth(problem, choice.geometry, choice.knobs)
        assert type(stated) is int
        found.setdefault((problem.a_alignment, stated), []).append(
            int(depths(case, kernel, knobs).max())
        )
    for (alignment, stated), seen in found.items():
        assert max(seen) == stated, (shape, alignment, seen)
    return True


def sizes_for(kernel, knobs, dtype):
    """Tiles with a rest, one column, splits; for short loads also what is left of a vector."""
    if kernel is SMALL:
        return [(3, n) for n in (1, 4, 7, 15, 16, 17, 31, 32)] + [(20, 30)]
    rows, cols = kernel.tile({**kernel.knobs, **(knobs or {})})
    if dtype == "d":
        return [
            (rows + 3, 1), (rows + 1, cols + 1), (3, min(5 * cols + 3, 1000)),
            (2, min(40 * cols + 7, 3000)), (rows + 5, min(9 * cols + 1, 700)),
        ]  # fmt: skip
    return [(3, n) for n in (1, 3, 7, 8, 13)] + [(rows + 5, min(9 * cols + 1, 700))]


def with_knobs(kernel):
    if kernel is SMALL:
        return None  # those that follow from the problem
    knobs = knobs_for_tests(kernel)
    if kernel.name == "where_x_lives":
        return {**knobs, "X_HOME": 0}  # others hold numbers only, and all homes have one order
    return knobs


#: Every kernel, and where loads of several elements make other sums, with other dtypes and sums.
KINDS = [(kernel, "d", "plain") for kernel in KERNELS]
KINDS += [
    (kernel, dtype, sums)
    for kernel in KERNELS
    if kernel.wide
    for dtype, sums in (("s", "plain"), ("h", "plain"), ("z", "plain"), ("h", "wide"))
]
KINDS += [
    (SMALL, dtype, sums)
    for dtype, sums in (("s", "plain"), ("d", "plain"), ("z", "plain"), ("s", "wide"),
                        ("s", "pairs"), ("d", "wide"))
]  # fmt: skip


def is_apart(shift, kernel, dtype, sums):
    """Whether a kind has a tree that others do not show.

    Wide sums add up in the order of plain ones, and of a phased kernel lines begin anywhere with
    and without a shift.
    """
    both = shift == 1, sums == "plain"
    return ALL_ROWS or (all(both) if kernel.phased else any(both))


@ON_SIMULATOR
@pytest.mark.parametrize(
    "shift, kernel, dtype, sums",
    [(shift, *kind) for shift in (0, 1) for kind in KINDS if is_apart(shift, *kind)],
    ids=lambda each: getattr(each, "name", each),
)
def test_the_tree_is_as_deep_as_the_kernel_says(kernel, dtype, sums, shift):
    """No deeper, and no less deep: a bound that is larger than it need be is a fault, too."""
    knobs = with_knobs(kernel)
    checked = 0
    pad = shift if dtype == "z" else 3 * shift  # a gap of 32 bytes is too long for one kernel
    for order in "CF":
        for m, n in sizes_for(kernel, knobs, dtype):
            checked += check(
                kernel, knobs, m, n, dtype=dtype, order=order, pad=pad, shift=shift,
                accumulate=sums,
            )  # fmt: skip
    assert checked


#: Constants of machines that differ in more than the registers that a thread may have: without a
#: GPU, every ninth.
TUNED = {
    f"{each.kernel}-{sorted({**each.knobs, 'MIN_BLOCKS': 0}.items())}": each for each in tuned()
}
if not ALL_ROWS:
    TUNED = dict(list(TUNED.items())[1::9])


@ON_SIMULATOR
@pytest.mark.parametrize("each", TUNED.values(), ids=lambda each: each.name)
def test_the_constants_of_machines(each):
    kernel = REGISTRY[each.kernel]
    order = "F" if each.access == "axpy" else "C"
    cols = kernel.tile({**kernel.knobs, **each.knobs})[1]
    assert check(kernel, dict(each.knobs), 3, min(9 * cols + 1, 700), dtype="d", order=order)


def adversarial(name, rng, shape):
    """Signs and magnitudes that make the most of every rounding."""
    values = rng.random(shape) + 0.5
    if name == "alternating":
        values *= np.where(np.arange(shape[-1]) % 2, 1, -1)
    elif name == "graded":
        values *= 2.0 ** np.linspace(20, -20, shape[-1])
    elif name == "mixed":
        values *= 2.0 ** rng.integers(-30, 30, shape)
    elif name == "denormal":
        values *= 2.0**-126
    return values


ADVERSARIES = ["positive", "alternating", "graded", "mixed", "denormal"]


def is_against(dtype, data, kernel):
    """Each kind of numbers, real or complex in turn, unless all rows are asked for."""
    number = ADVERSARIES.index(data) + [*KERNELS, SMALL].index(kernel)
    return ALL_ROWS or dtype == "sc"[number % 2]


@of_all(is_against, dtype="sc", data=ADVERSARIES, kernel=[*KERNELS, SMALL])
def test_errors_stay_within_what_the_depth_allows(kernel, dtype, data):
    knobs = None if kernel is SMALL else knobs_for_tests(kernel)
    tile_rows, tile_cols = tile_of(kernel)
    for order in "CF":
        n = 31 if kernel is SMALL else min(9 * tile_cols + 5, 900)
        case = Case(min(tile_rows + 3, 60), n, dtype, order, alpha=1.25, beta=-0.75)
        if kernel.accepts(case.problem) is not None:
            continue
        rng = np.random.default_rng(11)
        case.a[...] = adversarial(data, rng, case.a.shape)
        if dtype == "c":
            case.a[...] *= np.exp(1j * rng.random(case.a.shape))
        case.x[...] = 1 + rng.random(case.cols)
        y = case.y_of(case.y_buffer).copy()
        assert worst(case, case.run(kernel.name, knobs), y, kernel.name, knobs) <= 1, order
