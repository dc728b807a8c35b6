"""Calls made before, by library: what a public routine tries first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemv.calls import memory_check
from gemv.calls.known import UNUSUAL, WIDE
from gemv.calls.short_cupy import cupy_call
from gemv.calls.short_numba import numba_call
from gemv.calls.short_torch import torch_call


def wide(
    routine: str, a: Any, accumulate: Any, peer: Any, out_dtype: Any = None
) -> tuple[str, Callable[..., Any] | None]:
    """What a key has in place of the routine where sums are wide, and what such a call tries first.

    Nothing is tried first with any other option.
    """
    known = type(accumulate) is str and accumulate == "wide" and peer is False and out_dtype is None
    return WIDE[routine], CALLS.get(type(a)) if known else None


#: What calls with an A of these types try first; filled when a library's array is first met.
CALLS: dict[type, Callable[..., Any]] = {}
_met: set[str] = set()


def meet(kind: str) -> None:
    """Get ready for the device arrays of a library, which has been imported by now."""
    import sys

    if kind in _met or memory_check.FULL:
        return  # FULL: only the long way asks the driver
    if kind == "torch":
        torch = sys.modules["torch"]
        CALLS[torch.Tensor] = CALLS[torch.nn.Parameter] = torch_call(torch)
    elif kind == "cupy":
        cupy = sys.modules["cupy"]
        CALLS[cupy.ndarray] = cupy_call(cupy)
    elif kind == "numba":
        from numba.cuda.cudadrv.devicearray import DeviceNDArray

        CALLS[DeviceNDArray] = numba_call(DeviceNDArray)
    _met.add(kind)


def expect_tracing() -> None:
    """Let ``torch.compile`` keep the first call already, if PyTorch has been imported by now."""
    import sys

    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "compiler") or not hasattr(torch, "library"):
        return  # not there, too old, or in the middle of its own import
    from gemv.calls import torch_graph

    compiling, in_graph = torch.compiler.is_compiling, torch_graph.in_graph

    def call(*arguments: Any) -> Any:
        return in_graph(*arguments) if compiling() else UNUSUAL

    CALLS.setdefault(torch.Tensor, call)
    CALLS.setdefault(torch.nn.Parameter, call)
