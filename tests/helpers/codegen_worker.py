"""Compiles kernels in a process of its own, because nothing compiles under the simulator.

Reads one JSON request a line from standard input, answers one JSON line each. With ``--whole`` it
goes all ways through the compiler.
"""

import gc
import json
import os
import sys
import traceback
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gemv.core.dtypes import BFLOAT16
from gemv.kernels import get
from gemv.kernels.spec import Spec
from gemv.language.numba_cuda.compile import binaries
from helpers.faster_compiling import compile_faster


def main():
    # The search for circular garbage took a tenth of the time, and there is little.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    if "--whole" not in sys.argv:
        compile_faster()
    for line in sys.stdin:
        try:
            answer = compiled(json.loads(line))
        except Exception:
            # One kernel that does not compile must not take the process from the others.
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)
    # Python would take apart all that the compiler has made: 17 s after some hundred kernels.
    os._exit(0)


def dtype_of(name):
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def spills(binary):
    """Bytes spilled; some assemblers tell only of the stack, where spills would be."""
    if "bytes spill" not in binary.log:
        return binary.resource("stack,")
    return binary.resource("bytes spill stores") + binary.resource("bytes spill loads")


def compiled(request):
    kernel = get(request["kernel"])
    knobs = {**kernel.knobs, **request["knobs"]}
    spec = Spec(
        dtype_of(request["dtype"]), request["conj"], request["access"],
        tuple(sorted(knobs.items())), tuple(request["homes"]), tuple(request["literals"]),
        tuple(request["widths"]),
        None if request["y_dtype"] is None else dtype_of(request["y_dtype"]),
        request["accumulate"], request["whole"], request["levels"], request["conjugate_x"],
        request["table"], request["narrow"], request["sparse"], request["helpers"],
        request["old_y"],
    )  # fmt: skip
    return [
        {
            "name": binary.name,
            "arguments": binary.arguments,
            "ptx": binary.ptx,
            "waits": binary.waits,
            "cubin": binary.cubin.hex(),
            "stack": binary.resource("stack,"),
            "spills": spills(binary),
            "registers": binary.resource("registers"),
        }
        for binary in binaries(kernel, spec, tuple(request["compute_capability"]))
    ]


if __name__ == "__main__":
    main()
