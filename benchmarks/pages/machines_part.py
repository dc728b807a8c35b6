"""What ``docs/shards.md`` says of Dask's workers, from ``benchmarks/results/machines``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pages.page import RESULTS, duration, markdown, number

FOLDER = RESULTS / "machines"
#: The ways, and what they are called.
PROCESS, WORKERS, TASKS, DASK = (
    "lsmr, one process",
    "lsmr, workers",
    "matvec, workers",
    "dask.array @",
)


class Measured(NamedTuple):
    """A run on one machine.

    Attributes
    ----------
    device : str
        The name of its GPUs, or "host".
    workers : int
    rows : dict
        By size and way.
    about : str
        What has changed since, a sentence or nothing.
    """

    device: str
    workers: int
    rows: dict[tuple[str, str], dict[str, Any]]
    about: str = ""

    @property
    def sizes(self) -> list[str]:
        """From the smallest matrix to the largest."""
        found = {size: row["rows"] * row["columns"] for (size, _), row in self.rows.items()}
        return sorted(found, key=found.__getitem__)

    def time(self, size: str, way: str) -> float | None:
        """Seconds; None where there is no result, a wrong one, or a difference that is noise."""
        row = self.rows.get((size, way), {})
        return row["time_s"] if row.get("right") and row["time_s"] > 0 else None


def load(folder: Path = FOLDER) -> list[Measured]:
    """The stored runs, by device and number of workers."""
    runs = []
    for file in sorted(folder.glob("*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        rows = {(row["size"], row["way"]): row for row in found["rows"]}
        runs.append(Measured(found["device"], found["workers"], rows, found.get("about", "")))
    return sorted(runs, key=lambda run: (run.device == "host", run.device, run.workers))


def _ratio(over: float | None, under: float | None) -> str:
    return number(over / under) if over and under else "\u2013"


def part(runs: list[Measured]) -> list[str]:
    """A table for each run; nothing where there is none."""
    if not runs:
        return []
    parts = [
        "## Dask's workers on one machine",
        "`benchmarks/measure/machines.py` measured LSMR on a float64 matrix that is cut by rows."
        " An iteration has two products and sums of vectors. *one process* is an iteration of"
        " SciPy's solver with one `gemv.Matrix`, and *workers* one of `gemv.dask.Matrix.solve` with"
        " a worker for each part. The next two columns are one product that Dask's scheduler runs"
        " as tasks, by `gemv.dask.matvec` and by `dask.array`. *Workers* is the time of *workers*"
        " divided by that of *one process*; *Dask* is a product of `dask.array` divided by half an"
        " iteration of *workers*.",
    ]
    for run in runs:
        where = (
            f"{run.workers} workers with one thread each, no GPU"
            if run.device == "host"
            else f"{run.workers} workers with one {run.device} each"
        )
        lines = []
        for size in run.sizes:
            times = [run.time(size, way) for way in (PROCESS, WORKERS, TASKS, DASK)]
            half = times[1] and times[1] / 2
            ratios = _ratio(times[1], times[0]), _ratio(times[3], half)
            lines.append([size, *map(duration, times), *ratios])
        heads = ["A", "one process", "workers", "`matvec`", "`dask.array @`", "Workers", "Dask"]
        parts += [f"{where}:", markdown(heads, "wffffff", lines), *filter(None, [run.about])]
    return parts
