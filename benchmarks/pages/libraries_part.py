"""What ``docs/calls_of_libraries.md`` has of calls in PyTorch and JAX, and what they replace."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.measure.calls_of_libraries import PEERS
from benchmarks.pages.page import RESULTS, markdown, number

FOLDER = RESULTS / "calls_of_libraries"
_TITLES = {"torch": "PyTorch", "jax": "JAX"}


def part(folder: Path = FOLDER) -> str:
    """A table for each GPU and library, the calls that lose the most first."""
    parts = []
    for file in sorted(folder.glob("*.json")):
        for run in json.loads(file.read_text("utf-8")):
            if run["tree"] == "after":
                parts += [f"## {_TITLES[run['library']]}, {run['device']}", _table(run["us"])]
    return "\n\n".join(parts) + "\n" if parts else "No results are stored yet.\n"


def _table(us: dict[str, float]) -> str:
    rows = []
    for name, (peer, wanted) in PEERS.items():
        ours, theirs = us.get(name), us.get(peer)
        if ours and theirs:
            rows.append((ours / theirs, name, ours, peer, theirs, wanted))
    rows.sort(reverse=True)
    return markdown(
        ("call", "µs", "compared with", "its µs", "ratio", "aim"),
        "wfwfff",
        [
            (f"`{name}`", number(ours), f"`{peer}`", number(theirs), number(ratio), number(wanted))
            for ratio, name, ours, peer, theirs, wanted in rows
        ],
    )
