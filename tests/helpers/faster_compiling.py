"""Shorter ways through Numba's compiler, for the processes of tests that compile many kernels.

Each gives what Numba gives; the code that comes out is the same.
"""

from __future__ import annotations

from numba.core.types.functions import BaseFunction
from numba.cuda.core.targetconfig import TargetConfig


def compile_faster() -> None:
    """Call this once, before anything is compiled."""
    compare_flags_faster()
    remember_types_of_calls()


def compare_flags_faster() -> None:
    """Give Numba's flags the equality that they have, without a call for each of their options.

    They are in the key by which an overload is looked up, for each operation of a kernel.
    """

    def values(flags):
        kind = type(flags)
        if kind not in defaults:
            defaults[kind] = {name: option.default for name, option in kind.options.items()}
        return defaults[kind] | flags._values

    defaults: dict = {}
    TargetConfig.values = values
    # Numba sorts what `values` returns, which is the names alone.
    TargetConfig.__hash__ = lambda flags: hash(type(flags))


def remember_types_of_calls() -> None:
    """Type each operation once for some types of operands, and not at each place that has it.

    Numba tries all that is known of an operator, and puts into words why each does not fit: that
    took a third of the time of a kernel with many operations. What fits depends on the types alone;
    a function that learns of more has a new type for that.
    """
    found_anew = BaseFunction.get_call_type

    def get_call_type(function, context, args, kws):
        if kws:
            return found_anew(function, context, args, kws)
        known = function.__dict__.setdefault("_known_signatures", {})
        signature = known.get((context, args))
        if signature is None:
            signature = known[context, args] = found_anew(function, context, args, kws)
        return signature

    BaseFunction.get_call_type = get_call_type
