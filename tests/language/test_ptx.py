"""What the code for a GPU computes: kernels and device functions, run from their PTX."""

from __future__ import annotations

import json
import math
import os
import sys
from fractions import Fraction

import numpy as np
import pytest
from helpers import forced as forced_vectors
from helpers import processes, ptx
from helpers.lists import forced
from helpers.problems import Case

from gemv.calls.batched import contiguous
from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES, dtype_name
from gemv.core.geometry import Device
from gemv.core.narrow import cast
from gemv.kernels import REGISTRY, get
from gemv.kernels.vectors import b06_several_long_rows
from gemv.measure.inputs import make_problem
from gemv.measure.reference import reference
from gemv.selection import batches, ragged
from gemv.selection.batches import select_batch
from gemv.selection.parts import aligned

#: Few multiprocessors, so that few blocks share a row.
DEVICE = Device("any", (9, 0), 1)
#: Kernels with constants of their own as other tests compile them: dtypes of A and of y, rows and
#: columns of op(A), and increment of x. There are several tiles or splits, full passes and
#: remainders, and lines that fill no vector.
KERNELS = [
    ("vector_rows", "z", "", 1, 4103, 1),
    ("vector_columns", "c", "", 21, 550, 3),
    ("long_columns", "b", "s", 4101, 3, 1),
    ("phased_rows", "c", "", 3, 4101, 1),
    ("phased_rows", "b", "", 3, 2075, 1),
    ("phased_columns", "c", "", 70, 70, 1),
    ("short_columns", "c", "", 3, 2503, 2),
    ("cluster_rows", "s", "", 1, 16501, 1),
    ("cluster_columns", "c", "", 9, 501, 1),
]


def integers(case):
    """Put small whole numbers into the case: no sum is rounded before the last step."""
    rng = np.random.default_rng(7)
    for view in (case.a, case.x, case.y_of(case.y_buffer)):
        values = rng.integers(-2, 3, view.shape).astype(float)
        if case.element.kind == "c":
            values = values + 1j * rng.integers(-2, 3, view.shape)
        view[...] = cast(values, view.dtype)


def run(case, kernel, function, geometry):
    """The buffers of y, of posted sums and of counters after a launch."""
    problem, sums = case.problem, case.problem.precision.sums
    buffers = [case.a_buffer, case.x_buffer, case.y_buffer]
    buffers.append(np.full(geometry.scratch * sums.itemsize, 0xFF, np.uint8))
    buffers.append(np.zeros(geometry.counters, np.uint32))
    sizes = problem.arguments(geometry)
    size = case.element.itemsize
    places = {
        "a": ("buffer", 0, case.shift * size), "x": ("buffer", 1, case.x_offset * size),
        "y": ("buffer", 2, case.y_offset * case.y_element.itemsize), "scratch": ("buffer", 3, 0),
        "counters": ("buffer", 4, 0), "alpha": case.alpha, "beta": case.beta,
    }  # fmt: skip
    values = [(places | sizes)[name] for name in function["arguments"]]
    values = [complex(v) if isinstance(v, np.complexfloating) else v for v in values]
    (launch,) = geometry.launches
    after = ptx.launch(ptx.Program(function["ptx"]), launch.grid, launch.block[:2], values, buffers)
    assert after[0] == case.a_buffer.tobytes() and after[1] == case.x_buffer.tobytes()
    return after[2:]


