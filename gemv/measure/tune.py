"""The quick mode of a fit: a few dozen problems on one GPU, and the machine that follows from them.

Two problems of three are for the fit: a few launches of each are timed, and some numbers of the
formula are fitted to the times. The others judge the fit: on each of them the choices of both
machines, the present and the fitted one, are timed beside each other.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gemv.core.geometry import Device
from gemv.measure.cells import Cell
from gemv.measure.checks import NUMPY_ELEMENTS, SECOND_KERNEL, WholeNumbers, equal
from gemv.measure.frames import FramedCell, lay_out
from gemv.measure.grid import Bench
from gemv.measure.tuning_launches import Launch, chosen, problem_of, telling
from gemv.selection import written
from gemv.selection.choices import Choices
from gemv.selection.formula import Machine
from gemv.selection.items import counts_in_batches
from gemv.selection.machine import MachineFile
from gemv.selection.parts import Part
from gemv.selection.ranking import EQUAL
from gemv.selection.refit import Refit, launched, refit
from gemv.selection.select import Choice, select

#: How the head of a file says what wrote it.
_MADE = 'Some of its\n# numbers were fitted by "python -m gemv tune"; the table about says how.'
#: Part of the time that is for the fit, and the fewest problems of the fit and of its judgement.
_FOR_FIT = 0.6
LEAST = (12, 5)
_ROUNDS = 5


class Timed(NamedTuple):
    """A launch of a problem, and the measured time of it."""

    cell: Cell
    launch: Launch
    seconds: float


class Judged(NamedTuple):
    """A problem that was held out, and what each machine chooses for it."""

    before: Timed
    after: Timed


#: Seconds of each launch of a problem; a launch with a wrong result raises ArithmeticError.
Timer = Callable[[Cell, Sequence[Launch]], Sequence[float]]


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What the quick mode has measured and found.

    Attributes
    ----------
    device : Device
    before : MachineFile
        The machine that was in use.
    after : MachineFile
        The same with fitted numbers, and without what is not for this GPU.
    factors : dict of str to float
        For each group of :data:`gemv.selection.refit.GROUPS` that was fitted, its factor.
    timed : list of Timed
        The launches of the fit.
    judged : list of Judged
        The problems that were held out.
    versions : mapping of str to str
        Of this package, the driver and the libraries.
    date : str
        The day.
    """

    device: Device
    before: MachineFile
    after: MachineFile
    factors: dict[str, float]
    timed: list[Timed]
    judged: list[Judged]
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    date: str = ""

    @property
    def held_out(self) -> list[Timed]:
        """The launches on problems held out, each once."""
        found = []
        for each in self.judged:
            same = each.before.launch.choice == each.after.launch.choice
            found += [each.before] if same else [*each]
        return found

    @property
    def ratio(self) -> float:
        """Geometric mean of the time of the fitted machine's choice over the present one's.

        Of problems that are chosen for by the time alone, if there are any: the choice for a small
        matrix may take longer alone and less in a batch, which nobody has timed here.
        """
        alone = [
            each for each in self.judged if not counts_in_batches(problem_of(each.before.cell))
        ]
        return statistics.geometric_mean(
            each.after.seconds / each.before.seconds for each in alone or self.judged
        )

    @property
    def errors(self) -> tuple[float, float]:
        """Mean relative error of predicted times of held-out launches, before and after."""
        before, after = (
            np.mean([abs(_log_error(each, numbers)) for each in self.held_out])
            for numbers in (self.before.numbers, self.after.numbers)
        )
        return float(np.expm1(before)), float(np.expm1(after))

    @property
    def objections(self) -> list[str]:
        """Why the fitted machine is worse on problems held out; nothing if it is not.

        Choices count more than predictions: only faster ones excuse predictions that got worse.
        """
        before, after = self.errors
        if self.ratio > EQUAL:
            return [f"its choices take {self.ratio:.3f} times as long"]
        if after > before and self.ratio * EQUAL > 1:
            return [
                f"its predictions are {after:.1%} wrong, those of the present one {before:.1%}, and"
                " its choices are no faster"
            ]
        return []

    def to_json(self) -> str:
        """Everything, for programs."""
        numbers = self.before.numbers, self.after.numbers
        before, after = self.errors

        def row(each: Timed) -> dict[str, Any]:
            return {
                **dataclasses.asdict(each.cell),
                "kernel": each.launch.choice.kernel.name,
                "knobs": each.launch.choice.knobs,
                "time_s": each.seconds,
                "predicted_s": [each.launch.seconds(those) for those in numbers],
            }

        content = {
            "device": self.device.name,
            "versions": self.versions,
            "machine": {"name": self.before.name, "sha256": self.before.hash},
            "numbers": [those._asdict() for those in numbers],
            "factors": self.factors,
            "fitted": [row(each) for each in self.timed],
            "held_out": [
                {"before": row(each.before), "after": row(each.after)} for each in self.judged
            ],
            "error": [before, after],
            "time_of_choices": self.ratio,
            "objections": self.objections,
        }
        return json.dumps(content, indent=1) + "\n"

    def to_toml(self) -> str:
        """The machine's file: numbers that were fitted, and everything else as it was."""
        device, (before, after) = self.device, self.errors
        about = {
            "gpu": device.name,
            "compute_capability": device.compute_capability,
            "multiprocessors": device.multiprocessors,
            "date": self.date,
            "versions": self.versions,
            "fitted_from": self.before.name,
            "fitted_from_sha256": self.before.hash,
            "problems": len({each.cell for each in self.timed}),
            "times": len(self.timed),
            "factors": {name: float(f"{value:.4g}") for name, value in self.factors.items()},
            "held_out": {
                "problems": len(self.judged),
                "error_before": float(f"{before:.4g}"),
                "error": float(f"{after:.4g}"),
                "time_of_choices": float(f"{self.ratio:.4g}"),
            },
        }
        found = self.after
        start = written.fitted(_MADE, about, found.numbers, found.factors, found.constants)
        return start + written.kept(found.host, found.exceptions)


