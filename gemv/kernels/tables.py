"""A kernel for one product, made to compute the items of a list, whose sizes a table holds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from gemv.core.geometry import Geometry
from gemv.kernels.spec import Spec

#: How a block of :func:`of_table` finds its item: by ``blockIdx.z``, where all items have one
#: grid, or from a list of the items of all blocks, where items have as many blocks as they need.
BY_GRID, BY_BLOCK = "grid", "block"
#: How the kernels of :mod:`gemv.kernels.lists` do: each warp has a stretch of the list.
BY_WARP = "warp"

#: Parameters that point to memory of the item, at a distance that the table has.
_MOVED = ("a", "scratch", "counters")
#: Those with a table of their own, because they change from call to call while A stays: its words
#: are distances in elements from the first x and y of all.
PLACES = ("x", "y")
_FACTORS = ("alpha_pointer", "beta_pointer")


def columns(functions: Sequence[Callable], by: str) -> tuple[str, ...]:
    """The words that the table has for each item: the parameters of `functions` that vary.

    ``a`` is the distance in elements from the first A of all to that of the item; ``scratch`` and
    ``counters`` are distances as well. ``a_shift`` and ``y_shift`` are what
    :attr:`~gemv.kernels.kernel.Kernel.repeats` asks for where blocks are listed.
    """
    words: dict[str, None] = {}
    for name in (each for function in functions for each in inspect.signature(function).parameters):
        if name == "a":
            words |= dict.fromkeys(("a", "a_shift") if by == BY_BLOCK else ("a",))
        elif name == "y" and by == BY_BLOCK:
            words["y_shift"] = None
        elif name not in (*PLACES, *_FACTORS):
            words[name] = None
    return tuple(words)


def of_table(functions: tuple[Callable, ...], spec: Spec) -> tuple[Callable, ...]:
    """Functions that call `functions`, unchanged, for the item that a block belongs to.

    They are `functions` themselves if `spec` is for no table, or if they read tables by themselves.
    Others are inlined, so an item has the bits of the single product. Their parameters are three
    tables of int64: ``table`` with the words of :func:`columns`, ``places`` with those of
    :data:`PLACES`, and ``blocks``, the item of each block; then ``a``, ``x`` and ``y`` of the first
    item, arrays of factors, and the scratch memory and counters of all items.
    """
    if spec.table in ("", BY_WARP):
        return functions
    words = columns(functions, spec.table)
    return tuple(_around(function, spec, words) for function in functions)


def _around(function: Callable, spec: Spec, words: tuple[str, ...]) -> Callable:
    from gemv.language import cuda, inlined, moved, natural

    scope: dict[str, Any] = {
        "body": inlined(function), "cuda": cuda, "moved": moved, "natural": natural,
    }  # fmt: skip
    names = list(inspect.signature(function).parameters)

    def word(name: str) -> str:
        return f"table[at + {words.index(name)}]"

    def argument(name: str) -> str:
        if name in _FACTORS:
            return f"moved({name}, item)"
        if name in PLACES:
            distance = f"places[{len(PLACES)} * item + {PLACES.index(name)}]"
        elif name in _MOVED:
            distance = word(name)
        else:
            return word(name)
        shift = f"{name}_shift"
        there = f"moved({name}, {distance})"
        return f"moved({there}, {word(shift)})" if shift in words else there

    listed = spec.table == BY_BLOCK
    item = "blocks[cuda.blockIdx.x]" if listed else "cuda.blockIdx.z"
    pointers = [name for name in names if name in (*_MOVED, *PLACES, *_FACTORS)]
    parameters = ["table", "places", *(["blocks"] if listed else []), *pointers]
    lines = [
        f"def {function.__name__}({', '.join(parameters)}):",
        f"    item = natural({item})",
        f"    at = item * {len(words)}",
        f"    body({', '.join(map(argument, names))})",
    ]
    exec("\n".join(lines) + "\n", scope)
    around = scope[function.__name__]
    around.__dict__.update(function.__dict__)  # launch bounds
    return around


def geometry_by_block(geometry: Geometry, blocks: int) -> Geometry:
    """The launch of so many blocks along x, from that of one item."""
    launches = tuple(
        launch._replace(grid=(blocks, *launch.grid[1:])) for launch in geometry.launches
    )
    return geometry._replace(launches=launches, sizes={})


def geometry_by_grid(geometries: Sequence[Geometry]) -> Geometry:
    """The launches of items that have the same grid, from those of each.

    Items share scratch memory and counters, one behind the other.
    """
    launches = tuple(
        launch._replace(grid=(*launch.grid[:2], len(geometries)))
        for launch in geometries[0].launches
    )
    return geometries[0]._replace(
        launches=launches,
        sizes={},
        scratch=sum(geometry.scratch for geometry in geometries),
        counters=sum(geometry.counters for geometry in geometries),
    )