@pytest.mark.parametrize("name, letter, of_y, rows, cols, incx", KERNELS)
def test_a_kernel_computes(name, letter, of_y, rows, cols, incx, compiler):
    """Exactly the integers that it should, and nothing beside y."""
    kernel = REGISTRY[name]
    rows_run = "rows" in name
    op = "C" if letter in "cz" else "N"
    m, n = (cols, rows) if op == "C" else (rows, cols)
    line = cols if rows_run else rows
    width = 16 // Case(1, 1, letter).element.itemsize
    # Lines at any address, near each other, or at multiples of 16 bytes.
    pad = {"phased": 1, "short": 0}.get(name.split("_")[0], -line % width)
    order = "C" if rows_run == (op == "N") else "F"
    scale, old = (2 - 1j, 1 + 1j) if letter in "cz" else (2, -1)
    case = Case(
        m, n, letter, order, op, pad, incx, alpha=scale, beta=old, shift=int(kernel.phased),
        y_dtype=of_y,
    )  # fmt: skip
    integers(case)
    problem = case.problem.at(16 + case.shift * case.element.itemsize, 16)
    if kernel.phased:
        problem = case.problem.at(case.element.itemsize, 16)
    assert kernel.accepts(problem) is None
    y_dtype = dtype_name(case.y_element) if of_y else None
    (function,) = compiler(kernel, dtype_name(case.element), y_dtype=y_dtype)
    knobs = {**kernel.knobs, "BLOCKS_PER_SM": 2}  # which shapes the grid alone
    geometry = kernel.geometry(problem, DEVICE, knobs)
    assert max(geometry.launches[0].grid) > 1
    after, scratch, counters = run(case, kernel, function, geometry)
    assert set(scratch) <= {0xFF} and set(counters) <= {0}, "the next launch would find them"

    y = case.y_of(case.y_buffer).copy()
    exact, _ = reference(case.alpha, case.op_a, case.x, case.beta, y)
    buffer = np.frombuffer(after, case.y_element).copy()
    np.testing.assert_array_equal(
        cast(case.y_of(buffer), np.dtype("D")), cast(cast(exact, case.y_element), np.dtype("D"))
    )
    case.y_of(buffer)[...] = y
    assert buffer.tobytes() == case.y_buffer.tobytes()


#: Batches: kernel, the dtype, rows and columns of an item, lengths of the batch, storage order, and
#: what all items share.
BATCHES = [
    ("small_items", "s", 5, 7, (9,), "C", ""),
    ("small_items", "c", 8, 6, (5,), "F", "x"),
    ("several_rows", "c", 21, 50, (5,), "C", "a"),
    ("several_short_rows", "h", 70, 64, (5,), "C", "a"),
    ("several_short_rows", "h", 37, 50, (3,), "C", "a"),
    ("several_short_rows", "h", 45, 56, (8,), "C", "a"),
    ("several_short_rows", "h", 9, 504, (5,), "C", "a"),
    ("several_long_rows", "h", 37, 328, (5,), "C", "a"),
    ("several_long_rows", "h", 5, 4096, (8,), "C", "a"),
    ("several_staged_rows", "h", 19, 2568, (5,), "C", "a"),
    ("several_rows_in_shares", "c", 5, 530, (5,), "C", "a"),
    ("staged_rows", "c", 21, 67, (3,), "C", "x"),
    ("staged_rows", "h", 5, 129, (2,), "C", ""),
    ("staged_columns", "s", 67, 21, (3,), "F", ""),
    ("vector_rows", "s", 9, 133, (2, 2), "C", ""),
    ("vector_columns", "z", 12, 70, (3,), "F", ""),
]


