"""Batches cut into launches: the same items, at the same places in every operand."""

from __future__ import annotations

import itertools

import pytest

from gemv.core.batch import OPERANDS, Batch, items_overlap


def places(batch, offsets):
    """Where each item begins, in each operand."""
    return {
        tuple(
            offset + sum(k * step for k, step in zip(index, own, strict=True))
            for offset, own in zip(offsets, batch.strides, strict=True)
        )
        for index in itertools.product(*map(range, batch.shape))
    }


@pytest.mark.parametrize("shape", [(7,), (5, 3), (3, 5), (2, 3, 4), (1, 6)])
@pytest.mark.parametrize("dimensions, most", [(1, 2), (1, 100), (2, 4), (2, 1), (3, 6), (2, 100)])
def test_parts_have_the_places_of_the_whole(shape, dimensions, most):
    strides = tuple(
        tuple((-1) ** operand * 10**operand * (axis + 1) * 1000**axis for axis in range(len(shape)))
        for operand in range(len(OPERANDS))
    )
    whole = Batch(shape, strides)
    parts = list(whole.parts(dimensions, most))
    for part, _ in parts:
        assert len(part.shape) <= dimensions and part.items <= most
    found = [place for part, offsets in parts for place in places(part, offsets)]
    assert len(found) == whole.items
    assert set(found) == places(whole, (0,) * len(OPERANDS))


@pytest.mark.parametrize("count, length, width", [(1, 3, 1), (2, 1, 1), (3, 4, 1), (3, 2, 8)])
@pytest.mark.parametrize("step", [1, 2, -2])
def test_items_overlap_where_two_have_an_element_in_one_place(count, length, width, step):
    """Each item is as long as it spans, or has gaps of one element, which others may not fill."""
    for stride in range(-10 * width, 10 * width + 1):
        taken = [
            {
                item * stride + k * step * width + byte
                for k in range(length)
                for byte in range(width)
            }
            for item in range(count)
        ]
        shares = len(set().union(*taken)) < count * length * width
        found = items_overlap((count,), (stride,), length, step * width, width)
        reach = abs(step) * (length - 1) * width + width
        inside = count > 1 and abs(stride) < reach
        assert found == shares or (inside and found), (stride, found)
        if abs(stride) in (0, reach - 1, reach):
            assert found == (count > 1 and abs(stride) < reach)
