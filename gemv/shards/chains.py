"""Plans in a graph that somebody captures: a chain of nodes for each GPU, with A fetched ahead.

Between two products of a graph every GPU waits: the first one for the parts of y of the others,
these for x. Meanwhile a small kernel brings the first bytes of its part of A to its L2 cache. No
product may wait for that kernel, or the wait would cost what it gains::

    GPU 0:  A0*x -----------------.------------------> A0*x     each product begins when all
               `--> fetch A0       \\                            parts of the one before it
                                    X                           have ended
    GPU 1:  A1*x ------------------/`--> copy x -----> A1*x
               `--> fetch A1 -----------^

A node for a whole product would end when all of its nodes have ended, fetches among them. So each
GPU's part is a node by itself, and its fetch is a node behind the part that the same GPU had in the
product before. That product may be of any plan on these GPUs. Where something else was captured
between the two, there is no fetch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from cuda.bindings import driver

from gemv.core.geometry import LOAD_BYTES, PREFETCH_BYTES, Device
from gemv.core.operand import Operand
from gemv.driver.capture import add_child, come_behind, front_of, outside_of_captures
from gemv.driver.libcuda import check, failed
from gemv.engines import backend
from gemv.shards.groups import Groups
from gemv.shards.steps import Target

#: How much of each part is fetched: at most so many bytes, and one of so many parts of it. On H200s
#: the best of 8, 16 and 24 MiB was 16 for parts of 49 MB and more, and 8 for 32 and 36 MB
#: (docs/notes_gpus.md).
FETCHED_BYTES, FETCHED_OF = 16 << 20, 4
#: The first GPUs that have this instruction.
_CAPABILITY = (9, 0)
#: Of so many products the last nodes are kept, for the next product of the same graph.
_MOST_KEPT = 64
#: By a capture and the nodes that a product has left on a stream: these nodes, by their GPU.
_left: dict[tuple[int, frozenset[int]], dict[int, list[int]]] = {}


class Chain(NamedTuple):
    """One GPU's part of a product.

    Attributes
    ----------
    gpu : int
        Its ordinal.
    graph, fetch : CUgraph
        The part, and the fetch of what it reads first; None for what is not fetched.
    waits : bool
        Whether it begins with a copy of x from another GPU.
    """

    gpu: int
    graph: Any
    fetch: Any | None
    waits: bool


class Chains:
    """All parts of a product; see the beginning of this file."""

    def __init__(self, chains: list[Chain]) -> None:
        self._chains = chains
        graphs = [each for chain in chains for each in (chain.graph, chain.fetch) if each]
        weakref.finalize(self, _destroy, graphs).atexit = False

    def enqueue(self, stream: int) -> None:
        """Make the product a part of the graph that is captured on a stream."""
        identity, graph, nodes = front_of(stream)
        before = _left.get((identity, frozenset(nodes)), {})
        after: dict[int, list[int]] = {}
        for chain in self._chains:
            mine, behind = before.get(chain.gpu), nodes
            if mine and chain.fetch is not None:
                fetch = add_child(graph, mine, int(chain.fetch))
                if chain.waits:  # one thing after the other, as on a stream
                    behind = (*(each for each in nodes if each not in mine), fetch)
            after.setdefault(chain.gpu, []).append(add_child(graph, behind, int(chain.graph)))
        left = [node for some in after.values() for node in some]
        come_behind(stream, left)
        if len(_left) >= _MOST_KEPT:
            _left.clear()
        _left[identity, frozenset(left)] = after


def chains_of(groups: Groups, x: Operand, y: Operand) -> Chains | None:
    """The parts of a product whose vectors are x and y; None where nothing is to be fetched.

    The product has run in a capture before, so all its memory is there.
    """
    apart = groups.apart(x, [Target(y)])
    if len({step.place.index for step, _ in apart}) < 2:
        return None
    stretches = [step.a and first_bytes(step.a, step.place.device) for step, _ in apart]
    if not any(stretches):
        return None
    chains: list[Chain] = []
    try:
        for (step, enqueue), stretch in zip(apart, stretches, strict=True):
            place = step.place
            with place.current():
                fetch = None if stretch is None else _fetch(place.stream, *stretch)
                waits = place.index != x.device
                chains.append(Chain(place.index, None, fetch, waits))
                chains[-1] = chains[-1]._replace(graph=captured(place.stream, enqueue))
    finally:
        made = Chains(chains)  # which ends what was made before an error
    return made


def first_bytes(a: Operand, device: Device) -> tuple[int, int] | None:
    """The address and the number of the pieces of A that are fetched; None if fetching is in vain.

    It is where the GPU has no such instruction, where A stays in the L2 cache by itself, and where
    more than half of its memory lies between its lines. All bytes are between the first element of
    A and the last one.
    """
    size = a.dtype.itemsize
    steps = [(length - 1) * step for length, step in zip(a.shape, a.strides, strict=True)]
    held, spanned = a.shape[0] * a.shape[1] * size, (sum(steps) + 1) * size
    # Halves of the cache keep copies of each other's lines, so that half of its size is certain.
    fits = held <= device.chip.cache_bytes // 2
    if fits or min(steps) < 0 or spanned > 2 * held or device.lacks(_CAPABILITY) is not None:
        return None
    start = -(-a.pointer // LOAD_BYTES) * LOAD_BYTES
    pieces = (a.pointer + min(spanned // FETCHED_OF, FETCHED_BYTES) - start) // PREFETCH_BYTES
    return (start, pieces) if pieces > 0 else None


def _fetch(stream: int, address: int, pieces: int) -> Any:
    """The graph of one fetch, by the current GPU."""
    engine = backend.engine()
    block = engine.fetching_block(pieces)

    def enqueue() -> None:
        status = engine.machine.enqueue(block.address, stream, 0, address, 0, 1.0, 0.0)
        if status:
            raise failed(status)

    return captured(stream, enqueue)


def captured(stream: Any, enqueue: Callable[[], None]) -> Any:
    """The graph of what is enqueued on a stream of the current GPU, and on others behind it."""
    # Relaxed, since memory for vectors is allocated meanwhile.
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    check(driver.cuStreamBeginCapture(stream, mode))
    try:
        enqueue()
    except BaseException:
        _, left = driver.cuStreamEndCapture(stream)
        if left:  # the launches before the error
            driver.cuGraphDestroy(left)
        raise
    return check(driver.cuStreamEndCapture(stream))


def _destroy(graphs: list[Any]) -> None:
    with outside_of_captures():
        for each in graphs:
            driver.cuGraphDestroy(each)