@pytest.mark.parametrize("name, letter, rows, cols, shape, order, shared", BATCHES)
def test_a_batch_computes(name, letter, rows, cols, shape, order, shared, compiler, monkeypatch):
    """Each item its own product, with an alpha of its own; complex A and x are conjugated."""
    dtype, items = DTYPES[letter], math.prod(shape)
    rng = np.random.default_rng(8)

    def numbers(*lengths):
        values = rng.integers(-2, 3, lengths).astype(float)
        imaginary = 1j * rng.integers(-2, 3, lengths) if dtype.kind == "c" else 0
        return cast(values + imaginary, dtype)

    a, x, y = numbers(items, rows, cols), numbers(items, cols), numbers(items, rows)
    alpha = numbers(items).astype(np.result_type(dtype, np.float32))
    for operand, values in (("a", a), ("x", x)):
        if operand == shared:
            values[1:] = values[:1]
    inner = contiguous(shape, 1)
    still = (0,) * len(shape)
    steps = {"a": rows * cols, "x": cols, "y": rows, "alpha": 1, "beta": 0}
    strides = tuple(
        still if operand == shared else tuple(step * each for each in inner)
        for operand, step in steps.items()
    )
    if len(shape) > 1:  # a vector for each index of the first dimension, so none can be joined
        x[:] = x[np.arange(items) // shape[1] * shape[1]]
        strides = (strides[0], (cols * shape[1], 0), *strides[2:])
    batch = Batch(shape, strides, conjugate_x=dtype.kind == "c")
    problem = make_problem(rows, cols, dtype, order, "N")._replace(conj=batch.conjugate_x)
    problem = aligned(problem.at(256, 256), batch)
    asked = name if name.startswith("vector_") else None  # others come by themselves
    if name.startswith("staged_"):
        monkeypatch.setattr(batches, "THREADS_PER_SM", 0)  # as in a batch of many items
        monkeypatch.setattr(batches, "_are_many", lambda problem, batch, device: True)
        # Complex numbers have loads of 8 bytes, and the items are few.
        monkeypatch.setattr(batches, "gains_by_stages", lambda problem, device: True)
    # As for many rows: all loads of 16 bytes go through a ring.
    monkeypatch.setattr("gemv.kernels.vectors.b05_several_short_rows.MANY_THREADS", 1)
    if name == "several_long_rows":  # as for many long rows, and with few threads
        monkeypatch.setattr(b06_several_long_rows, "MANY_LANES", 1)
        limits = b06_several_long_rows.LIMITS
        few = limits[8]._replace(columns=1, tiles=((128, 1),))
        monkeypatch.setitem(limits, 8, few)
    if name == "several_staged_rows":  # as for more rows
        module = "gemv.kernels.vectors.b07_several_staged_rows"
        monkeypatch.setattr(f"{module}.MANY_LANES", 1)
    if name == "several_rows_in_shares":  # two shares of a tile
        alone = {"LANES": 64, "BLOCKS_PER_SM": 0}
        few = {"PARTS": 2, "ROWS": 2, "COUNT": 4, "STAGES": 2, "THREADS_PER_BLOCK": 128}
        few = {**get(name).small_knobs, **few}
        forced_vectors.together(monkeypatch, "vector_rows", alone, name, few)
    chosen = select_batch(problem, batch, DEVICE, asked, ("pointer", "arguments"))
    spec = chosen.spec
    assert chosen.kernel.name == name and spec.levels in (0, len(shape))
    (function,) = compiler(
        chosen.kernel, dtype_name(dtype), spec.access, knobs=chosen.knobs, homes=spec.homes,
        widths=spec.widths, whole=spec.whole, levels=spec.levels, conjugate_x=spec.conjugate_x,
        narrow=spec.narrow,
    )  # fmt: skip
    sums = problem.precision.sums.itemsize
    matrices = a if order == "C" else a.swapaxes(1, 2)
    if shared == "a":
        matrices = matrices[:1]
    vectors = x[:1] if shared == "x" else x
    geometry = chosen.geometry
    buffers = [
        np.ascontiguousarray(matrices), vectors, y, alpha,
        np.full(geometry.scratch * sums, 0xFF, np.uint8), np.zeros(geometry.counters, np.uint32),
    ]  # fmt: skip
    names = ("a", "x", "y", "alpha_pointer", "scratch", "counters")
    places = {each: ("buffer", number, 0) for number, each in enumerate(names)}
    places["beta"] = -1 + 0j if dtype.kind == "c" else -1
    values = [(places | problem.arguments(geometry))[each] for each in function["arguments"]]
    (launch,) = geometry.launches
    after = ptx.launch(
        ptx.Program(function["ptx"]), launch.grid, launch.block[:2], values, buffers, launch.shared
    )

    wide = np.result_type(dtype, np.float64)
    products = np.conj(np.matmul(a.astype(wide), x.astype(wide)[..., None])[..., 0])
    wanted = alpha.astype(wide)[:, None] * products - y.astype(wide)
    np.testing.assert_array_equal(np.frombuffer(after[2], dtype).reshape(y.shape), wanted)
    assert set(after[4]) <= {0xFF} and set(after[5]) <= {0}, "the next launch would find them"


#: Lists: kernel, dtype, storage order, and rows and columns of the items.
LISTS = [
    ("vector_rows", "s", "C", [(9, 132), (3, 140), (70, 136)]),
    ("vector_columns", "z", "F", [(12, 70), (40, 40), (6, 75)]),
    ("small_items", "s", "C", [(5, 7), (3, 7), (8, 5)]),
]


@pytest.mark.parametrize("name, letter, order, sizes", LISTS)
def test_items_of_different_sizes_compute(name, letter, order, sizes, compiler, monkeypatch):
    """Blocks find their item in tables; what lies between items is neither read nor written."""
    dtype, count = DTYPES[letter], len(sizes)
    rng = np.random.default_rng(9)

    def numbers(length):
        values = rng.integers(-2, 3, length).astype(float)
        return cast(values + (1j * rng.integers(-2, 3, length) if dtype.kind == "c" else 0), dtype)

    memory = {each: np.full(20_000, np.nan, dtype) for each in "axy"}
    starts, lengths = {}, {"a": [m * n for m, n in sizes]}
    lengths |= {"x": [n for _, n in sizes], "y": [m for m, _ in sizes]}
    for each, own in lengths.items():
        starts[each] = [32 + sum(own[:k]) // 16 * 16 + 48 * k for k in range(count)]
        for start, length in zip(starts[each], own, strict=True):
            memory[each][start : start + length] = numbers(length)
    problems = [
        make_problem(m, n, dtype, order, "N").at(256, 256)._replace(conj=dtype.kind == "c")
        for m, n in sizes
    ]
    # No splits on this small device; and the kernel that has one product, not that for lists.
    knobs = None if name == "small_items" else {**REGISTRY[name].knobs, "BLOCKS_PER_SM": 0}
    forced(monkeypatch, name, knobs)
    (group,) = ragged.groups(problems, [(0, 0, 0)] * count, DEVICE)
    spec, geometry = group.choice.spec, group.choice.geometry
    assert group.choice.kernel.name == name and group.items == list(range(count))
    (function,) = compiler(
        group.choice.kernel, dtype_name(dtype), spec.access, knobs=group.choice.knobs,
        homes=spec.homes, widths=spec.widths, whole=spec.whole, table=spec.table,
        narrow=spec.narrow,
    )  # fmt: skip
    table = group.table.copy()
    away = {each: np.array(own) - own[0] for each, own in starts.items()}
    table[:, group.words.index("a")] = away["a"]
    places = np.stack([away["x"], away["y"]], axis=1)
    blocks = np.zeros(1, np.int64) if group.blocks is None else group.blocks
    alpha, beta = numbers(count), cast(np.array([2.0, 0.0, -1.0]), dtype)
    buffers = [*memory.values(), table, places, blocks, alpha, beta,
               np.zeros(0, np.uint8), np.zeros(0, np.uint32)]  # fmt: skip
    names = ("a", "x", "y", "table", "places", "blocks", "alpha_pointer", "beta_pointer",
             "scratch", "counters")  # fmt: skip
    size = dtype.itemsize
    first = {each: own[0] * size for each, own in starts.items()}
    values = [("buffer", names.index(each), first.get(each, 0)) for each in function["arguments"]]
    (launch,) = geometry.launches
    after = ptx.launch(ptx.Program(function["ptx"]), launch.grid, launch.block[:2], values, buffers)

    wanted = memory["y"].copy()
    wide = np.result_type(dtype, np.float64)
    for k, (m, n) in enumerate(sizes):
        own = {
            each: memory[each][starts[each][k] :][: lengths[each][k]].astype(wide) for each in "axy"
        }
        a = own["a"].reshape((m, n) if order == "C" else (n, m))
        product = np.conj(a if order == "C" else a.T) @ own["x"]
        place = slice(starts["y"][k], starts["y"][k] + m)
        wanted[place] = alpha[k] * product + (beta[k] * own["y"] if beta[k] else 0)
    np.testing.assert_array_equal(np.frombuffer(after[2], dtype), wanted)


# Functions of the vocabulary, one thread at a time -----------------------------------------------

#: Small kernels, by name: a letter of a dtype, the way of sums, and a compute capability for each.
SCRIPT = """
import json, sys
import numpy as np
from numba import types
from gemv.core.dtypes import DTYPES, Precision
from gemv.language import (
    atomic_inc, conjugated, cuda, fold, gather_inside, is_aligned, load_shifted, load_some,
    load_units, load_vectors, moved, outer_add, post, put_unit, read_only_load, store,
    store_vectors, take, take_rows, zeros,
)
from gemv.language.numba_cuda.compile import compile_ptx

def shifted_2(x, y, index, shift):
    store_vectors(y, 0, 2, load_shifted(x, index, 4, 2, 2, shift), 2)

def shifted_4(x, y, index, shift):
    store_vectors(y, 0, 4, load_shifted(x, index, 8, 2, 4, shift), 4)

def shifted_8(x, y, index, shift):
    store_vectors(y, 0, 8, load_shifted(x, index, 16, 2, 8, shift), 8)

def folded(x, y):
    sums = fold(load_vectors(x, 0, 4, 4, 4), 2)
    store(y, 0, sums[0])
    store(y, 1, sums[1])

def some(x, y, valid):
    store_vectors(y, 0, 4, load_some(x, 0, 4, 2, 4, valid), 4)

def inside(x, y, index, limit):
    store_vectors(y, 0, 4, gather_inside(x, index, 3, 2, 2, 2, 2, limit), 4)

def units(x, y):
    tile = cuda.shared.array(8, types.float32, alignment=16)
    values = load_vectors(x, 0, 4, 2, 4)
    put_unit(tile, 4, values, 0, 4)
    put_unit(tile, 0, values, 4, 4)
    store_vectors(y, 0, 4, load_units(tile, 0, 4), 4)

def outer(a, x, y):
    tile = cuda.shared.array(16, types.complex64, alignment=16)
    put_unit(tile, 4, load_vectors(x, 0, 1, 4, 1), 0, 2)
    put_unit(tile, 6, load_vectors(x, 0, 1, 4, 1), 2, 2)
    put_unit(tile, 12, load_vectors(x, 4, 1, 4, 1), 0, 2)
    put_unit(tile, 14, load_vectors(x, 4, 1, 4, 1), 2, 2)
    sums = zeros(x[8], 8)  # two rows for each of four vectors, and two columns
    sums = outer_add(sums, load_vectors(a, 0, 2, 2, 2), tile, 4, 8, 4, 2, 1)
    store_vectors(y, 0, 2, sums, 2)

def posted(x, y, scratch):
    post(scratch, 1, x[0])
    found = take(x[0], scratch, 1, 1, 2, 1)
    store(y, 0, found[0])
    store(y, 1, found[1])

def rowed(x, y, scratch, valid, present):
    found = take_rows(x[0], scratch, 1, 2, 2, valid, 6, 2, present)
    for k in range(4):
        store(y, k, found[k])

def late(x, y, scratch, counters):
    if cuda.threadIdx.x == 0:
        found = take(x[0], scratch, 0, 1, 2, 2)
        store(y, 0, found[0])
        store(y, 1, found[1])
    else:
        post(scratch, 1, x[1])
        atomic_inc(counters, 0, 9)  # which takes its time
        post(scratch, 0, x[0])

def summed(a, x, y):
    y[0] = a[0] * x[0] + a[1] * x[1] + a[2] * x[2]

def turned(x, y):
    store(y, 0, conjugated(x)[0])
    store(y, 1, moved(x, 1)[0])

def constant(alpha_pointer, y):
    store(y, 0, read_only_load(alpha_pointer, 1))

def alignment(a, x, y):
    if is_aligned(a, 16):
        y[0] = x[0]

answer = {}
for name, letter, accumulate, capability in json.load(sys.stdin):
    precision = Precision.of(DTYPES[letter], None, accumulate)
    text = compile_ptx(globals()[name], precision, tuple(capability))
    answer[f"{name} {letter} {accumulate} {capability[0]}"] = text
json.dump(answer, sys.stdout)
"""
WANTED = [
    ("shifted_2", "c", "plain", 9), ("shifted_4", "s", "plain", 9), ("shifted_8", "b", "plain", 9),
    ("folded", "s", "plain", 9), ("some", "s", "plain", 9), ("inside", "s", "plain", 9),
    ("units", "s", "plain", 9), ("outer", "c", "plain", 9),
    ("posted", "c", "plain", 9), ("rowed", "c", "plain", 9), ("late", "c", "plain", 9),
    ("summed", "b", "plain", 7), ("summed", "b", "wide", 9), ("summed", "b", "pairs", 9),
    ("summed", "d", "wide", 9), ("summed", "z", "wide", 9), ("turned", "c", "plain", 9),
    ("constant", "z", "plain", 9), ("alignment", "s", "plain", 9),
]  # fmt: skip


@pytest.fixture(scope="module")
def programs():
    """The PTX of each, by a process without the simulator."""
    versions = {7: (7, 5), 9: (9, 0)}
    asked = [(*each[:3], versions[each[3]]) for each in WANTED]
    made = processes.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(asked), capture_output=True, text=True,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


def one_thread(programs, which, buffers, parameters):
    """The buffers after one thread has run the small kernel called `which`."""
    program = ptx.Program(programs[which])
    return ptx.launch(program, (1, 1, 1), (1, 1), parameters, buffers)


@pytest.mark.parametrize("width, letter", [(2, "c"), (4, "s"), (8, "b")])
def test_vectors_that_begin_between_two_multiples_of_16_bytes(width, letter, programs):
    x = cast(np.arange(1.0, 80.0), DTYPES[letter])
    if letter == "c":
        x += 1j * (100 + np.arange(79, dtype=np.float32))
    for shift in range(width):
        index = 2 * width + shift
        buffers = [x, np.zeros(2 * width, x.dtype)]
        at = [("buffer", 0, 0), ("buffer", 1, 0), index, shift]
        after = one_thread(programs, f"shifted_{width} {letter} plain 9", buffers, at)
        wanted = np.concatenate([x[index:][:width], x[index + 2 * width :][:width]])
        assert after[1] == wanted.tobytes(), shift


#: What the simulator's function makes of each list of float32.
TWIN = """
import json, sys
import numpy as np
from gemv.language import fold
print(json.dumps([list(map(float, fold(tuple(np.float32(x)), 2))) for x in json.load(sys.stdin)]))
"""


def test_sums_are_folded_in_the_order_of_the_twin(programs):
    values = np.random.default_rng(1).standard_normal((10, 16)).astype(np.float32)
    made = processes.run(
        [sys.executable, "-c", TWIN], input=json.dumps(values.tolist()), capture_output=True,
        text=True, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    for x, expected in zip(values, json.loads(made.stdout), strict=True):
        places = [("buffer", 0, 0), ("buffer", 1, 0)]
        after = one_thread(programs, "folded s plain 9", [x, np.zeros(2, "f")], places)
        assert np.frombuffer(after[1], "f").tolist() == expected


@pytest.mark.parametrize("valid", [-(2**40), -1, 0, 1, 2, 3])
def test_vectors_that_are_not_there_are_zeros_and_not_loaded(valid, programs):
    count = min(max(valid, 0), 2)
    x = np.arange(1, 1 + 4 * count, dtype=np.float32)  # an end that no load may cross
    places = [("buffer", 0, 0), ("buffer", 1, 0), valid]
    after = one_thread(programs, "some s plain 9", [x, np.ones(8, "f")], places)
    assert np.frombuffer(after[1], "f").tolist() == x.tolist() + [0] * (8 - 4 * count)


@pytest.mark.parametrize("limit", range(4, 11))
def test_numbers_of_x_end_where_x_does(limit, programs):
    """Columns 5 and 6, then 8 and 9, of an x with gaps; zeros from `limit` on."""
    x = np.arange(2.0 * limit - 1, dtype=np.float32)  # an end that no load may cross
    places = [("buffer", 0, 0), ("buffer", 1, 0), 5, limit]
    after = one_thread(programs, "inside s plain 9", [x, np.ones(4, "f")], places)
    wanted = [2 * k if k < limit else 0 for k in (5, 6, 8, 9)]
    assert np.frombuffer(after[1], "f").tolist() == wanted


def test_units_of_shared_memory(programs):
    x = np.arange(8, dtype=np.float32)
    places = [("buffer", 0, 0), ("buffer", 1, 0)]
    after = one_thread(programs, "units s plain 9", [x, np.zeros(4, "f")], places)
    assert np.frombuffer(after[1], "f").tolist() == [4, 5, 6, 7]


def test_products_with_several_vectors_in_shared_memory(programs):
    """Two columns of conjugated elements, whose four factors begin at the fourth number."""
    a = np.array([1 + 2j, 3, 1j, 2 - 1j], np.complex64)
    x = np.append(np.arange(1, 9) * (1 - 1j), 0).astype(np.complex64)
    places = [("buffer", 0, 0), ("buffer", 1, 0), ("buffer", 2, 0)]
    after = one_thread(programs, "outer c plain 9", [a, x, np.zeros(8, a.dtype)], places)
    wanted = x[:8].reshape(2, 4).T @ a.conj().reshape(2, 2)
    assert np.frombuffer(after[2], a.dtype).tolist() == wanted.ravel().tolist()


def test_a_posted_nan_of_ones_is_taken_and_leaves_ones(programs):
    x = np.full(1, -1, np.int64).view(np.complex64)
    empty = np.full(3, -1, np.int64)
    places = [("buffer", 0, 0), ("buffer", 1, 0), ("buffer", 2, 0)]
    _, y, scratch = one_thread(
        programs, "posted c plain 9", [x, np.ones(2, np.complex64), empty], places
    )
    y = np.frombuffer(y, np.complex64)
    assert np.isnan(y[0].real) and np.isnan(y[0].imag) and y[1] == 0
    assert scratch == empty.tobytes()


def test_rows_of_posted_sums_are_taken_and_no_others(programs):
    """Two rows of two, 6 and 2 places apart: what is not there is not waited for."""
    sums = np.arange(1.0, 11.0).astype(np.complex64)
    for valid, present in ((2, 2), (1, 2), (2, 1), (2, 0)):
        places = {1: (0, 0), 3: (0, 1), 7: (1, 0), 9: (1, 1)}
        there = [k for k, (row, number) in places.items() if number < valid and row < present]
        empty = np.full(10, -1, np.int64)
        scratch = empty.view(np.complex64).copy()
        scratch[there] = sums[there]
        buffers = [np.zeros(1, "F"), np.full(4, 9, "F"), scratch]
        at = [*(("buffer", k, 0) for k in range(3)), valid, present]
        _, y, left = one_thread(programs, "rowed c plain 9", buffers, at)
        wanted = [sums[k] if k in there else 0 for k in places]
        assert np.frombuffer(y, np.complex64).tolist() == wanted
        assert left == empty.tobytes()


def test_all_words_are_waited_for(programs):
    """The first of two sums comes last."""
    x = np.array([1 + 2j, 3 + 4j], np.complex64)
    buffers = [x, np.zeros(2, "F"), np.full(2, -1, np.int64), np.zeros(1, np.uint32)]
    places = [("buffer", k, 0) for k in range(4)]
    program = ptx.Program(programs["late c plain 9"])
    after = ptx.launch(program, (1, 1, 1), (2, 1), places, buffers)
    assert after[1] == x.tobytes() and after[2] == buffers[2].tobytes()


@pytest.mark.parametrize("which", ["summed b plain 7", "summed b wide 9", "summed b pairs 9"])
def test_sums_are_rounded_to_bfloat16_once(which, programs):
    """At ties, and beside them by less than float32 would keep."""
    tie, low = 2.0**-8, 2.0**-20
    terms = [([1, tie, 0], 1), ([1 + 2 * tie, tie, 0], 1 + 4 * tie), ([-1, -tie, 0], -1)]
    if "plain" not in which:
        terms += [([1, tie, low], 1 + 2 * tie), ([1 + 2 * tie, tie, -low], 1 + 2 * tie)]
        terms += [([-1, -tie, -low], -1 - 2 * tie), ([-1 - 2 * tie, -tie, low], -1 - 2 * tie)]
    places = [("buffer", k, 0) for k in range(3)]
    for row, wanted in terms:
        a = cast(np.array(row), DTYPES["b"])
        x = cast(np.array([1.0, 1.0, 2.0**-20]), DTYPES["b"])
        after = one_thread(programs, which, [a, x, cast(np.zeros(1), DTYPES["b"])], places)
        got = cast(np.frombuffer(after[2], np.uint16).view(DTYPES["b"]), np.dtype("d"))
        assert got.tolist() == [wanted], row


@pytest.mark.parametrize("letter", "dz")
def test_sums_of_two_numbers_keep_what_cancels(letter, programs):
    rng = np.random.default_rng(3)
    dtype = DTYPES[letter]
    for _ in range(5):
        a, x = rng.standard_normal((2, 3)).astype(dtype)
        if letter == "z":
            a, x = a + 1j * rng.standard_normal(3), x + 1j * rng.standard_normal(3)
        a[1], x[1] = -a[0] * (1 + 2.0**-40), x[0]
        a[2] *= 2.0**-60
        places = [("buffer", k, 0) for k in range(3)]
        buffers = [a, x, np.zeros(1, dtype)]
        after = one_thread(programs, f"summed {letter} wide 9", buffers, places)
        (got,) = np.frombuffer(after[2], dtype)
        products = [_product(*pair) for pair in zip(a, x, strict=True)]
        for part, exact in zip(
            (got.real, got.imag), map(sum, zip(*products, strict=True)), strict=True
        ):
            assert abs(Fraction(float(part)) - exact) <= abs(exact) * Fraction(2) ** -52


def _product(a, b):
    """The parts of a product, exactly."""
    a, b = complex(a), complex(b)
    real, imag, b_real, b_imag = map(Fraction, (a.real, a.imag, b.real, b.imag))
    return real * b_real - imag * b_imag, real * b_imag + imag * b_real


def test_pointers_that_conjugate_and_that_are_moved(programs):
    x = np.array([1 + 2j, 3 + 4j], np.complex64)
    places = [("buffer", 0, 0), ("buffer", 1, 0)]
    after = one_thread(programs, "turned c plain 9", [x, np.zeros(2, "F")], places)
    assert np.frombuffer(after[1], "F").tolist() == [1 - 2j, 3 + 4j]


def test_a_complex_number_comes_whole_through_the_read_only_path(programs):
    numbers = np.array([1 + 2j, 3 + 4j])
    places = [("buffer", 0, 0), ("buffer", 1, 0)]
    after = one_thread(programs, "constant z plain 9", [numbers, np.zeros(1, "D")], places)
    assert np.frombuffer(after[1], "D").tolist() == [3 + 4j]


@pytest.mark.parametrize("nbytes, expected", [(0, 5), (4, 0), (8, 0), (16, 5)])
def test_alignment_is_that_of_the_address(nbytes, expected, programs):
    buffers = [np.zeros(8, "f"), np.full(1, 5, "f"), np.zeros(1, "f")]
    places = [("buffer", 0, nbytes), ("buffer", 1, 0), ("buffer", 2, 0)]
    after = one_thread(programs, "alignment s plain 9", buffers, places)
    assert np.frombuffer(after[2], "f").tolist() == [expected]


# The interpreter itself --------------------------------------------------------------------------


def test_what_a_gpu_refuses_is_refused(programs):
    """An address that is not aligned, one behind the end of a buffer, an unknown instruction."""
    x = np.zeros(16, "f")
    for offset, told in ((4, "not aligned"), (16, "no memory")):
        with pytest.raises(ptx.PtxError, match=told):
            one_thread(programs, "folded s plain 9", [x, x], [("buffer", 0, offset)] * 2)
    other = programs["folded s plain 9"].replace("add.f32", "brev.b32")
    with pytest.raises(ptx.PtxError, match="unknown instruction: brev.b32"):
        ptx.Program(other)


def test_the_last_block_fences_on_both_sides_of_its_number(compiler):
    """The simulator reads in order, so it cannot show that the reader's fence is missing."""
    from gemv.kernels import REGISTRY

    (function,) = compiler(REGISTRY["last_block"], "float32")
    before, behind = function["ptx"].split("atom.global.inc.u32", 1)
    fences = [text.count("membar.gl") + text.count("fence.") for text in (before, behind)]
    assert fences == [1, 1]
