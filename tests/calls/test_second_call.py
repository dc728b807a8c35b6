"""A call of a kind goes the long way once, whatever was called before: stand-ins count the ways.

The libraries are stand-ins without memory, and so is the driver; what adopts, checks, selects,
remembers and compares is the package's own, the machine code included.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from helpers.host_code import linked_once

import gemv
import gemv.blas
from gemv.arrays import dlpack
from gemv.calls import execute, plan, remembered, short
from gemv.core import memo
from gemv.core.geometry import Device
from gemv.driver import block, machine
from gemv.engines import backend

pytestmark = pytest.mark.skipif(gemv.backend() != "simulator", reason="a stand-in for the driver")

STREAM = 0x700
LAUNCHED: list[int] = []
#: Address and bytes of each y that a short way copied.
COPIED: list[tuple[int, int]] = []


@ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
def launch(config, function, parameters, extra):
    """The driver's function: notes the stream."""
    LAUNCHED.append(ctypes.c_size_t.from_address(config + 32).value)
    return 0


class Engine:
    """An engine of the cuda backend without a GPU; it counts the launches of the long way."""

    name = "cuda"
    several = False
    numba_stream = STREAM
    held = SimpleNamespace(hold=lambda *arguments: None)

    def __init__(self):
        address = ctypes.cast(launch, ctypes.c_void_p).value
        self.machine = machine.machine(machine.Driver(address, 0, 0, 0, 0), linked_once)
        self.ran = 0

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

    def block(self, choice, functions, sizes, x_start, y_start):
        launches = choice.geometry.launches
        packed = [block.Function(1, each.grid, each.block, ("a", "x", "y")) for each in launches]
        return block.Block(packed, choice.spec.precision.factors.itemsize, 1, sizes, 0, 0)

    def run(self, *arguments, **keywords):
        self.ran += 1

    def clear(self, pointer, nbytes, stream):
        pass

    def copy(self, source, target, stream):
        pass

    def copy_bytes(self, source, target, nbytes, stream):
        assert stream == STREAM
        COPIED.append((source, nbytes))

    def empty(self, length, dtype):
        return Array((length,), dtype)

    def pool(self):
        return SimpleNamespace(empty=lambda n, dtype: ((new := Array((n,), dtype)), new.at))


class Array:
    """What arrays of the three libraries are asked for; addresses are never followed."""

    __cuda_ndarray__ = True
    stream = 0
    next_at = 0x10000

    def __init__(self, shape, dtype=np.float32):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.itemsize = self.dtype.itemsize
        steps = np.cumprod([1, *shape[:0:-1]])[::-1]
        self.strides = tuple(int(step) * self.itemsize for step in steps)
        self.at = Array.next_at
        Array.next_at += 0x1000
        self.gpu_data = SimpleNamespace(device_ctypes_pointer=SimpleNamespace(value=self.at))
        self.data = SimpleNamespace(ptr=self.at, device_id=0)

    def copy(self):
        COPIED.append((self.at, self.shape[0] * self.itemsize))
        return Array(self.shape, self.dtype)

    @property
    def __cuda_array_interface__(self):
        interface = {"shape": self.shape, "typestr": self.dtype.str, "data": (self.at, False)}
        return {**interface, "version": 3}


class Tensor:
    """A tensor of PyTorch's; `reads` counts how often Python asks one where it lies."""

    __torch_dispatch__ = None
    reads = 0
    requires_grad = False
    device = SimpleNamespace(type="cuda", index=0)
    layout = "strided"

    def __init__(self, shape, dtype=np.float32):
        self.array, self.shape, self.dtype = Array(shape, dtype), shape, np.dtype(dtype)
        steps = tuple(step // self.array.itemsize for step in self.array.strides)
        self.words = [(ctypes.c_int64 * len(shape))(*each) for each in (shape, steps)]
        pointers = [ctypes.cast(each, ctypes.POINTER(ctypes.c_int64)) for each in self.words]
        bits = 8 * self.array.itemsize
        self.described = dlpack._DLTensor(self.array.at, 2, 0, len(shape), 2, bits, 1, *pointers, 0)

    def stride(self):
        return tuple(self.words[1])

    def data_ptr(self):
        Tensor.reads += 1
        return self.array.at

    def get_device(self):
        return 0

    def element_size(self):
        return self.array.itemsize

    def is_conj(self):
        return False

    is_neg = is_conj

    def new_empty(self, length):
        return Tensor((length,), self.dtype)

    def clone(self, memory_format):
        self.array.copy()
        return Tensor(self.shape, self.dtype)


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
def describe(tensor, target):
    ctypes.memmove(target, ctypes.addressof(tensor.described), ctypes.sizeof(tensor.described))
    return 0


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_size_t))
def current_stream(kind, device, target):
    target[0] = STREAM
    return 0


