"""The file of a campaign: compact JSON with every time, those of slow candidates as well.

Sets of constants and machine codes are listed once, and cells refer to them by number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.fit.candidates import Candidate, Set
from gemv.core.files import write_text
from gemv.core.geometry import Chip, Device
from gemv.kernels import REGISTRY
from gemv.kernels.spec import Spec
from gemv.measure.cells import Cell
from gemv.selection.machine import REFERENCE


class Timed(NamedTuple):
    """One measurement: a candidate and its time."""

    candidate: Candidate
    seconds: float


@dataclass
class Measured:
    """A cell and everything measured on it.

    Attributes
    ----------
    number : int
        Number of the cell in the draw.
    nbytes : int
        Bytes that a call has to move, in whole sectors.
    floor_s : float
        Shortest time in which the plain kernel moved as many bytes.
    peers : dict of str to float
        Seconds of each peer.
    present : Candidate
        What was selected at the time of the campaign.
    times : list of Timed
        A candidate that was timed twice is in it twice.
    """

    number: int
    cell: Cell
    nbytes: int
    floor_s: float
    peers: dict[str, float]
    present: Candidate
    times: list[Timed]


@dataclass
class Campaign:
    """All cells measured on one GPU, and the resources that each set of constants needs.

    Attributes
    ----------
    about : dict
        The GPU and its chip, versions, the date.
    cells : list of Measured
    codes : dict
        From ``(set, BLAS letter of the dtype, widths, whole, narrow)`` to the registers of a
        thread, its bytes of local memory, and the bytes of shared memory of a block.
    """

    about: dict[str, Any]
    cells: list[Measured] = field(default_factory=list)
    codes: dict[tuple, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """The GPU; a file that does not tell its chip is of the reference."""
        capability, multiprocessors = self.about["device"]
        chip = Chip(**self.about["chip"]) if "chip" in self.about else REFERENCE.chip
        return Device(self.about["gpu"], tuple(capability), multiprocessors, chip=chip)

    def save(self, file: Path) -> None:
        """Write the file, a line for each cell; times in nanoseconds."""
        sets: dict[Set, int] = {}

        def number(constants: Set) -> int:
            return sets.setdefault(constants, len(sets))

        cells = [
            [
                each.number, [*asdict(each.cell).values()], each.nbytes, _ns(each.floor_s),
                {name: _ns(time) for name, time in each.peers.items()},
                [number(each.present.constants), each.present.blocks],
                [[number(t.candidate.constants), t.candidate.blocks, _ns(t.seconds)]
                 for t in each.times],
            ]
            for each in self.cells
        ]  # fmt: skip
        codes = [[number(key[0]), *key[1:], *value] for key, value in self.codes.items()]
        parts = {
            "about": _line(self.about),
            "sets": _list([[name, dict(knobs)] for name, knobs in sets]),
            "codes": _list(codes),
            "cells": _list(cells),
        }
        body = ",\n".join(f'"{name}": {text}' for name, text in parts.items())
        write_text(file, f"{{\n{body}\n}}\n")

    @classmethod
    def load(cls, file: Path) -> Campaign:
        content = json.loads(file.read_text("utf-8"))
        # Constants that a kernel has got since then have their defaults.
        sets: list[Set] = [
            (name, tuple(sorted({**REGISTRY[name].knobs, **knobs}.items())))
            for name, knobs in content["sets"]
        ]
        found = cls(content["about"])
        for which, letter, widths, whole, narrow, *facts in content["codes"]:
            found.codes[sets[which], letter, tuple(widths), whole, narrow] = tuple(facts)
        for number, cell, nbytes, floor, peers, (present, blocks), times in content["cells"]:
            found.cells.append(
                Measured(
                    number, Cell(*cell), nbytes, floor * 1e-9,
                    {name: time * 1e-9 for name, time in peers.items()},
                    Candidate(sets[present], blocks),
                    [Timed(Candidate(sets[which], blocks), time * 1e-9)
                     for which, blocks, time in times],
                )
            )  # fmt: skip
        return found


def code_key(constants: Set, spec: Spec, letter: str) -> tuple:
    """The key of a kernel's machine code in :attr:`Campaign.codes`."""
    return constants, letter, spec.widths, spec.whole, spec.narrow


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _list(values: Sequence[Any]) -> str:
    return "[\n" + ",\n".join(map(_line, values)) + "\n]"
