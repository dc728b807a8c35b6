"""A driver that only notes what the handler of XLA launches, machine code included."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from ctypes import c_void_p
from types import ModuleType, SimpleNamespace

import gemv.driver
from gemv.calls import jax_again, jax_frames, jax_ticketed
from gemv.core import memo
from gemv.core.geometry import Device
from gemv.driver import block, known_frames, machine
from gemv.engines import backend
from helpers.host_code import linked_once


class Launches:
    """An engine of the cuda backend whose driver is a stand-in that notes launches."""

    name = "cuda"
    several = False
    on = staticmethod(lambda device: contextlib.nullcontext())
    in_host_memory = staticmethod(lambda: False)
    device_of = staticmethod(lambda address: 0)
    device = staticmethod(lambda: Device("a stand-in", (8, 0), multiprocessors=132))

    def __init__(self):
        self.launched, self.run_by_engine = [], []
        #: What the driver answers to a launch.
        self.status = 0

        @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
        def launch(config, function, parameters, extra):
            stream = ctypes.c_size_t.from_address(config + 32).value
            places = (ctypes.c_void_p * len(self.sizes)).from_address(parameters)
            values = map(ctypes.string_at, places, self.sizes)
            self.launched.append((stream, *values))
            return self.status

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
        def current_device(into):
            into[0] = 0
            return 0

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))
        def stream_id(stream, into):
            into[0] = self.identity(stream)
            return 0

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
        def is_capturing(stream, into):
            into[0] = 0
            return 0

        self._kept = launch, is_capturing, current_device, stream_id
        at = [ctypes.cast(each, ctypes.c_void_p).value for each in self._kept]
        driver = machine.Driver(at[0], 0, 0, at[1], at[2], stream_id=at[3])
        self.machine = machine.machine(driver, linked_once)
        self.scratch = Workspace()
        #: Of streams that have the handles of destroyed ones.
        self.identities = {}

    def identity(self, stream):
        return self.identities.get(stream, stream)

    def load(self, choice, device, stream=None):
        return choice.kernel.functions(choice.spec)

    def block(self, choice, functions, sizes, x_start, y_start):
        factors = choice.spec.precision.factors
        parts = 2 if factors.kind == "c" else 1
        names, real = ["a", "x", "y"], factors.itemsize // parts
        self.sizes = (8,) * 3
        for name, home in zip(("alpha", "beta"), choice.spec.homes, strict=True):
            in_memory = home == "pointer"
            names.append(f"{name}_pointer" if in_memory else name)
            self.sizes += (8,) if in_memory else (real,) * parts
        if choice.geometry.scratch:
            names, self.sizes = (*names, "scratch", "counters"), (*self.sizes, 8, 8)
        packed = [
            block.Function(1, each.grid, each.block, names) for each in choice.geometry.launches
        ]
        return block.Block(packed, real, parts, {}, x_start, y_start)

    def workspace(self, geometry, device, stream):
        return self.scratch

    def run(self, choice, problem, alpha, a, x, beta, y, stream):
        """What is launched from Python: the addresses of alpha and of beta, if it is in memory."""
        self.run_by_engine.append((alpha.pointer, getattr(beta, "pointer", beta)))


class Workspace:
    def __init__(self):
        self.lock = threading.Lock()
        self.scratch = self.posts = self.counters = None

    def reserve(self, nbytes, counters, stream, posts):
        return 0xA000, 0xB000


@contextlib.contextmanager
def installed(monkeypatch):
    """The engine, and the handler that XLA would have; `pythonic` counts the calls of Python."""
    engine = Launches()
    monkeypatch.setattr(backend, "backend", lambda: "cuda")
    monkeypatch.setattr(backend, "engine", lambda: engine)
    for name, names in (("capture", {"capture_of": lambda stream: None}), ("libcuda", {})):
        module = ModuleType(f"gemv.driver.{name}")
        vars(module).update(names, CudaError=RuntimeError)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(gemv.driver, name, module, raising=False)
    memo.forget()
    pythonic = []

    def counting(frame):
        pythonic.append(frame)
        jax_ticketed.on_gpu(frame)

    before = int(known_frames.STATE[known_frames.PYTHON])
    in_python = jax_frames.handler(counting, (0, 3))
    function = ctypes.CFUNCTYPE(c_void_p, c_void_p)(jax_again.handler(in_python))
    yield SimpleNamespace(engine=engine, pythonic=pythonic, function=function, keep=in_python)
    memo.forget()
    known_frames.STATE[known_frames.PYTHON] = before
