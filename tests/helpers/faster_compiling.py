"""Shorter ways through Numba's compiler, for the processes of tests that compile many kernels."""

from __future__ import annotations

from numba.core.types.functions import BaseFunction
from numba.cuda.core.targetconfig import TargetConfig


def compile_faster() -> None:
    """Take all of them. Call this once, before anything is compiled."""
    _compare_flags()
    _remember_signatures()


def _compare_flags() -> None:
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


def _remember_signatures() -> None:
    """Find the signature of an operation on certain types once.

    Numba tries all declarations of an addition for each addition of a kernel; that was 28 % of the
    time of a compilation. A function's type has the same declarations as long as it lives.
    """
    find = BaseFunction.get_call_type

    def get_call_type(function, context, args, kws):
        known = vars(function).setdefault("known_signatures", {})
        asked = (context, tuple(args), tuple(kws.items()))
        if asked not in known:
            known[asked] = find(function, context, args, kws)
        return known[asked]

    BaseFunction.get_call_type = get_call_type
