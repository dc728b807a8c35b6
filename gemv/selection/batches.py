"""Which kernel a batch gets: one of its own, or that of a single item, run for all of them."""

from __future__ import annotations

import dataclasses
import math

from gemv.core.batch import Batch
from gemv.core.geometry import MAX_GRID_Y, Device, Geometry, ceil_div
from gemv.core.problem import Problem
from gemv.kernels import get
from gemv.kernels.items import LEVELS, geometry_of_items
from gemv.kernels.staging import COPIES
from gemv.selection.items import are_small_items, is_small
from gemv.selection.select import Choice, as_computed, select
from gemv.selection.sharing import SEVERAL

#: Items that one launch may take: a grid has no more blocks along z.
MOST_ITEMS = MAX_GRID_Y
_ANY_NUMBER = 1 << 62
#: Threads for each multiprocessor from which on a batch fills the GPU: 128 KB by 8 loads each.
THREADS_PER_SM = 1024
#: Bytes of all A for each multiprocessor from which on copies gain: of columns, of rows of 2-byte
#: numbers, and of rows of 4-byte numbers.
STAGED_COLUMNS, STAGED_NARROW_ROWS, STAGED_ROWS = 48 << 10, 64 << 10, 96 << 10
#: Scratch memory that one launch may take; a batch that needs more takes several launches.
MOST_SCRATCH_BYTES = 1 << 28
#: Counters that one launch may take: a part of those that a captured graph can have.
MOST_COUNTERS = 1 << 16
#: So many small items, or fewer, have the kernel of a single product, which has the same sums.
FEW_ITEMS = 1


def shares_matrix(batch: Batch) -> bool:
    """Whether several items have one matrix."""
    return batch.items > 1 and not any(batch.of("a"))


def select_item(
    problem: Problem,
    batch: Batch,
    device: Device,
    kernel: str | None = None,
    homes: tuple[str, str] = ("arguments", "arguments"),
) -> Choice:
    """The kernel for one item of `batch`, which fixes the order of sums of all.

    Small items have a kernel of their own, which reads many of them as one stretch of memory. A
    single product has another one, with the same sums, and so have several vectors of one matrix.
    """
    if kernel is None and not shares_matrix(batch) and are_small_items(problem):
        small = get("small_items")
        if small.constants_of is not None:
            spec = small.spec(problem, small.constants_of(problem), homes)
            geometry = small.geometry(problem, device, dict(spec.knobs))
            return Choice(small, spec, geometry, "many small matrices: one stretch of memory")
    return select(problem, device, kernel=kernel, homes=homes)


def for_few(
    problem: Problem, batch: Batch, device: Device, kernel: str | None, single: Choice
) -> Choice:
    """`single`, the choice for one item, or that of a single product where a few items get it."""
    few = kernel is None and batch.items <= FEW_ITEMS and is_small(problem)
    return select(problem, device, homes=single.spec.homes) if few else single


def select_batch(
    problem: Problem,
    batch: Batch,
    device: Device,
    kernel: str | None = None,
    homes: tuple[str, str] = ("arguments", "arguments"),
) -> Choice:
    """The kernel for `batch`, whose items are all `problem`.

    It has the order of sums of :func:`select_item`, as its arguments. An error as of
    :func:`select`.
    """
    problem = as_computed(problem, device)  # the kernel for several vectors is made from it
    single = select_item(problem, batch, device, kernel, homes)
    single = for_few(problem, batch, device, kernel, single)
    if single.kernel.x_home(single.knobs) != "pointer":
        raise ValueError(f"kernel {single.kernel.name!r} moves x, so it computes no batches")
    several = _for_vectors(problem, batch, device, single)
    if several is not None:
        return several
    own = single.kernel.of_batch
    if own is not None:
        knobs = single.knobs
        if single.kernel.constants_of_batch is not None:
            knobs = dict(single.kernel.constants_of_batch(problem, batch, knobs, device))
        pairs = tuple(sorted(knobs.items()))
        spec = dataclasses.replace(single.spec, knobs=pairs, conjugate_x=batch.conjugate_x)
        return single._replace(spec=spec, geometry=own(problem, device, knobs, batch))
    may_be_staged = gains_by_stages(problem, device) and not _are_loaded(problem, device, single)
    if may_be_staged and _are_many(problem, batch, device):
        staged = in_stages(problem, batch, device, single)
        if staged is not None:
            return staged
    single = _for_many(problem, batch, device, single)
    spec = dataclasses.replace(single.spec, levels=len(batch.shape), conjugate_x=batch.conjugate_x)
    return single._replace(spec=spec, geometry=geometry_of_items(single.geometry, batch))


