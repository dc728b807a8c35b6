"""What a small kernel is, and how one is run: see :mod:`helpers.words`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

import numpy as np

from gemv.core.geometry import Geometry, Launch
from gemv.core.narrow import cast
from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.kernels.kernel import Kernel, attach
from helpers.problems import ALL_ROWS, Case

#: Threads of a block, blocks, and numbers of y that each thread has.
THREADS, BLOCKS, OUT = 64, 4, 32
PLACES = BLOCKS * THREADS
#: Blocks of a cluster.
CLUSTER = 2
#: Precisions of sums.
ALL = ("plain", "wide")


class Word(NamedTuple):
    """A small kernel.

    Attributes
    ----------
    words : tuple of str
        The functions that it is for.
    build : callable
        Makes the kernel function from a spec and the elements of a load of 16 bytes.
    letters : str
        The dtypes of A and x, by letter.
    exact : bool
        Whether A has small whole numbers. The halves round products in other places.
    accumulates : tuple of str
        The precisions of sums.
    facts : dict
        What the kernel has besides: ``scratch``, ``counters``, ``cluster``, ``capability`` or
        ``own_y``, which is a y of the dtype of A.
    """

    words: tuple[str, ...]
    build: Callable
    letters: str
    exact: bool
    accumulates: tuple[str, ...]
    facts: dict


WORDS: dict[str, Word] = {}


def small(words, letters="sdczhb", exact=False, accumulates=("plain",), **facts):
    """Register what builds a small kernel."""

    def register(build):
        WORDS[build.__name__] = Word(
            tuple(words.split()), build, letters, exact, accumulates, facts
        )
        return build

    return register


def cases():
    """Name, dtype and precision of each small kernel that there is to run.

    Without a GPU, where each takes half a second, there is one dtype of each size, and there are
    sums of two numbers and sums that are wider than A.
    """
    letters = {"plain": "sdczhb", "wide": "sdcz"}
    if not ALL_ROWS:
        letters = {"plain": "szb", "wide": "dc"}
    return [
        (name, letter, accumulate)
        for name, word in WORDS.items()
        for accumulate in word.accumulates
        for letter in word.letters
        if letter in letters[accumulate] or (letter == "c" and "z" not in word.letters)
    ]


def kernel_of(name):
    word = WORDS[name]

    def build(spec):
        function = word.build(spec, 16 // spec.dtype.itemsize)
        return (attach(function, cluster=CLUSTER) if "cluster" in word.facts else function,)

    def geometry(problem, device, knobs):
        grid = (BLOCKS, CLUSTER if "cluster" in word.facts else 1, 1)
        scratch, counters = (word.facts.get(each, 0) for each in ("scratch", "counters"))
        launches = (Launch(grid, (THREADS, 1, 1)),)
        return Geometry(launches, {}, scratch, counters, posts=bool(scratch))

    return Kernel(
        name, 99, build, geometry, lambda knobs: (1, 1), "A small kernel.",
        capability=word.facts.get("capability", (0, 0)),
    )  # fmt: skip


def case_of(name, letter, accumulate):
    """Random numbers, the same in every process.

    Results of 2-byte numbers are stored as float32, which does not round them, but for a small
    kernel that has ``own_y``.
    """
    of_y = "s" if letter in "hb" and "own_y" not in WORDS[name].facts else ""
    case = Case(PLACES * OUT, 4, letter, beta=1, y_dtype=of_y, accumulate=accumulate)
    case.a[0, :1] = cast(np.ones(1), case.element)
    if WORDS[name].exact:
        rng = np.random.default_rng(7)
        for view in (case.a, case.x, case.y_of(case.y_buffer)):
            values = rng.integers(-4, 5, view.shape).astype(float)
            if case.element.kind == "c":
                values = values + 1j * rng.integers(-4, 5, view.shape)
            view[...] = cast(values, view.dtype)
    return case


def result_of(name, letter, accumulate):
    """All bytes of y behind the small kernel, by the half that this process has."""
    rung = REGISTRY[name] if name in list(REGISTRY) else None  # a rung may have that name, too
    REGISTRY[name] = kernel_of(name)
    try:
        with shared_memory_of_launches() as used:
            after = case_of(name, letter, accumulate).run(name)
    finally:
        if rung is None:
            del REGISTRY[name]
        else:
            REGISTRY[name] = rung
    for each in used:
        assert set(each) <= {0xFF}, "the next launch would find what this one has posted"
    return after.tobytes()


@contextmanager
def shared_memory_of_launches():
    """A list, in which all bytes of the memory for posts are on a GPU once the launches are done.

    The simulator's engine looks at them itself.
    """
    found: list[bytes] = []
    if backend.backend() != "cuda":
        yield found
        return
    from numba import cuda

    from gemv.engines.workspaces import Workspace

    with mock.patch.object(
        Workspace, "reserve", autospec=True, side_effect=Workspace.reserve
    ) as asked:
        yield found
    for workspace in {call.args[0] for call in asked.call_args_list}:
        if workspace.posts is not None:
            found.append(cuda.as_cuda_array(workspace.posts).copy_to_host().tobytes())
