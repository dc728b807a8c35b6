"""Results of a cell and of a whole grid, stored as JSON, and the summary of a grid."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from gemv.core import files
from gemv.measure.cells import Cell

#: Rounds of a measurement, in each of which all contenders have their turn.
ROUNDS = 5


Row = TypeVar("Row")


class Timed:
    """What follows from the times of a cell, and how they are noted."""

    nbytes: int
    time_s: float | None
    plain_s: float | None
    spread: float | None
    peers: dict[str, float]

    def take(self, times: dict[str, list[float]]) -> None:
        """Note the times of all rounds: of "ours", of each "plain ..." and of each peer."""
        medians = {name: statistics.median(each) for name, each in times.items()}
        self.time_s = medians.pop("ours")
        self.spread = (max(times["ours"]) - min(times["ours"])) / self.time_s
        plain = [name for name in medians if name.startswith("plain ")]
        self.plain_s = min(medians.pop(name) for name in plain)
        self.peers = medians

    @property
    def floor_s(self) -> float | None:
        """The time of the fastest that moved these bytes in this run: us, the mover or a peer."""
        times = [self.time_s, self.plain_s, *self.peers.values()]
        return min((each for each in times if each is not None), default=None)

    @property
    def share(self) -> float | None:
        """Floor over our time: at most 1."""
        return None if self.time_s is None else (self.floor_s or 0.0) / self.time_s

    @property
    def peer(self) -> str | None:
        """The fastest peer."""
        return min(self.peers, key=self.peers.__getitem__, default=None)

    @property
    def ratio(self) -> float | None:
        """Time of the fastest peer over ours: how many times as fast we are."""
        if self.time_s is None or self.peer is None:
            return None
        return self.peers[self.peer] / self.time_s

    @property
    def loses(self) -> tuple[float, float]:
        """A key that sorts results: first those without a time, then those that lose most.

        These are furthest behind the fastest peer, and then behind the floor.
        """
        if self.time_s is None:
            return -1.0, -1.0
        return math.inf if self.ratio is None else self.ratio, self.share or 0.0

    def rate(self, seconds: float) -> float:
        """GB/s, if the bytes of the call take so long."""
        return self.nbytes / seconds / 1e9


@dataclass(slots=True)
class CellResult(Timed):
    """What was measured of a cell.

    Attributes
    ----------
    nbytes : int
        32 for each sector that the call touches in A, x and y; twice for y when beta is not 0.
    frames : int
        How many frames were used in turn; 0 where not even one fits into memory.
    kernel, knobs : str and dict
        What selection chose.
    time_s, plain_s : float or None
        Medians of our calls and of the plain kernel; None where nothing is timed.
    spread : float or None
        Largest less smallest of our rounds, over the median.
    peers : dict of str to float
        Median time of each peer.
    refused : dict of str to str
        Why a peer has no time; under "gemv" why our call has none.
    wrong : str or None
        What is wrong with our result; then nothing was timed.
    batch, vectors : int
        As of :class:`~gemv.measure.cells.Cell`.
    """

    m: int
    n: int
    dtype: str
    op: str
    order: str
    view: str
    hot: bool
    beta: int
    nbytes: int
    frames: int
    kernel: str
    knobs: dict[str, int]
    time_s: float | None = None
    plain_s: float | None = None
    spread: float | None = None
    peers: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    wrong: str | None = None
    batch: int = 1
    vectors: int = 1

    @property
    def cell(self) -> Cell:
        return Cell(**{each.name: getattr(self, each.name) for each in fields(Cell)})


def lines_of(results: Any) -> str:
    """Results with their rows as JSON: a line for each row, so that files compare line by line."""
    data = asdict(results)
    rows = data.pop("rows")
    head = json.dumps(data, indent=1)[:-2]
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    return f'{head},\n "rows": [\n  {lines}\n ]\n}}\n'


@dataclass(slots=True)
class Results(Generic[Row]):
    """The results of a file, row by row, and where they were measured."""

    device: str
    backend: str
    versions: dict[str, str] = field(default_factory=dict)
    rounds: int = ROUNDS
    rows: list[Row] = field(default_factory=list)

    #: What a row of the file is read as.
    ROW: ClassVar[type]

    def to_json(self) -> str:
        return lines_of(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The results that a text holds; a ValueError if they are none of this kind."""
        try:
            data = json.loads(text)
            made = cls(rows=[cls.ROW(**row) for row in data.pop("rows")], **data)
            if not isinstance(made.versions, dict):
                raise TypeError("versions")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                "it holds no results of this kind of bench, or those of another version of gemv"
            ) from error
        return made

    @classmethod
    def load(cls, path: str | Path) -> Self:
        return cls.from_json(Path(path).read_bytes())

    def store(self, path: Path) -> None:
        """Write the file as a whole or not at all."""
        files.write_text(path, self.to_json())


class GridResults(Results[CellResult]):
    """Results of cells."""

    __slots__ = ()
    ROW = CellResult


@dataclass(frozen=True, slots=True)
class Summary:
    """Geometric means over some rows.

    Attributes
    ----------
    cells, against : int
        How many were timed, and how many of them beside a peer.
    share, ratio : float or None
        Geometric means of floor over our time, and of the peer's time over ours.
    peer_share : float or None
        Geometric mean of floor over the peer's time.
    least_share, least_ratio : float or None
    behind, ahead : int
        Cells under 0.98 of the peer, and cells at 1 or more.
    """

    cells: int
    against: int
    share: float | None
    ratio: float | None
    peer_share: float | None
    least_share: float | None
    least_ratio: float | None
    behind: int
    ahead: int


def summary(rows: Iterable[CellResult]) -> Summary:
    rows = list(rows)
    shares = [row.share for row in rows if row.share is not None]
    ratios = [row.ratio for row in rows if row.ratio is not None]
    theirs = [
        row.share / row.ratio for row in rows if row.share is not None and row.ratio is not None
    ]
    return Summary(
        len(shares), len(ratios), _mean(shares), _mean(ratios), _mean(theirs),
        min(shares, default=None), min(ratios, default=None),
        sum(ratio < 0.98 for ratio in ratios), sum(ratio >= 1 for ratio in ratios),
    )  # fmt: skip


def _mean(values: Sequence[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None


def groups(rows: Iterable[CellResult]) -> dict[tuple, list[CellResult]]:
    """Rows that belong together, in their order: alike but for their shape and op.

    Conjugates are apart: a library may have no kernel for them, and a mean would hide which it is.
    """
    found: dict[tuple, list[CellResult]] = {}
    for row in rows:
        key = (
            row.hot, row.dtype, row.order, row.view, row.beta, row.batch, row.vectors,
            row.op == "C",
        )  # fmt: skip
        found.setdefault(key, []).append(row)
    return found


def worst(rows: Iterable[CellResult], by: str, count: int = 5) -> list[CellResult]:
    """The rows with the lowest "share" or "ratio"."""
    timed = [row for row in rows if getattr(row, by) is not None]
    return sorted(timed, key=lambda row: getattr(row, by))[:count]
