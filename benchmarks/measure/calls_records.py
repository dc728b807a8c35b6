"""What the tables of calls are made of: rows, and where they were measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class CallRow:
    """One way to make a product.

    Attributes
    ----------
    group : str
        What it is compared with: rows of one group do the same work.
    name : str
    time_s : float or None
        Host time of a call; None where it could not be made.
    note : str
        Why it could not, or what else is to be said.
    """

    group: str
    name: str
    time_s: float | None
    note: str = ""


@dataclass(slots=True)
class CallResults:
    """All rows of a run and where it was made."""

    device: str
    versions: dict[str, str] = field(default_factory=dict)
    rows: list[CallRow] = field(default_factory=list)

    def time_s(self, group: str, name: str) -> float:
        """The time of one row; a KeyError where there is none."""
        for row in self.rows:
            if (row.group, row.name) == (group, name) and row.time_s is not None:
                return row.time_s
        raise KeyError((group, name))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"
