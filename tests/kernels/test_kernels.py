"""Every kernel of the registry: right values, nothing else touched, whatever the shape."""

import functools
import itertools

import numpy as np
import pytest
from helpers.combinations import of_all
from helpers.problems import ALL_ROWS, Case, filled, tile_of
from helpers.problems import knobs_for_tests as smaller_knobs
from helpers.selection import tuned

from gemv.core.dtypes import DTYPES
from gemv.core.narrow import cast
from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.kernels.k13_short_columns import columns_touched

KERNELS = list(REGISTRY.values())
BY_NAME = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
ON_SIMULATOR = pytest.mark.skipif(
    backend.backend() != "simulator", reason="schedules exist in the simulator only"
)


def knobs_for_tests(kernel):
    """Smaller ones, or the kernel's own, around whose tile the shapes are made."""
    return smaller_knobs(kernel) or dict(kernel.knobs)


@functools.cache
def shapes(kernel):
    """Around the tile, in both directions; tall, wide, one row, one column."""
    tile_rows, tile_cols = tile_of(kernel)
    around = [
        (max(tile_rows - 1, 1), max(tile_cols - 1, 1)),
        (tile_rows, tile_cols),
        (tile_rows + 1, tile_cols + 1),
        (2 * tile_rows + 3, tile_cols + 1),
        (tile_rows + 1, 2 * tile_cols + 3),
        # Turned: a tile of A stored along columns has its sides exchanged.
        (tile_cols + 1, tile_rows + 1),
        (2 * tile_cols + 3, 1),
        (1, 2 * tile_cols + 3),
        (1, 1),
        (3, 9 * tile_cols + 5),  # several blocks share a row
        (9 * tile_rows + 5, 2),
    ]
    return [(m, n) for m, n in around if accepted(kernel, m, n)]


def accepted(kernel, m, n):
    """Whether the kernel takes the shape in one storage order or the other."""
    return any(kernel.accepts(Case(m, n, order=order).problem) is None for order in "CF")


def accepts(kernel, case):
    return kernel.accepts(case.problem) is None


def order_of(kernel):
    """A storage order that the kernel takes."""
    return "C" if accepts(kernel, Case(3, 3, order="C")) else "F"


COEFFICIENTS = {
    "sd": [(0, 0), (0, 1), (1, 0), (1, 1), (-1, 1), (1.5, -0.25), (0, -2.5), (-0.75, 0)],
    "cz": [(0, 0), (0, 1), (1, 0), (1, 1), (-1, 1j), (1.5 - 2j, -0.25 + 1j), (0, 2j), (1j, 0)],
}
INCREMENTS = [(1, 1), (2, 3), (-1, -1), (-3, 2), (1, -2)]


def coefficients(dtype):
    return COEFFICIENTS["cz" if dtype in "cz" else "sd"]


def cases_around_the_tile(order, op, dtype, kernel):
    """Those that the kernel accepts.

    All of them with one dtype, and half of them with each other, unless all rows are asked for.
    """
    # Coefficients, increments and padding go round with the shapes, at different periods.
    pairs = itertools.cycle(coefficients(dtype)[3:])
    increments = itertools.cycle(INCREMENTS)
    found = []
    for (m, n), (alpha, beta), (incx, incy), pad, shift in zip(
        shapes(kernel), pairs, increments, itertools.cycle((0, 3, 4)),
        itertools.cycle((0, 0, 0, 1, 2)), strict=False,
    ):  # fmt: skip
        case = Case(m, n, dtype, order, op, pad, incx, incy, alpha, beta, shift=shift)
        if accepts(kernel, case):
            found.append(case)
    if ALL_ROWS or dtype == ("c" if op == "C" else "s"):
        return found
    return found["dczhb".index(dtype) % 2 :: 2] or found


def is_around_the_tile(order, op, dtype, kernel):
    # Without a conjugate, a kernel is given the problem of the other storage order as well, and the
    # conjugate of a real number is the number. A kernel whose loads are of one number has the same
    # loops for each dtype.
    few = {"N": "sdczhb", "T": "s", "C": "cz"} if kernel.wide else {"N": "scb", "T": "s", "C": "c"}
    if dtype not in ("sdczhb" if ALL_ROWS else few[op]):
        return False
    return bool(cases_around_the_tile(order, op, dtype, kernel))


