"""A few numbers of the formula, fitted to some hundred times of one GPU.

A full fit finds all numbers and factors from thousands of times (``make fit``). This one keeps what
a machine's file has, and only changes numbers that a few dozen problems tell apart: rates, times to
start, latencies, the time of instructions and that of splits. It looks for factors of these numbers
with the least squares of the errors of logarithms, with four guards against bad measurements:

- Beyond an error of 10 % the loss grows linearly, so an outlier does not weigh more than its share.
- Each factor is drawn towards 1, as by a measurement that knows it to within a factor of 1.65.
- A factor that the times determine hardly better than that stays 1.
- No factor leaves the range from 1/8 to 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gemv.selection.formula import Counts, Machine, parts

#: What can be fitted: numbers that get one factor together. The times of instructions all follow
#: one clock, and a few dozen problems cannot tell them apart.
GROUPS: dict[str, tuple[str, ...]] = {
    "memory_rate": ("memory_rate",),
    "cache_rate": ("cache_rate",),
    "start": ("start",),
    "start_of_many": ("start_of_many",),
    "memory_latency": ("memory_latency",),
    "cache_latency": ("cache_latency",),
    "block_start": ("block_start",),
    "instructions": ("load", "line", "x_load", "multiply_add", "narrow"),
    "splits": ("collect", "meet", "cluster"),
}
#: Expected error of the logarithm of a predicted time.
ERROR = 0.1
#: Beyond so many expected errors the loss grows linearly, not quadratically.
_LINEAR = 1.0
#: Expected distance of the logarithm of a factor from 0: a factor of 1.65.
PRIOR = 0.5
#: Greatest distance of the logarithm of a factor from 0.
_FAR = math.log(8)
#: A group is fitted if the times leave at most this share of :data:`PRIOR` in doubt.
DOUBT = 0.5
#: A launch has full weight up to this multiple of the best time of its problem.
NEAR = 1.5
#: Digits of the numbers that a fit gives.
_DIGITS = 4
_STEP, _MOST_STEPS, _DONE = 1e-4, 60, 1e-7


class Launched(NamedTuple):
    """Launches that were timed; each field has an element for each launch.

    Attributes
    ----------
    counts : Counts
        What the formula reads of them.
    start, issue : array of float
        The two factors of the launch's kernel.
    seconds : array of float
        The measured times.
    problems : array of int
        The number of the problem that it was a launch for.
    """

    counts: Counts
    start: np.ndarray
    issue: np.ndarray
    seconds: np.ndarray
    problems: np.ndarray

    def predicted(self, numbers: Machine) -> np.ndarray:
        """The times by the formula with these numbers."""
        return np.asarray(parts(numbers, self.start, self.issue, self.counts).seconds)

    def errors(self, numbers: Machine) -> np.ndarray:
        """Logarithms of predicted over measured time."""
        return np.log(self.predicted(numbers) / self.seconds)


def launched(
    rows: Iterable[tuple[Counts, tuple[float, float], float, int]],
) -> Launched:
    """Launches from rows: counts, factors of the kernel, seconds, number of the problem."""
    counts, factors, seconds, problems = zip(*rows, strict=True)
    start, issue = np.array(factors, float).T
    columns = np.array(counts, float).T
    return Launched(Counts(*columns), start, issue, np.array(seconds, float), np.array(problems))


class Refit(NamedTuple):
    """What a fit has found.

    Attributes
    ----------
    numbers : Machine
        All numbers, those that were not fitted as they were.
    factors : dict of str to float
        For each group that was fitted, the factor of its numbers.
    """

    numbers: Machine
    factors: dict[str, float]


def weights(seconds: np.ndarray, problems: np.ndarray) -> np.ndarray:
    """1 for launches near the best of their problem, and less for slower ones."""
    # Their numbers may be any: those of random problems are large.
    _, position = np.unique(problems, return_inverse=True)
    best = np.full(position.max() + 1, np.inf)
    np.minimum.at(best, position, seconds)
    return np.minimum(1, NEAR * best[position] / seconds)


def refit(numbers: Machine, found: Launched) -> Refit:
    """The numbers that predict the measured times best, near the numbers that are given.

    Parameters
    ----------
    numbers : Machine
        Where the fit begins, and what it is drawn to.
    found : Launched
        Launches and their times; every time must be finite and more than 0.
    """
    weight = weights(found.seconds, found.problems) / ERROR
    groups = [name for name in GROUPS if any(getattr(numbers, field) for field in GROUPS[name])]
    logs, doubts = _least(numbers, groups, found, weight)
    # What the times tell is known only near the numbers that they lead to: with a rate that is far
    # too fast, for example, no launch seems to be bound by it.
    told = [name for name, doubt in zip(groups, doubts, strict=True) if doubt <= DOUBT * PRIOR]
    if told != groups:
        logs, _ = _least(numbers, told, found, weight)
    made = _scaled(numbers, told, logs)
    rounded = {
        field: float(f"{getattr(made, field):.{_DIGITS}g}")
        for group in told
        for field in GROUPS[group]
    }
    factors = dict(zip(told, np.exp(logs).tolist(), strict=True))
    return Refit(numbers._replace(**rounded), factors)


def _least(
    numbers: Machine, groups: Sequence[str], found: Launched, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The logarithms of the factors with the least loss, and the doubt that is left of each.

    Gauss and Newton's steps, damped as Levenberg and Marquardt do.
    """
    logs = np.zeros(len(groups))

    def loss(at: np.ndarray) -> float:
        errors = weight * found.errors(_scaled(numbers, groups, at))
        losses = 2 * _LINEAR**2 * (np.sqrt(1 + (errors / _LINEAR) ** 2) - 1)
        return float(np.sum(losses) + np.sum((at / PRIOR) ** 2))

    def bend(slopes: np.ndarray, weights: np.ndarray | float) -> np.ndarray:
        return slopes.T @ (weights * slopes) + np.eye(len(groups)) / PRIOR**2

    damping, last = 1e-3, loss(logs)
    for _ in range(_MOST_STEPS):
        here = _scaled(numbers, groups, logs)
        errors = weight * found.errors(here)
        # The loss is that of squares with weights that fall with the error.
        falling = 1 / np.sqrt(1 + (errors / _LINEAR) ** 2)
        slopes = weight[:, None] * _slopes(here, groups, found)
        bent = bend(slopes, falling[:, None])
        pull = slopes.T @ (falling * errors) + logs / PRIOR**2
        step = -np.linalg.solve(bent + damping * np.diag(np.diag(bent)), pull)
        step = np.clip(logs + np.clip(step, -1, 1), -_FAR, _FAR) - logs
        now = loss(logs + step)
        if now < last:
            logs, damping, last = logs + step, damping / 5, now
        else:
            damping *= 10
        if np.max(np.abs(step), initial=0) < _DONE:
            break
    slopes = weight[:, None] * _slopes(_scaled(numbers, groups, logs), groups, found)
    return logs, np.sqrt(np.diag(np.linalg.inv(bend(slopes, 1.0))))


def _slopes(numbers: Machine, groups: Sequence[str], found: Launched) -> np.ndarray:
    """By how much each logarithm of a time grows with the logarithm of each group's factor."""
    columns = []
    for place in range(len(groups)):
        step = np.zeros(len(groups))
        step[place] = _STEP
        more, less = (found.predicted(_scaled(numbers, groups, at)) for at in (step, -step))
        columns.append(np.log(more / less) / (2 * _STEP))
    return np.column_stack(columns) if columns else np.zeros((len(found.seconds), 0))


def _scaled(numbers: Machine, groups: Sequence[str], logs: np.ndarray) -> Machine:
    """The numbers, with those of each group multiplied by its factor."""
    changed = {
        field: getattr(numbers, field) * factor
        for group, factor in zip(groups, np.exp(logs).tolist(), strict=True)
        for field in GROUPS[group]
    }
    return numbers._replace(**changed)
