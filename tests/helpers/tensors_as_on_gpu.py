"""PyTorch's tensors in host memory that say they are on a GPU, and a driver that computes there.

What adopts, checks, remembers, compares and launches is the package's own, the machine code
included; only the driver's function is a stand-in, which multiplies with NumPy. So it can be seen
without a GPU which way a call of :mod:`gemv.torch` takes, and that its result is right.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from types import ModuleType, SimpleNamespace

import numpy as np

from gemv.calls import plan, short, short_torch
from gemv.core import memo
from gemv.core.geometry import Device
from gemv.driver import block, machine
from gemv.engines import backend
from helpers.host_code import linked_once

STREAM = 0x700
#: What the driver says of each launch behind a kernel that has read where there is no memory.
ILLEGAL_ADDRESS = 700


class Lost(RuntimeError):
    """The same, as an engine tells it."""


class Engine:
    """An engine of the cuda backend whose launches are products of NumPy.

    Attributes
    ----------
    long_ways, launched : int
        How many products were made, on the long way and by machine code.
    with_old_y : int
        How many of those by machine code read an old y beside the new one.
    lost : bool
        Whether each launch fails, as behind a kernel that faulted.
    """

    name = "cuda"
    several = False
    lost = False
    numba_stream = STREAM
    held = SimpleNamespace(hold=lambda *arguments: None)

    def __init__(self):
        self.long_ways = self.launched = self.with_old_y = 0
        self._calls = []

        @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
        def launch(config, function, parameters, extra):
            if self.lost:
                return ILLEGAL_ADDRESS
            precision, sizes = self._calls[function - 1]
            *places, old = (ctypes.c_void_p * 6).from_address(parameters)
            self._launch(precision, sizes, *places, old if "old" in sizes else None)
            return 0

        self._kept = launch
        address = ctypes.cast(launch, ctypes.c_void_p).value
        self.machine = machine.machine(machine.Driver(address, 0, 0, 0, 0), linked_once)

    def _launch(self, precision, sizes, a, x, y, alpha, beta, old):
        real = ctypes.c_float if precision.factors == np.float32 else ctypes.c_double
        a, x, y = (ctypes.c_size_t.from_address(place).value for place in (a, x, y))
        alpha, beta = (real.from_address(place).value for place in (alpha, beta))
        self.launched += 1
        if old is not None:
            old = ctypes.c_size_t.from_address(old).value
            self.with_old_y += 1
        _multiply(precision, sizes, alpha, a, x, beta, y, old)

    def device(self):
        return Device("a stand-in", (0, 0), multiprocessors=1)

    def device_of(self, pointer):
        return 0

    def on(self, device):
        return contextlib.nullcontext()

    def default_stream(self):
        return STREAM

    def capture_of(self, stream):
        return None

    def runs_by_itself(self, stream):
        return False

    def load(self, choice, device, stream=None):
        return choice.kernel.functions(choice.spec)

    def block_with_old_y(self, choice, sizes, x_start, stream):
        assert choice.with_old_y.kernel.functions(choice.with_old_y.spec)
        return self.block(choice, (), {**sizes, "old": True}, x_start, 0)

    def block(self, choice, functions, sizes, x_start, y_start):
        self._calls.append((choice.spec.precision, sizes))
        names = ("a", "x", "y", "alpha", "beta", "old")
        one = block.Function(len(self._calls), (1, 1, 1), (1, 1, 1), names)
        return block.Block([one], choice.spec.precision.factors.itemsize, 1, {}, x_start, y_start)

    def run(self, choice, problem, alpha, a, x, beta, y, *, stream, owner=None):
        if self.lost:
            raise Lost("the driver says so")
        self.long_ways += 1
        sizes = problem.arguments(choice.geometry)
        places = (each.pointer for each in (a, x, y))
        a, x, y = places
        _multiply(choice.spec.precision, sizes, alpha, a, x, beta, y)

    def clear(self, pointer, nbytes, stream):
        ctypes.memset(pointer, 0, nbytes)

    def copy(self, source, target, stream):
        ctypes.memmove(target.pointer, source.pointer, source.shape[0] * source.dtype.itemsize)

    def copy_bytes(self, source, target, nbytes, stream):
        ctypes.memmove(target, source, nbytes)


def _multiply(precision, sizes, alpha, a, x, beta, y, old=None):
    data, out = precision.data, precision.y
    rows, cols = sizes["rows"], sizes["cols"]
    steps = sizes["row_stride"] * data.itemsize, sizes["col_stride"] * data.itemsize
    matrix = _array(a, (rows, cols), steps, data)
    vector = _array(x, (cols,), (sizes["incx"] * data.itemsize,), data)
    target = _array(y, (rows,), (sizes["incy"] * out.itemsize,), out)
    product = alpha * (matrix.astype(precision.sums) @ vector.astype(precision.sums))
    read = target if old is None else _array(old, (rows,), (out.itemsize,), out)
    target[...] = product if beta == 0 else product + beta * read


def _array(address, shape, strides, dtype):
    """Memory as an array, by NumPy alone: functions of the package are counted elsewhere."""
    nbytes = dtype.itemsize + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    return np.ndarray(shape, dtype, (ctypes.c_char * nbytes).from_address(address), 0, strides)


def installed(monkeypatch, torch):
    """Let all tensors say that they are on a GPU, for one test; the engine."""
    import gemv.blas
    import gemv.torch as products
    from gemv.arrays import libraries
    from gemv.calls import torch_again

    base = vars(torch._C.TensorBase)
    monkeypatch.setattr(torch.Tensor, "is_cuda", base["is_cpu"])
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    guards = torch._C._dynamo.guards
    monkeypatch.setattr(guards, "_empty_strided_cuda", guards._empty_strided_cpu)
    library = type(libraries.BY_NAME["torch"])
    place = library.place

    def placed(self, obj):
        return "device" if place(self, obj) == "host" else None

    def empty(self, like, length, dtype, device):
        return torch.empty(length, dtype=getattr(torch, str(dtype)))

    monkeypatch.setattr(library, "place", placed)
    monkeypatch.setattr(library, "empty", empty)

    engine = Engine()
    monkeypatch.setattr(backend, "backend", lambda: "cuda")
    monkeypatch.setattr(backend, "engine", lambda: engine)
    for name, attributes in (
        ("devices", {"current_device": lambda: 0}),
        ("streams", {"stream_handle": lambda stream: stream}),
    ):
        module = ModuleType(f"gemv.driver.{name}")
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(short, "_prepared", set())
    ways: dict = {}
    for each in (short, plan, gemv.blas, products):
        monkeypatch.setattr(each, "short_ways", ways)
    monkeypatch.setattr(short_torch, "_tools", None)
    monkeypatch.setattr(torch_again, "again", torch_again.again)
    monkeypatch.setattr(memo, "_forgetting", memo._forgetting)
    memo.forget()
    return engine
