"""The same bits each time: what the bits may depend on, and what they never do.

The many repetitions under load are those of ``soak.py``; here is each sentence of the promise.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from helpers.arrays import LIBRARIES
from helpers.combinations import of_all
from helpers.problems import Case, knobs_for_tests

import gemv
from gemv.kernels import REGISTRY
from gemv.kernels.k13_short_columns import MOST_ROWS

KERNELS = [name for name, kernel in REGISTRY.items() if name != "atomics"]
DTYPES = ["s", "z"]


def bits(case, kernel):
    """The bits of y alone."""
    return case.y_of(case.run(kernel, knobs_for_tests(REGISTRY[kernel]))).tobytes()


def made(dtype, order, **layout):
    """One product in some layout: the same numbers whatever that is."""
    return Case(7, 37, dtype, order, alpha=1.5, beta=0.5, **layout)


def first_pad(dtype, order):
    """Elements of padding that bring each line to the next multiple of 16 bytes."""
    return -(37 if order == "C" else 7) % vector(dtype)


def vector(dtype):
    """Elements of a load of 16 bytes."""
    return 16 // Case(1, 1, dtype).element.itemsize


def is_for(dtype, order, kernel):
    case = made(dtype, order, pad=first_pad(dtype, order))
    return REGISTRY[kernel].accepts(case.problem.at(0, 0)) is None


EVERY = of_all(is_for, dtype=DTYPES, order="CF", kernel=KERNELS)


@pytest.mark.parametrize("dtype", ["h", "s", "d", "c", "z"])
@pytest.mark.parametrize("cols", [5, 7, 13, 37])
def test_constants_for_rows_far_apart_have_the_same_sums(cols, dtype):
    """They follow from lda, which no bit may follow from."""
    kernel = REGISTRY["vector_rows"]
    alone = {"LANES": 1, "ROWS": 4, "VECTORS": 0, "THREADS_PER_BLOCK": 64, "MIN_BLOCKS": 16}
    alone["BLOCKS_PER_SM"] = 0  # where columns are split follows from the number of tiles
    others, _ = kernel.far_apart({**kernel.knobs, **alone})
    case = Case(70, cols, dtype, "C", alpha=1.5, beta=0.5, pad=9)
    one, other = (case.y_of(case.run("vector_rows", knobs)).tobytes() for knobs in (alone, others))
    assert one == other


@EVERY
def test_bits_follow_neither_increments_nor_lda(kernel, dtype, order):
    """With lines that begin as they did, at multiples of 16 bytes."""
    step, first = vector(dtype), first_pad(dtype, order)
    want = bits(made(dtype, order, pad=first), kernel)
    for layout in (
        {"pad": first + 4 * step},
        {"pad": first, "incx": 2},
        {"pad": first, "incx": -3, "incy": 2},
        {"pad": first, "incy": -1},
    ):
        case = made(dtype, order, **layout)
        if REGISTRY[kernel].accepts(case.problem.at(0, 0)) is None:
            assert bits(case, kernel) == want, layout
        else:  # this kernel reads gaps as well, so they may not be as long
            assert kernel == "short_columns" and layout["pad"] > first


@EVERY
def test_bits_follow_no_address_of_the_same_alignment(kernel, dtype, order):
    step, first = vector(dtype), first_pad(dtype, order)
    want = bits(made(dtype, order, pad=first), kernel)
    for k in (1, 2, 5):
        moved = made(dtype, order, pad=first, shift=k * step)
        assert bits(moved, kernel) == want


# On a GPU ----------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return LIBRARIES["torch"]().torch


@pytest.mark.gpu
@pytest.mark.parametrize("alignment", [4, 8, 12, 16])
def test_a_copy_of_the_same_alignment_has_the_same_bits(torch, alignment):
    """Alignment is that of every line of A, so of its address and of lda."""
    flat = torch.randn(3000 * 1100, device="cuda")
    x = torch.randn(1000, device="cuda")
    start = alignment // 4
    for lda in (1024, 1000, 1001):
        want = None
        for address in (start, start + 4, start + 64 * 1024):
            a = torch.empty_like(flat).as_strided((2000, 1000), (lda, 1), address)
            a.copy_(flat[: 2000 * 1000].view(2000, 1000))
            got = gemv.gemv(1.0, a, x)
            want = got if want is None else want
            assert torch.equal(got, want), (lda, address)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [name for name in KERNELS if REGISTRY[name].splits_apart])
def test_the_last_block_under_load(torch, kernel):
    """Thousands of launches on streams at once, each with another x, beside others that push.

    Nothing but a counter, and a fence or the words themselves, stands between the blocks of a
    launch. A block that adds up too early would read sums of the launch before, which had another
    x and, mostly, another shape and sums of another length. racecheck cannot see this memory.
    """
    streams, rounds, batch = 6, 40, 16
    shapes = [
        (3, 200_000, torch.float32, "plain"), (64, 20_000, torch.float32, "wide"),
        (700, 3_000, torch.float32, "plain"), (33, 1_111, torch.float32, "plain"),
        (20, 40_000, torch.complex128, "plain"), (5, 50_000, torch.complex64, "plain"),
        (9, 60_000, torch.float64, "wide"),
    ]  # fmt: skip
    cases, split = [], False
    for m, n, dtype, accumulate in shapes:
        if kernel == "short_columns" and m > MOST_ROWS:
            continue
        a = torch.randn(m, n, device="cuda", dtype=dtype)
        if kernel.endswith("_columns"):
            a = torch.randn(n, m, device="cuda", dtype=dtype).t()
        xs = torch.randn(5, a.shape[1], device="cuda", dtype=dtype)
        options = {"kernel": kernel, "accumulate": accumulate}
        expected = torch.stack([gemv.gemv(1.0, a, x, **options) for x in xs])
        precise = torch.complex128 if dtype.is_complex else torch.float64
        exact = (a.to(precise) @ xs.to(precise).t()).t()
        magnitude = (a.to(precise).abs() @ xs.to(precise).abs().t()).t()
        assert ((expected - exact).abs() <= 1e-5 * magnitude).all()
        with gemv.trace() as calls:
            gemv.gemv(1.0, a, xs[0], **options)
        split |= calls[0].geometry.counters > 0
        cases.append((a, xs, expected, options))
    assert split, "no shape here splits its sums over blocks"
    torch.cuda.synchronize()
    faults = []

    def work(number):
        try:
            rng = np.random.default_rng(number)
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(rounds):
                    made = []
                    for _ in range(batch):
                        a, xs, expected, options = cases[rng.integers(len(cases))]
                        k = int(rng.integers(5))
                        made.append((gemv.gemv(1.0, a, xs[k], **options), expected[k]))
                    if not all(torch.equal(got, want) for got, want in made):
                        faults.append(f"other bits in thread {number}")
        except BaseException as error:
            faults.append(error)

    def push(over):
        """Fill multiprocessors and L2 with something else, so that blocks end in odd orders."""
        with torch.cuda.stream(torch.cuda.Stream()):
            noise = torch.zeros(1 << 26, device="cuda")
            while not over.is_set():
                for _ in range(20):
                    noise.add_(1)
                torch.cuda.current_stream().synchronize()

    over = threading.Event()
    pusher = threading.Thread(target=push, args=(over,))
    pusher.start()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    pusher.join()
    assert not faults, faults[0]
