"""The candidates that an earlier fit expects to be the fastest, so that its mistakes are measured.

A model that was fitted to one campaign chooses constants that this campaign may never have timed on
such a problem. The next campaign times them too.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.fit.candidates import SPLITS, Candidate, Set, choice, pool
from benchmarks.fit.fit import KERNELS, columns, counted
from benchmarks.fit.model import Machine, seconds
from benchmarks.fit.store import Campaign
from gemv.core.dtypes import PREFIXES
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.kernels import REGISTRY


class Foresight:
    """The model of an earlier fit, and the registers that its campaign saw.

    Parameters
    ----------
    model : Path
        The report of the fit.
    campaign : Path
        The campaign that it was fitted to.
    """

    def __init__(self, model: Path, campaign: Path) -> None:
        content = json.loads(model.read_text("utf-8"))
        self._machine = Machine(**content["machine"])
        factors = [content["factors"][name] for name in KERNELS]
        self._factors = np.array([[each["start"], each["issue"]] for each in factors])
        self._exact = Campaign.load(campaign).codes
        self._similar = {(key[0], key[1]): facts for key, facts in self._exact.items()}

    def first(self, problem: Problem, device: Device, count: int, is_hot: bool) -> list[Candidate]:
        """The `count` sets with the least predicted times, each with its best number of splits."""
        found: list[tuple] = []
        tried: list[Candidate] = []
        for name, sets in pool().items():
            if REGISTRY[name].accepts(problem):
                continue
            for constants in sets:
                has_splits = dict(constants[1]).get("BLOCKS_PER_SM", 0)
                for blocks in SPLITS if has_splits else (0,):
                    row = self._row(Candidate(constants, blocks), problem, device, is_hot)
                    if row is not None:
                        found.append(row)
                        tried.append(Candidate(constants, blocks))
        if not found:
            return []
        times = seconds(self._machine, self._factors, columns(found), device.multiprocessors)
        best: dict[Set, Candidate] = {}
        for at in np.argsort(times, kind="stable"):
            best.setdefault(tried[at].constants, tried[at])
            if len(best) == count:
                break
        return list(best.values())

    def _row(
        self, candidate: Candidate, problem: Problem, device: Device, is_hot: bool
    ) -> tuple | None:
        try:
            made = choice(candidate, problem, device)
        except ValueError:
            return None
        letter = PREFIXES[problem.dtype]
        exact = candidate.constants, letter, made.spec.widths, made.spec.whole
        facts = self._exact.get(exact) or self._similar.get((candidate.constants, letter))
        if facts is None or facts[1] or made.geometry.launches[0].threads_per_block > 1024:
            return None
        return counted(made, problem, facts, is_hot)
