"""The checksum of a vector: it sees what differs between vectors that should be the same."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest

from gemv.distributed.digest import digest_of

#: Elements of float64 in a line of sums.
LINE = 512
#: On both sides of where sums begin, whole lines of them, and what is left over at the end.
LENGTHS = [0, 1, 4095, 4096, 4097, 8 * LINE + 511, 9 * LINE, 20_000]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def up(vector, *places):
    """The vector with the next number in some places, or the one before for a negative step."""
    other = vector.copy()
    for place, step in places:
        other[place] = np.nextafter(other[place], step * np.inf)
    return other


@pytest.mark.parametrize("length", LENGTHS)
def test_it_is_the_same_wherever_the_vector_lies(length, rng):
    x = rng.standard_normal(length)
    apart = np.zeros(2 * length)[::2]
    apart[:] = x
    shifted = np.zeros(8 * length + 1, np.uint8)[1:].view(x.dtype)
    shifted[:] = x
    assert digest_of(x) == digest_of(apart) == digest_of(shifted)
    assert 0 <= digest_of(x) < 1 << 32


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("length", LENGTHS[1:])
def test_one_bit_of_any_element_is_seen(length, dtype, rng):
    x = rng.standard_normal(length).astype(dtype)
    before, bits = digest_of(x), x.view(np.uint8)
    places = {0, bits.size - 1, *rng.integers(0, bits.size, 50).tolist()}
    for place, bit in itertools.product(sorted(places), (1, 128)):
        bits[place] ^= bit
        assert digest_of(x) != before
        bits[place] ^= bit
    assert digest_of(x) == before


@pytest.mark.parametrize("apart", [1, 7, LINE - 1, LINE, LINE + 1, 3 * LINE])
def test_two_elements_that_rounding_moves_apart_are_seen(apart, rng):
    """Their words change by 1 and by -1, which cancel in a sum of both."""
    x = abs(rng.standard_normal(9 * LINE + 100))
    before = digest_of(x)
    for first in range(0, len(x) - apart, 97):
        assert digest_of(up(x, (first, 1), (first + apart, -1))) != before
        signs = x.copy()
        signs[[first, first + apart]] *= -1
        assert digest_of(signs) != before


def test_elements_that_change_places_are_seen(rng):
    x = rng.standard_normal(20 * LINE)
    before = digest_of(x)
    for first, second in rng.integers(0, len(x), (100, 2)):
        other = x.copy()
        other[[first, second]] = x[[second, first]]
        assert (digest_of(other) == before) == (first == second)


def test_a_short_vector_has_the_usual_checksum(rng):
    x = rng.standard_normal(100)
    assert digest_of(x) == zlib.crc32(x.tobytes())
