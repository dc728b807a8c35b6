"""The record of one compiled kernel function: the compiler makes it, the cache keeps it."""

from __future__ import annotations

import re
from typing import NamedTuple


class Binary(NamedTuple):
    """One kernel function as machine code.

    Attributes
    ----------
    name : str
        Entry point in the module.
    arguments : tuple of str
        Names of the parameters, which the launch fills in.
    ptx : str
        Empty if the machine code comes from the disk, which keeps only what a launch needs.
    cubin : bytes
        Machine code.
    log : str
        The assembler's report: registers, stack frame, spills, constant banks.
    waits : bool
        Whether the function waits for the kernel before it, which may still run: see ``waiting`` in
        :mod:`gemv.language.numba_cuda.ptx`.
    """

    name: str
    arguments: tuple[str, ...]
    ptx: str
    cubin: bytes
    log: str
    waits: bool = False

    def resource(self, pattern: str) -> int:
        """The number before `pattern` in the assembler's report, ``"registers"`` for instance."""
        for number in re.findall(rf"(\d+) {pattern}|[Uu]sed (\d+) {pattern}", self.log):
            return int(next(filter(None, number)))
        raise LookupError(f"the assembler reports no {pattern!r}: {self.log!r}")
