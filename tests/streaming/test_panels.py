"""Matrices streamed in panels: every cut is a partition, every result has the same bits."""

from __future__ import annotations

import sys
import threading
import warnings

import numpy as np
import pytest
from helpers.combinations import of_all
from helpers.problems import random_array

import gemv
from gemv.arrays import adopt
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import LOAD_BYTES, Device
from gemv.core.rules import check_arguments as check
from gemv.engines import backend
from gemv.engines.backend import HOME
from gemv.kernels import REGISTRY
from gemv.selection.select import select
from gemv.streaming import compute, cut

KERNELS = [name for name, kernel in REGISTRY.items() if kernel.same_bits]


def case(m, n, dtype, order, trans, seed=0, incx=1, incy=1):
    """Host operands, their problem, and x and y."""
    rng = np.random.default_rng(seed)
    element = DTYPES[dtype]
    a = np.asarray(random_array(rng, (m, n), element), order=order)
    rows, cols = (n, m) if trans else (m, n)
    operand = adopt.adopt("gemv", "a", a, None, HOME)
    x_length, y_length = cols * abs(incx), rows * abs(incy)
    problem = check(
        "gemv", element, (m, n), operand.strides, x_length, 1, y_length, 1, 0, incx, 0, incy, trans
    )
    x, y = random_array(rng, x_length, element), random_array(rng, y_length, element)
    return operand, problem.at(0, 0), x, y


def covered(problem, made):
    """How often the panels of a cut cover each element of op(A)."""
    count = np.zeros((problem.rows, problem.cols), int)
    for panel in made.panels:
        count[panel.row : panel.row + panel.rows, panel.col : panel.col + panel.cols] += 1
    return count


def streamed(made, choice, operand, problem, x, y, alpha, beta):
    engine = backend.engine()
    return compute.compute(
        engine, "gemv", made, choice, problem, operand, alpha, x, beta, y, None
    )  # fmt: skip


def sides_of(kernel):
    """Rows and columns of op(A): some tiles and a rest."""
    tile = kernel.tile(kernel.small_knobs or kernel.knobs)[0]
    rows, cols = (35, 38) if tile <= 16 else (2 * tile + 3, 9)
    if kernel.name == "phased_columns":
        rows = 803  # strips are whole tiles, and whole loads besides
    return rows, cols


def case_of(name, order, trans):
    rows, cols = sides_of(REGISTRY[name])
    m, n = (cols, rows) if trans else (rows, cols)
    return case(m, n, "c" if trans == 2 else "s", order, trans)


def is_for(name, order, trans):
    return REGISTRY[name].accepts(case_of(name, order, trans)[1]) is None


