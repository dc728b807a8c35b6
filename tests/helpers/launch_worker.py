"""Launches packed blocks without a GPU and prints, as JSON, what a driver would have read.

test_launches.py runs this in a process of its own, where stand-ins replace the modules that load
the driver's library.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from types import ModuleType, SimpleNamespace

import numpy as np


class LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


def failed(status):
    return RuntimeError(f"status {status}")


def stand_in(module, **names):
    made = ModuleType(module)
    vars(made).update(names)
    sys.modules[module] = made


stand_in("gemv.driver.libcuda", LaunchAttribute=LaunchAttribute, check=None, failed=failed)
stand_in("gemv.driver.capture", capture_of=lambda stream: None)

from gemv.core.binary import Binary  # noqa: E402
from gemv.core.geometry import Device, Launch  # noqa: E402
from gemv.driver import machine as driver_machine  # noqa: E402
from gemv.engines import launches, loading  # noqa: E402

SINGLE, DOUBLE, COMPLEX = map(np.dtype, ("f4", "f8", "c16"))
launched: list[dict] = []
functions: dict[int, loading.LoadedFunction] = {}
status = 0


def read(address, name, dtype):
    """A parameter at an address; x is read as it is where it has been passed by value."""
    if name in ("alpha", "beta"):
        kind = "f" if dtype.itemsize == 4 else "d"
        return struct.unpack(kind, ctypes.string_at(address, struct.calcsize(kind)))[0]
    if name == "x by value":
        return ctypes.string_at(address, 4096).hex()
    return ctypes.c_int64.from_address(address).value


@ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
def launch(config, handle, parameters, extra):
    function, place, values = functions[handle], 0, {}
    for name in function.binary.arguments:
        parts = 2 if name in ("alpha", "beta") and function.dtype.kind == "c" else 1
        addresses = (ctypes.c_size_t * parts).from_address(parameters + 8 * place)
        kind = "x by value" if name == "x" and function.binary.log == "by value" else name
        found = [read(address, kind, function.dtype) for address in addresses]
        values[name] = found if parts == 2 else found[0]
        place += parts
    sizes = struct.unpack("=7I", ctypes.string_at(config, 28))
    stream, _, attributes = struct.unpack("=QQI", ctypes.string_at(config + 32, 20))
    launched.append(
        {
            "function": handle, "grid": sizes[:3], "block": sizes[3:6], "shared": sizes[6],
            "stream": stream, "early": bool(attributes), "values": values,
        }
    )  # fmt: skip
    return status


machine = driver_machine.machine(
    driver_machine.Driver(ctypes.cast(launch, ctypes.c_void_p).value, 0, 0, 0, 0)
)


def function(dtype, *arguments, waits=False, log=""):
    made = loading.LoadedFunction(
        len(functions) + 1, Binary("f", arguments, "", b"", log, waits), dtype, None
    )
    functions[made.handle] = made
    return made


def done():
    result = list(launched)
    launched.clear()
    return result


class Code:
    """What a kernel is compiled for, as the key of what is loaded."""

    precision = SimpleNamespace(factors=SINGLE)


def loaded(*shared):
    """What the driver is told of functions with so much dynamic shared memory, loaded twice."""
    told = []
    loading.driver = SimpleNamespace(cuFuncSetAttribute=lambda *words: told.append(words))
    loading.check = lambda answer: answer
    loading.load = lambda binary, dtype: function(dtype, binary)
    loading.binaries = SimpleNamespace(binaries=lambda *_: ["rows"] * len(shared))
    shapes = [Launch((1, 1, 1), (32, 1, 1), nbytes) for nbytes in shared]
    choice = SimpleNamespace(
        kernel=SimpleNamespace(name="any"), spec=Code(), knobs={},
        geometry=SimpleNamespace(launches=shapes),
    )  # fmt: skip
    known = loading.LoadedFunctions()
    first, again = (known.of(choice, Device("gpu", (9, 0), 1)) for _ in range(2))
    assert first is again
    places = [each.handle for each in first]
    return [(places.index(handle), int(what), nbytes) for handle, what, nbytes in told]


def main():
    global status
    shape = Launch((2, 3, 1), (128, 1, 1))
    answers = {}
    two = (
        function(SINGLE, "rows", "a", "incx", "alpha", "beta", "slot"),
        function(SINGLE, "scratch", "y", "counters", waits=True),
    )
    block = launches.pack(two, [shape, shape], SINGLE, {"rows": 5, "incx": -7, "slot": 9})
    addresses = {"a": 1 << 46, "y": 1 << 44, "scratch": 1 << 40, "counters": 1 << 41}
    launches.enqueue(machine, block, SINGLE, 0x55, alpha=1.5, beta=-2, **addresses)
    answers["real"] = done()

    for early in (True, False):  # as a later launch of a list, and as its first one
        waiting = [function(SINGLE, "rows", waits=True)]
        block = launches.pack(waiting, [shape], SINGLE, {"rows": 1}, early=early)
        launches.enqueue(machine, block, SINGLE, 0)
    answers["of a list"] = done()

    block = launches.pack([function(COMPLEX, "alpha", "beta")], [shape], COMPLEX, {})
    launches.enqueue(machine, block, COMPLEX, 0, alpha=1.5 + 2j, beta=-1j)
    answers["complex"] = done()

    places = {"alpha_pointer": 1 << 42, "beta_pointer": 1 << 43, "scratch": 77}
    block = launches.pack([function(DOUBLE, *places)], [shape], DOUBLE, places)
    launches.enqueue(machine, block, DOUBLE, 0)
    answers["pointers"] = done()

    by_value = function(SINGLE, "x", "rows", log="by value")
    for count in (1, 3, 1000, 1024):
        x = np.arange(1, count + 1, dtype=SINGLE)
        block = launches.pack([by_value], [shape], SINGLE, {"x": x, "rows": 6})
        launches.enqueue(machine, block, SINGLE, 0)
        answers[f"value {count}"] = done()

    copy = function(DOUBLE, "rows", "x", "incx", "y")
    launcher = launches.Launcher(machine, SimpleNamespace(copy=lambda *_: copy))
    for count in (300, 2**50):
        launcher.copy_vector(Device("gpu", (9, 0), 1), DOUBLE, count, 64, -3, 128, 0)
    answers["copies"] = done()

    lines = function(DOUBLE, "rows", "cols", "x", "x_step", "y", "y_step", waits=True)
    own = launches.pack_copy_of_lines(lines, 512, 33, 264, 40)
    launches.enqueue(machine, own, DOUBLE, 0x55, x=1 << 43, y=1 << 44)
    answers["lines"] = done()

    product = function(SINGLE, "rows", "y", "beta")
    large = launches.pack([product], [shape._replace(shared=100_000)], SINGLE, {"rows": 5})
    launches.enqueue(machine, large, SINGLE, 0, y=1 << 44)
    answers["shared"] = done()
    answers["loaded"] = loaded(0, 100_000)

    status = 700
    try:
        launches.enqueue(machine, block, SINGLE, 0)
    except RuntimeError as error:
        answers["refused"] = str(error)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
