"""The candidates that the formula expects to be the fastest, so that its mistakes are measured.

The formula of an earlier fit chooses constants that this campaign may never have timed on such a
problem. The next campaign times them too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.fit.ahead import launches_of
from benchmarks.fit.candidates import Candidate, Set, pool
from benchmarks.fit.portfolio import compiled_sets
from benchmarks.fit.samples import factors_of, stacked
from benchmarks.fit.store import Campaign
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.selection.machine import Constants, machine


class Foresight:
    """The numbers of a machine, and the registers that an earlier campaign saw.

    Parameters
    ----------
    device : Device
        Whose machine it is.
    campaign : Path
        The earlier campaign.
    """

    def __init__(self, device: Device, campaign: Path) -> None:
        found = machine(device)
        self._numbers = found.numbers
        self._factors = factors_of(found)
        known = {
            (each.kernel.name, tuple(sorted(each.knobs.items()))): each
            for each in compiled_sets(Campaign.load(campaign))
        }
        self._keys: list[Set] = [each for sets in pool().values() for each in sets]
        self._sets = [known.get(key) or Constants(key[0], dict(key[1]), {}) for key in self._keys]

    def first(self, problem: Problem, device: Device, count: int, is_hot: bool) -> list[Candidate]:
        """The `count` sets with the least predicted times, each with its best number of splits."""
        found = list(launches_of(self._sets, problem, device, is_hot))
        if not found:
            return []
        times = stacked([row for _, row in found]).parts(self._numbers, self._factors).seconds
        best: dict[int, int] = {}
        for at in np.argsort(times, kind="stable").tolist():
            best.setdefault(found[at][0].number, found[at][0].blocks)
            if len(best) == count:
                break
        return [Candidate(self._keys[number], blocks) for number, blocks in best.items()]
