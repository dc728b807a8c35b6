"""More than 2**31 elements, and offsets past 2**32 bytes and 2**32 elements."""

from __future__ import annotations

import gc

import pytest
from helpers.arrays import LIBRARIES

import gemv

pytestmark = pytest.mark.gpu

#: Left out: kernels whose one thread or one row at a time would take minutes.
KERNELS = [None, "block_per_row", "warp_per_row", "last_block", "coalesced"]


@pytest.fixture(scope="module")
def torch():
    torch = LIBRARIES["torch"]().torch
    yield torch
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def numbers(torch):
    """2**32 + 2**20 small whole numbers, 16 GiB of float32: every sum of theirs below is exact.

    In pieces of a prime number of elements, so that no power of two in an offset is a period.
    """
    count = 2**32 + 2**20
    free, _ = torch.cuda.mem_get_info()
    if free < 40 * 2**30:
        pytest.skip("needs 40 GiB of free GPU memory")
    flat = torch.empty(count, device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    for start in range(0, count, 536870909):
        part = flat[start : start + 536870909]
        small = torch.empty(part.shape, dtype=torch.int8, device="cuda")
        part.copy_(small.random_(-3, 4, generator=generator))
    yield flat
    del flat, part, small
    gc.collect()
    torch.cuda.empty_cache()


def vector(torch, length):
    generator = torch.Generator("cuda").manual_seed(length)
    return torch.randint(-2, 3, (length,), device="cuda", generator=generator, dtype=torch.float32)


def product(torch, a, x):
    """a @ x, exactly, in blocks whose every index fits 24 bits: nothing here can overflow."""
    rows, cols = a.shape
    y = torch.empty(rows, device="cuda")
    tall, wide = max(1, 2**24 // min(cols, 2**20)), 2**20
    for i in range(0, rows, tall):
        # No float64 for all rows at once: 2**31 of them are 16 GiB.
        exact = torch.zeros(min(tall, rows - i), dtype=torch.float64, device="cuda")
        for j in range(0, cols, wide):
            block = a[i : i + tall, j : j + wide]
            exact += (block * x[j : j + wide]).sum(1, dtype=torch.float64)
        y[i : i + tall] = exact
    return y


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("trans", [0, 1], ids="NT")
@pytest.mark.parametrize("order", "CF")
def test_a_square_of_more_than_two_to_the_32(torch, numbers, order, trans, kernel):
    m, n = 65521, 65563  # 4 295 756 123 elements
    assert 2**32 < m * n <= numbers.numel()
    a = numbers[: m * n].view(m, n) if order == "C" else numbers[: m * n].view(n, m).t()
    op_a = a.t() if trans else a
    x = vector(torch, op_a.shape[1])
    y = torch.full((op_a.shape[0],), float("nan"), device="cuda")
    gemv.gemv(1.0, a, x, 0.0, y, trans=trans, overwrite_y=1, kernel=kernel)
    assert torch.equal(y, product(torch, op_a, x))


@pytest.mark.parametrize("trans", [0, 1], ids="NT")
@pytest.mark.parametrize("shape", [(2**31 + 11, 2), (2, 2**31 + 11)], ids=["tall", "wide"])
def test_a_side_longer_than_an_int(torch, numbers, shape, trans):
    a = numbers[: shape[0] * shape[1]].view(shape)
    op_a = a.t() if trans else a
    x = torch.ones(op_a.shape[1], device="cuda")
    x[::3] = -1
    if op_a.shape[0] == 2:
        # 2**31 numbers of at most 3: their sum needs not be exact in float32, 2**24 of them are
        x[2**22 : -(2**22)] = 0
    y = gemv.gemv(1.0, a, x, trans=trans)
    exact = product(torch, op_a, x)
    assert torch.equal(y, exact)


@pytest.mark.parametrize("kernel", [None, "warp_per_row", "last_block"])
@pytest.mark.parametrize("trans", [0, 1], ids="NT")
def test_lines_two_to_the_31_apart(torch, numbers, trans, kernel):
    """Three lines of a padded A: the last begins past 2**32 elements."""
    lda = 2**31 + 37
    a = numbers.as_strided((3, 4099), (lda, 1), 2**20 - 5000)
    assert 2 * lda > 2**32
    op_a = a.t() if trans else a
    x = vector(torch, op_a.shape[1])
    y = gemv.gemv(1.0, a, x, trans=trans, kernel=kernel)
    assert torch.equal(y, product(torch, op_a.contiguous(), x))


@pytest.mark.parametrize("trans", [0, 1], ids="NT")
def test_any_strides_past_two_to_the_32_bytes(torch, numbers, trans):
    a = numbers.as_strided((129, 257), (2**24 + 1, 2**22 + 3))
    op_a = a.t() if trans else a
    x = vector(torch, op_a.shape[1])
    y = gemv.gemv(1.0, a, x, trans=trans)
    assert torch.equal(y, product(torch, op_a.contiguous(), x))


def test_increments_past_two_to_the_32_elements(torch, numbers):
    """x and y at both ends of the buffer: 2 elements, and offsets and increments that large."""
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda")
    inc = 2**32 + 2**19
    ends = numbers[[5, 5 + inc]].clone()
    for incx in (inc, -inc):
        x = ends if incx > 0 else ends.flip(0)
        y = gemv.gemv(1.0, a, numbers, offx=5, incx=incx)
        assert y.tolist() == (a @ x).tolist()
    kept = numbers[[7, 7 + inc]].clone()
    gemv.gemv(1.0, a, ends, 0.0, numbers, offy=7, incy=-inc, overwrite_y=1)
    assert numbers[[7 + inc, 7]].tolist() == (a @ ends).tolist()
    numbers[7], numbers[7 + inc] = kept
