"""What selection knows of a GPU: the numbers of the formula, and constants that do well there.

``machines/<gpu>.toml`` describes a GPU that was measured. A GPU without a file gets the numbers of
the H200, scaled by what the driver tells of it. ``GEMV_MACHINE`` names a file to use instead.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemv.core.dtypes import DTYPES, PREFIXES
from gemv.core.geometry import Device
from gemv.core.problem import Problem
from gemv.kernels import REGISTRY
from gemv.kernels.grids import loads_for_one
from gemv.kernels.kernel import Kernel
from gemv.selection.formula import Machine
from gemv.selection.host_or_gpu import Numbers
from gemv.selection.lazy import Lazy
from gemv.selection.overlays import merged
from gemv.selection.row import Row

#: The GPU whose file serves every GPU that has none.
REFERENCE = Device("NVIDIA H200", (9, 0), 132)
#: The machines of the package.
FOLDER = Path(__file__).with_name("machines")
#: Characters of the name of a file; others part its words.
_OF_NAMES = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
#: Numbers that get smaller as the clock of the multiprocessors gets faster.
_BY_CLOCK = (
    "load", "line", "x_load", "multiply_add", "narrow", "block_start", "end_step", "code",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Constants:
    """A kernel with constants: one line of a machine's file.

    Attributes
    ----------
    name : str
        Of the kernel, whose file is only read when it is asked for.
    knobs : mapping of str to int
        All constants of the kernel.
    registers : mapping of str to int
        Registers of a thread, by :func:`code_of` what the code is for.
    """

    name: str
    knobs: Mapping[str, int]
    registers: Mapping[str, int]

    @functools.cached_property
    def kernel(self) -> Kernel:
        return REGISTRY[self.name]

    @functools.cached_property
    def has_splits(self) -> bool:
        """Whether it has code for splits, so that a launch can have several of them."""
        return bool(self.knobs.get("BLOCKS_PER_SM", 0))

    def registers_for(self, problem: Problem) -> int | None:
        """Registers of a thread; those of the most similar code if this one was never compiled.

        None if no code for this dtype was ever compiled, or if all that is known of such code is
        that it needs local memory.
        """
        code = code_of(problem, self.kernel, self.knobs)
        found = self._known.get(code)
        if found is None:
            found = self.registers.get(code)
            if found is None:  # then that for more rows, which has more to do
                found = self.registers.get(code.partition("n")[0])
            if found is None:
                similar = [value for key, value in self.registers.items() if key[0] == code[0]]
                found = max(similar, default=0 if self.registers else 64)
            self._known[code] = found
        return found or None

    @functools.cached_property
    def _known(self) -> dict[str, int]:
        """What `registers_for` has found, by the code."""
        return {}


def code_of(problem: Problem, kernel: Kernel, knobs: Mapping[str, int]) -> str:
    """What code of a kernel with these constants is for: see :func:`code_for`."""
    narrow = 1 if kernel.narrow is None else kernel.narrow(problem, knobs)
    return code_for(kernel, PREFIXES[problem.dtype], problem.widths, problem.whole, narrow)


def code_for(kernel: Kernel, letter: str, widths: tuple[int, int], whole: bool, narrow: int) -> str:
    """What code of a kernel is for, as text.

    It is the letter of the dtype, the widths of loads, ``w`` if lines are whole vectors, and ``n``
    with the kernel's `narrow` if a few rows need less of it than many.
    """
    if kernel.phased or not kernel.wide:
        return letter
    width, of_x = widths
    text = f"{letter}{width}{'x' if of_x else ''}{'w' if whole else ''}"
    if kernel.narrow is None or narrow == loads_for_one(width, DTYPES[letter].itemsize):
        return text
    return f"{text}n{narrow}"


@dataclass(frozen=True, eq=False)
class MachineFile:
    """A machine as its file describes it.

    Attributes
    ----------
    name : str
        Of the file, without its ending.
    numbers : Machine
        The numbers of the formula.
    factors : mapping of str to (float, float)
        For each kernel, the factors of its start and of its issue.
    constants : sequence of Constants
        In the order in which they are preferred where predicted times are equal.
    exceptions : tuple of Row
        Rows that come before the formula.
    choices : mapping
        What a fit has computed ahead: see :mod:`gemv.selection.choices`.
    decides : tuple
        Everything that decides on a choice, as JSON can hold it; a sequence is a list there.
    host : Numbers, optional
        What decides whether the host computes a call on host arrays; no choice follows from it.
    """

    name: str
    numbers: Machine
    factors: Mapping[str, tuple[float, float]]
    constants: Sequence[Constants]
    exceptions: tuple[Row, ...]
    choices: Mapping[str, Any] = field(default_factory=dict)
    decides: tuple = ()
    host: Numbers | None = None

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of everything that decides on a choice."""
        text = json.dumps(self.decides, sort_keys=True, separators=(",", ":"), default=list)
        return hashlib.sha256(text.encode()).hexdigest()

    def factors_of(self, kernel: Kernel) -> tuple[float, float]:
        return self.factors.get(kernel.name, (1.0, 1.0))


