"""Small kernels of :mod:`helpers.words` in a process that has the other half of the vocabulary.

Reads the name, dtype and precision of one on each line of standard input, as JSON. In the simulator
it answers with the bytes of y; otherwise with the PTX and the names of its arguments.
"""

import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gemv.language import SIMULATOR
from helpers import words


def compiled(name, letter, accumulate):
    from gemv.language.numba_cuda.compile import binaries

    kernel = words.kernel_of(name)
    problem = words.case_of(name, letter, accumulate).problem.at(16, 16)
    (binary,) = binaries(kernel, kernel.spec(problem), (9, 0))
    return {"ptx": binary.ptx, "arguments": binary.arguments}


def answer(question):
    if SIMULATOR:
        return {"y": words.result_of(*question).hex()}
    return compiled(*question)


def main():
    if not SIMULATOR:
        from helpers.faster_compiling import compile_faster

        compile_faster()
    for line in sys.stdin:
        try:
            told = answer(json.loads(line))
        except Exception:
            # One that fails must not take the process from the others.
            told = {"error": traceback.format_exc()}
        print(json.dumps(told), flush=True)
    os._exit(0)  # Python would take apart all that the compiler has made


if __name__ == "__main__":
    main()
