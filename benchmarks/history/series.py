"""The points of the history as series of figures, which the page of the history shows.

A figure is a benchmark with its parameters. A picture has a line for each dtype or kind of array.
Times of imports and of first calls are given as multiples of the time that NumPy's import took in
the same run, because hosts differ in speed.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.history.compare import CONTROL, RESULTS, load, newest

#: Points of commits of the past, which one program measured; asv knows nothing of them.
BACKFILLED = RESULTS.parent / "backfill"
COMMITS = Path(__file__).with_name("commits.txt")

Figures = dict[tuple[str, tuple[str, ...]], float]


@dataclass(frozen=True)
class Point:
    """One commit as a machine measured it; of the past also what it brought, and what it lacks."""

    commit: str
    date: datetime
    figures: Figures
    params: dict[str, str]
    title: str = ""
    #: Why there is no value, by figure.
    missing: dict[str, str] = field(default_factory=dict)

    def of(self, panel: Panel) -> Figures:
        """The figures of a panel, in its unit."""
        unit = self.figures.get(CONTROL) if panel.of_control else 1.0
        if not unit:
            return {}
        return {key: value / unit for key, value in self.figures.items() if key[0] in panel.names}


@dataclass(frozen=True)
class Panel:
    """A picture of the history: which figures it has, and how to read them."""

    key: str
    title: str
    names: tuple[str, ...]
    unit: str
    higher_is_better: bool
    of_control: bool = False
    #: Whether the first parameter is a kernel, of which the best one counts.
    of_best: bool = False

    @property
    def better(self) -> str:
        return "higher is better" if self.higher_is_better else "lower is better"


PANELS = (
    Panel("share", "Share of the floor", ("kernels.Floor.track_share",), "% of the floor", True),
    Panel(
        "ratio", "Beside the fastest peer", ("kernels.Neighbour.track_ratio",),
        "times as fast as the peer", True,
    ),
    Panel(
        "rung", "The best rung's share of the read ceiling", ("kernels.Bandwidth.track_share",),
        "% of the read ceiling", True, of_best=True,
    ),
    Panel(
        "scaling", "Several GPUs beside one", ("shards.Scaling.track_ratio",),
        "times as fast as one GPU", True,
    ),
    Panel("call", "The host's time for a call", ("api.Call.track_call",), "µs", False),
    Panel(
        "start", "Import and first call",
        ("api.Start.timeraw_import", "api.FirstCall.timeraw_first_call"),
        "times NumPy's import", False, of_control=True,
    ),
)  # fmt: skip


def machines() -> list[str]:
    """Machines that have points."""
    return sorted(path.parent.name for path in RESULTS.glob("*/machine.json"))


def points(machine: str) -> list[Point]:
    """The points of a machine, the oldest first; files of one commit are one point."""
    found: dict[str, Point] = {}
    for path in newest(machine):
        data = json.loads(path.read_text(encoding="utf-8"))
        had = found.get(data["commit_hash"])
        found[data["commit_hash"]] = Point(
            data["commit_hash"], datetime.fromtimestamp(data["date"] / 1000, UTC),
            {**(had.figures if had else {}), **load(path)}, data["params"],
        )  # fmt: skip
    return list(found.values())


def backfilled() -> dict[str, list[Point]]:
    """The commits of the past that ``backfill.py`` measured, the oldest first, by machine.

    Those of one second are in the order of the list.
    """
    listed = [line.split()[0] for line in COMMITS.read_text("utf-8").splitlines() if line.strip()]
    places = {commit: place for place, commit in enumerate(listed)}
    found: dict[str, list[Point]] = {}
    for path in sorted(BACKFILLED.glob("*/*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        figures = {
            (name, tuple(each)): value
            for name, (values, params) in data["figures"].items()
            for value, each in zip(values, params, strict=True)
        }
        date = datetime.fromtimestamp(data["date"] / 1000, UTC)
        point = Point(
            data["commit_hash"], date, figures, data["params"], data["title"], data["missing"]
        )  # fmt: skip
        found.setdefault(path.parent.name, []).append(point)
    for each in found.values():
        each.sort(key=lambda point: (point.date, places.get(point.commit[:7], 0)))
    return found


def line_name(key: tuple[str, tuple[str, ...]]) -> str:
    """What a line of a picture is called: the first parameter, or the benchmark if it has none."""
    name, params = key
    if params:
        return params[0]
    return name.rsplit("track_", 1)[-1].rsplit("timeraw_", 1)[-1].replace("_", " ")


def values(point: Point, panel: Panel) -> dict[str, float]:
    """A value for each line of a panel: a dtype's is the mean over its shapes."""
    figures = point.of(panel)
    if panel.of_best:
        best: Figures = {}
        for (name, params), value in figures.items():
            key = name, params[1:]
            best[key] = max(value, best.get(key, value))
        figures = best
    groups: dict[str, list[float]] = {}
    for key, value in sorted(figures.items()):
        groups.setdefault(line_name(key), []).append(value)
    mean = statistics.geometric_mean if panel.key == "ratio" else statistics.fmean
    return {name: mean(each) for name, each in groups.items()}


def lines(found: list[Point], panel: Panel) -> dict[str, list[tuple[int, float]]]:
    """Number of the point and value, for each line of a panel that any point has."""
    drawn: dict[str, list[tuple[int, float]]] = {}
    for number, point in enumerate(found):
        for name, value in values(point, panel).items():
            drawn.setdefault(name, []).append((number, value))
    return drawn


def middle(point: Point, panel: Panel) -> float | None:
    """The middle value of a panel's lines, or of its last benchmark; None without any."""
    found = values(point, panel)
    last = line_name((panel.names[-1], ()))
    if last in found:
        return found[last]
    return statistics.median(found.values()) if found else None
