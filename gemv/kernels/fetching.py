"""A kernel that takes alpha and beta as numbers, made to read them from another home."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gemv.kernels.spec import COEFFICIENTS, SLOTS, Spec


def fetching(function: Callable, spec: Spec) -> Callable:
    """A function that reads alpha and beta from their homes and passes them to `function`.

    It is `function` itself if both homes are ``"arguments"``. Otherwise it has other parameters in
    their place: ``slot`` for the constant symbol, ``alpha_pointer`` and ``beta_pointer`` for a
    load, none for a literal. `function` is inlined into it, so a kernel file is one source for all
    homes, and the machine code differs by nothing but a load.
    """
    from gemv.language import constant_array, global_load, inlined, read_only_load

    homes = dict(zip(("alpha", "beta"), spec.homes, strict=True))
    names = list(inspect.signature(function).parameters)
    if all(homes.get(name, "arguments") == "arguments" for name in names):
        return function
    scope: dict[str, Any] = {
        "body": inlined(function),
        "pointer_load": read_only_load,
        "global_load": global_load,
    }
    parameters, arguments = [], []
    for name in names:
        place = int(name == "beta")
        match homes.get(name, "arguments"):
            case "arguments":
                parameters.append(name)
                arguments.append(name)
            case "constant":
                if "constant" not in scope:
                    scope["constant"] = constant_array(
                        COEFFICIENTS, spec.precision.factors, 2 * SLOTS
                    )
                    parameters.append("slot")
                arguments.append(f"constant(2 * slot + {place})")
            case "literal":
                scope[f"{name}_literal"] = spec.precision.factors.type(spec.literals[place])
                arguments.append(f"{name}_literal")
            case home:
                parameters.append(f"{name}_pointer")
                arguments.append(f"{home}_load({name}_pointer, 0)")
    # Numba takes the parameters from a def, and these are known only now.
    source = f"def {function.__name__}({', '.join(parameters)}):\n"
    source += f"    body({', '.join(arguments)})\n"
    exec(source, scope)
    around = scope[function.__name__]
    around.__dict__.update(function.__dict__)  # launch bounds
    around.coefficients = scope.get("constant")
    return around