@of_all(is_around_the_tile, order="CF", op="NTC", dtype="sdczhb", kernel=KERNELS)
def test_shapes_around_the_tile(kernel, dtype, op, order):
    for case in cases_around_the_tile(order, op, dtype, kernel):
        case.check(kernel.name, knobs_for_tests(kernel))


def narrow_with_y_in_float32(order, dtype, kernel):
    tile_rows, tile_cols = tile_of(kernel)
    return Case(
        tile_rows + 3, 5 * tile_cols + 7 if accepted(kernel, 9, 5 * tile_cols + 7) else 61, dtype,
        order, "N", 3, -1, 2, 1.5, -0.25, y_dtype="s",
    )  # fmt: skip


@of_all(
    lambda *case: accepts(case[-1], narrow_with_y_in_float32(*case)),
    order="CF", dtype="hb", kernel=KERNELS,
)  # fmt: skip
def test_narrow_with_y_in_float32(kernel, dtype, order):
    # Judged by the bound of float32: nothing was rounded to 16 bits on the way.
    narrow_with_y_in_float32(order, dtype, kernel).check(kernel.name, knobs_for_tests(kernel))


OF_NARROW = of_all(
    lambda dtype, kernel: accepts(kernel, Case(7, 4, dtype, order_of(kernel))),
    dtype="hb", kernel=KERNELS,
)  # fmt: skip


@OF_NARROW
def test_narrow_results_are_rounded_to_nearest_even_once(kernel, dtype):
    """Sums that lie between two numbers of 8 or 11 digits, at ties and just beside them."""
    digits = {"h": 11, "b": 8}[dtype]
    one = 2.0**digits  # its neighbours are 2 apart
    low = one / 2
    terms = np.array([
        [one, 1, 0, 0],  # a tie: down, to the even one
        [one + 2, 1, 0, 0],  # a tie: up
        [one, 1, 2.0**-8, 0],  # above the tie by less than rounding twice would see
        [one + 2, 1, -(2.0**-8), 0],  # below it
        [low, 0.5, 0.25, 0.25],
        [-one, -1, 0, 0],
        [-one - 2, -1, 0, 0],
    ])  # fmt: skip
    expected = np.array([one, one + 4, one + 2, one + 2, low + 1, -one, -one - 4])
    case = Case(*terms.shape, dtype, order_of(kernel))
    case.a[...] = cast(terms, case.element)
    case.x[...] = filled((), 1, case.element)
    result = case.y_of(case.run(kernel.name, knobs_for_tests(kernel)))
    np.testing.assert_array_equal(cast(result, np.dtype("d")), expected)


@OF_NARROW
def test_narrow_special_values(kernel, dtype):
    """What is too large becomes infinite, infinities and NaN stay, denormals are not flushed."""
    largest, least = {"h": (65504.0, 2.0**-24), "b": (3.3895313892515355e38, 2.0**-133)}[dtype]
    rows = [
        ([largest, 0], largest), ([largest, largest * 2.0**-7], np.inf),
        ([-largest, -largest * 2.0**-7], -np.inf), ([np.nan, 1], np.nan), ([np.inf, 1], np.inf),
        ([-np.inf, 1], -np.inf), ([np.inf, -np.inf], np.nan), ([least, 0], least),
        ([-least, 3 * least], 2 * least), ([0, 0], 0),
    ]  # fmt: skip
    case = Case(len(rows), 2, dtype, order_of(kernel))
    case.a[...] = cast(np.array([row for row, _ in rows]), case.element)
    case.x[...] = filled((), 1, case.element)
    result = case.y_of(case.run(kernel.name, knobs_for_tests(kernel)))
    np.testing.assert_array_equal(cast(result, np.dtype("d")), [value for _, value in rows])


