"""What is on ``docs/shards.md``, one matrix on several GPUs, from ``benchmarks/results/shards``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.pages.page import RESULTS, drawing, duration, markdown, number

FOLDER = RESULTS / "shards"
#: The way that others are compared with.
ONE = "gemv.plan, one GPU"
#: The ways that are shown, and what they are called.
WAYS = {
    ONE: "`gemv.plan`, one GPU",
    "plan, shards of rows": "`Matrix.plan`, cut by rows",
    "plan, shards of columns": "`Matrix.plan`, cut by columns",
    "shards of rows": "`A @ x`, cut by rows",
    "torch.mv, one GPU": "`torch.mv`, one GPU",
    "torch.mv, peer copies": "`torch.mv` on all, vectors copied",
    "cupyx.distributed.array": "`cupyx.distributed.array`",
}
#: Those on several GPUs.
ON_SEVERAL = tuple(way for way in WAYS if "one GPU" not in way)


class Measured(NamedTuple):
    """A run on the GPUs of a host.

    Attributes
    ----------
    gpus : int
    model : str
        The name of the first one.
    rows : dict
        By size and way.
    """

    gpus: int
    model: str
    rows: dict[tuple[str, str], dict[str, Any]]

    @property
    def sizes(self) -> list[str]:
        """Those measured on one GPU as well, from the smallest matrix to the largest."""
        found = [size for size, way in self.rows if way == ONE and self.time(size, ONE)]
        return sorted(found, key=self.nbytes)

    def nbytes(self, size: str) -> int:
        """Bytes of the matrix."""
        row = self.rows[size, ONE]
        return int(row["m"] * row["n"] * np.dtype(row["dtype"]).itemsize)

    def matrix(self, size: str) -> str:
        """A size, with the shape and the dtype of its matrix."""
        row = self.rows[size, ONE]
        return f"{size}: {row['m']} x {row['n']} {row['dtype']}"

    def time(self, size: str, way: str) -> float | None:
        """Seconds of a product; None where there is no result, or a wrong one."""
        row = self.rows.get((size, way), {})
        return row.get("time_s") if row.get("right", True) else None

    def ratio(self, size: str, way: str) -> float | None:
        """How many times as fast as our plan on one GPU."""
        taken, one = self.time(size, way), self.time(size, ONE)
        return one / taken if taken and one else None

    def other_time(self, key: str, size: str, way: str) -> float | None:
        """Another time of a result by its key in the file; None as in :meth:`time`."""
        row = self.rows.get((size, way), {})
        return row.get(key) if row.get("right", True) else None

    def scaling(self, way: str) -> list[tuple[int, float]]:
        """Bytes of the matrix, and how many times as fast as one GPU."""
        pairs = ((self.nbytes(size), self.ratio(size, way)) for size in self.sizes)
        return [(nbytes, ratio) for nbytes, ratio in pairs if ratio is not None]


def load(folder: Path | None = None) -> list[Measured]:
    """The stored runs, by model and number of GPUs."""
    runs = []
    for file in sorted((FOLDER if folder is None else folder).glob("*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        rows = {(row["size"], row["way"]): row for row in found["rows"]}
        runs.append(Measured(len(found["names"]), found["names"][0], rows))
    return sorted(runs, key=lambda run: (run.model, run.gpus))


def name(run: Measured, runs: Iterable[Measured]) -> str:
    """The number of GPUs, and their model where runs have different ones."""
    alike = len({each.model for each in runs}) == 1
    return f"{run.gpus} GPUs" if alike else f"{run.gpus} GPUs ({run.model})"


def pays(run: Measured, way: str) -> str:
    """From which size on a way is faster than one GPU, in words."""
    ratios = [(size, run.ratio(size, way)) for size in run.sizes]
    known = [(size, ratio) for size, ratio in ratios if ratio is not None]
    if not known:
        return f"{WAYS[way]} was not measured"
    best_size, best = max(known, key=lambda pair: pair[1])
    slower = [place for place, (_, ratio) in enumerate(known) if ratio <= 1]
    peak = f"at most {best:.2f} times ({best_size})"
    if not slower:
        return f"{WAYS[way]} is faster than one GPU at every size, {peak}"
    last = slower[-1]
    if last == len(known) - 1:
        return f"{WAYS[way]} is not faster than one GPU at the largest size"
    return f"{WAYS[way]} is faster from {known[last + 1][0]} on, {peak}"


def _table(run: Measured) -> str:
    lines = []
    for way, said in WAYS.items():
        cells = []
        for size in run.sizes:
            ratio = run.ratio(size, way)
            times = "" if ratio is None else f" ({number(ratio)})"
            cells.append(duration(run.time(size, way)) + times)
        lines.append([said, *cells])
    return markdown(["", *run.sizes], "w" + "f" * len(run.sizes), lines)


#: Other times of the same products, by their key: what is said of them.
OTHER_TIMES = {
    "until_y_s": "The same products until the GPU of y is idle: from then on y can be read. The"
    " table above has longer times, because the host waits there for the other GPUs as well,"
    " although they are idle by then.",
    "in_graph_s": "The same products in a CUDA graph of 20 products, which all write to one y. A"
    " time is that of one product by the GPU's clock, and the figure in brackets compares it with"
    " `gemv.plan` in such a graph on one GPU. Ways that were not timed in a graph are left out.",
}


def _other_times(run: Measured, key: str) -> str | None:
    """A table of other times; None where none was measured."""
    sizes = [size for size in run.sizes if run.other_time(key, size, ONE)]
    ways = [way for way in WAYS if any(run.other_time(key, size, way) for size in sizes)]
    if not ways:
        return None
    lines = []
    for way in ways:
        cells = []
        for size in sizes:
            taken, one = run.other_time(key, size, way), run.other_time(key, size, ONE)
            times = f" ({number(one / taken)})" if taken and one else ""
            cells.append(duration(taken) + times)
        lines.append([WAYS[way], *cells])
    return markdown(["", *sizes], "w" + "f" * len(sizes), lines)


def part(runs: list[Measured]) -> list[str]:
    """The paragraphs of the page; none without results."""
    if not runs:
        return []
    parts = [
        "One product with one matrix, of which each GPU has a part. x and y are on the first GPU. A"
        " time is measured from the call until all GPUs are idle. The figure in brackets is the"
        " time of `gemv.plan` on one GPU divided by this time. [Larger than one GPU](guide/many.md)"
        " says how to use several.",
        drawing("scaling"),
    ]
    for run in runs:
        wrong = sum(not row.get("right", True) for row in run.rows.values())
        others = sum(row.get("same_bits") is False for row in run.rows.values())
        bits = "all" if not others else f"all but {others}"
        ours = (way for way in ON_SEVERAL if "shards" in way)
        parts.append(
            f"## {run.gpus} GPUs ({run.model}) of one host\n\n"
            + "\n".join(f"- {pays(run, way)}." for way in ours)
            + f"\n\nWrong results: {wrong or 'none'}. Of the products cut by rows, {bits} have the"
            " bits of one GPU. A is stored by rows; its sizes are"
            f" {'; '.join(map(run.matrix, run.sizes))}."
        )
        parts.append(_table(run))
        for key, said in OTHER_TIMES.items():
            table = _other_times(run, key)
            if table is not None:
                parts += [said, table]
    return parts