@of_all(is_for, name=KERNELS, order="CF", trans=(0, 1, 2))
def test_every_kernel_gives_the_bits_of_the_whole(name, order, trans):
    kernel = REGISTRY[name]
    operand, problem, x, y = case_of(name, order, trans)
    device = backend.engine().device()
    choice = select(problem, device, kernel=name, knobs=dict(kernel.small_knobs))
    whole = cut.cut(problem, choice)
    assert whole.way == "whole" and len(whole.panels) == 1
    expected = streamed(whole, choice, operand, problem, x, y, 0.5, 2.0)
    nbytes = problem.rows * problem.cols * problem.dtype.itemsize
    ways = set()
    for room in (None, nbytes - 1, nbytes * 2 // 3):
        made = cut.cut(problem, choice, room, target=nbytes // 4)
        if isinstance(made, int):
            continue
        ways.add(made.way)
        assert (covered(problem, made) == 1).all()
        got = streamed(made, choice, operand, problem, x, y, 0.5, 2.0)
        assert got.tobytes() == expected.tobytes(), (made.way, len(made.panels))
    assert "rows" in ways or "columns" in ways


@pytest.mark.parametrize("name", [n for n in KERNELS if REGISTRY[n].splits_apart])
def test_splits_in_launches_of_their_own(name):
    kernel = REGISTRY[name]
    order = "C" if kernel.accepts(case(5, 411, "d", "C", 0)[1]) is None else "F"
    operand, problem, x, y = case(5, 411, "d", order, 0)
    knobs = dict(kernel.small_knobs)
    if kernel.phased:  # several blocks for each tile of rows
        knobs["BLOCKS_PER_SM"] *= problem.phases
    choice = select(problem, backend.engine().device(), kernel=name, knobs=knobs)
    splits = choice.geometry.sizes["splits"]
    assert splits > 2
    expected = streamed(cut.cut(problem, choice), choice, operand, problem, x, y, 1.0, 1.0)
    # Panels of one split each, of two, and all but one in the first.
    step = choice.geometry.sizes["cols_per_split"]
    step += 0 if problem.access == "axpy" else cut._between(choice)
    step *= problem.rows * problem.dtype.itemsize
    for units in (1, 2, splits - 1):
        whole = cut.Panel(0, problem.rows, 0, problem.cols, 0, splits, problem.cols)
        made = cut._by_columns(problem, choice, whole, None, units * step)
        assert len(made.panels) == -(-splits // units)
        assert made.panels[-1].split == 0, "the panel that adds up comes last"
        assert (covered(problem, made) == 1).all()
        got = streamed(made, choice, operand, problem, x, y, 1.0, 1.0)
        assert got.tobytes() == expected.tobytes(), units


@pytest.mark.parametrize("incx, incy", [(2, -3), (-2, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ["thread_per_row", "last_block"])
def test_panels_step_through_x_and_y(name, order, incx, incy):
    """Each begins at its own element of both, and nothing between those of y is written."""
    operand, problem, x, y = case(70, 90, "d", order, 0, incx=incx, incy=incy)
    knobs = dict(REGISTRY[name].small_knobs)
    choice = select(problem, backend.engine().device(), kernel=name, knobs=knobs)
    expected = streamed(cut.cut(problem, choice), choice, operand, problem, x, y, 0.5, 2.0)
    nbytes = 70 * 90 * 8
    ways = set()
    for made in (
        cut.cut(problem, choice, nbytes - 1, target=nbytes // 4),
        cut._by_rows(problem, choice, cut.cut(problem, choice).panels[0], None, nbytes // 4),
    ):
        assert len(made.panels) > 1
        ways.add(made.way)
        got = streamed(made, choice, operand, problem, x, y, 0.5, 2.0)
        assert got.tobytes() == expected.tobytes()
    assert ways == ({"rows", "columns"} if (name, order) == ("last_block", "F") else {"rows"})
    between = np.ones(len(y), bool)
    between[:: abs(incy)] = False
    assert np.array_equal(expected[between], y[between])


@pytest.mark.parametrize("m, n", [(3, 673), (2, 1025), (2, 513), (5, 1021)])
def test_panels_of_short_columns_add_what_fills_no_vector_once(m, n):
    operand, problem, x, y = case(m, n, "s", "F", 0)
    knobs = {**REGISTRY["short_columns"].small_knobs, "VECTORS": 1}
    choice = select(problem, backend.engine().device(), kernel="short_columns", knobs=knobs)
    splits = choice.geometry.sizes["splits"]
    whole = cut.Panel(0, m, 0, n, 0, splits, n)
    expected = streamed(cut.cut(problem, choice), choice, operand, problem, x, y, 1.0, 1.0)
    for units in range(1, splits):
        step = units * choice.geometry.sizes["cols_per_split"] * m * 4
        made = cut._by_columns(problem, choice, whole, None, step)
        got = streamed(made, choice, operand, problem, x, y, 1.0, 1.0)
        assert got.tobytes() == expected.tobytes(), units


H200 = Device("NVIDIA H200", (9, 0), 132)


@pytest.mark.parametrize("dtype", ["s", "z"])
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "shape",
    [
        (10**6, 10**5),
        (10**9, 16),
        (16, 10**9),
        (1, 10**11),
        (10**11, 1),
        (300, 10**8),
        (9999, 77777),
    ],
    ids=str,
)
def test_cuts_of_large_matrices(shape, order, trans, dtype):
    """The choice for an H200: panels fit, cover all, and are whole blocks of the whole launch."""
    m, n = shape
    element = DTYPES[dtype]
    strides = (n, 1) if order == "C" else (1, m)
    rows, cols = (n, m) if trans else (m, n)
    problem = check("gemv", element, (m, n), strides, cols, 1, rows, 1, trans=trans).at(0, 0)
    choice = select(problem, H200)
    nbytes = m * n * element.itemsize
    made = cut.cut(problem, choice, room=100 * 2**30)
    if nbytes > 100 * 2**30:
        assert len(made.panels) > 1
    assert made.buffers * made.panel_bytes <= 100 * 2**30
    assert sum(panel.rows * panel.cols for panel in made.panels) == m * n
    if made.way == "rows":
        step = cut.tile_rows(choice, problem)
        assert all(panel.row % step == 0 for panel in made.panels)
        (launch, *_) = choice.geometry.launches
        blocks = 0
        for panel in made.panels:
            part = cut.part_of(problem, panel)
            one = cut.choice_for(choice, problem, panel, part, H200, made.way)
            blocks += one.geometry.launches[0].grid[0]
        most = choice.knobs.get("MAX_BLOCKS", 0)
        assert launch.grid[0] in (blocks, most), "no block is cut"
        assert problem.access == "dot" or all(panel.row % 16 == 0 for panel in made.panels)
    starts = {panel.row for panel in made.panels} if made.way == "rows" else None
    assert starts is None or len(starts) == len(made.panels)
    for panel in (made.panels[0], made.panels[-1]):
        part = cut.part_of(problem, panel)
        one = choice
        if made.way != "whole":
            one = cut.choice_for(choice, problem, panel, part, H200, made.way)
            for mine, whole in zip(one.geometry.launches, choice.geometry.launches, strict=True):
                assert mine.block == whole.block
        assert one.spec == choice.spec, "machine code of the whole"
        pitch_bytes = panel.pitch * element.itemsize
        lines = panel.rows if problem.access == "dot" else panel.cols
        if choice.kernel.phased:
            line = problem.cols if problem.access == "dot" else problem.rows
            assert (pitch_bytes - line * element.itemsize) % LOAD_BYTES == 0
            assert (panel.row if problem.access == "dot" else panel.col) % problem.phases == 0
        else:
            width = choice.spec.widths[0] * element.itemsize
            assert lines == 1 or pitch_bytes % width == 0, "every line as aligned as in the whole"


def test_the_call_is_streamed_under_a_limit():
    rng = np.random.default_rng(1)
    a, x, y = rng.standard_normal((160, 50)), rng.standard_normal(50), rng.standard_normal(160)
    kernel = "warp_per_row"
    expected = gemv.gemv(1.5, a, x, beta=0.5, y=y, kernel=kernel)
    limit = 50 * 8 + 160 * 8 + 30_000
    seen = []
    with gemv.trace() as calls, compute.watch(lambda done, total: seen.append((done, total))):
        got = gemv.gemv(1.5, a, x, beta=0.5, y=y, kernel=kernel, device_memory_limit=limit)
    assert got.tobytes() == expected.tobytes()
    assert len(calls) == 1, "one call, one record"
    assert len(seen) > 1 and seen[-1] == (a.nbytes, a.nbytes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    told = gemv.explain(1.5, a, x, beta=0.5, y=y, kernel=kernel, device_memory_limit=limit)
    assert f"{len(seen)} panels of rows" in told.transfer and told.transfer in str(told)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_memory_map_is_read_in_place(tmp_path, order):
    rng = np.random.default_rng(2)
    a = np.asarray(rng.standard_normal((96, 40)).astype(np.float32), order=order)
    np.save(tmp_path / "a.npy", a)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    x = rng.standard_normal(40).astype(np.float32)
    expected = gemv.sgemv(1.0, a, x, kernel="warp_per_row")
    got = gemv.sgemv(1.0, mapped, x, kernel="warp_per_row", device_memory_limit=12_000)
    assert got.tobytes() == expected.tobytes()
    assert isinstance(mapped, np.memmap)


@pytest.mark.parametrize("kind", ["strided", "swapped", "broadcast", "columns"])
def test_values_are_converted_on_the_way(kind):
    """Other dtypes, byte orders and strides have the result of a plain copy."""
    rng = np.random.default_rng(3)
    base = rng.integers(-9, 9, (80, 40))
    x = rng.standard_normal(20)
    a = {
        "strided": base[::2, ::2],
        "swapped": base[::-2, ::2].astype(">f8"),
        "broadcast": np.broadcast_to(base[0, ::2], (40, 20)),
        "columns": np.asfortranarray(base.astype("f4"))[::2, ::2],
    }[kind]
    order = "F" if kind in ("columns", "broadcast") else "C"
    plain = np.array(a, np.float64, order=order)
    expected = gemv.dgemv(1.0, plain, x, kernel="warp_per_row")
    limit = 5_000 + 16 * (plain.shape[0] + 20)
    told = gemv.explain(1.0, a, x, kernel="warp_per_row", device_memory_limit=limit)
    assert "panels" in told.transfer
    got = gemv.dgemv(1.0, a, x, kernel="warp_per_row", device_memory_limit=limit)
    assert np.allclose(got, plain @ x)
    assert got.tobytes() == expected.tobytes()


def two_ways():
    """How to stream by rows and by columns: arguments of a call, and what its answer must be."""
    rng = np.random.default_rng(4)
    a, x = (rng.integers(-4, 5, size).astype(float) for size in ((5, 2000), 2000))
    ways = []
    for way, kernel, order in (("rows", "block_per_row", "C"), ("columns", "last_block", "F")):
        ordered = np.asarray(a, order=order)
        options = dict(kernel=kernel, device_memory_limit=a.nbytes // 2 + x.nbytes + 5000)
        assert f"panels of {way}" in gemv.explain(1.0, ordered, x, **options).transfer
        ways.append(((1.0, ordered, x), options))
    return ways, (a @ x).tolist()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_call_that_was_interrupted_between_two_panels_harms_no_other(error):
    ways, expected = two_ways()

    def interrupt(done, total):
        raise error("between two panels")

    for arguments, options in ways:
        with pytest.raises(error, match="between two panels"), compute.watch(interrupt):
            gemv.gemv(*arguments, **options)
        for others, their_options in ways:
            assert gemv.gemv(*others, **their_options).tolist() == expected
        assert gemv.gemv(*arguments).tolist() == expected


def test_threads_that_stream_share_nothing():
    """Threads switch often, and each is in the middle of its panels while the others launch."""
    ways, expected = two_ways()
    wrong = []

    def work(k):
        try:
            for number in range(6):
                arguments, options = ways[(k + number) % 2]
                got = gemv.gemv(*arguments, **options).tolist()
                if got != expected:
                    wrong.append(got)
        except Exception as error:
            wrong.append(error)

    filters = list(warnings.filters)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert warnings.filters == filters, "the filters belong to all threads"


def test_alpha_zero_reads_no_matrix():
    a = np.full((96, 50), np.nan)
    seen = []
    with compute.watch(lambda *report: seen.append(report)):
        got = gemv.gemv(
            0, a, np.ones(50), beta=2, y=np.ones(96),
            kernel="warp_per_row", device_memory_limit=30_000,
        )  # fmt: skip
    assert got.tolist() == [2.0] * 96
    assert not seen, "nothing was moved"


def test_limits_that_are_none(monkeypatch):
    a, x = np.ones((96, 50)), np.ones(50)
    y = np.ones(96)
    with pytest.raises(MemoryError, match=r"gemv: A of 96 x 50 float64 takes 38400 bytes.*100 byt"):
        gemv.gemv(1.0, a, x, beta=1, y=y, overwrite_y=1, device_memory_limit=100)
    assert y.tolist() == [1.0] * 96, "untouched"
    with pytest.raises(ValueError, match="device_memory_limit must be positive, got 0"):
        gemv.gemv(1.0, a, x, device_memory_limit=0)
    with pytest.raises(TypeError, match="device_memory_limit must be an integer"):
        gemv.gemv(1.0, a, x, device_memory_limit=1e9)
    with pytest.raises(TypeError, match="device_memory_limit must be an integer"):
        gemv.gemv(1.0, a, x, device_memory_limit=True)


def test_limits_are_for_host_arrays():
    cuda = pytest.importorskip("numba.cuda")
    a, x = cuda.to_device(np.ones((4, 4))), cuda.to_device(np.ones(4))
    with pytest.raises(ValueError, match="only applies to host arrays"):
        gemv.gemv(1.0, a, x, device_memory_limit=10**6)


def test_a_full_device_is_one_clear_error(monkeypatch):
    engine = backend.engine()

    class Full(Exception):
        pass

    def feed(self, source, made):
        raise Full("no memory")
        yield

    with engine.session() as session:
        monkeypatch.setattr(type(session), "feed", feed)
    monkeypatch.setattr(type(engine), "exhausted", lambda self, error: isinstance(error, Full))
    y = np.ones(4)
    with pytest.raises(MemoryError, match=r"dgemv: out of device memory with A of 4 x 3 float64"):
        gemv.dgemv(1.0, np.ones((4, 3)), np.ones(3), beta=1, y=y, overwrite_y=1)
    assert y.tolist() == [1.0] * 4


def test_a_cut_that_cannot_be_says_what_is_missing():
    _, problem, _, _ = case(64, 64, "d", "C", 0)
    choice = select(problem, backend.engine().device(), kernel="block_per_row")
    row = 64 * 8
    assert cut.cut(problem, choice, room=2 * row).panel_bytes == row
    assert cut.cut(problem, choice, room=2 * row - 1) == 1
    wide = problem._replace(rows=1)
    assert cut.cut(wide, choice, room=row).way == "whole"


def test_what_else_is_on_the_device_counts_against_a_limit():
    """x with its gaps, all of y, and scratch memory and counters of the splits."""
    engine = backend.engine()
    _, problem, _, y = case(70, 90, "d", "F", 0, incx=3, incy=2)
    knobs = dict(REGISTRY["last_block"].small_knobs)
    choice = select(problem, engine.device(), kernel="last_block", knobs=knobs)
    assert choice.geometry.scratch and choice.geometry.counters
    others = 8 * (1 + 89 * 3 + len(y) + choice.geometry.scratch) + 4 * choice.geometry.counters
    assert compute.room_for(engine, problem, choice, len(y), 10**6) == 10**6 - others


# --------------------------------------------------------------------------------------------------
# on a GPU


@pytest.fixture(scope="module")
def small_panels():
    """Panels of 4 MiB, so that a few hundred MB are many of them."""
    from gemv.engines import transfers

    patch = pytest.MonkeyPatch()
    for module in (compute, transfers):
        patch.setattr(module, "PANEL_BYTES", 4 * 2**20)
    yield
    patch.undo()
    backend.engine().release()


@pytest.mark.gpu
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((6000, 6000), "s"),
        ((4999, 5003), "d"),
        ((3_000_000, 16), "s"),
        ((16, 1_500_000), "d"),
        ((1, 30_000_001), "s"),
        ((200, 100_003), "c"),
    ],
    ids=str,
)
def test_streams_have_the_bits_of_the_device(small_panels, shape, dtype, order, trans):
    from numba import cuda

    rng = np.random.default_rng(7)
    a = np.asarray(random_array(rng, shape, DTYPES[dtype]), order=order)
    x = random_array(rng, shape[0 if trans else 1], DTYPES[dtype])
    on_device = cuda.to_device(a)
    with gemv.trace() as calls:
        expected = gemv.gemv(1, on_device, cuda.to_device(x), trans=trans).copy_to_host()
        pinned = cuda.pinned_array(shape, a.dtype, order=order)
        pinned[...] = a
        limit = a.nbytes // 2 + x.nbytes + expected.nbytes + 8 * 2**20
        for name, host, limited in (
            ("pageable", a, None), ("pinned", pinned, None),
            ("limited", a, limit), ("limited, pinned", pinned, limit),
        ):  # fmt: skip
            got = gemv.gemv(1, host, x, trans=trans, device_memory_limit=limited)
            assert got.tobytes() == expected.tobytes(), name
    assert len({(call.kernel, str(call.geometry)) for call in calls}) == 1
    wider = np.zeros((shape[0] + 2, shape[1] + 3), a.dtype, order=order)
    wider[: shape[0], : shape[1]] = a
    got = gemv.gemv(1, wider[: shape[0], : shape[1]], x, trans=trans)
    assert got.tobytes() == expected.tobytes(), "a view with padding"


@pytest.mark.gpu
def test_threads_take_turns(small_panels):
    from concurrent.futures import ThreadPoolExecutor

    rng = np.random.default_rng(8)
    matrices = [rng.standard_normal((1500, 1500)) for _ in range(4)]
    x = rng.standard_normal(1500)
    expected = [gemv.gemv(1, a, x).tobytes() for a in matrices]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            got = list(pool.map(lambda a: gemv.gemv(1, a, x).tobytes(), matrices))
            assert got == expected


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["mapped", "managed"])
def test_mapped_and_managed_arrays_are_read_in_place(kind):
    from numba import cuda

    make = getattr(cuda, f"{kind}_array")
    rng = np.random.default_rng(9)
    a, x, y = make((300, 200), np.float32), make(200, np.float32), make(300, np.float32)
    a[...], x[...], y[...] = rng.random((300, 200)), rng.random(200), 1
    expected = gemv.gemv(1, np.array(a), np.array(x), beta=2, y=np.ones(300, np.float32))
    assert gemv.gemv(1, a, x, beta=2, y=y, overwrite_y=1) is y
    cuda.synchronize()
    assert np.array(y).tobytes() == expected.tobytes()
    with pytest.raises(TypeError, match="must be in one place"):
        gemv.gemv(1, a, np.array(x))
    # A slice is host memory for all that is known of it.
    assert gemv.gemv(1, a[:10], np.array(x)).shape == (10,)
