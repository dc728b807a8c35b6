"""All figures, and drawing them by several processes."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import climb  # noqa: F401
import fitted  # noqa: F401  registers its drawing
import history  # noqa: F401
import items
import items_of_lists
import machine  # noqa: F401
import results  # noqa: F401
import rungs
import shards  # noqa: F401
import steps
from style import DRAWINGS, save

OUT = Path(__file__).resolve().parent / "out"


def draw(names: list[str]) -> list[str]:
    for name in names:
        save(DRAWINGS[name], OUT)
        kind, _, kernel = name.partition("-")
        if kind == "lines":
            facts = json.dumps(rungs.facts(kernel), indent=1)
            (OUT / f"counted-{kernel}.json").write_text(facts + "\n", encoding="utf-8")
        if kind == "items":
            facts = json.dumps(items.facts(kernel), indent=1)
            (OUT / f"counted-{kernel}.json").write_text(facts + "\n", encoding="utf-8")
        if kind == "lists":
            facts = json.dumps(items_of_lists.facts(kernel), indent=1)
            (OUT / f"counted-{kernel}.json").write_text(facts + "\n", encoding="utf-8")
        if kind == "climb":
            counts = json.dumps(steps.counts(kernel), indent=1)
            (OUT / f"climb-{kernel}.json").write_text(counts + "\n", encoding="utf-8")
    return names


def draw_all() -> None:
    """Every figure; those of one kernel in one process, which watches it only once, and what takes
    long to count in processes of its own."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in DRAWINGS:
        kind, _, rest = name.partition("-")
        own = {"matrix": rest, "lines": rest, "banks": rest, "climb": name}
        groups[own.get(kind, kind)].append(name)
    for old in OUT.glob("*.*"):
        old.unlink()
    processes = min(4, os.cpu_count() or 1)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        for names in pool.map(draw, groups.values()):
            print(*names, sep="\n", flush=True)
