"""The page of the history, from ``benchmarks/results``; ``docs/_ext/parts.py`` writes it."""

from __future__ import annotations

from benchmarks.history.series import PANELS, Panel, Point, backfilled, machines, middle, points
from benchmarks.pages.page import drawing, markdown, number

#: Ends the name of a machine's points of the past.
PAST = "-past"


def histories() -> dict[str, list[Point]]:
    """The points of each machine that has some; those of the past under a name of their own."""
    past = {f"{machine}{PAST}": each for machine, each in backfilled().items()}
    found = {**past, **{machine: points(machine) for machine in machines()}}
    return {machine: each for machine, each in found.items() if each}


def history_page(found: dict[str, list[Point]]) -> str:
    """For each machine its pictures and a table of its points."""
    parts = []
    if not any(name.endswith(PAST) for name in found):
        parts.append(
            "The commits of the past have not been measured again yet: `python -m"
            " benchmarks.history.backfill --machine NAME` does it on a GPU."
        )
    if not found:
        parts.append("No points are stored yet: `make bench` measures one on a GPU.")
    for machine, history in found.items():
        gpus = ", ".join(dict.fromkeys(point.params.get("gpu", machine) for point in history))
        past = machine.endswith(PAST)
        what = "commits of the past" if past else "points"
        how = " `benchmarks/history/device_part.py` measured all of them." if past else ""
        parts.append(f"## {gpus}, {what}")
        parts.append(
            f"{len(history)} {what}, from {history[0].date:%Y-%m-%d} to"
            f" {history[-1].date:%Y-%m-%d}.{how}"
        )
        panels = panels_of(history)
        for panel in panels:
            parts.append(f"### {panel.title}: {panel.better}")
            parts.append(drawing(f"history-{machine}-{panel.key}"))
        higher = [panel.unit for panel in panels if panel.higher_is_better]
        words = (
            "The newest comes first. A row has the middle line of each picture; its last column is"
            f" the first call. Higher is better in the columns {'; '.join(higher)}. Lower is better"
            " in the others."
        )
        parts += [
            f"<details><summary>The {what} in numbers</summary>", words, table(history),
            "</details>",
        ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def panels_of(history: list[Point]) -> list[Panel]:
    """The panels that some point has a figure for."""
    return [panel for panel in PANELS if any(point.of(panel) for point in history)]


def table(history: list[Point]) -> str:
    """One row for each point, the newest first, with the middle figure of each picture."""
    panels = panels_of(history)
    rows = [
        [
            f"`{point.commit[:7]}`", f"{point.date:%m-%d %H:%M}",
            *(number(middle(point, panel), ".3g") for panel in panels),
        ]
        for point in reversed(history)
    ]  # fmt: skip
    headings = ["commit", "UTC", *(panel.unit for panel in panels)]
    return markdown(headings, "ww" + "f" * len(panels), rows)