TABLE = (ctypes.c_size_t * 7)(1)
for place, function in enumerate((describe, current_stream), 5):
    TABLE[place] = ctypes.cast(function, ctypes.c_void_p).value
NAME = b"dlpack_exchange_api"  # a capsule points to its name
Tensor.__dlpack_c_exchange_api__ = dlpack._capsule_new(ctypes.addressof(TABLE), NAME, None)


def fake_torch():
    return SimpleNamespace(
        Tensor=Tensor, strided="strided", float32=np.dtype("f"), bfloat16=None,
        contiguous_format="contiguous",
        nn=SimpleNamespace(Parameter=type("Parameter", (Tensor,), {})),
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda device: STREAM),
        cuda=SimpleNamespace(device_count=lambda: 1), is_grad_enabled=lambda: False,
        compiler=SimpleNamespace(is_compiling=lambda: False),
        empty=lambda length, dtype, device: Tensor((length,), dtype),
    )  # fmt: skip


def fake_cupy():
    cuda = SimpleNamespace(
        get_current_stream=lambda device=0: SimpleNamespace(ptr=STREAM),
        runtime=SimpleNamespace(getDeviceCount=lambda: 1),
        Device=lambda device: contextlib.nullcontext(),
    )
    return SimpleNamespace(ndarray=Array, cuda=cuda, empty=lambda n, dtype: Array((n,), dtype))