def slug(name: str) -> str:
    """The name of the file for a GPU with this name."""
    kept = [each if each in _OF_NAMES else " " for each in name.lower()]
    return "-".join("".join(kept).split())


def made(name: str, content: Mapping[str, Any], choices: Mapping[str, Any]) -> MachineFile:
    """The machine that checked content of a file describes."""
    sets = content["constants"]
    constants = Lazy(len(sets), lambda number: Constants(*sets[number]))
    exceptions = tuple(
        Row(kernel, reason, tuple(values), knobs, figure, f"{name}.toml", number)
        for number, (kernel, reason, values, knobs, figure) in enumerate(content["rows"], 1)
    )
    rows = [[row[0], row[2], row[3]] for row in content["rows"]]
    host = content["host"]
    return MachineFile(
        name,
        Machine(**content["numbers"]),
        {kernel: tuple(pair) for kernel, pair in content["factors"].items()},
        constants,
        exceptions,
        choices,
        (content["numbers"], content["factors"], sets, rows, choices),
        None if host is None else Numbers(**host),
    )


def scaled(
    reference: MachineFile, device: Device, changes: Mapping[str, Any] | None = None
) -> MachineFile:
    """A machine for a GPU without a file of numbers, from one that has one.

    The rate of the memory follows its clock and the width of its bus; the rate of the L2 cache
    follows the number and the clock of multiprocessors, and times of instructions follow that
    clock. Latencies and weights stay.

    What a fit computed ahead is for this GPU as well if it has the multiprocessors of the other
    one, of the same kind and number, so that the same blocks run at a time: see
    :func:`has_multiprocessors_of`. A fit to times of this GPU may have found `changes` of that: see
    :mod:`gemv.selection.overlays`.
    """
    usual, chip = REFERENCE.chip, device.chip
    ahead = reference.choices if has_multiprocessors_of(REFERENCE, device) else {}
    if ahead and changes:
        ahead = merged(ahead, changes)
    clock = chip.clock_khz / usual.clock_khz
    numbers = reference.numbers._asdict()
    for name in _BY_CLOCK:
        numbers[name] /= clock
    memory = chip.memory_khz * chip.bus_bits / (usual.memory_khz * usual.bus_bits)
    numbers["memory_rate"] *= memory
    numbers["cache_rate"] *= clock * device.multiprocessors / REFERENCE.multiprocessors
    return MachineFile(
        f"{reference.name}, scaled",
        Machine(**numbers),
        reference.factors,
        reference.constants,
        reference.exceptions,
        ahead,
        (reference.decides, numbers, bool(ahead), changes or {}),
    )


