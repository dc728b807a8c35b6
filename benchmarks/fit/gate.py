"""How far choices are from the best of many candidates, on cells that no fit has seen.

    python -m benchmarks.fit.gate FILE.json [--now] [--also CANDIDATES.json] [--json REPORT.json]

FILE.json is a campaign on such cells (``campaign --first``). The present choice is what was
selected then; with ``--now`` it is what is selected today, and cells on which that was not timed
are left out. With ``--also``, a second choice is judged beside it: the candidates that the campaign
got from that file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fit.candidates import Candidate, normal
from benchmarks.fit.samples import ADDRESS
from benchmarks.fit.store import Campaign, Measured
from gemv.core.files import write_text
from gemv.core.geometry import Device
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell
from gemv.selection.select import select

#: Cells that are listed: those whose choice is farthest from the best.
WORST = 10


def time_of(measured: Measured, candidate: Candidate) -> float | None:
    """The time of a candidate, or None if it was not timed."""
    found = [seconds for each, seconds in measured.times if each == candidate]
    return min(found) if found else None


def regret(pairs: Iterable[tuple[float, float, float]]) -> dict[str, float]:
    """Of the times, the best times and the floors of cells."""
    times, best, floors = np.array(list(pairs)).T
    ratios = times / best
    found = {
        "cells": len(ratios),
        "mean": float(np.exp(np.log(ratios).mean())),
        "most_of_95": float(np.percentile(ratios, 95)),
        "worst": float(ratios.max()),
        "floor_over_time": float(np.exp(np.log(floors / times).mean())),
    }
    return {name: float(f"{number:.4g}") for name, number in found.items()}


def chosen_now(cell: Cell, device: Device) -> Candidate:
    """What a cell gets today, as a campaign's file has it."""
    chosen = select(FramedCell.at(cell, ADDRESS, 1).problem, device)
    return normal(chosen.kernel.name, chosen.knobs)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--now", action="store_true", help="judge what is selected today")
    parser.add_argument("--also", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    campaign = Campaign.load(options.file)
    also = json.loads(options.also.read_text("utf-8")) if options.also else {}
    own, other, listed = [], [], []
    for each in campaign.cells:
        best = min(each.times, key=lambda timed: timed.seconds)
        floor = min(each.floor_s, best.seconds, *each.peers.values())
        present = chosen_now(each.cell, campaign.device) if options.now else each.present
        time = time_of(each, present)
        if time is None:
            continue
        own.append((time, best.seconds, floor))
        listed.append((time / best.seconds, each, present, time, best))
        for kernel, knobs in also.get(str(each.number), ()):
            second = time_of(each, normal(kernel, knobs))
            if second is not None:
                other.append((second, best.seconds, floor))
    content: dict[str, Any] = {"campaign": campaign.about, "present": regret(own)}
    if other:
        content["also"] = regret(other)
    for name in ("present", "also"):
        if name in content:
            print(name, content[name])
    listed.sort(key=lambda row: -row[0])
    content["worst"] = []
    for ratio, each, present, time, best in listed[:WORST]:
        line = (
            f"{ratio:.2f}: {each.cell.m} x {each.cell.n} {each.cell.dtype} {each.cell.op}"
            f" {each.cell.order} {each.cell.view!r}{' hot' if each.cell.hot else ''}:"
            f" {time * 1e6:.2f} us by {present.constants[0]}, {best.seconds * 1e6:.2f} us by"
            f" {best.candidate.constants[0]}"
        )
        content["worst"].append(line)
        print(line)
    if options.json:
        write_text(options.json, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
