"""One kernel function, compiled."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Binary:
    """One kernel function, compiled.

    Attributes
    ----------
    name : str
        Entry point in the module.
    arguments : tuple of str
        Names of the parameters, to be filled by the launch path.
    ptx : str
        Empty where it comes from the disk, which keeps what a launch needs.
    cubin : bytes
    log : str
        What the assembler reports: registers, stack frame, spills, constant banks.
    waits : bool
        Whether it waits itself for the kernel before it: see ``waiting`` in the folder of the
        compiler.
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
