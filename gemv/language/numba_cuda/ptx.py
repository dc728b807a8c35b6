"""Changes and checks of PTX before it is assembled."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import numpy as np

from gemv.core.geometry import CONSTANT_BYTES
from gemv.language.numba_cuda.formats import TO_BFLOAT16
from gemv.language.numba_cuda.intrinsics import PARAMETER
from gemv.language.numba_cuda.registers import WHOLE_LINES

#: Parameters that pass alpha and beta by value.
COEFFICIENTS = {"alpha", "beta"}
#: The first compute capability with an instruction that rounds to bfloat16.
ROUNDS_TO_BFLOAT16 = (8, 0)


def with_rounding(ptx: str, compute_capability: tuple[int, int]) -> str:
    """Replace the rounding to bfloat16 by integer instructions, where a GPU lacks it."""
    if compute_capability >= ROUNDS_TO_BFLOAT16:
        return ptx

    def written_out(found: re.Match) -> str:
        lines = [".reg .b32 %upper, %lower, %carry;", ".reg .pred %nan;"]
        for half, number in zip(("%upper", "%lower"), found.groups()[1:], strict=True):
            lines += [
                f"mov.b32 {half}, {number};",
                # Half of the last bit that stays, less a little where that bit is 0: ties to even.
                f"bfe.u32 %carry, {half}, 16, 1;",
                "add.u32 %carry, %carry, 0x7FFF;",
                f"add.u32 %carry, %carry, {half};",
                # The carry would make an infinity of a NaN, or a zero.
                f"setp.nan.f32 %nan, {number}, {number};",
                f"or.b32 {half}, {half}, 0x400000;",
                f"selp.b32 {half}, {half}, %carry, %nan;",
            ]
        lines.append(f"prmt.b32 {found[1]}, %lower, %upper, 0x7632;")
        return "{ " + " ".join(lines) + " }"

    instruction = rf"{re.escape(TO_BFLOAT16)} (%\w+), (\w+|%\w+), (\w+|%\w+);"
    return re.sub(instruction, written_out, ptx)


def bringing_own_bytes(ptx: str) -> str:
    """Loads and copies that bring nothing but their own bytes to the L2 cache."""
    return ptx.replace(WHOLE_LINES, "")


def check_constant_memory(ptx: str) -> None:
    """Refuse constant symbols that do not fit; the text says what the assembler does not."""
    sizes = {
        name: int(size)
        for name, size in re.findall(r"^\S*\s*\.const \.align \d+ \.b8 (\w+)\[(\d+)\]", ptx, re.M)
    }
    if sum(sizes.values()) > CONSTANT_BYTES:
        listed = " + ".join(f"{size} ({name})" for name, size in sizes.items())
        raise ValueError(
            f"constant memory: {listed} = {sum(sizes.values())} bytes, but a module has"
            f" {CONSTANT_BYTES} bytes (64 KB) of it"
        )


def x_by_value(ptx: str, function: Callable, dtype: np.dtype, value_bytes: int) -> str:
    """Declare the parameter x as an array of `value_bytes`, for ``parameter_load`` to read."""
    before = list(inspect.signature(function).parameters).index("x")
    if dtype.kind == "c":  # a complex number is two parameters
        names = list(inspect.signature(function).parameters)[:before]
        before += sum(name in COEFFICIENTS for name in names)
    parameter = f"{function.__name__}_param_{before}"
    declared = f".param .align 16 .b8 {parameter}[{value_bytes}]"
    ptx, found = re.subn(rf"\.param \.u64 (?:\.ptr[^,\n]*? )?{parameter}\b", declared, ptx, count=1)
    if not found or f"[{parameter}]" in ptx:
        raise RuntimeError(f"{function.__name__}: x is not a parameter that nothing else reads")
    return ptx.replace(PARAMETER, parameter)


#: The first compute capability whose blocks can share their memory in clusters.
_CLUSTERS = (9, 0)


def in_clusters(ptx: str, function: Callable, compute_capability: tuple[int, int]) -> str:
    """Launch the blocks of a kernel in clusters of as many as its attribute ``cluster`` says.

    Blocks of a cluster are neighbours along ``blockIdx.y``. With the size in the machine code an
    ordinary launch does, without a launch attribute.
    """
    blocks = getattr(function, "cluster", 1)
    if blocks == 1:
        return ptx
    if compute_capability < _CLUSTERS:
        major, minor = compute_capability
        raise ValueError(
            f"{function.__name__}: clusters of blocks need compute capability 9.0, not"
            f" {major}.{minor}"
        )
    entry = ptx.index(".entry")
    body = ptx.index("{", entry)
    return f"{ptx[:body]}.explicitcluster\n.reqnctapercluster 1, {blocks}, 1\n{ptx[body:]}"


#: The first compute capability whose kernels can start before the one ahead of them has ended.
_EARLY_START = (9, 0)
WAIT = "griddepcontrol.wait;"
#: A grid of at most so many blocks lets the next kernel start at once.
_FEW_BLOCKS = 64
#: Instructions that a kernel begins with.
_BEGINNING = "".join(
    f"\t{line}\n"
    for line in (
        WAIT,
        "{",
        ".reg .b32 %across, %down;",
        ".reg .pred %few;",
        "mov.u32 %across, %nctaid.x;",
        "mov.u32 %down, %nctaid.y;",
        "mul.lo.u32 %across, %across, %down;",
        f"setp.le.u32 %few, %across, {_FEW_BLOCKS};",
        "@%few griddepcontrol.launch_dependents;",
        "}",
    )
)


def waiting(ptx: str, compute_capability: tuple[int, int]) -> str:
    """Let a kernel start while the one before it ends: *programmatic dependent launch*.

    Its blocks take the places of blocks that have ended, and wait until the results of the kernel
    before are in memory. They read nothing before that, because that kernel may write A and x, and
    may read y. Every kernel waits so, hence no two products of a chain overlap.

    A kernel of at most 64 blocks lets the next one come while it runs. In a larger one that costs
    more than it hides: waiting blocks take places on the multiprocessors, so the other blocks are
    spread unevenly, and some multiprocessors work long after the rest.
    """
    if compute_capability < _EARLY_START:
        return ptx
    body = ptx.index("{", ptx.index(".entry"))
    found = re.search(r"^\t(?=[a-z@])", ptx[body:], re.M)
    assert found is not None
    first = body + found.start()
    return ptx[:first] + _BEGINNING + ptx[first:]


def beside(ptx: str, compute_capability: tuple[int, int]) -> str:
    """Let a kernel run beside the one before it, and end after that one.

    This is for launches that need nothing of each other. All blocks let the next kernel come when
    they begin, so its blocks take each place that becomes free. At its end each thread waits for
    the kernel before: what comes behind the last launch then comes behind all of them. The first
    launch has to come behind what all of them need, so it is launched without the attribute that
    would start it early.
    """
    if compute_capability < _EARLY_START:
        return ptx
    body = ptx.index("{", ptx.index(".entry"))
    end = ptx.index("\n}", body)
    found = re.search(r"^\t(?=[a-z@])", ptx[body:end], re.M)
    assert found is not None
    first = body + found.start()
    code, exits = re.subn(r"^\tret;", f"\t{WAIT}\n\tret;", ptx[first:end], flags=re.M)
    if exits == 0 or len(re.findall(r"\b(?:ret|exit)\b", code)) != exits:
        raise RuntimeError("a kernel has an exit that is no plain return")
    return f"{ptx[:first]}\tgriddepcontrol.launch_dependents;\n{code}{ptx[end:]}"