@BY_NAME
@pytest.mark.parametrize("dtype", "sdcz")
def test_all_coefficients_and_increments(kernel, dtype):
    tile_rows, tile_cols = tile_of(kernel)
    tiles = 8 if dtype in "sc" else 2  # what twice the digits change is not in the loops
    m, n = tile_rows + 2, min(tiles * tile_cols + 1, 1000)
    order = order_of(kernel)
    pad = 4 if accepts(kernel, Case(m, n, dtype, order, pad=4)) else 1
    pairs = itertools.product(coefficients(dtype), INCREMENTS)
    if not ALL_ROWS:  # y in one piece has ways of its own to be stored; gaps have one
        unit, *others = INCREMENTS
        if dtype in "sc":
            pairs = [(each, unit) for each in coefficients(dtype)]
            pairs += zip(coefficients(dtype), itertools.cycle(others), strict=False)
        else:
            pairs = zip(coefficients(dtype), itertools.cycle(INCREMENTS), strict=False)
    for k, ((alpha, beta), (incx, incy)) in enumerate(pairs):
        if k == 8 and not ALL_ROWS:  # nor is what gaps in x and y change
            n = min(2 * tile_cols + 1, 1000)
        case = Case(m, n, dtype, order, "N", pad, incx, incy, alpha, beta)
        case.check(kernel.name, knobs_for_tests(kernel))


class HalfAway(Case):
    """Its x and y begin at half of a complex number, which is as much as its alignment allows."""

    def _vector(self, rng, length, inc, fill, dtype):
        buffer, offset = super()._vector(rng, length, inc, fill, dtype)
        memory = np.full(2 * len(buffer) + 1, -3, buffer.real.dtype)
        memory[1:].view(dtype)[:] = buffer
        return memory, offset

    @property
    def x(self):
        whole = self.x_buffer[1:].view(self.element)
        return whole[self.x_offset :: self.incx][: self.cols]

    def y_of(self, buffer):
        return buffer[1:].view(self.y_element)[self.y_offset :: self.incy][: self.rows]


class OnlyYAway(Case):
    """A and x begin at a multiple of 16 bytes, and y an element behind one."""

    def _vector(self, rng, length, inc, fill, dtype):
        buffer, offset = super()._vector(rng, length, inc, fill, dtype)
        if np.isnan(fill):
            return buffer, offset
        return np.concatenate([filled(1, fill, dtype), buffer]), offset + 1


@pytest.mark.parametrize("beta", [0, -1])
def test_a_y_that_begins_between_two_vectors(beta):
    """The only kernel that stores vectors does so where y allows it, whatever A does."""
    kernel = REGISTRY["long_columns"]
    rows = 2 * tile_of(kernel)[0]
    case = OnlyYAway(rows, 3, "s", "F", alpha=2, beta=beta)
    assert case.problem.at(16, 16).widths[0] == 4
    case.check(kernel.name, knobs_for_tests(kernel))


@BY_NAME
@pytest.mark.parametrize("dtype", "cz")
@pytest.mark.parametrize("beta", [0, 2])
def test_complex_vectors_aligned_like_their_real_part(kernel, dtype, beta):
    tile_rows, tile_cols = tile_of(kernel)
    case = HalfAway(2 * tile_rows + 1, tile_cols + 2, dtype, order_of(kernel), beta=beta)
    case.check(kernel.name, knobs_for_tests(kernel))


@BY_NAME
@pytest.mark.parametrize("order", "CF")
def test_negative_strides_of_a(kernel, order):
    tile_rows, tile_cols = tile_of(kernel)
    case = Case(tile_rows + 1, tile_cols + 2, "d", order, "N", 2, alpha=2, reversed_a=True)
    if not accepts(kernel, case):
        with pytest.raises(ValueError, match="with a unit stride"):
            case.check(kernel.name)
        return
    case.check(kernel.name, knobs_for_tests(kernel))