def _log_error(timed: Timed, numbers: Machine) -> float:
    return math.log(timed.launch.seconds(numbers) / timed.seconds)


# Measuring ---------------------------------------------------------------------------------------


class Stopwatch:
    """Checks and times launches on an engine: a :data:`Timer`."""

    def __init__(self, cells: Iterable[Cell], engine: Any = None, clock: Any = None) -> None:
        self._bench = Bench(list(cells), (), engine, clock)
        self.device = self._bench.device

    def versions(self) -> dict[str, str]:
        """Of this package, the driver and the libraries."""
        return self._bench.versions()

    def fits(self, cell: Cell) -> bool:
        """Whether the GPU's memory holds the cell."""
        return lay_out(cell).nbytes <= self._bench.free_bytes

    def __call__(self, cell: Cell, launches: Sequence[Launch]) -> list[float]:
        """The median time of each launch in seconds.

        Raises
        ------
        ArithmeticError
            If a result is wrong.
        """
        bench, layout = self._bench, lay_out(cell)
        count = bench.frame_count(cell, layout)
        framed = FramedCell.at(cell, bench.frames.base, count)
        places, dtype = framed.places, framed.problem.dtype

        def calls(choice: Choice) -> list[Callable[[int], None]]:
            part = Part(layout.batch, (0,) * len(layout.batch.strides), choice)
            return [bench.our_call(framed, [part], place) for place in places]

        numbers = WholeNumbers(bench.frames, framed, bench.clock.stream)
        if cell.m * cell.n > NUMPY_ELEMENTS:
            second = select(framed.problem, self.device, SECOND_KERNEL)
            expected = numbers.result(calls(second)[0])
        else:
            expected = numbers.by_numpy()
        timed = {str(number): calls(each.choice) for number, each in enumerate(launches)}
        for each, ours in zip(launches, timed.values(), strict=True):
            if not equal(numbers.result(ours[0]), expected):
                raise ArithmeticError(f"{each.choice.kernel.name} is wrong on {cell}")
        bench.frames.fill("random", dtype, bench.frames.base,
                          len(places) * layout.nbytes // dtype.itemsize)  # fmt: skip
        times = bench.clock.race(timed, _ROUNDS)
        return [statistics.median(times[name]) for name in timed]


def tune(
    timer: Timer,
    device: Device,
    found: MachineFile,
    wanted: Sequence[tuple[Cell, bool]],
    seconds: float = 60.0,
    is_own: bool = True,
    now: Callable[[], float] = time.monotonic,
    progress: Callable[[int, int, Cell], None] | None = None,
) -> Tuning:
    """Time problems, fit the numbers of a machine to them, and judge it by problems held out.

    Parameters
    ----------
    timer : callable
        What times launches, a :class:`Stopwatch` for instance.
    found : MachineFile
        The machine that is in use.
    wanted : sequence of (Cell, bool)
        Problems, each with whether it is held out: see :func:`problems`.
    seconds : float
        After so long no further problem is begun.
    is_own : bool
        Whether the machine describes this model of GPU; if not, its exceptions are dropped.
    progress : callable, optional
        It is called before each problem with their number, how many there are, and the problem.

    Raises
    ------
    ValueError
        If the time was not enough for the fewest problems, :data:`LEAST`.
    ArithmeticError
        If a result is wrong.
    """
    begin = now()
    compiled: set[tuple] = set()
    timed: list[Timed] = []
    fitting, judging = ([cell for cell, out in wanted if out == held] for held in (False, True))

    def started(cells: Sequence[Cell], end: float, before: int = 0) -> Iterator[Cell]:
        for number, cell in enumerate(cells, before):
            if now() - begin >= end:
                return
            if progress is not None:
                progress(number, len(wanted), cell)
            yield cell

    def measured(cell: Cell, launches: Sequence[Launch]) -> list[Timed]:
        times = timer(cell, launches)
        rows = [Timed(cell, *row) for row in zip(launches, times, strict=True)]
        # The formula has no logarithm of any other time.
        return [row for row in rows if math.isfinite(row.seconds) and row.seconds > 0]

    for cell in started(fitting, _FOR_FIT * seconds):
        timed += measured(cell, telling(found, cell, device, compiled))
    _enough(len({each.cell for each in timed}), LEAST[0], "to fit", seconds)
    fresh = fitted(found, timed)
    after = dataclasses.replace(
        found, numbers=fresh.numbers, exceptions=found.exceptions if is_own else (), choices={}
    )
    judged = []
    both = Choices(found, device), Choices(after, device)
    for cell in started(judging, seconds, len(fitting)):
        launches = [chosen(each, cell, device) for each in both]
        # One launch that both choose has one time: noise would only blur the comparison.
        same = launches[0].choice == launches[1].choice
        rows = measured(cell, launches[: 1 if same else 2])
        if len(rows) == (1 if same else 2):
            judged.append(Judged(rows[0], rows[-1]))
    _enough(len(judged), LEAST[1], "to judge the fit", seconds)
    return Tuning(device, found, after, fresh.factors, timed, judged)


def _enough(count: int, least: int, what: str, seconds: float) -> None:
    if count < least:
        raise ValueError(
            f"only {count} problems {what} could be timed in {seconds:g} seconds, and {least} are"
            " needed: give it more time"
        )


def fitted(found: MachineFile, timed: Sequence[Timed]) -> Refit:
    """The machine's numbers, fitted to times."""
    numbers = {cell: k for k, cell in enumerate(dict.fromkeys(each.cell for each in timed))}
    return refit(
        found.numbers,
        launched(
            (each.launch.counts, each.launch.factors, each.seconds, numbers[each.cell])
            for each in timed
        ),
    )
