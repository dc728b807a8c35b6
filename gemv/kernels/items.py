"""A kernel for one product, made to compute the items of a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from gemv.core.batch import Batch
from gemv.core.geometry import Geometry
from gemv.kernels.spec import Spec

#: Dimensions of a batch that one launch takes: each costs a kernel five parameters.
LEVELS = 2

#: Parameters that point to what an item has of its own, by the operand.
_POINTERS = {
    "a": "a", "x": "x", "y": "y", "alpha_pointer": "alpha", "beta_pointer": "beta",
}  # fmt: skip
#: What the blocks of an item share, by the name of the parameter.
_SHARED = ("scratch", "counters")


def of_items(function: Callable, spec: Spec) -> Callable:
    """A function that calls `function`, unchanged, for one item of a batch.

    It is `function` itself if `spec` is for no batch, or if `function` takes ``items`` and finds
    them by itself. `function` is inlined, so an item has the bits of the single product: the code
    that makes them is the same. The item is ``blockIdx.z``. A block takes no second one: the
    registers that keep the strides for it would be 16 to 20.
    """
    names = list(inspect.signature(function).parameters)
    levels = spec.levels
    if levels == 0 or "items" in names:
        return function
    from gemv.language import conjugated, cuda, inlined, moved, natural

    scope: dict[str, Any] = {
        "body": inlined(function), "conjugated": conjugated, "cuda": cuda, "moved": moved,
        "natural": natural,
    }  # fmt: skip
    parameters, arguments = list(names), []
    parameters += [f"length_{level}" for level in range(1, levels)]
    for name in names:
        if name in _POINTERS:
            steps = [f"{_POINTERS[name]}_step_{level}" for level in range(levels)]
            parameters += steps
            away = " + ".join(f"at_{level} * {step}" for level, step in enumerate(steps))
            argument = f"moved({name}, {away})"
            if name == "x" and spec.conjugate_x:
                argument = f"conjugated({argument})"
        elif name in _SHARED:
            parameters.append(f"{name}_step")
            argument = f"moved({name}, item * {name}_step)"
        else:
            argument = name
        arguments.append(argument)
    lines = [
        f"def {function.__name__}({', '.join(parameters)}):",
        "    item = natural(cuda.blockIdx.z)",
        "    left = item",
    ]
    for level in range(levels - 1, 0, -1):
        lines += [f"    at_{level} = left % length_{level}", f"    left = left // length_{level}"]
    lines += ["    at_0 = left", f"    body({', '.join(arguments)})"]
    exec("\n".join(lines) + "\n", scope)
    around = scope[function.__name__]
    around.__dict__.update(function.__dict__)  # launch bounds, the constant symbol
    return around


def geometry_of_items(geometry: Geometry, batch: Batch) -> Geometry:
    """The launches of :func:`of_items`, from those of a single item.

    A grid has no more than 65,535 blocks along z; a batch of more items takes several launches.
    """
    count = batch.items
    launches = tuple(
        launch._replace(grid=(*launch.grid[:2], count)) for launch in geometry.launches
    )
    return geometry._replace(
        launches=launches,
        sizes={**geometry.sizes, **sizes_of_items(geometry, batch)},
        scratch=geometry.scratch * count,
        counters=geometry.counters * count,
    )


def sizes_of_items(geometry: Geometry, batch: Batch) -> Mapping[str, int]:
    """The integers that :func:`of_items` adds to the parameters of a kernel."""
    sizes = {
        "scratch_step": geometry.scratch,
        "counters_step": geometry.counters,
    }
    for level in range(1, len(batch.shape)):
        sizes[f"length_{level}"] = batch.shape[level]
    for operand in sorted(set(_POINTERS.values())):
        for level, step in enumerate(batch.of(operand)):
            sizes[f"{operand}_step_{level}"] = step
    return sizes
