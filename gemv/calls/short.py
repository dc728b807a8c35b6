"""The short way for each type of A: the repeated call that a public routine tries first."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from gemv.calls import faster, memory_check, short_torch
from gemv.calls.bind import BlasArguments
from gemv.calls.remembered import UNUSUAL, WIDE, LongWay, ShortWay
from gemv.core import memo
from gemv.core.dtypes import PLAIN

#: Libraries with a short way: ``short_ways(engine)`` of the module ``short_<library>`` makes it,
#: once a device array of the library was passed and the engine is there.
_WITH_SHORT_WAYS = ("torch", "cupy", "numba", "jax")

#: Of these, the ones whose short way also makes the calls of matvec and vecmat, by their name.
_WITH_FAMILIES = ("jax",)

#: By the type of A. Empty until :func:`prepare` is called, but for calls in a graph of PyTorch's.
short_ways: dict[type, ShortWay] = short_torch.in_graphs_only()
#: The short ways of matvec and vecmat: ``"matvec"`` or ``"vecmat"`` stands for the routine.
of_families: dict[type, ShortWay] = {}
_prepared: set[str] = set()


def prepare(engine: Any, library: str) -> bool:
    """Make the short way of a library whose array was passed; False if it was made before."""
    if library in _prepared or memory_check.FULL:
        return False  # FULL: only the long way asks the driver for memory
    if library in _WITH_SHORT_WAYS:
        module = importlib.import_module(f"gemv.calls.short_{library}")
        made = module.short_ways(engine)
        short_ways.update(made)
        if library in _WITH_FAMILIES:
            of_families.update(made)
    _prepared.add(library)
    return True


def prepare_host(generation: int, by_environment: bool, reach: faster.Reach) -> None:
    """Make the short way of NumPy's arrays, where SciPy's BLAS computes until a setting changes.

    It is not made if one has changed after `generation`, when the call was begun. Where there is a
    GPU as well, `reach` says for which arrays the host computes.
    """
    if np.ndarray not in short_ways:
        from gemv.calls import short_host

        def install(made: dict[type, ShortWay]) -> None:
            if memo.generation() == generation:
                short_ways.update(made)
                if memo.generation() != generation:  # by another thread, in the meantime
                    _forget_host()

        install(short_host.short_ways(by_environment, reach, install))


def _forget_host() -> None:
    short_ways.pop(np.ndarray, None)


memo.on_forget(_forget_host)


def with_options(
    routine: str, a: Any, accumulate: Any, peer: Any, out_dtype: Any = None
) -> tuple[str | None, ShortWay | None]:
    """Name in the key and short way of a call that sets `accumulate`, `peer` or `out_dtype`.

    Only ``accumulate="wide"`` alone has a short way; its name is ``"dgemv, wide"``, so that it
    never finds what a plain call left. Anything else gives None twice: take the long way. While
    ``torch.compile`` traces, all options but `peer` go into its graph. A "plain" that the program
    put together is another object than :data:`PLAIN`, and comes here, too.
    """
    short_way = short_ways.get(type(a))
    if type(accumulate) is str and peer is False and out_dtype is None:
        if accumulate == PLAIN:
            return routine, short_way
        if accumulate == "wide":
            return WIDE[routine], short_way
    if short_way is not None and peer is False:
        # A graph of PyTorch's can keep more than is remembered.
        kept = short_torch.in_graph_with(a, accumulate, out_dtype)
        if kept is not None:
            return routine, kept
    return None, None


def answer(name: str, arguments: BlasArguments, options: tuple[Any, Any, Any]) -> LongWay:
    """What the short way would answer to a call if it were asked now; nothing is launched.

    The first call with a library's arrays asks when the short way was made, to be remembered
    itself. None is no number, so a short way never launches a call with it for alpha. It gets beta,
    which says whether y is read.
    """
    _, a, x, beta, *rest = arguments
    short_way = short_ways.get(type(a))
    if short_way is None:
        return UNUSUAL
    found = short_way(name, None, a, x, beta, *rest, *options)
    return found if type(found) is LongWay else UNUSUAL


def of_family(routine: str, alpha: Any, a: Any, x: Any, beta: Any, stream: Any) -> Any:
    """A product of ``matvec`` or ``vecmat`` without options; or a :class:`LongWay`."""
    short_way = of_families.get(type(a))
    if short_way is None:
        return UNUSUAL
    return short_way(routine, alpha, a, x, beta, None, 0, 1, 0, 1, 0, 0, None, stream, None)


def kept(found: LongWay, result: Any) -> Any:
    """The result of a batch, which took the long way; the next one of its kind may not need it."""
    if found.key is None and found.expect is not None:
        found.expect(None, result)
    return result
