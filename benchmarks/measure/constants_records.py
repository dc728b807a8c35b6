"""What was measured of the homes of alpha, beta and x."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

import numpy as np

#: Everything is measured in float32.
SINGLE = np.dtype(np.float32)
#: Threads of a warp that share a row, and so the different x[j] it asks for at once.
LANES = (1, 2, 4, 8, 16, 32)
#: The length of x for which all of them are measured.
LENGTH_OF_LANES = 1024
#: Rows of a result that are checked: every thread does the same as those of the first rows.
CHECKED_ROWS = 512


@dataclass(slots=True)
class CoefficientRow:
    """One kernel with its coefficients in one home.

    Attributes
    ----------
    time_s : float or None
        Device time of the launches alone, in a replayed graph.
    call_s : float or None
        Time on the stream of one call of many, enqueued one after the other: with what the home
        needs for each call, and with Python, where that is what limits it.
    error : float or None
        In units of the bound.
    code : str
        The instruction that brings alpha.
    in_flight : int or None
        Loads that the machine code issues one after the other before it needs the first of them,
        at most: what the compiler made of the loop.
    """

    kernel: str
    order: str
    size: int
    home: str
    time_s: float | None = None
    call_s: float | None = None
    error: float | None = None
    code: str = ""
    in_flight: int | None = None


@dataclass(slots=True)
class VectorRow:
    """``where_x_lives`` with x in one home; `lanes` threads of a warp share a row of A.

    `unrolled` says that the compiler knew the number of columns, and so the address of each x[j].
    """

    home: str
    lanes: int
    order: str
    source: str
    m: int
    n: int
    unrolled: bool = False
    time_s: float | None = None
    gb_per_s: float | None = None
    error: float | None = None
    refused: str | None = None
    code: str = ""
    in_flight: int | None = None


@dataclass(slots=True)
class TurnRow:
    """Loads with `distinct` addresses in a warp.

    `load_s` is the device time of one load instruction of one warp on one multiprocessor that has
    nothing else to do than such loads.
    """

    home: str
    pattern: str
    distinct: int
    load_s: float | None = None
    code: str = ""


@dataclass(slots=True)
class ConstantsResults:
    """All three parts, measured in one run."""

    backend: str
    device: str
    versions: dict[str, str] = field(default_factory=dict)
    coefficients: list[CoefficientRow] = field(default_factory=list)
    vector: list[VectorRow] = field(default_factory=list)
    turns: list[TurnRow] = field(default_factory=list)
    limits: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ConstantsResults:
        data = json.loads(text)
        data["coefficients"] = [CoefficientRow(**row) for row in data["coefficients"]]
        data["vector"] = [VectorRow(**row) for row in data["vector"]]
        data["turns"] = [TurnRow(**row) for row in data["turns"]]
        return cls(**data)
