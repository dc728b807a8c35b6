"""The page of the history, from ``benchmarks/results``; ``docs/_ext/parts.py`` writes it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.history.series import PANELS, Panel, Point, backfilled, machines, middle, points
from benchmarks.pages.page import by_device, drawing, markdown, number


@dataclass(frozen=True)
class History:
    """Points of one GPU that were measured in one way, which may be joined by a line.

    Attributes
    ----------
    name : str
        Of its pictures.
    past : bool
        Whether the points are commits of the past, which ``backfill.py`` measured.
    """

    name: str
    gpu: str
    past: bool
    points: list[Point]


def histories() -> list[History]:
    """First the histories of the past, then those of regular points, the H200 first in each."""
    found = []
    for past, by_machine in (
        (True, backfilled()), (False, {machine: points(machine) for machine in machines()}),
    ):  # fmt: skip
        some = []
        for machine, all_points in by_machine.items():
            by_gpu: dict[str, list[Point]] = {}
            for point in all_points:
                by_gpu.setdefault(point.params.get("gpu", machine), []).append(point)
            for place, (gpu, each) in enumerate(by_gpu.items()):
                name = "-".join([machine, *["past"] * past, *[str(place)] * (place > 0)])
                some.append(History(name, gpu, past, each))
        found += by_device(some, lambda history: history.gpu)
    return found


def history_page(found: list[History]) -> str:
    """For each history its pictures, and a table of its points."""
    parts = []
    if not any(history.past for history in found):
        parts.append(
            "The commits of the past have not been measured again yet: `python -m"
            " benchmarks.history.backfill --machine NAME` does it on a GPU."
        )
    if not found:
        parts.append("No points are stored yet: `make bench` measures one on a GPU.")
    for history in found:
        parts += section(history)
    return "\n\n".join(parts) + "\n"


def section(history: History) -> list[str]:
    what = "commits of the past" if history.past else "points"
    how = " `benchmarks/history/device_part.py` measured all of them." if history.past else ""
    panels = panels_of(history)
    several = "Several " * ({panel.key for panel in panels} == {"scaling"})
    parts = [f"## {several}{history.gpu}, {what}", f"{dates(history, what)}.{how}"]
    mark = history.gpu.removeprefix("NVIDIA ").partition(" ")[0] + ", past" * history.past
    for panel in panels:
        parts.append(f"### {panel.title} ({mark}): {panel.better}")
        parts.append(drawing(f"history-{history.name}-{panel.key}"))
    words = f"The newest comes first. A row has the middle line of each picture{_last(panels)}"
    higher = [panel.unit for panel in panels if panel.higher_is_better]
    if len(higher) == len(panels):
        words += " Higher is better."
    else:
        words += (
            f" Higher is better in the columns {'; '.join(higher)}. Lower is better in the others."
        )
    return [
        *parts, f"<details><summary>The {what} in numbers</summary>", words, table(history),
        *reasons(history), "</details>",
    ]  # fmt: skip


def _last(panels: list[Panel]) -> str:
    """What the last column is, if that needs words: a picture has an import and a first call."""
    is_start = bool(panels) and panels[-1].key == "start"
    return "; its last column is the first call." if is_start else "."


def dates(history: History, what: str) -> str:
    """How many points there are, and from which days."""
    first, last = history.points[0], history.points[-1]
    if len(history.points) == 1:
        one = what.replace("points", "point").replace("commits", "commit")
        return f"One {one}, of {first.date:%Y-%m-%d}"
    return f"{len(history.points)} {what}, from {first.date:%Y-%m-%d} to {last.date:%Y-%m-%d}"


def panels_of(history: History) -> list[Panel]:
    """The panels that some point has a figure for."""
    return [panel for panel in PANELS if any(point.of(panel) for point in history.points)]


def table(history: History) -> str:
    """One row for each point, the newest first, with the middle figure of each picture."""
    panels = panels_of(history)
    rows = [
        [
            f"`{point.commit[:7]}`", point.title if history.past else f"{point.date:%m-%d %H:%M}",
            *(number(middle(point, panel), ".3g") for panel in panels),
        ]
        for point in reversed(history.points)
    ]  # fmt: skip
    second = "what it brought" if history.past else "UTC"
    headings = ["commit", second, *(panel.unit for panel in panels)]
    return markdown(headings, "ww" + "f" * len(panels), rows)


def reasons(history: History) -> list[str]:
    """Why figures are missing: each reason with its commits."""
    found: dict[str, dict[str, int]] = {}
    for point in history.points:
        for why in point.missing.values():
            commits = found.setdefault(why, {})
            commits[point.commit[:7]] = commits.get(point.commit[:7], 0) + 1
    lines = [
        f"- {', '.join(f'`{commit}` ({count})' for commit, count in commits.items())}: {why}"
        for why, commits in found.items()
    ]
    words = "Why figures are missing, with the number of them for each commit:"
    return [words, "\n".join(lines)] if lines else []
