"""Batches of XLA's without a ticket: call frames as ``vmap`` makes them, by hand, without JAX."""

from __future__ import annotations

from ctypes import addressof

import numpy as np
import pytest
from helpers.xla_frames import STREAM, HandMade, attributes, call

import gemv
from gemv.calls import jax_batches, jax_handlers, jax_ticketed
from gemv.core import memo
from gemv.core.dtypes import DTYPES
from gemv.driver import handler_ir


def frame(a, x, y, **options):
    return HandMade([a, x], [y], attributes(shapes=(a.shape, x.shape), **options))


def zeros(items, rows, cols, letter="s", one_matrix=False):
    dtype = DTYPES[letter]
    front = () if one_matrix else (items,)
    shapes = (*front, rows, cols), (items, cols), (items, rows)
    return [np.zeros(shape, dtype) for shape in shapes]


def placed(launched):
    return [int.from_bytes(each, "little") for each in launched[1:4]]


@pytest.mark.parametrize("letter", [*"sdcz", "h", "b"])
@pytest.mark.parametrize("one_matrix", [False, True])
def test_a_batch_is_one_launch_and_the_second_call_enters_no_python(launches, letter, one_matrix):
    arrays = zeros(7, 40, 30, letter, one_matrix)
    alpha = {"alpha": 2.5, "alpha_imag": -1.0 if DTYPES[letter].kind == "c" else 0.0}
    for count in range(1, 5):
        made = frame(*arrays, **alpha)
        assert launches.function(addressof(made.frame)) is None, made.errors
        assert len(launches.pythonic) == 1 and len(launches.engine.launched) == count
    assert len({each for each in launches.engine.launched}) == 1
    launched = launches.engine.launched[0]
    assert launched[0] == STREAM and placed(launched) == [each.ctypes.data for each in arrays]
    real = np.frombuffer(launched[4], "f4" if letter in "schb" else "f8")
    assert real == 2.5


def test_batches_that_differ_are_launched_apart(launches):
    """How many items there are, one matrix or many, the numbers: each is another call."""
    calls = [
        (zeros(6, 8, 8), {}), (zeros(5, 8, 8), {}), (zeros(6, 8, 8, one_matrix=True), {}),
        (zeros(6, 8, 8), {"alpha": 3.0}), (zeros(6, 8, 8), {"trans": 1}),
        (zeros(6, 8, 8), {"accumulate": "wide"}),
    ]  # fmt: skip
    for repeat in range(2):
        for number, (arrays, options) in enumerate(calls, 1):
            assert {each.ctypes.data % 16 for each in arrays} == {0}
            made = frame(*arrays, **options)
            assert launches.function(addressof(made.frame)) is None, made.errors
            assert len(launches.pythonic) == (len(calls) if repeat else number)
            assert placed(launches.engine.launched[-1]) == [each.ctypes.data for each in arrays]


def test_lengths_that_are_no_part_of_the_text_go_to_python(launches):
    """Machine code compares the text of a batch, which has all lengths, and no others."""
    a, x, y = zeros(6, 8, 8)
    single = HandMade([a[0], x[0]], [y[0]], attributes())
    for _ in range(2):
        assert launches.function(addressof(single.frame)) is None
    assert len(launches.pythonic) == 1
    without = HandMade([a, x], [y], attributes())
    launches.function(addressof(without.frame))
    assert len(launches.pythonic) == 2
    assert attributes(shapes=((1,),))["call"].startswith(handler_ir.OF_BATCHES.decode())


@pytest.mark.parametrize("letters", ["ss", "hs"])
@pytest.mark.parametrize("one_matrix", [False, True])
def test_a_kernel_by_name_computes_item_after_item(launches, letters, one_matrix):
    """It may be one that computes no batches."""
    a, x, _ = zeros(3, 40, 32, letters[0], one_matrix)
    y = np.zeros((3, 40), DTYPES[letters[1]])
    for count in (1, 2):
        made = frame(a, x, y, kernel="block_per_row", alpha=2.0)
        assert launches.function(addressof(made.frame)) is None, made.errors
        assert len(launches.pythonic) == count
        assert len(launches.engine.launched) == 3 * count
    starts = [placed(each) for each in launches.engine.launched[:3]]
    matrices = [a] * 3 if one_matrix else a
    assert starts == [[each[k].ctypes.data for each in (matrices, x, y)] for k in range(3)]


def test_items_of_other_alignments_are_selected_apart(launches, monkeypatch):
    selected, right = [], jax_handlers.selected

    def noting(engine, a, y, shape, places, *rest):
        selected.append(tuple(place & 15 for place in places))
        return right(engine, a, y, shape, places, *rest)

    monkeypatch.setattr(jax_handlers, "selected", noting)
    arrays = zeros(9, 5, 7)
    made = frame(*arrays, kernel="block_per_row", alpha=2.0)
    assert launches.function(addressof(made.frame)) is None, made.errors
    items = [tuple(each[k].ctypes.data & 15 for each in arrays) for k in range(9)]
    assert selected == list(dict.fromkeys(items)) and len(selected) == 4


def test_no_items_are_no_launch(launches):
    made = frame(*zeros(0, 8, 8))
    assert launches.function(addressof(made.frame)) is None, made.errors
    assert not launches.engine.launched


def test_settings_that_change_are_followed(launches):
    arrays = zeros(3, 5, 4)
    for count in (1, 1, 2):
        if count == 2:
            memo.forget()
            assert not jax_batches._remembered
        assert launches.function(addressof(frame(*arrays).frame)) is None
        assert len(launches.pythonic) == count


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("kernel", ["", "serial"])
def test_items_have_the_bits_of_single_calls(kernel, trans):
    """Where lines of items begin at other multiples of 16 bytes too."""
    if gemv.backend() != "simulator":
        pytest.skip("frames made by hand lie in host memory")
    rng = np.random.default_rng(2)
    a, x = rng.standard_normal((3, 5, 7)).astype("f"), rng.standard_normal((3, 7)).astype("f")
    if trans:
        a = a.swapaxes(1, 2).copy()
    for matrices in (a, a[0]):
        y = np.full((3, 5), np.nan, "f")
        made = frame(matrices, x, y, trans=trans, kernel=kernel)
        assert call(jax_ticketed.on_gpu, made.frame) is None, made.errors
        alone = np.full((3, 5), np.nan, "f")
        for k in range(3):
            matrix = matrices[k] if matrices is a else matrices
            made = HandMade([matrix, x[k]], [alone[k]], attributes(trans=trans, kernel=kernel))
            assert call(jax_ticketed.on_gpu, made.frame) is None, made.errors
        assert y.tobytes() == alone.tobytes()
    assert len(jax_batches._remembered) >= 2