def constants_of_machines():
    """Constants that selection chooses among, each with a dtype, if they differ.

    The simulator has no limit on registers, which is all that MIN_BLOCKS sets. Each set has one
    dtype, of 2 and of 4 bytes in turn, or all of "szb" if all are asked for: the constants act on
    vectors, and a complex128 is one. Where not all are asked for, every sixth set is here.
    """
    without = {"MIN_BLOCKS": 0} if backend.backend() != "cuda" else {}
    apart = {}
    for each in tuned():
        if each.knobs == REGISTRY[each.kernel].knobs:
            continue  # all other tests here have these
        knobs = {**each.knobs, **without}
        like = {"h": "b", "d": "s", "c": "z"}  # as long, or twice as long
        letters = {like.get(letter, letter) for letter in each.letters}
        if ALL_ROWS:
            for letter in sorted(letters):
                apart.setdefault((each.kernel, letter, *sorted(knobs.items())), (each, letter))
            continue
        wanted = [letter for letter in "sb" if letter in letters] or sorted(letters)
        if wanted:
            constants = each.kernel, *sorted(knobs.items())
            apart.setdefault(constants, (each, wanted[len(apart) % len(wanted)]))
    return list(apart.values())[:: 1 if ALL_ROWS else 6]


@pytest.mark.parametrize(
    "each, dtype", constants_of_machines(), ids=lambda value: getattr(value, "name", value)
)
def test_the_constants_of_machines(each, dtype):
    """Whole blocks of the size that runs on a GPU, over the edge of the tile and of the pass.

    Lines begin at multiples of 16 bytes and are not whole vectors, or are, or begin anywhere.
    """
    kernel = REGISTRY[each.kernel]
    knobs = {**kernel.knobs, **each.knobs}
    tile_rows, tile_cols = kernel.tile(knobs)
    axpy = each.access == "axpy"
    order = "F" if axpy else "C"
    op = "C" if dtype == "z" else "N"
    order = order if op == "N" else {"C": "F", "F": "C"}[order]
    sizes = [
        (tile_rows + 3, min(tile_cols + 5, 9), None, 0),
        (8, min(3 * tile_cols + 7, 600), 0, 0) if axpy else (3, min(3 * tile_cols, 1096), 8, 0),
        (5, 2 * knobs.get("LANES", knobs["THREADS_PER_BLOCK"]) + 3, 1, 1),
    ]
    if kernel.name == "short_columns":  # the shortest that so many FACTORS are enough for
        width = 16 // DTYPES[dtype].itemsize
        most = knobs["FACTORS"] or width  # 0 is any number
        touched = ((rows, columns_touched(rows, width)) for rows in range(2, 9))
        least = next(rows for rows, factors in touched if factors <= most)
        sizes = [(least, 3 * tile_cols + 7, 0, 0), (least, 5, 1, 1), (19, tile_cols // 3, 1, 0)]
    for rows, cols, pad, shift in sizes:
        m, n = (rows, cols) if op == "N" else (cols, rows)
        pad = -(rows if axpy else cols) % 8 if pad is None else pad
        Case(m, n, dtype, order, op, pad, alpha=2, beta=-1, shift=shift).check(each.kernel, knobs)


def test_each_row_that_fills_no_vector_needs_a_thread():
    knobs = {"PIECES": 1, "COLUMNS": 1, "MIN_BLOCKS": 1}
    case = Case(8 * 8 + 7, 2, "h", "F", pad=1)
    with pytest.raises(ValueError, match="THREADS_PER_BLOCK must be 8 or more"):
        case.run("long_columns", {**knobs, "THREADS_PER_BLOCK": 4})
    case.check("long_columns", {**knobs, "THREADS_PER_BLOCK": 8})


@BY_NAME
def test_small_integers_are_exact(kernel):
    tile_rows, tile_cols = tile_of(kernel)
    case = Case(2 * tile_rows + 1, tile_cols + 3, "s", order_of(kernel), alpha=2, beta=-1)
    rng = np.random.default_rng(5)
    case.a[...] = rng.integers(-8, 9, case.a.shape)
    case.x[...] = rng.integers(-8, 9, case.x.shape)
    y = case.y_of(case.y_buffer)
    y[...] = rng.integers(-8, 9, y.shape)
    expected = 2 * (case.a.astype(int) @ case.x.astype(int)) - y.astype(int)
    after = case.run(kernel.name, knobs_for_tests(kernel))
    np.testing.assert_array_equal(case.y_of(after), expected)


@BY_NAME
def test_nan_and_infinity_in_a_propagate_past_a_zero_in_x(kernel):
    tile_rows, tile_cols = tile_of(kernel)
    case = Case(tile_rows + 3, tile_cols + 1, "d", order_of(kernel), alpha=1)
    case.a[0, 0], case.a[1, -1] = np.nan, np.inf
    case.x[...] = 0
    result = case.y_of(case.run(kernel.name, knobs_for_tests(kernel)))
    assert np.isnan(result[:2]).all()
    assert (result[2:] == 0).all()


@of_all(lambda kernel: kernel.same_bits, kernel=KERNELS)
def test_same_bits_every_run(kernel):
    tile_rows, tile_cols = tile_of(kernel)
    n = 9 * tile_cols + 1 if accepted(kernel, 9, 9 * tile_cols + 1) else 99
    case = Case(tile_rows + 3, n, order=order_of(kernel))
    runs = {case.run(kernel.name, knobs_for_tests(kernel)).tobytes() for _ in range(3)}
    assert len(runs) == 1


def is_scheduled(order, op, kernel):
    """A kernel's conjugate transpose has the one of the two storage orders that it takes, or C."""
    if op == "N":
        return accepts(kernel, Case(3, 3, "c", order, op))
    return order == ("C" if accepts(kernel, Case(3, 3, "c", "C", op)) else "F")


@ON_SIMULATOR
@of_all(is_scheduled, order="CF", op="NC", kernel=KERNELS)
def test_every_schedule(kernel, op, order):
    from gemv.language.simulator.scheduler import Schedule, scheduled

    tile_rows, tile_cols = tile_of(kernel)
    n = 9 * tile_cols + 1 if accepted(kernel, 9, 9 * tile_cols + 1) else 33
    schedules = [Schedule("forward"), Schedule("reversed", late=True)]
    # The conjugate transpose waits where the plain product of the other storage order does.
    seeds = 6 if ALL_ROWS else 3 if op == "N" else 1
    schedules += [Schedule("random", seed) for seed in range(seeds)]
    results = set()
    if not accepts(kernel, Case(2 * tile_rows + 1, n, "c", order, op, 1)):
        n = 33
    for schedule in schedules:
        case = Case(2 * tile_rows + 1, n, "c", order, op, 1, alpha=1.5 + 1j, beta=-1)
        with scheduled(schedule):
            results.add(case.check(kernel.name, knobs_for_tests(kernel)).tobytes())
    if kernel.same_bits:
        assert len(results) == 1, "the bits depend on the order of threads or blocks"


@pytest.mark.gpu
@BY_NAME
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize(
    "m, n",
    [(1, 1 << 26), (1 << 26, 1), (65536 * 33, 5), (5, 65536 * 33), (65536 * 9 + 1, 3)],
    ids=lambda size: str(size),
)
def test_limits_on_the_gpu(kernel, m, n, order):
    from gemv.measure.inputs import as_buffer, make_problem
    from gemv.measure.reference import error_in_bounds, reference
    from gemv.selection.select import select

    element = np.dtype(np.float32)
    problem = make_problem(m, n, element, order, "N")
    if kernel.accepts(problem):
        with pytest.raises(ValueError, match="refuses"):
            select(problem, backend.engine().device(), kernel.name)
        return
    rng = np.random.default_rng(0)
    a = rng.random((m, n), dtype=np.float32) - np.float32(0.5)
    a = np.asarray(a, order=order)
    x = rng.random(n, dtype=np.float32) - np.float32(0.5)
    y = rng.random(m, dtype=np.float32)
    engine = backend.engine()
    device = [engine.to_device(each) for each in (a, x, y)]
    operands = [as_buffer(each) for each in device]
    problem = problem.at(operands[0].pointer, operands[1].pointer)
    choice = select(problem, engine.device(), kernel.name)
    alpha, beta = np.float32(2), np.float32(0.5)
    engine.run(choice, problem, alpha, operands[0], operands[1], beta, operands[2])
    exact, magnitude = reference(alpha, a, x, beta, y)
    assert error_in_bounds(engine.to_host(device[2]), exact, magnitude, n, alpha) <= 1
