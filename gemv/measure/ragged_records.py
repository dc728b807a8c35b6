"""Results of lists of products of different sizes, stored as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from gemv.measure.ragged import RaggedCell
from gemv.measure.records import Results, Timed


@dataclass(slots=True)
class RaggedResult(Timed):
    """What was measured of a list.

    Attributes
    ----------
    count, dtype, op, order, least, most, seed
        As of :class:`~gemv.measure.ragged.RaggedCell`.
    nbytes : int
        32 for each sector that the products touch in all A, x and y.
    frames : int
        How many frames were used in turn; 0 where not even one fits into memory.
    padding : float
        How many times as many elements the matrices have, padded to the largest m and n.
    launches : list of str
        Our launches in words, a line for each.
    time_s, plain_s : float or None
        Medians of our plan and of the plain kernel; None where nothing is timed.
    spread : float or None
        Largest less smallest of our rounds, over the median.
    peers : dict of str to float
        Median time of each other way, one of which is our single calls one after the other.
    refused : dict of str to str
        Why another way has no time; under "gemv" why ours has none.
    wrong : str or None
        What is wrong with our result; then nothing was timed.
    """

    count: int
    dtype: str
    op: str
    order: str
    least: int
    most: int
    seed: int
    nbytes: int
    frames: int
    padding: float
    launches: list[str] = field(default_factory=list)
    time_s: float | None = None
    plain_s: float | None = None
    spread: float | None = None
    peers: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    wrong: str | None = None

    @property
    def cell(self) -> RaggedCell:
        return RaggedCell(**{each.name: getattr(self, each.name) for each in fields(RaggedCell)})


class RaggedResults(Results[RaggedResult]):
    """Results of lists."""

    __slots__ = ()
    ROW = RaggedResult
