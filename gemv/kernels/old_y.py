"""A kernel that overwrites y, made to read the old y from other memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gemv.kernels.spec import Spec


def with_old_y(function: Callable, spec: Spec) -> Callable:
    """A function that calls `function`, unchanged, with a y that is loaded from ``old``.

    It is `function` itself if `spec` does not ask for that, or if `function` has no y. ``old`` is a
    parameter behind ``y``, with as many elements at the same distances. `function` is inlined, so
    the new y has the bits that it would have in place: the code that makes them is the same. It
    must load no element of y that it has stored, and it is for one product, not for a batch.
    """
    names = list(inspect.signature(function).parameters)
    if not spec.old_y or "y" not in names:
        return function
    from gemv.language import inlined, reading

    parameters = list(names)
    parameters.insert(names.index("y") + 1, "old")
    arguments = ["reading(y, old)" if name == "y" else name for name in names]
    source = f"def {function.__name__}({', '.join(parameters)}):\n"
    source += f"    body({', '.join(arguments)})\n"
    scope: dict[str, Any] = {"body": inlined(function), "reading": reading}
    exec(source, scope)
    around: Callable = scope[function.__name__]
    around.__dict__.update(function.__dict__)  # launch bounds
    return around
