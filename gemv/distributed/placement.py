"""Which worker holds which chunk of a matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from gemv.core.geometry import ceil_div

_Chunk = TypeVar("_Chunk")


def spread(holders: Mapping[_Chunk, Sequence[str]], workers: Sequence[str]) -> dict[_Chunk, str]:
    """A worker for each chunk, so that none has more than its share.

    A chunk stays where it is unless its worker has its share already.

    Parameters
    ----------
    holders : mapping of chunk to sequence of str
        The workers that hold each chunk now.
    workers : sequence of str
        All that may hold one.

    Returns
    -------
    dict of chunk to str
    """
    share = ceil_div(len(holders), len(workers))
    load = dict.fromkeys(workers, 0)
    homes: dict[_Chunk, str] = {}
    for chunk, places in holders.items():
        here = [worker for worker in places if load.get(worker, share) < share]
        if here:
            homes[chunk] = min(here, key=load.__getitem__)
            load[homes[chunk]] += 1
    for chunk in holders:
        if chunk not in homes:
            homes[chunk] = min(workers, key=load.__getitem__)
            load[homes[chunk]] += 1
    return {chunk: homes[chunk] for chunk in holders}


def where(holders: Mapping[_Chunk, Sequence[str]]) -> dict[str, list[_Chunk]]:
    """The chunks of each worker, where each stays with one that holds it.

    Parameters
    ----------
    holders : mapping of chunk to sequence of str
        None of them is empty.

    Returns
    -------
    dict of str to list of chunks
    """
    chunks: dict[str, list[_Chunk]] = {}
    for chunk, places in holders.items():
        worker = min(places, key=lambda each: len(chunks.get(each, ())))
        chunks.setdefault(worker, []).append(chunk)
    return chunks
