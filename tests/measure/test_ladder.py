import numpy as np
import pytest
from helpers.problems import ALL_ROWS

from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.measure.inputs import random_array
from gemv.measure.ladder import Ladder, ladder

#: Along the rows, with a conjugate or, if all rows are asked for, without one; down the columns.
KINDS = [("z", "F", "C"), ("d", "C", "T"), *([("s", "C", "N")] * ALL_ROWS)]


@pytest.mark.parametrize("dtype, order, op", KINDS)
def test_every_kernel_is_on_the_ladder_and_within_the_bound(dtype, order, op):
    seen = []
    result = ladder(33, 70, dtype, order, op, progress=seen.append)
    assert seen == [row.name for row in result.rows] == list(REGISTRY)
    assert result.backend == backend.backend()
    refused = {row.name for row in result.rows if row.refused}
    wide = {kernel.name for kernel in REGISTRY.values() if kernel.wide}
    assert refused < wide, "for the other order"
    for row in result.rows:
        if row.name in refused:
            assert row.error is None and row.time_s is None
            continue
        assert 0 <= row.error <= 1
        if result.backend == "simulator":
            assert row.time_s is None and row.gb_per_s is None and row.share is None
        else:
            assert row.time_s > 0 and 0 < row.share <= 1
    if result.backend == "simulator":
        assert result.ceiling_gb_per_s is None


def test_refusal_is_reported_with_its_reason():
    (row,) = ladder(2, 1100, kernels=["threads_are_columns"]).rows
    assert "1024" in row.refused and row.error is None


def test_json_round_trip():
    result = ladder(4, 5, kernels=["serial", "last_block"])
    again = Ladder.from_json(result.to_json())
    assert again == result and again.rows[1].name == "last_block"


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ({"dtype": "f"}, "dtype must be one of s, d, c, z"),
        ({"order": "K"}, "order must be C or F"),
        ({"op": "H"}, "op N, T or C"),
        ({"m": 0}, "at least 1"),
        ({"kernels": ["none"]}, "no kernel 'none'"),
    ],
)
def test_bad_arguments(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        ladder(**{"m": 3, "n": 4, **arguments})


@pytest.mark.parametrize("dtype", "fdFD")
def test_random_array_is_full_and_of_the_dtype(dtype):
    values = random_array(np.random.default_rng(0), (7, 9), np.dtype(dtype))
    assert values.shape == (7, 9) and values.dtype == dtype
    assert (abs(values.real) <= 1).all() and np.unique(values).size > 40


def test_the_read_ceiling_needs_buffers_that_its_loads_can_read():
    from gemv.measure.clock import Clock

    with pytest.raises(ValueError, match="aligned to 16 bytes"):
        Clock.read_ceiling(None, [256, 264], 64)


@pytest.mark.gpu
def test_a_clock_agrees_with_itself_and_sees_more_work():
    from gemv.measure.clock import Clock
    from gemv.measure.inputs import as_buffer, make_problem
    from gemv.selection.select import select

    engine = backend.engine()
    clock = Clock(engine)
    times = []
    for n in (2048, 2048, 8192):
        problem = make_problem(2048, n, np.dtype("f"), "C", "N")
        a = as_buffer(engine.to_device(np.ones((2048, n), "f")))
        x = as_buffer(engine.to_device(np.ones(n, "f")))
        y = as_buffer(engine.to_device(np.ones(2048, "f")))
        choice = select(problem, engine.device(), "warp_per_row")
        one, zero = np.float32(1), np.float32(0)

        def call(stream):
            engine.run(choice, problem, one, a, x, zero, y, stream)  # noqa: B023

        # The least of some: other processes may be using this GPU.
        times.append(min(clock.time([call]) for _ in range(5)))
    assert times[0] == pytest.approx(times[1], rel=0.2)
    assert times[2] > 2 * times[0]
