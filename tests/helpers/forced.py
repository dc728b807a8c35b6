"""Batches and several vectors by the kernel and the constants that a test wants.

What is selected is replaced until the test ends. :func:`helpers.lists.forced` does so for lists.
"""

from __future__ import annotations

import dataclasses

from gemv.kernels import get
from gemv.selection import batches, parts
from gemv.selection import ragged as _ragged  # noqa: F401  takes names that are replaced here
from gemv.selection.select import select

#: Kernels for several vectors that have no constants but those that a test gives.
GIVEN_ALL = (
    "several_short_rows", "several_long_rows", "several_staged_rows", "several_rows_in_shares",
)  # fmt: skip


def alone(monkeypatch, name, knobs):
    """Each item by itself has the kernel `name` with these constants."""

    def forced(problem, batch, device, kernel=None, homes=("arguments", "arguments")):
        return select(problem, device, kernel=name, knobs=knobs, homes=homes)

    for room in (batches, parts):
        monkeypatch.setattr(room, "select_item", forced)


def in_stages(monkeypatch, name, knobs, staged):
    """Items of the kernel `name` are copied in stages, with the constants `staged`."""

    def kernel(called):
        found = get(called)
        if found.for_items is None:
            return found

        def constants(problem, own):
            assert {**own, **knobs} == own
            made = found.for_items(problem, own) or {**found.small_knobs, "LANES": own["LANES"]}
            return {**made, **staged}

        return dataclasses.replace(found, for_items=constants)

    alone(monkeypatch, name, knobs)
    monkeypatch.setattr(batches, "get", kernel)
    monkeypatch.setattr(batches, "THREADS_PER_SM", 0)
    monkeypatch.setattr(batches, "_are_many", lambda problem, batch, device: True)
    monkeypatch.setattr(batches, "gains_by_stages", lambda problem, device: True)


def together(monkeypatch, name, knobs, several, constants):
    """Vectors of one matrix have the kernel `several` instead of `name`.

    The kernels that make their constants from those of `name` keep what `constants` does not have.
    """

    def kernel(called):
        found = get(called)

        def own(problem, knobs, vectors):
            made = {} if called in GIVEN_ALL else found.for_vectors(problem, knobs, vectors)
            return {**made, **constants}

        return dataclasses.replace(found, for_vectors=own)

    alone(monkeypatch, name, knobs)
    monkeypatch.setattr(batches, "get", kernel)
    monkeypatch.setattr(batches, "SEVERAL", {name: (several,)})
