"""What products of matrices of different sizes would do, found without computing anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemv.calls import faster, ragged_host, ragged_run
from gemv.calls.explain import told
from gemv.calls.order import handle_of
from gemv.calls.ragged import Matrices, Product
from gemv.core.geometry import Device, Launch
from gemv.core.operand import Operand
from gemv.core.problem import Problem, all_at
from gemv.core.values import number_of
from gemv.engines import backend as engines_backend
from gemv.selection.forecast import seconds_of_list
from gemv.selection.ragged import Group, groups
from gemv.selection.select import Choice, as_computed

if TYPE_CHECKING:
    from gemv.selection.host_or_gpu import Comparison


@dataclass(frozen=True, slots=True)
class ListLaunch:
    """The products of a list that one kernel computes together; ``str()`` of it is a line.

    Attributes
    ----------
    kernel : str
        The kernel.
    rung : int or None
        The kernel's place on the ladder; None for one that is made for many small matrices.
    knobs : dict
        Compile-time constants of the kernel.
    launches : tuple of Launch
        Grid and block of each launch; they are several where a kernel is several functions.
    items : tuple of int
        The numbers of the items.
    shapes : tuple of (int, int)
        The lengths of y and of x, for each of these items.
    accumulate : {"plain", "wide", "pairs"}
        How products are added up; "pairs" as well where a GPU does for "wide" what is faster there.
    depth : int
        Additions on the longest way from a product to its row's sum, for the item where it is
        longest.
    bytes_moved : int
        What perfect products of these items read and write.
    reads_of_a : int
        How often a matrix is read that several of these items share: once for each of them.
    reason : str
        Why this kernel.
    seconds : float or None
        The time that is expected if the matrices come from the memory of the GPU: see
        :func:`gemv.selection.forecast.seconds_of_list`. None unless a GPU would compute.
    """

    kernel: str
    rung: int | None
    knobs: dict[str, int]
    launches: tuple[Launch, ...]
    items: tuple[int, ...]
    shapes: tuple[tuple[int, int], ...]
    accumulate: str
    depth: int
    bytes_moved: int
    reads_of_a: int
    reason: str
    seconds: float | None

    def __str__(self) -> str:
        grid = " x ".join(map(str, self.launches[0].grid))
        least, most = (f"{m} x {n}" for m, n in (min(self.shapes), max(self.shapes)))
        sizes = least if least == most else f"{least} to {most}"
        return f"{self.kernel}: {number_of(len(self.items), 'item')} of {sizes}, {grid} blocks"


@dataclass(frozen=True, slots=True)
class ListExplanation:
    """What a list of products would do; ``str()`` of it has a line for each launch.

    Attributes
    ----------
    routine : str
        The function that would be called.
    backend : str or None
        ``"cuda"``, ``"simulator"`` or ``"host"``; None when nothing is computed.
    items : int
        The number of products.
    launches : tuple of ListLaunch
        Those with most bytes first. An item that has no elements, or that leaves y as it is, is in
        none of them. Empty on the host, where SciPy's BLAS computes item by item.
    bytes_moved : int
        What perfect products read and write.
    reads_of_a : int
        How often the matrix is read that most items share: once for each of them. 1 where each
        item has a matrix of its own, and 0 where nothing is computed.
    reason : str
        Why the host computes, or why nothing is computed; empty where kernels are launched.
    seconds : float or None
        The time that is expected of all launches, one after the other. Those of a call that run
        beside each other take less. None unless a GPU would compute.
    transfer : str
        What is copied from host memory to the GPU in each call; empty if nothing is.
    comparison : Comparison or None
        For host arrays that go to the faster of host and GPU, the times that are expected of both:
        see :class:`gemv.selection.host_or_gpu.Comparison`.
    """

    routine: str
    backend: str | None
    items: int
    launches: tuple[ListLaunch, ...]
    bytes_moved: int
    reads_of_a: int
    reason: str
    seconds: float | None = None
    transfer: str = ""
    comparison: Comparison | None = None

    def __str__(self) -> str:
        if self.backend is None:
            return f"{self.routine} computes nothing for {self.items} items: {self.reason}."
        if self.backend == "host":
            return (
                f"{number_of(self.items, 'item')}, one after the other, by SciPy's BLAS on the"
                f" host: {self.reason}. They move {self.bytes_moved} bytes.{told(self.comparison)}"
            )
        number = number_of(sum(len(each.items) for each in self.launches), "item")
        time = "" if self.seconds is None else f", expected to take {self.seconds * 1e6:.2f} us"
        return "\n".join(
            [
                f"{number} in {number_of(len(self.launches), 'launch', 'launches')} on the"
                f" {self.backend} backend, {self.bytes_moved} bytes{time}",
                *map(str, self.launches),
                *([f"{self.transfer}; gemv.Batch would keep them there."] if self.transfer else []),
                *([str(self.comparison)] if self.comparison else []),
            ]
        )


def of_product(product: Product, stream: Any) -> ListExplanation:
    """What :func:`gemv.explain_batched` answers."""
    own, computed = product.matrices, product.computed
    if own.on_host:
        ragged_host.check_stream(own, stream)
    elif stream is not None:
        handle_of(own.routine, stream)
    found = faster.comparison_of_list(product) if own.on_host else None
    if not computed or faster.on_host(found):
        if computed and not own.on_host:
            raise ragged_run.needs_engine(product)
        if computed and found is None:
            ragged_host.refuse_on_host(product)
        return _unlaunched(product, computed, found)
    a, x = ([each[k] for k in computed] for each in (own.a, product.x))
    y = [product.y[k] if product.in_place[k] else None for k in computed]
    problems = [own.problems[k] for k in computed]
    if own.on_host:  # copies of all are contiguous, and aligned
        problems = [problem._replace(incx=1, incy=1) for problem in problems]
        starts = [[0] * len(computed) for _ in range(3)]
    else:
        starts = [
            [each.pointer for each in a],
            [0 if each.conj or each.neg else each.pointer for each in x],  # these are copied
            [0 if each is None else each.pointer for each in y],  # new ones are aligned
        ]
    launches = _launches(own, computed, problems, starts, (product.betas == 0).tolist())
    transfer = ""
    if own.on_host and engines_backend.backend() == "cuda":
        nbytes = sum(m * n for m, n in (each.shape for each in a)) * own.precision.data.itemsize
        transfer = f"{number_of(len(a), 'matrix', 'matrices')} of {nbytes} bytes are copied to the"
        transfer += " GPU in each call"
    return _launched(own, launches, transfer, found)


def of_matrices(matrices: Matrices, copies: Sequence[Operand] | None) -> ListExplanation:
    """What :meth:`gemv.Batch.explain` answers: of contiguous, aligned vectors and a beta of 0.

    `copies` are the matrices on the GPU, where they were in host memory.
    """
    problems = matrices.problems
    computed = [k for k, problem in enumerate(problems) if problem.rows and problem.cols]
    if not computed or engines_backend.backend() == "host":
        some = [problems[k] for k in computed]
        nbytes = sum(problem.bytes_moved(True) for problem in some)
        reads = _reads([matrices.a[k] for k in computed])
        return _by_host(matrices, nbytes, reads, bool(computed), None)
    a = matrices.a if copies is None else copies
    none = [0] * len(computed)
    starts = [[a[k].pointer for k in computed], none, none]
    launches = _launches(
        matrices, computed, [problems[k] for k in computed], starts, [True] * len(problems)
    )
    return _launched(matrices, launches, "", None)


def _unlaunched(product: Product, computed: list[int], found: Comparison | None) -> ListExplanation:
    own = product.matrices
    nbytes = sum(own.problems[k].bytes_moved(bool(product.betas[k] == 0)) for k in computed)
    return _by_host(own, nbytes, _reads([own.a[k] for k in computed]), bool(computed), found)


def _by_host(
    own: Matrices, nbytes: int, reads: int, computes: bool, found: Comparison | None
) -> ListExplanation:
    """What there is to say of a list without launches."""
    if not computes:
        reason = "no item has both rows and columns, and changes y" if own.a else "it is empty"
    elif found is not None:
        reason = "it is expected to be faster than the GPU, which would need a copy of the matrices"
    elif engines_backend.chosen() is not None:
        reason = "this backend was asked for"
    else:
        reason = engines_backend.probe()[1]
    backend = "host" if computes else None
    return ListExplanation(
        own.routine, backend, len(own.a), (), nbytes, reads, reason, comparison=found
    )


def _launches(
    own: Matrices, numbers: list[int], problems: list[Problem], starts: list[list[int]],
    without_y: list[bool],
) -> list[ListLaunch]:  # fmt: skip
    """The launches of items with these addresses of A, x and y; `numbers` are theirs in the list.

    `without_y` says for each item of the list whether y is not read.
    """
    engine = engines_backend.engine()
    size, y_size = own.precision.data.itemsize, own.precision.y.itemsize
    places = [(a % size, x % size, y % y_size) for a, x, y in zip(*starts, strict=True)]
    with engine.on(own.device):
        device = engine.device()
        placed = all_at(problems, *starts[:2])
        try:
            found = groups(placed, places, device)
        except ValueError as error:
            raise ValueError(f"{own.routine}: {error}") from None
        on_gpu = engine.name == "cuda"
        placed = [as_computed(problem, device) for problem in placed]
        return [_launch(own, group, numbers, placed, without_y, device, on_gpu) for group in found]


def _launch(
    own: Matrices, group: Group, numbers: list[int], problems: list[Problem],
    without_y: list[bool], device: Device, on_gpu: bool,
) -> ListLaunch:  # fmt: skip
    choice, kernel = group.choice, group.choice.kernel
    some = [problems[k] for k in group.items]
    items = tuple(numbers[k] for k in group.items)
    knobs = choice.knobs
    nbytes = sum(p.bytes_moved(without_y[k]) for p, k in zip(some, items, strict=True))
    return ListLaunch(
        kernel=kernel.name,
        rung=None if kernel.beside else kernel.rung,
        knobs=knobs,
        launches=choice.geometry.launches,
        items=items,
        shapes=tuple((problem.rows, problem.cols) for problem in some),
        accumulate=choice.spec.accumulate,
        depth=max(map(_depth, some, group.singles, [device] * len(some))),
        bytes_moved=nbytes,
        reads_of_a=_reads([own.a[k] for k in items]),
        reason=choice.reason,
        seconds=seconds_of_list(choice, some, device) if on_gpu else None,
    )


def _depth(problem: Problem, single: Choice, device: Device) -> int:
    kernel, knobs = single.kernel, single.knobs
    return kernel.depth(problem, kernel.geometry(problem, device, knobs), knobs)


def _launched(
    own: Matrices, launches: list[ListLaunch], transfer: str, found: Comparison | None
) -> ListExplanation:
    times = [each.seconds for each in launches if each.seconds is not None]
    numbers = [k for each in launches for k in each.items]
    return ListExplanation(
        own.routine, engines_backend.backend(), len(own.a), tuple(launches),
        sum(each.bytes_moved for each in launches), _reads([own.a[k] for k in numbers]), "",
        sum(times) if times else None, transfer, found,
    )  # fmt: skip


def _reads(matrices: Sequence[Operand]) -> int:
    """The most often that one of these is there."""
    return max(Counter((a.pointer, a.shape, a.strides) for a in matrices).values(), default=0)
