"""Memory of the driver, on a stand-in that keeps count of what is allocated and freed."""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import gemv.driver
from gemv.core.dtypes import BFLOAT16


class OutOfMemory(MemoryError):
    pass


class Driver:
    """Device memory is host memory here; `room` bytes of it are free."""

    def __init__(self):
        self.room = 10_000
        self.blocks: dict[int, ctypes.Array] = {}
        self.inside = False
        self.CUresult = SimpleNamespace(
            CUDA_ERROR_OUT_OF_MEMORY=SimpleNamespace(name="CUDA_ERROR_OUT_OF_MEMORY")
        )

    def allocate(self, nbytes):
        if nbytes > self.room:
            return 2, None
        block = (ctypes.c_uint8 * nbytes)()
        self.room -= nbytes
        self.blocks[ctypes.addressof(block)] = block
        return 0, ctypes.addressof(block)

    def free(self, pointer):
        assert self.inside, "freeing breaks a capture on another stream"
        self.room += len(self.blocks.pop(int(pointer)))
        return (0,)

    cuMemAlloc, cuMemFree, cuMemFreeHost = allocate, free, free

    def cuMemHostAlloc(self, nbytes, flags):
        assert flags == 0
        return self.allocate(nbytes)

    def cuMemGetInfo(self):
        return 0, self.room, 10_000

    @contextmanager
    def outside_of_captures(self):
        self.inside = True
        yield
        self.inside = False


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def memory(driver, monkeypatch):
    def check(answer):
        if answer[0]:
            raise OutOfMemory("CUDA_ERROR_OUT_OF_MEMORY")
        return answer[1]

    library, capture = ModuleType("gemv.driver.libcuda"), ModuleType("gemv.driver.capture")
    library.check, library.OutOfMemory = check, OutOfMemory
    capture.outside_of_captures = driver.outside_of_captures
    for module in (library, capture):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(gemv.driver, module.__name__.rpartition(".")[2], module, raising=False)
    monkeypatch.setitem(sys.modules, "gemv.driver.memory", None)
    del sys.modules["gemv.driver.memory"]
    monkeypatch.setattr(gemv.driver, "memory", None, raising=False)
    made = importlib.import_module("gemv.driver.memory")
    made.driver = driver  # not undone: memory may be freed after the test
    return made


@pytest.fixture
def numba(driver, monkeypatch):
    """A stand-in for Numba that holds 4000 freed bytes back."""
    driver.room -= 4000
    pending = SimpleNamespace(times=0)

    def clear():
        driver.room += 0 if pending.times else 4000
        pending.times += 1

    context = SimpleNamespace(deallocations=SimpleNamespace(clear=clear))
    monkeypatch.setitem(sys.modules, "numba.cuda", SimpleNamespace(current_context=lambda: context))
    return pending


def test_device_bytes_are_read_by_any_library_and_freed(memory, driver):
    array = memory.DeviceBytes(100, np.float64)
    interface = array.__cuda_array_interface__
    assert (interface["shape"], interface["typestr"], interface["strides"]) == ((100,), "<f8", None)
    assert memory.address_of(array) in driver.blocks and array.nbytes == 800
    del array, interface
    gc.collect()
    assert not driver.blocks and driver.room == 10_000
    assert memory.address_of(memory.DeviceBytes(0, np.float32)) == 0


@pytest.mark.parametrize("dtype", [np.dtype("u1"), np.dtype("c16"), np.dtype("f2"), BFLOAT16])
def test_pinned_memory_lives_as_long_as_a_view_of_it(memory, driver, dtype):
    array = memory.pinned_array(10, dtype)
    assert array.dtype == dtype and array.shape == (10,) and array.flags.writeable
    array[...] = 3
    view, values = array[2:4], array[2:4].tobytes()
    del array
    gc.collect()
    assert driver.blocks and view.tobytes() == values
    del view
    gc.collect()
    assert not driver.blocks
    assert memory.pinned_array(0, dtype).size == 0


def test_memory_that_numba_holds_back_counts_as_free(memory, driver, numba):
    assert memory.free_memory() == 10_000 and numba.times == 1


def test_free_memory_without_numba(memory, monkeypatch):
    monkeypatch.delitem(sys.modules, "numba.cuda", raising=False)
    assert memory.free_memory() == 10_000


def test_numba_gives_back_what_an_allocation_lacks(memory, driver, numba):
    array = memory.DeviceBytes(8000, np.uint8)
    assert array.nbytes == 8000 and numba.times == 1
    with pytest.raises(OutOfMemory) as caught:
        memory.DeviceBytes(8000, np.uint8)
    assert memory.is_exhausted(caught.value) and not memory.is_exhausted(ValueError("no"))


def test_no_memory_without_numba(memory, monkeypatch):
    monkeypatch.delitem(sys.modules, "numba.cuda", raising=False)
    with pytest.raises(OutOfMemory):
        memory.DeviceBytes(20_000, np.uint8)
