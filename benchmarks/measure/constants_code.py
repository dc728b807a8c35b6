"""The machine code of a kernel, read: the instruction that brings alpha or x."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gemv.measure.inputs import ALPHA

# Machine code ---------------------------------------------------------------------------------


#: A product that takes x from constant memory, or from a uniform register, as it stands.
DIRECT = r"\bFFMA\b.*(\bUR\d+|c\[0x[03]\])"

#: The instruction that brings x from each home.
VECTOR_CODE = {
    "global": (r"\bLDG\.E",),
    "read_only": (r"\bLDG\.E\S*\.CONSTANT",),
    "shared": (r"\bLDS",),
    # A register in the brackets: the index is not the same for all loads.
    "constant": (r"c\[0x3\]\[U?R", r"c\[0x3\]"),
    "value": (r"c\[0x0\]\[U?R\d+", r"c\[0x0\]\[.*R\d+"),
}
#: Takes the listing of a kernel, and gives the instruction that is looked for.
Pick = Callable[[list[str]], str]


def disassembler() -> str | None:
    """``nvdisasm``: on the path, or where its package puts it."""
    found = shutil.which("nvdisasm")
    if found:
        return found
    for path in Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/nvdisasm"):
        return str(path)
    return None


@lru_cache(maxsize=256)
def listing(cubin: bytes) -> list[str]:
    """Instructions of a cubin, without addresses; empty without a disassembler."""
    tool = disassembler()
    if tool is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        run = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True)
    if run.returncode:
        return []
    lines = (re.sub(r"/\*.*?\*/", "", line).strip() for line in run.stdout.splitlines())
    return [line.rstrip(" ;") for line in lines if line.endswith(";")]


def _first_line(lines: list[str], *patterns: str) -> str:
    """The first line that matches the first of the patterns that any line matches."""
    for pattern in patterns:
        for line in lines:
            if re.search(pattern, line):
                return " ".join(line.split())
    return ""


def finder(*patterns: str) -> Pick:
    """Picks the line that matches; the first patterns are looked for first."""
    return lambda lines: _first_line(lines, *patterns)


def loads_in_flight(lines: list[str]) -> int:
    """The longest row of loads from global memory that no product or sum interrupts."""
    longest = current = 0
    for line in lines:
        if re.search(r"\bLDG\b", line):
            current += 1
            longest = max(longest, current)
        elif re.search(r"\b[FD](FMA|MUL|ADD)\b|\bBRA\b", line):
            current = 0
    return longest


class Codes:
    """Disassembles in threads, beside the measurement: it takes as long as compiling."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=4)
        self._later: list[tuple[Any, Pick, Future]] = []

    def later(self, row: Any, cubin: bytes, pick: Pick) -> None:
        """Have ``row.code`` filled by :meth:`fill`."""
        self._later.append((row, pick, self._pool.submit(listing, cubin)))

    def fill(self) -> None:
        """Wait for the disassembler, and complete the rows."""
        for row, pick, lines in self._later:
            row.code = pick(lines.result())
            if hasattr(row, "in_flight") and lines.result():
                row.in_flight = loads_in_flight(lines.result())
        self._later.clear()
        self._pool.shutdown()


def parameter_offset(ptx: str, arguments: tuple[str, ...], name: str, dtype: np.dtype) -> int:
    """Byte offset of a parameter among the parameters, as PTX declares them."""
    declared = re.search(r"\.entry \w+\((.*?)\)", ptx, re.S)
    assert declared is not None
    sizes = [int(bits) // 8 for bits in re.findall(r"\.param \.[a-z](\d+)\b", declared.group(1))]
    at = 0
    position = 0
    for argument in arguments:
        parts = 2 if argument in ("alpha", "beta") and dtype.kind == "c" else 1
        for part in range(parts):
            size = sizes[position]
            at = -(-at // size) * size
            if argument == name and part == 0:
                return at
            at += size
            position += 1
    raise LookupError(f"no parameter {name!r}")


def coefficient_code(lines: list[str], home: str, offset: int | None) -> str:
    """The instruction that brings alpha: by bank, by pointer, or as an immediate."""
    if home == "constant":
        return _first_line(lines, r"c\[0x3\]")
    if home == "literal":
        return _first_line(lines, rf"\bF(MUL|FMA)\b.*, {ALPHA:g}\b")
    if offset is None:
        return ""
    # Where parameters start differs from one generation to the next; 0x210 is Hopper's.
    address = f"{0x210 + offset:x}"
    if home == "arguments":
        return _first_line(lines, rf"c\[0x0\]\[0x{address}\]")
    bring = _first_line(lines, rf"\bU?LDC\.64 U?R\d+, c\[0x0\]\[0x{address}\]")
    register = re.search(r"\bU?LDC\.64 (U?R\d+)", bring)
    if home == "pointer":
        return _first_line(lines, r"\bLDG\.E\S*\.CONSTANT")
    if register:
        return _first_line(lines, rf"\bLDG\.E\S* R\d+, .*\b{register.group(1)}\b")
    return ""
