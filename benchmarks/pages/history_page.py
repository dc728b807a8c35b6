"""The page of the history, from the points in ``benchmarks/results/``; ``make docs`` makes it."""

from __future__ import annotations

from benchmarks.history.series import PANELS, Point, machines, middle, points
from benchmarks.pages.grid_page import unbroken
from benchmarks.pages.page import markdown, number


def histories() -> dict[str, list[Point]]:
    """The points of each machine that has some."""
    found = {machine: points(machine) for machine in machines()}
    return {machine: each for machine, each in found.items() if each}


def history_page(found: dict[str, list[Point]]) -> str:
    """For each machine its pictures and a table of its points."""
    if not found:
        return "No points are stored yet: `make bench` measures one on a GPU.\n"
    parts = []
    for machine, history in found.items():
        gpus = ", ".join(dict.fromkeys(point.params.get("gpu", machine) for point in history))
        parts.append(f"## {gpus}")
        parts.append(
            f"{len(history)} points, from {history[0].date:%Y-%m-%d} to"
            f" {history[-1].date:%Y-%m-%d}."
        )
        for panel in PANELS:
            if any(point.of(panel) for point in history):
                parts += [f"### {panel.title}: {panel.better}",
                          f"```{{drawing}} history-{machine}-{panel.key}\n```"]  # fmt: skip
        words = (
            "A column has the middle one of the figures of its picture; the last column is the"
            " first call."
        )
        parts += ["### The points", words, table(history)]
    return "\n\n".join(parts) + "\n"


def table(history: list[Point]) -> str:
    """One row for each point, the newest first, with the middle figure of each picture."""
    panels = [panel for panel in PANELS if any(point.of(panel) for point in history)]
    rows = [
        [
            f"`{point.commit[:7]}`", unbroken(f"{point.date:%Y-%m-%d}") + f" {point.date:%H:%M}",
            str(len(point.figures)),
            *(number(middle(point, panel), ".3g") for panel in panels),
        ]
        for point in reversed(history)
    ]  # fmt: skip
    headings = [
        "commit", "date (UTC)", "figures",
        *(f"{panel.unit} ({panel.better})" for panel in panels),
    ]  # fmt: skip
    return markdown(headings, "ww" + "f" * (1 + len(panels)), rows)
