"""Metadata of three tensors at once, through the C functions that a DLPack exporter offers.

Exporters of DLPack 1.3 have ``__dlpack_c_exchange_api__``, a table of C functions. One of them
describes a tensor without a capsule, a copy or a wait, in about 20 ns, and another one names the
stream that the exporter works on; the attributes of a tensor cost Python 2 us for a call's three.
The comparison with what a remembered call expects is in :mod:`gemv.driver.machine_ir`, since only
machine code calls such functions without losing that time again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from gemv.driver.machine import Expectation, Machine

#: Where the functions stand in the table: after the version, an older table and three functions.
_DESCRIBE, _CURRENT_STREAM = 5, 6


class Exchange:
    """The compiled functions, for one exporter's type."""

    def __init__(self, exporter: type, machine: Machine) -> None:
        table = _table(exporter)
        self._functions = table[_DESCRIBE], table[_CURRENT_STREAM]
        if not all(self._functions):
            raise RuntimeError("this exporter describes no tensors, or has no stream")
        self._machine = machine

    @property
    def enqueue(self) -> Callable[..., int]:
        """``enqueue(address, a, x, y, stream, alpha, beta)`` of an expectation at this address."""
        return self._machine.enqueue_tensors

    def expect(self, known: Any, a: Any, x: Any, y: Any) -> Expectation | None:
        """The expectation that these three fulfil; None where one cannot be described."""
        made = Expectation(known, known.block.address, self._functions)
        described = (
            made.describe(self._machine, place, operand) for place, operand in enumerate((a, x, y))
        )
        return made if all(described) else None


def _table(exporter: type) -> Any:
    """The exporter's table of functions, as words; an error for a version that is not known."""
    capsule = exporter.__dlpack_c_exchange_api__  # type: ignore[attr-defined]
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    address = pointer(capsule, b"dlpack_exchange_api")
    major = ctypes.c_uint32.from_address(address).value
    if major != 1:
        raise RuntimeError(f"DLPack's exchange functions of version {major}, not 1")
    return (ctypes.c_size_t * 7).from_address(address)
