"""Barriers of a block, and shuffles and votes of a warp.

The tables at the end of each part say which functions of ``cuda`` there are: :mod:`cuda_names`
installs them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from operator import index as as_index
from typing import Any

import numpy as np
from greenlet import getcurrent

from gemv.language.simulator.thread import WARP, SimulatorError, Thread, current, release

_FULL_MASK = 0xFFFFFFFF

# Blocks -----------------------------------------------------------------------------------------

#: Barriers of a block: what each returns, from the values that its threads brought.
BLOCK_VOTES: dict[str, Callable[[list], Any]] = {
    "syncthreads": lambda values: None,
    "syncthreads_count": lambda values: sum(map(bool, values)),
    "syncthreads_and": lambda values: int(all(values)),
    "syncthreads_or": lambda values: int(any(values)),
}


def block_barrier(operation: str) -> Callable[..., Any]:
    """The barrier called `operation`, one of :data:`BLOCK_VOTES`."""

    def barrier(value: Any = None) -> Any:
        thread, frame = current(), sys._getframe(1)
        thread.value = value
        # block_on written out: no kernel does anything more often.
        thread.operation, thread.mask = operation, None
        thread.site = frame.f_code, frame.f_lasti
        thread.hub.switch()
        return thread.result

    return barrier


# Warps ------------------------------------------------------------------------------------------


def _check_mask(operation: str, mask: int, thread: Thread) -> None:
    if not mask >> thread.lane & 1:
        raise SimulatorError(f"wrong mask 0x{mask:08x} for {operation}: lacks lane {thread.lane}")
    if mask & ~thread.warp.present:
        lanes = len(thread.warp.threads)
        raise SimulatorError(f"wrong mask 0x{mask:08x} for {operation}: the warp has {lanes} lanes")


def _gather(
    operation: str,
    mask: int,
    value: Any,
    combine: Callable[[Any], Any] | None = None,
    caller: int = 2,
) -> Any:
    """Wait for all lanes of `mask`; return what each brought, or what `combine` makes of that.

    The lane that comes last combines for all. The kernel is so many frames up as `caller` says.
    """
    thread = current()
    warp, mask = thread.warp, as_index(mask) & _FULL_MASK
    if mask != warp.present:
        _check_mask(operation, mask, thread)
    frame = sys._getframe(caller)
    site = (frame.f_code, frame.f_lasti)
    # By id, because the hash of a code object is slow; the threads keep it alive.
    key = (operation, mask, id(site[0]), site[1])
    group = warp.groups.get(key)
    if group is None:
        group = warp.groups[key] = {}
    group[thread.lane] = value
    if len(group) < mask.bit_count():
        return thread.block_on(operation, mask, site)
    del warp.groups[key]
    result = group if combine is None else combine(group)
    members = [warp.threads[lane] for lane in group]
    if operation == "syncwarp":
        for member in members:
            warp.stores.update(member.stores)
            member.stores.clear()
        for memory in thread.block.memories:
            memory.show_to_warp(members)
    release(members, result)
    thread.hub.switch()
    return result


def syncwarp(mask: int = _FULL_MASK) -> None:
    _gather("syncwarp", mask, None)


_MOVABLE = frozenset({int, float, np.int32, np.int64, np.float32, np.float64})


def _movable(value: Any) -> Any:
    if type(value) not in _MOVABLE:
        raise TypeError(
            f"warps exchange 32- and 64-bit integers and floats only, not {type(value).__name__}"
        )
    return value


def shuffle(operation: str, source: Callable[[int, int], int]) -> Callable[..., Any]:
    """The shuffle called `operation`; ``source(lane, other)`` is the lane that a lane reads."""

    def shuffle(mask: int, value: Any, other: int) -> Any:
        group = _gather(operation, mask, _movable(value))
        lane = getcurrent().lane
        # A GPU looks at the low five bits of the lane, distance or lane mask only.
        wanted = source(lane, as_index(other) % WARP)
        if not 0 <= wanted < WARP:
            return value
        if wanted not in group:
            raise SimulatorError(f"{operation}: lane {lane} reads lane {wanted}, not in the mask")
        return group[wanted]

    return shuffle


def together(
    operation: str, brought: Any, combine: Callable[[Sequence[Any]], Sequence[Any]]
) -> Any:
    """What `combine` makes of what all lanes of a full warp bring, for the lane that calls.

    A function of several shuffles so takes one stop of the lanes, and not one for each shuffle.
    `combine` gets what the lanes bring in their order, and returns a result for each of them.
    """
    results = _gather(
        operation, _FULL_MASK, brought,
        lambda group: combine([group[lane] for lane in range(WARP)]), caller=3,
    )  # fmt: skip
    return results[getcurrent().lane]


def of_warp(condition: Any) -> bool:
    """The condition, which must be the same in all lanes; on a GPU one that is true decides."""

    def agreed(brought: Sequence[bool]) -> list[bool]:
        if len(set(brought)) > 1:
            lanes = ", ".join(str(lane) for lane, own in enumerate(brought) if own)
            raise SimulatorError(f"of_warp: true in lanes {lanes} only: the warp must agree")
        return list(brought)

    return together("of_warp", bool(condition), agreed)


def any_of_warp(condition: Any) -> bool:
    return together("any_of_warp", bool(condition), lambda brought: [any(brought)] * len(brought))


#: Shuffles of a warp: the lane that each reads.
SHUFFLES = {
    "shfl_sync": lambda lane, source: source,
    "shfl_up_sync": lambda lane, delta: lane - delta,
    "shfl_down_sync": lambda lane, delta: lane + delta,
    "shfl_xor_sync": lambda lane, lane_mask: lane ^ lane_mask,
}


def _lanes(group: dict[int, Any], wanted: Any) -> int:
    """Mask of the lanes that brought `wanted`; negative with lane 31, as Numba types it int32."""
    bits = sum(1 << lane for lane, value in group.items() if value == wanted)
    return bits - (1 << WARP) if bits >> (WARP - 1) else bits


def vote(operation: str, count: Callable[[dict[int, bool]], Any]) -> Callable[..., Any]:
    """The vote called `operation`; ``count`` gives its result from the lanes' predicates."""
    return lambda mask, predicate: count(_gather(operation, mask, bool(predicate)))


#: Votes of a warp: what each returns, from the predicates of its lanes.
VOTES: dict[str, Callable[[dict[int, bool]], Any]] = {
    "all_sync": lambda group: all(group.values()),
    "any_sync": lambda group: any(group.values()),
    "eq_sync": lambda group: len(set(group.values())) == 1,
    "ballot_sync": lambda group: _lanes(group, True),
}


def match_any_sync(mask: int, value: Any) -> int:
    # A GPU compares bits: NaN matches NaN, and 0.0 doesn't match -0.0.
    own = np.asarray(_movable(value)).tobytes()
    return _lanes(_gather("match_any_sync", mask, own), own)


def activemask() -> int:
    """Lanes that neither ended nor wait: an approximation, as it is on a GPU."""
    lanes = current().warp.threads
    return sum(1 << thread.lane for thread in lanes if not thread.dead and not thread.operation)


def lanemask_lt() -> int:
    return (1 << current().lane) - 1
