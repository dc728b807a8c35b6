"""What selection can reach, compiled: a hash of the instructions of each kernel function.

    python -m benchmarks.measure.machine_code before.json           # in one tree
    python -m benchmarks.measure.machine_code after.json            # in another
    python -m benchmarks.measure.machine_code --compare before.json after.json

Every set of constants of a machine is compiled for each dtype, with whole lines and without, and
every kernel with its own constants, for wide sums as well. A hash covers the instructions that the
assembler made, without names: a module that moves, or a function that is renamed, changes no hash.
It needs no GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

CAPABILITY = (9, 0)


def requests() -> list[tuple]:
    """Kernel, constants, letter of the dtype, access, whole, widths and way of adding up."""
    from gemv.core.dtypes import DTYPES
    from gemv.core.geometry import LOAD_BYTES
    from gemv.kernels import REGISTRY
    from gemv.measure.inputs import make_problem
    from gemv.selection.machine import machines

    wanted: dict[tuple, None] = {}
    sets = [(each.kernel, each.knobs) for found in machines() for each in found.constants]
    sets += [(kernel, {}) for kernel in REGISTRY.values()]
    for kernel, knobs in sets:
        for letter in "sdczhb":
            dtype = DTYPES[letter]
            widest = LOAD_BYTES // dtype.itemsize
            wide = (widest, 0 if kernel.phased else widest) if kernel.wide else (1, 0)
            for access, order in (("dot", "C"), ("axpy", "F")):
                if kernel.wide and kernel.accepts(make_problem(16, 16, dtype, order, "N")):
                    continue
                for accumulate in ("plain",) if knobs else ("plain", "wide", "pairs"):
                    for whole in (False, True) if kernel.wide and not kernel.phased else (False,):
                        constants = tuple(sorted({**kernel.knobs, **knobs}.items()))
                        wanted[kernel.name, constants, letter, access, whole, wide, accumulate] = (
                            None
                        )
    return list(wanted)


def instructions(cubin: bytes) -> bytes:
    """The machine code of an ELF file: the bytes of its sections ``.text.*``, in their order."""
    start, size, count, names = (
        struct.unpack_from("<Q", cubin, 0x28)[0],
        *struct.unpack_from("<3H", cubin, 0x3A),
    )
    sections = [
        struct.unpack_from("<IIQQQQ", cubin, start + k * size) for k in range(count)
    ]  # name, type, flags, address, offset, bytes
    strings = sections[names][4]
    found = []
    for name, _, _, _, offset, nbytes in sections:
        end = cubin.index(b"\0", strings + name)
        if cubin[strings + name : end].startswith(b".text."):
            found.append(cubin[offset : offset + nbytes])
    return b"".join(found)


def compiled(request: tuple) -> tuple[str, Any]:
    """A request in words, and a hash for each function, or the reason why there is none."""
    from gemv.core.dtypes import DTYPES
    from gemv.kernels import REGISTRY
    from gemv.kernels.spec import Spec
    from gemv.language.numba_cuda.compile import binaries

    name, constants, letter, access, whole, widths, accumulate = request
    words = ", ".join(f"{k}={v}" for k, v in constants)
    key = f"{name} {letter} {access} {accumulate}{' whole' if whole else ''} ({words})"
    dtype = DTYPES[letter]
    spec = Spec(
        dtype, dtype.kind == "c", access, constants, widths=widths, accumulate=accumulate,
        whole=whole,
    )  # fmt: skip
    try:
        made = binaries(REGISTRY[name], spec, CAPABILITY)
    except Exception:  # constants that no problem of this dtype would get
        return key, traceback.format_exc().strip().rpartition("\n")[2]
    return key, [
        [hashlib.sha256(instructions(each.cubin)).hexdigest()[:16], each.resource("registers")]
        for each in made
    ]


def compare(before: Path, after: Path) -> int:
    """Print what differs; how many functions do."""
    old, new = (json.loads(path.read_text("utf-8")) for path in (before, after))
    gone, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    changed = sorted(key for key in old.keys() & new.keys() if old[key] != new[key])
    for title, keys in (("gone", gone), ("new", added), ("changed", changed)):
        for key in keys:
            print(f"{title}: {key}")
    refused = sum(isinstance(each, str) for each in new.values())
    print(
        f"{len(old.keys() & new.keys())} compared, {len(changed)} changed, {len(gone)} gone,"
        f" {len(added)} new; {refused} that no problem would get"
    )
    return len(changed) + len(gone) + len(added)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="where the hashes go, or the older ones")
    parser.add_argument("other", type=Path, nargs="?", help="the newer ones, with --compare")
    parser.add_argument("--compare", action="store_true", help="compare two files")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--every", type=int, default=1, help="take each K-th request only")
    options = parser.parse_args(arguments)
    if options.compare:
        return 1 if compare(options.file, options.other) else 0
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0"
    wanted = requests()[:: options.every]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = dict(pool.map(compiled, wanted, chunksize=4))
    options.file.write_text(json.dumps(found, indent=0, sort_keys=True), "utf-8")
    print(f"{len(found)} sets of constants, dtypes and sums in {options.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
