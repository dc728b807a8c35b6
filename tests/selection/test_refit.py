"""The quick fit: it finds numbers again, and neither few nor bad times lead it astray."""

from __future__ import annotations

import numpy as np
import pytest

from gemv.core.geometry import Chip, Device
from gemv.measure.tuning_launches import problems, telling
from gemv.selection.machine import machine
from gemv.selection.refit import GROUPS, PRIOR, launched, refit, weights

L4 = Device(
    "NVIDIA L4", (8, 9), 58, float64_ratio=64,
    chip=Chip(1536, 65536, 100 * 1024, 24, 2_040_000, 6_251_000, 192, 48 << 20),
)  # fmt: skip
RNG = np.random.default_rng(5)
TRUE = {"memory_rate": 0.7, "cache_rate": 1.5, "start": 2.0, "memory_latency": 1.8, "splits": 2.0}


def scaled(numbers, factors):
    changed = {
        field: getattr(numbers, field) * factor
        for group, factor in factors.items()
        for field in GROUPS[group]
    }
    return numbers._replace(**changed)


@pytest.fixture(scope="module")
def launches():
    """Launches on an L4's problems; a function gives them times by other numbers."""
    found, compiled, rows = machine(L4), set(), []
    for number, (cell, _) in enumerate(problems(L4, 36)):
        rows += [(number, each, cell) for each in telling(found, cell, L4, compiled)]

    def timed(factors, noise=0.0, only=lambda number, cell: True, disturbed=lambda at: 1.0):
        numbers = scaled(found.numbers, factors)
        kept = [row for row in rows if only(row[0], row[2])]
        return launched(
            (each.counts, each.factors,
             each.seconds(numbers) * np.exp(noise * RNG.normal()) * disturbed(at), number)
            for at, (number, each, _) in enumerate(kept)
        )  # fmt: skip

    return found.numbers, timed


def test_numbers_are_found_again(launches):
    numbers, timed = launches
    found = refit(numbers, timed(TRUE, noise=0.03))
    for group, factor in TRUE.items():
        assert found.factors[group] == pytest.approx(factor, rel=0.15)
    others = {name: factor for name, factor in found.factors.items() if name not in TRUE}
    assert all(abs(np.log(factor)) < 0.35 for factor in others.values())
    fresh = timed(TRUE)
    assert np.abs(fresh.errors(found.numbers)).mean() < 0.04
    assert np.abs(fresh.errors(numbers)).mean() > 0.2


def test_a_rate_that_is_far_off_is_found(launches):
    """At the beginning no launch seems to be bound by a memory that is five times too fast."""
    numbers, timed = launches
    found = refit(scaled(numbers, {"memory_rate": 5.0}), timed({}))
    assert found.factors["memory_rate"] == pytest.approx(0.2, rel=0.05)


def test_numbers_that_are_right_stay(launches):
    numbers, timed = launches
    found = refit(numbers, timed({}))
    assert found.factors and all(
        factor == pytest.approx(1, rel=0.01) for factor in found.factors.values()
    )


def test_what_no_launch_tells_stays_exactly(launches):
    numbers, timed = launches
    cold = timed({name: 3.0 for name in GROUPS}, only=lambda number, cell: not cell.hot)
    found = refit(numbers, cold)
    assert "memory_rate" in found.factors
    assert not {"cache_rate", "cache_latency"} & set(found.factors)
    assert found.numbers.cache_rate == numbers.cache_rate
    fitted = {field for group in found.factors for field in GROUPS[group]}
    for name, value in numbers._asdict().items():
        assert (getattr(found.numbers, name) == value) == (name not in fitted), name


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_few_times_lead_not_far(launches, factor):
    """Three launches that are said to be a thousand times faster or slower."""
    numbers, timed = launches
    few = timed({}, only=lambda number, cell: number == 0, disturbed=lambda at: factor)
    assert len(few.seconds) <= 3
    found = refit(numbers, few)
    moved = np.abs(np.log(list(found.factors.values()) or [1.0]))
    assert np.all(moved <= np.log(8.001)) and np.all(np.isfinite(found.numbers))


def test_one_time_may_tell_nothing(launches):
    """A launch that is expected to be bound by several things at once."""
    numbers, timed = launches
    one = timed({"start": 1.2}, only=lambda number, cell: number == 0)
    one = launched([(type(one.counts)(*(each[0] for each in one.counts)),
                     (one.start[0], one.issue[0]), one.seconds[0], 0)])  # fmt: skip
    found = refit(numbers, one)
    assert len(found.factors) <= 1 and np.abs(one.errors(found.numbers)).max() < 0.3


@pytest.mark.parametrize("disturbed", [20.0, 0.05])
def test_disturbed_measurements_weigh_no_more_than_their_share(launches, disturbed):
    numbers, timed = launches
    found = refit(numbers, timed({}, 0.02, disturbed=lambda at: disturbed if at % 12 == 5 else 1.0))
    assert np.abs(timed({}).errors(found.numbers)).mean() < 0.08
    assert found.factors["memory_rate"] == pytest.approx(1, rel=0.1)
    assert all(abs(np.log(factor)) < PRIOR for factor in found.factors.values())


def test_the_fit_is_drawn_to_its_prior(launches):
    """Of one problem alone, less of a difference is believed than of all of them."""
    numbers, timed = launches
    factors = [
        refit(numbers, timed({"memory_rate": 0.5}, only=only)).factors.get("memory_rate", 1.0)
        for only in (lambda number, cell: number < 3, lambda number, cell: True)
    ]
    assert 0.5 < factors[1] < 0.55 and factors[1] < factors[0] <= 1.0


def test_the_same_times_give_the_same_numbers(launches):
    numbers, timed = launches
    times = timed(TRUE, noise=0.05)
    assert refit(numbers, times) == refit(numbers, times)


def test_slow_launches_have_less_weight():
    seconds = np.array([1.0, 1.4, 3.0, 2.0, 8.0])
    cells = np.array([7, 7, 7, 1 << 60, 1 << 60])  # as large as those of random problems
    assert weights(seconds, cells).tolist() == [1, 1, 0.5, 1, 0.375]