@pytest.fixture(params=["torch", "cupy", "numba"])
def library(request, monkeypatch):
    """A library that this process meets for the first time; its arrays' class, and the engine."""
    from numba.cuda.cudadrv import devicearray

    def module(name, **attributes):
        made = ModuleType(name)
        vars(made).update(attributes)
        monkeypatch.setitem(sys.modules, name, made)

    engine = Engine()
    monkeypatch.setattr(backend, "backend", lambda: "cuda")
    monkeypatch.setattr(backend, "engine", lambda: engine)
    module("gemv.driver.devices", current_device=lambda: 0)
    module("gemv.driver.streams", stream_handle=lambda stream: stream)
    monkeypatch.setattr(short, "_prepared", set())
    ways: dict = {}
    for each in (short, plan, gemv.blas):
        monkeypatch.setattr(each, "short_ways", ways)
    graph = SimpleNamespace(in_graph=None)
    monkeypatch.setitem(sys.modules, "gemv.calls.torch_graph", graph)
    monkeypatch.setattr(gemv.calls, "torch_graph", graph, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    if request.param == "torch":
        monkeypatch.setitem(sys.modules, "torch", fake_torch())
    elif request.param == "cupy":
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    else:
        monkeypatch.setattr(devicearray, "DeviceNDArray", Array, raising=False)
    bound = []
    bind = execute.bind

    def counting(*arguments, **keywords):
        bound.append(arguments[0])
        return bind(*arguments, **keywords)

    monkeypatch.setattr(execute, "bind", counting)
    memo.forget()
    LAUNCHED.clear()
    COPIED.clear()
    yield SimpleNamespace(
        name=request.param, new=Tensor if request.param == "torch" else Array, engine=engine,
        long_ways=bound,
    )  # fmt: skip
    memo.forget()


def calls(library, m, n, options):
    """The forms of a call on new arrays: y is overwritten, there is none, or it stays as it is."""
    a, x, y = (library.new(shape) for shape in ((m, n), (n,), (m,)))
    return (
        lambda: gemv.gemv(2.0, a, x, 1.0, y, overwrite_y=1, **options),
        lambda: gemv.gemv(2.0, a, x, **options),
        lambda: gemv.gemv(2.0, a, x, 1.0, y, **options),
    )


@pytest.mark.parametrize("options", [{}, {"accumulate": "wide"}], ids=["plain", "wide"])
@pytest.mark.parametrize("form", [0, 1, 2], ids=["in place", "new y", "copy of y"])
def test_the_very_first_call_is_remembered(library, form, options):
    call = calls(library, 40, 30, options)[form]
    call()
    assert library.long_ways == ["gemv"] and library.engine.ran == 1 and not LAUNCHED
    call()
    call()
    assert library.long_ways == ["gemv"] and library.engine.ran == 1
    assert set(LAUNCHED) == {STREAM} and len(LAUNCHED) >= 2


def test_a_y_that_stays_is_copied_unless_nothing_of_it_is_left(library):
    a, x, y = (library.new(shape) for shape in ((40, 30), (30,), (40,)))
    longer = library.new((50,))
    for given in (y, longer, y, longer):
        gemv.gemv(2.0, a, x, 1.0, given)
    assert len(library.long_ways) == 2
    array = (lambda tensor: tensor.array) if library.name == "torch" else (lambda array: array)
    assert COPIED == [(array(y).at, 160), (array(longer).at, 200)]
    gemv.gemv(2.0, a, x, 0.0, y)
    assert len(COPIED) == 2, "no element of y is used"
    made = gemv.gemv(2.0, a, x, 0.0, longer, overwrite_y=False)
    assert len(COPIED) == 3, "elements behind the result stay"
    assert made is not longer and made.shape == (50,)
    assert len(library.long_ways) == 2


def test_a_copy_is_launched_as_a_call_in_place_is(library):
    a, x, y = (library.new(shape) for shape in ((40, 30), (30,), (40,)))
    assert gemv.gemv(2.0, a, x, 1.0, y, overwrite_y=1) is y
    assert not COPIED
    # They share one key, but PyTorch's expectation is made by the next call.
    for _ in range(2):
        assert gemv.gemv(2.0, a, x, 1.0, y) is not y
    assert library.engine.ran == 1 and len(COPIED) == 2
    for unusual in ({"overwrite_y": 2.0}, {"stream": STREAM + 1}):
        before = len(COPIED)
        with contextlib.suppress(Exception):
            gemv.gemv(2.0, a, x, 1.0, y, **unusual)
        assert len(COPIED) == before


def test_each_kind_goes_the_long_way_once(library):
    # The two with y are of one kind, whether y stays or not.
    kinds = [call for m in (40, 41) for call in calls(library, m, 30, {})]
    for _ in range(3):
        for call in kinds:
            call()
    assert len(library.long_ways) == library.engine.ran == 4


@pytest.mark.parametrize("library", ["torch"], indirect=True)  # the others have no C functions
def test_the_second_call_asks_no_tensor_where_it_lies(library):
    for call in calls(library, 40, 30, {})[:2]:  # the third asks whether y was freed
        call()
        assert remembered.expectations
        before = Tensor.reads
        call()
        assert Tensor.reads == before
    a, x = library.new((40, 30)), library.new((30,))
    gemv.gemv(2.0, a, x)  # of a kind that is known; another matrix
    before = Tensor.reads
    gemv.gemv(2.0, a, x)
    assert Tensor.reads == before


def test_a_call_after_precompile_goes_the_long_way_once(library):
    a, x, y = (library.new(shape) for shape in ((40, 30), (30,), (40,)))
    gemv.precompile(1.0, a, x, 0.0, y, overwrite_y=1)
    for _ in range(3):
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
    assert library.engine.ran == 1


def test_a_plan_launches_from_its_first_call_on(library):
    a, x, y = (library.new(shape) for shape in ((40, 30), (30,), (40,)))
    bound = gemv.plan(a, x, y)
    for _ in range(2):
        assert bound(2.0, 1.0) is y
    assert not library.long_ways and library.engine.ran == 0 and LAUNCHED
    free = gemv.plan(a)
    for _ in range(3):
        free(1.0, 0.0, x)
    assert library.engine.ran == 1


def test_what_is_not_remembered_goes_the_long_way_each_time(library):
    a, x, y = (library.new(shape) for shape in ((40, 30), (30,), (40,)))
    for _ in range(3):
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, kernel="serial")
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, accumulate="pairs")
    assert library.engine.ran == 6 and not LAUNCHED and not remembered.remembered_calls