def limits(problem: Problem, choice: Choice) -> tuple[int, int]:
    """How many dimensions and how many items one launch takes, from the choice for one item."""
    if choice.kernel.of_batch is not None:
        return 1, _ANY_NUMBER
    return LEVELS, most_items(problem, choice)


def most_items(problem: Problem, choice: Choice) -> int:
    """How many items one launch takes, from the choice for one item."""
    geometry = choice.geometry
    most = MOST_ITEMS
    if geometry.scratch:
        each = geometry.scratch * problem.precision.sums.itemsize
        most = min(most, MOST_SCRATCH_BYTES // each)
    if geometry.counters:
        most = min(most, MOST_COUNTERS // geometry.counters)
    return max(most, 1)


def that_fit(problem: Problem, choice: Choice, items: int) -> int:
    """How many of `items` one launch takes, from the choice for all of them.

    Several vectors can have sums in scratch memory where a single product has none.
    """
    geometry, most = choice.geometry, items
    nbytes = geometry.scratch * problem.precision.sums.itemsize
    for needed, room in ((nbytes, MOST_SCRATCH_BYTES), (geometry.counters, MOST_COUNTERS)):
        if needed > room:
            most = min(most, items * room // needed)
    return max(most, 1)


def _for_many(problem: Problem, batch: Batch, device: Device, single: Choice) -> Choice:
    """The choice for one item, with constants for many: the same sums, and more bytes in flight.

    The constants of a single product spread it over the GPU. A batch that fills the GPU by its
    number of items wants blocks with more to do.
    """
    kernel = single.kernel
    if kernel.in_batches is None or single.geometry.scratch:
        return single
    knobs = kernel.in_batches(problem, single.knobs)
    geometry = kernel.geometry(problem, device, knobs)
    if not _fills(device, geometry, batch.items):
        return single
    spec = dataclasses.replace(single.spec, knobs=tuple(sorted(knobs.items())))
    return single._replace(spec=spec, geometry=geometry)


#: Bytes of the widest loads that copies to shared memory are faster than.
MOST_LOADED = 4
#: Bytes of the longest lines that are copied, by the access and the bytes of a number.
MOST_STAGED_BYTES = {
    ("dot", 2): 2048, ("dot", 4): 1280, ("dot", 8): 1040,
    ("axpy", 2): 2048, ("axpy", 4): 1280, ("axpy", 8): 1040,
}  # fmt: skip
#: Bytes that a multiprocessor gets from memory in a clock: from so many on, numbers of 8 bytes are
#: copied. An H200 has 18, and gains; an H100 has 13, and lost with float64 41 x 41.
MUCH_IN_CLOCK = 16
#: Numbers of 8 bytes: bytes of all A for each multiprocessor from which on copies gain, of lines of
#: up to SHORT_BYTES and of longer ones.
SHORT_BYTES = 512
STAGED_LARGE = {"dot": (192 << 10, 640 << 10), "axpy": (48 << 10, 384 << 10)}
#: A row longer than that is copied if its loads have places for so many times as many columns.
_IDLE_PLACES = 1.15
#: Loads of a lane for a row of 4-byte numbers from which on they are faster than copies: usually,
#: and where the memory brings MUCH_IN_CLOCK. At least so many lanes are neighbours.
_MANY_LOADS, _MANY_IF_FAST, _NEIGHBOURS = 7, 11, 8
#: Kernels that copy items to shared memory, by the kernel whose sums they have.
_STAGED = {"vector_rows": "staged_rows", "vector_columns": "staged_columns"}


def gains_by_stages(problem: Problem, device: Device) -> bool:
    """Whether items are copied to shared memory, where a kernel can do so.

    Wide copies need no alignment, so they are for lines that are read by narrower loads otherwise.
    They take more instructions than loads, which counts where lines are long, and where loads have
    8 bytes or more. us on an H100, for 136 MB, without copies and with them: bfloat16 129 x 129 103
    and 53 by columns, 114 x 227 93 and 54 by rows, and 376 x 52, with loads of 8 bytes, 48 and 53;
    float32 69 x 69 79 and 57 by rows; float32 105 x 182, with loads of 8 bytes, 47 and 54 by
    columns; float64 41 x 41 51 and 58 by rows. Of the floor, float32 511 x 511: 1.00 and 0.88 by
    rows, 0.90 and 0.39 by columns.

    Where memory is faster, the same loads of numbers of 8 bytes are the slower way. us on an H200,
    for 300 MB: float64 33 x 33 128 and 86 by rows, 145 and 80 by columns, complex64 134 and 94, 129
    and 81; float64 65 x 65 98 and 82, 99 and 80.
    """
    size = problem.dtype.itemsize
    if problem.widths[0] * size > MOST_LOADED and not _are_slow_loads(problem, device):
        return False
    return problem.line_bytes <= MOST_STAGED_BYTES.get((problem.access, size), 0)


def _are_slow_loads(problem: Problem, device: Device) -> bool:
    """Whether numbers of 8 bytes are loaded one by one, and the memory would bring more."""
    return problem.dtype.itemsize == 8 and problem.widths[0] == 1 and _brings_much(device)


def _brings_much(device: Device) -> bool:
    """Whether the memory brings each multiprocessor so many bytes that its loads are the limit."""
    memory = 2 * device.chip.memory_khz * device.chip.bus_bits // 8
    return memory >= MUCH_IN_CLOCK * device.chip.clock_khz * device.multiprocessors


def in_stages(problem: Problem, batch: Batch, device: Device, single: Choice) -> Choice | None:
    """A kernel that copies items to shared memory, with the sums of `single`; None without one."""
    name = _STAGED.get(single.kernel.name)
    homes = single.spec.homes
    if name is None or single.geometry.scratch or not set(homes) <= {"arguments", "pointer"}:
        return None
    kernel = get(name)
    (step, *more) = batch.of("a")
    if more or step <= 0 or kernel.accepts(problem) or device.lacks(kernel.capability):
        return None
    assert kernel.for_items is not None and kernel.of_batch is not None
    knobs = kernel.for_items(problem, single.knobs)
    if knobs is None:
        return None
    spec = kernel.spec(problem, knobs, homes)
    spec = dataclasses.replace(spec, levels=0, conjugate_x=batch.conjugate_x)
    geometry = kernel.of_batch(problem, device, knobs, batch)
    reason = "the sums of one product, and copies of 16 bytes wherever lines begin"
    return Choice(kernel, spec, geometry, reason)


def _are_loaded(problem: Problem, device: Device, single: Choice) -> bool:
    """Whether loads of a row keep lanes busy, and are faster than copies then.

    Numbers of 4 bytes, us on an H100, for 136 MB, without copies and with them: 239 x 55, 7 loads
    of each of 8 lanes, 50 and 53; 129 x 129, 9 loads of each of 16 lanes, 49 and 51; 185 x 185, 12
    loads, 47 and 52; but 69 x 151, 5 loads of each of 32 lanes, 72 and 51. Where a row has fewer
    lanes, a warp has more rows, and few of its loads are neighbours: 33 x 33, 9 loads of each of 4
    lanes, took twice the time of the floor. Where memory is faster, copies are the faster way for
    longer rows, too. us on an H200, for 135 MB: 49 x 49, 7 loads of 8 lanes, 68.7 and 39.1;
    129 x 129, 9 loads of 16, 43.3 and 38.1; 145 x 145, 10 loads, 38.8 and 39.0; 185 x 185, 12
    loads, 35.2 and 38.5.

    Of numbers of 8 bytes these are long rows whose last loads leave few lanes idle. us on an H200,
    for 200 MB: 161 x 161, 6 loads of each of 32 lanes, 51 and 54; 100 x 101, 7 loads of 16, 49 and
    55; but 129 x 129, 5 loads of 32, 62 and 54.
    """
    size = problem.dtype.itemsize
    if single.kernel.name != "vector_rows" or size < 4:
        return False
    lanes = single.knobs["LANES"]
    loads = ceil_div(problem.cols, lanes * problem.widths[0])
    if size == 8:
        return problem.line_bytes > SHORT_BYTES and lanes * loads < _IDLE_PLACES * problem.cols
    many = _MANY_IF_FAST if _brings_much(device) else _MANY_LOADS
    return lanes >= _NEIGHBOURS and loads >= many


def _are_many(problem: Problem, batch: Batch, device: Device) -> bool:
    """Whether a batch has bytes enough for a kernel that copies them.

    Columns gain as soon as copies keep the memory busy. Loads of rows are as fast until several
    blocks come to each place on a multiprocessor. us on an H100, without copies and with them: by
    rows, 4096 bfloat16 of 33 x 33, 9 MB, 15.3 and 9.3; 1024 of 65 x 65, 9 MB, 7.6 and 8.5; 512 of
    129 x 99, 13 MB, 11.5 and 9.6; float32 1024 of 44 x 69, 12 MB, 8.6 and 9.4; 1024 of 65 x 65,
    17 MB, 13.9 and 12.3; by columns, 512 of 129 x 129 21.2 and 17.8, 256 of 65 x 65 4.1 and 4.4.
    float64 on an H200: by rows, 24 MB of 33 x 33 11.7 and 11.7, 32 MB of 65 x 65 11.6 and 15.1; by
    columns, 8 MB of 33 x 33 6.6 and 5.4, 32 MB of 65 x 65 12.2 and 13.4.
    """
    size = problem.dtype.itemsize
    nbytes = batch.items * problem.rows * problem.cols * size
    least = STAGED_NARROW_ROWS if size == 2 else STAGED_ROWS
    if problem.access == "axpy":
        least = STAGED_COLUMNS
    if size == 8:
        least = STAGED_LARGE[problem.access][problem.line_bytes > SHORT_BYTES]
    return nbytes >= least * device.multiprocessors


def _fills(device: Device, geometry: Geometry, items: int) -> bool:
    """Whether a launch for each of some items, all together, has threads enough for the GPU."""
    launch = geometry.launches[0]
    threads = math.prod(launch.grid) * launch.threads_per_block * items
    return threads >= THREADS_PER_SM * device.multiprocessors


def _for_vectors(problem: Problem, batch: Batch, device: Device, single: Choice) -> Choice | None:
    """A kernel for several vectors and one matrix, with the sums of `single`; None without one."""
    names = SEVERAL.get(single.kernel.name, ())
    if batch.of("a") != (0,) or batch.items < 2:
        return None
    if any(home not in ("arguments", "pointer") for home in single.spec.homes):
        return None
    usual = single.knobs
    if not single.geometry.scratch and "BLOCKS_PER_SM" in usual:
        usual = {**usual, "BLOCKS_PER_SM": 0}  # no code for splits that there are not
    for name in names:
        kernel = get(name)
        assert kernel.for_vectors is not None and kernel.of_batch is not None
        knobs = kernel.for_vectors(problem, usual, batch.items)
        if knobs is None or device.lacks(kernel.capability, kernel.block_bytes):
            continue
        if kernel.without_copies is not None and device.lacks(COPIES):
            knobs = kernel.without_copies(problem, knobs)
        geometry = kernel.of_batch(problem, device, knobs, batch)
        spec = kernel.spec(problem, knobs, single.spec.homes)
        helpers = geometry.sizes.get("helpers", 1)
        spec = dataclasses.replace(spec, conjugate_x=batch.conjugate_x, helpers=helpers)
        reason = "the sums of one product, and the matrix is read once for several vectors"
        return Choice(kernel, spec, geometry, reason)
    return None
