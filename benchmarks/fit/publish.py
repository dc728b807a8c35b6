"""Write what a fit has found as a machine's file, and the JSON that processes read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gemv.selection
from benchmarks.fit.ahead import choices_ahead
from benchmarks.fit.corrections import Corrections
from benchmarks.fit.portfolio import chosen, compiled_sets
from benchmarks.fit.samples import KERNELS
from benchmarks.fit.store import Campaign
from benchmarks.fit.timed_cells import changed_for_others, changes_that_keep, corrected
from gemv.core.files import write_text
from gemv.core.geometry import Device
from gemv.selection import compiled, written
from gemv.selection.formula import Machine
from gemv.selection.machine import Constants
from gemv.selection.machine import machine as machine_of
from gemv.selection.parse import parse

#: Sets of constants of a machine's file.
PORTFOLIO = 160

#: The machines of the package.
FOLDER = Path(gemv.selection.__file__).with_name("machines")

#: How the head of a file says what wrote it.
_MADE = 'Written by "make fit", but for the\n# tables host and row.'


def publish(
    name: str,
    campaign: Campaign,
    device: Device,
    machine: Machine,
    factors: np.ndarray,
    corrections: Corrections,
    held_out: Mapping[str, Any],
    jobs: int,
) -> None:
    """Write ``machines/NAME.toml``, ``.jsonl`` and ``.cells``.

    What no fit finds is kept as it stands in the present file: the numbers for host arrays, and the
    exceptions.
    """
    sets = chosen(compiled_sets(campaign), PORTFOLIO, device, corrections.seconds)
    file = FOLDER / f"{name}.toml"
    text = _text(campaign, machine, factors, sets, held_out) + _kept(file)
    content = parse(text, str(file))
    choices = choices_ahead(sets, device, corrections, jobs)
    write_text(file, text)
    toml = file.read_bytes()
    write_text(file.with_suffix(".jsonl"), compiled.text_of(toml, content))
    cells = compiled.cells_text_of(toml, choices)
    write_text(file.with_suffix(".cells"), cells)
    print(f"{file.name}: {len(text.splitlines())} lines; {len(choices['entries'])} launches in"
          f" {len(choices['kinds'])} kinds, {len(cells)} bytes")  # fmt: skip


def decide(name: str, campaign: Campaign, device: Device, corrections: Any, jobs: int) -> None:
    """Write ``machines/NAME.cells`` anew, for the constants that the file has.

    Other GPUs whose choices are changes of these keep what they change, and get the new choices in
    all other cells.
    """
    used = machine_of(device)
    choices = choices_ahead(used.constants, device, corrections, jobs)
    choices, count = corrected(choices, campaign, used)
    print(f"{count} cells have a launch that was faster there")
    file = FOLDER / f"{name}.toml"
    toml = file.read_bytes()
    cells = compiled.cells_text_of(toml, choices)
    write_text(file.with_suffix(".cells"), cells)
    for other, text in changed_for_others(FOLDER, device).items():
        # What is a choice of this GPU now is no change of it any more.
        changes = changes_that_keep(
            choices, compiled.choices_of(text, compiled.hash_of(toml)), choices
        )
        write_text(FOLDER / other, compiled.cells_text_of(toml, changes))
    print(f"{name}.cells: {len(choices['entries'])} launches, {len(cells)} bytes")


def _kept(file: Path) -> str:
    """The tables of the present file that no fit finds, as they stand at its end."""
    if not file.exists():
        return ""
    text = file.read_text("utf-8")
    found = [at for table in ("\n[host]", "\n[[row]]") if (at := text.find(table)) >= 0]
    return text[min(found) :] if found else ""


def _text(
    campaign: Campaign,
    machine: Machine,
    factors: np.ndarray,
    sets: Sequence[Constants],
    held_out: Mapping[str, Any],
) -> str:
    about = {
        "gpu": campaign.about["gpu"],
        "compute_capability": campaign.about["device"][0],
        "multiprocessors": campaign.about["device"][1],
        "date": campaign.about["date"],
        "versions": campaign.about["versions"],
        "cells": len(campaign.cells),
        "times": sum(len(each.times) for each in campaign.cells),
        "regret_of_cells_held_out": held_out["formula, corrected"],
    }
    pairs = {kernel: tuple(pair) for kernel, pair in zip(KERNELS, factors.tolist(), strict=True)}
    return written.fitted(_MADE, about, machine, pairs, sets)
