"""What a batch would do, found without computing anything: :func:`gemv.explain` and precompile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from gemv.calls import faster, item_launches, items
from gemv.calls.batched import Items
from gemv.calls.execute import check_stream, refuse_on_host
from gemv.calls.explain import NO_LAUNCH, Explanation, by_host, described, told
from gemv.core.batch import bytes_moved
from gemv.core.operand import Operand, part_of
from gemv.core.values import number_of
from gemv.engines import backend as engines_backend
from gemv.engines.host import known_kernel
from gemv.selection.batches import select_item
from gemv.selection.parts import Part


@dataclass(frozen=True, slots=True)
class BatchExplanation(Explanation):
    """What a call with leading dimensions would do; ``str()`` of it is a sentence or two.

    It has all of :class:`Explanation`. `knobs` and `sizes` are those of the first part; another
    part may have other ones, with the same order of sums. `bytes_moved` counts once what items
    share. `rung` is None for a kernel that is made for batches, and `forecast` always.

    Attributes
    ----------
    items : int
        The number of products.
    parts : tuple of int
        How many items each launch of the kernel takes, in order. `launches` has the grids of all
        parts, with several of them for a part where a kernel is several functions.
    load_bytes : int
        The widest load, up to 16 bytes, that lines of A allow in all items: their addresses are
        multiples of it. An item has the sums of the single call with loads of this width. Those of
        small matrices follow no address, and their kernels load as they like. 0 where nothing is
        launched.
    reads_of_a : int
        How often a matrix is read that several items share: once for as many vectors as the kernel
        takes together, else once for each of them. 1 where each item has a matrix of its own.
    """

    items: int = 0
    parts: tuple[int, ...] = ()
    load_bytes: int = 0
    reads_of_a: int = 1

    def __str__(self) -> str:
        if self.kernel is None:
            return (
                f"{self.routine} computes nothing for {number_of(self.items, 'item')}, and y is as"
                f" it was, or zeros where it is new: {self.reason}."
            )
        if self.backend == "host":
            return (
                f"{self.routine} is computed item by item, {self.items} in all, by SciPy's BLAS on"
                f" the host: {self.reason}. It moves {self.bytes_moved} bytes."
                f"{told(self.comparison)}"
            )
        times = {1: "once", 2: "twice"}.get(self.reads_of_a, f"{self.reads_of_a} times")
        return (
            f"{self.routine} runs kernel {self.kernel!r} on the {self.backend} backend for"
            f" {number_of(self.items, 'item')} in {_counted(self.parts)}, as {described(self)}:"
            f" {self.reason}."
            f" Lines of A allow loads of {self.load_bytes} bytes in all items, and each matrix is"
            f" read {times}. The call moves at least {self.bytes_moved} bytes."
            f"{told(self.comparison)}"
        )


def explain(checked: Items, kernel: str | None, stream: Any) -> BatchExplanation:
    """What :func:`gemv.explain` answers for a batch."""
    call, batch = checked.call, checked.batch
    check_stream(call, stream)
    if kernel is not None:
        known_kernel(call.routine, kernel)
    problem = call.problem
    common: dict[str, Any] = {
        "routine": call.blas_name,
        "accumulate": problem.accumulate,
        "access": problem.access,
        "items": batch.items,
    }
    if checked.nothing:
        reason = _why_nothing(checked)
        return BatchExplanation(
            backend=None, kernel=None, reason=reason, bytes_moved=0, **common, **NO_LAUNCH
        )
    number = not isinstance(call.beta, Operand)
    common["bytes_moved"] = bytes_moved(problem, batch, number and bool(call.beta == 0))
    found = faster.comparison_of_items(checked, kernel)
    backend = engines_backend.backend() if found is None else found.chosen
    if backend == "host":
        return BatchExplanation(**common, **by_host(call, kernel, found))
    if call.on_host:
        checked = items.laid_out(checked)
    engine = engines_backend.engine()
    with engine.on(call.device):
        launches = item_launches.planned(engine, checked.call, checked.batch, kernel)
        problem, choice = launches.problem, launches.parts[0].choice
        # Its order of sums is that of all parts, whatever kernel they have.
        item = select_item(
            problem, checked.batch.collapsed(), engine.device(), kernel, checked.call.homes
        )
    common["accumulate"] = choice.spec.accumulate
    common["access"] = problem.access
    common["rung"] = None if choice.kernel.beside else choice.kernel.rung
    return BatchExplanation(
        backend=backend,
        kernel=choice.kernel.name,
        depth=item.kernel.depth(problem, item.geometry, item.knobs),
        knobs=choice.knobs,
        launches=tuple(
            launch for part in launches.parts for launch in part.choice.geometry.launches
        ),
        sizes=dict(choice.geometry.sizes),
        coefficients=choice.coefficients,
        reason=choice.reason,
        parts=tuple(part.batch.items for part in launches.parts),
        load_bytes=problem.widths[0] * problem.dtype.itemsize,
        reads_of_a=_reads_of_a(launches.parts),
        comparison=found,
        **common,
    )


def precompile(checked: Items, kernel: str | None) -> None:
    """What :func:`gemv.precompile` does for a batch."""
    call = checked.call
    if kernel is not None:
        known_kernel(call.routine, kernel)
    if checked.nothing:
        return
    if engines_backend.backend() == "host":
        return refuse_on_host(call, kernel)
    if call.on_host:
        checked = items.laid_out(checked)
    engine = engines_backend.engine()
    with engine.on(call.device):
        launches = item_launches.planned(engine, checked.call, checked.batch, kernel)
        item_launches.load(engine, launches)
        if engine.name == "cuda" and not call.on_host and call.y is not None and not call.in_place:
            engine.prepare_copy(part_of(call.y, 0, call.y.shape[-1:], call.y.strides[-1:]))


def _why_nothing(checked: Items) -> str:
    if checked.batch.items == 0:
        return "there are no items"
    problem = checked.call.problem
    if problem.rows == 0 or problem.cols == 0:
        return f"items of {problem.m} x {problem.n} are empty"
    return "alpha is 0 and beta is 1"


def _reads_of_a(parts: list[Part]) -> int:
    """The most often that a matrix is read: it may be shared within a part, and by parts."""
    reads: Counter[int] = Counter()
    for part in parts:
        sharing = part.batch.items // part.batch.different("a")
        together = part.choice.knobs["COUNT"] if part.choice.kernel.for_vectors is not None else 1
        reads[part.offsets[0]] += -(-sharing // together)
    return max(reads.values())


def _counted(parts: tuple[int, ...]) -> str:
    """How many launches of how many items: ``2 launches of up to 65535``."""
    if len(parts) == 1:
        return "one launch"
    if len(set(parts)) == 1:
        return f"{len(parts)} launches of {parts[0]}"
    return f"{len(parts)} launches of up to {max(parts)}"