def has_multiprocessors_of(other: Device, device: Device) -> bool:
    """Whether a launch has as many blocks at a time on `device` as on the `other` GPU.

    Then the choices of a campaign on the one hold on the other, even if its memory is slower:
    ``docs/selection.md`` has the figures of an H100, where they are better than the formula's.
    """
    alike = ("threads", "registers", "shared_bytes", "blocks")
    return (
        device.compute_capability == other.compute_capability
        and device.multiprocessors == other.multiprocessors
        and all(getattr(device.chip, name) == getattr(other.chip, name) for name in alike)
    )


@functools.lru_cache(maxsize=64)
def machine(device: Device) -> MachineFile:
    """The machine of a GPU.

    Raises
    ------
    ValueError
        For a file that cannot be used; the text names the file, the field and the rule.
    """
    own = os.environ.get("GEMV_MACHINE")
    if own:
        return _own(own)
    name = slug(device.name)
    if name != "simulator" and FOLDER.joinpath(f"{name}.toml").is_file():
        return _of_package(name)
    reference = _of_package(slug(REFERENCE.name))
    # The simulator has no speed: it takes what the reference does.
    return reference if name == "simulator" else scaled(reference, device, _changes_for(name))


def is_of(found: MachineFile, device: Device) -> bool:
    """Whether the machine that is in use was made for this model of GPU, as its file says."""
    own = os.environ.get("GEMV_MACHINE")
    if not own:
        return found.name == slug(device.name)
    import tomllib

    about = tomllib.loads(Path(own).expanduser().read_text("utf-8")).get("about", {})
    return slug(str(about.get("gpu", ""))) == slug(device.name)


def host_numbers(gpu: str) -> Numbers:
    """What decides on calls on host arrays, on a machine with a GPU of this name.

    A GPU without numbers of its own has those of the reference, with caution.

    Raises
    ------
    ValueError
        As :func:`machine` does.
    """
    own, name = os.environ.get("GEMV_MACHINE"), slug(gpu)
    found = None
    if own:
        found = _own(own).host
    elif name and FOLDER.joinpath(f"{name}.toml").is_file():
        found = _of_package(name).host
    if found is not None:
        return found
    usual = _of_package(slug(REFERENCE.name)).host
    assert usual is not None  # a test looks whether the file has them
    return usual.cautious()


def machines() -> list[MachineFile]:
    """Every machine of the package."""
    names = sorted(each.name for each in FOLDER.iterdir() if each.name.endswith(".toml"))
    return [_of_package(name.removesuffix(".toml")) for name in names]


@functools.cache
def _of_package(name: str) -> MachineFile:
    from gemv.selection import compiled

    toml = FOLDER.joinpath(f"{name}.toml").read_bytes()
    about = compiled.hash_of(toml)
    content = compiled.content_of(_bytes_of(f"{name}.jsonl"), about)
    if content is None:
        from gemv.selection.parse import parse  # with tomllib, which a compiled file needs not

        content = parse(toml.decode("utf-8"), str(FOLDER.joinpath(f"{name}.toml")))
    return made(name, content, compiled.choices_of(_bytes_of(f"{name}.cells"), about))


def _changes_for(name: str) -> dict[str, Any]:
    """Changes of the reference's choices for a GPU; nothing if there are none for its TOML."""
    from gemv.selection import compiled

    found = _bytes_of(f"{name}.cells")
    if not found:
        return {}
    toml = FOLDER.joinpath(f"{slug(REFERENCE.name)}.toml").read_bytes()
    return compiled.choices_of(found, compiled.hash_of(toml))


def _bytes_of(name: str) -> bytes:
    """What is in a file of the package; nothing if there is none."""
    try:
        return FOLDER.joinpath(name).read_bytes()
    except OSError:
        return b""


def _own(name: str) -> MachineFile:
    """The machine that ``GEMV_MACHINE`` names."""
    try:
        file = Path(name).expanduser()
        text = file.read_text("utf-8")
    except (OSError, ValueError, RuntimeError) as error:  # no such user, not UTF-8
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"GEMV_MACHINE = {name!r} cannot be read: {why}") from error
    from gemv.selection.parse import parse

    return made(file.stem, parse(text, str(file)), {})
