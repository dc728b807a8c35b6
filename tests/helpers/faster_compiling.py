"""A shorter way through Numba's compiler, for the processes of tests that compile many kernels."""

from __future__ import annotations

from numba.cuda.core.targetconfig import TargetConfig


def compare_flags_faster() -> None:
    """Give Numba's flags the equality that they have, without a call for each of their options.

    They are in the key by which an overload is looked up, for each operation of a kernel. Call this
    once, before anything is compiled.
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
