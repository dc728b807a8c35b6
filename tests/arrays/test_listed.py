"""Many arrays that are adopted together are as those that are adopted one by one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from helpers import processes
from helpers.exporters import Interface

import gemv
from gemv.arrays import adopt, libraries, listed
from gemv.engines.backend import HOME

needs_engine = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to hold device arrays"
)


def to_device(array):
    from numba import cuda

    return cuda.to_device(array)


def one_by_one(name, arrays):
    return [adopt.adopt("gemv", name, each, None, HOME) for each in arrays]


def same(found, expected):
    """Whether operands are alike; owners and origins are compared by identity."""
    compared = [
        [value if isinstance(value, (tuple, int, str, np.dtype)) else id(value) for value in each]
        for each in (*found, *expected)
    ]
    return compared[: len(found)] == compared[len(found) :]


def matrices():
    whole = to_device(np.arange(200.0).reshape(10, 20))
    views = [whole[2:7, 1::3], whole[::-2, 4:5], whole[:, ::-1], whole[3:3], whole]
    return [*views, to_device(np.ones((3, 4), order="F")), to_device(np.ones((1, 1)))]


@needs_engine
def test_matrices_of_all_strides(monkeypatch):
    arrays = matrices()
    expected = one_by_one("a", arrays)
    monkeypatch.setattr(listed, "adopt", None)  # none is looked at by itself
    assert same(listed.adopt_all("gemv", "a", arrays, HOME), expected)


@needs_engine
@pytest.mark.parametrize("dtype", ["e", "f", "d", "F", "D", "i4", "?"])
def test_vectors_of_all_dtypes(dtype, monkeypatch):
    whole = to_device(np.ones(50, dtype))
    arrays = [whole[3:9], whole[::-7], whole[5:5], whole]
    expected = one_by_one("x", arrays)
    monkeypatch.setattr(listed, "adopt", None)
    assert same(listed.adopt_all("gemv", "x", arrays, HOME), expected)


@needs_engine
@pytest.mark.parametrize(
    "odd",
    [
        lambda: to_device(np.ones(4, "f")),
        lambda: to_device(np.ones(4, ">f8")),
        lambda: Interface(np.ones(4)),
        lambda: np.ones(4),
        lambda: [1.0, 2.0],
    ],
    ids=["of another dtype", "of another byte order", "of another class", "on the host", "a list"],
)
def test_an_array_that_is_unlike_the_others_is_adopted_by_itself(odd):
    plain = to_device(np.ones(3))
    for arrays in ([odd(), plain], [plain, odd()]):
        found = listed.adopt_all("gemv", "x", arrays, HOME)
        assert [each.origin is own for each, own in zip(found, arrays, strict=True)] == [True] * 2
        assert [(o.kind, o.dtype, o.shape) for o in found] == [
            (o.kind, o.dtype, o.shape) for o in one_by_one("x", arrays)
        ]


@needs_engine
def test_errors_name_the_item():
    vector, matrix = to_device(np.ones(3)), to_device(np.ones((3, 3)))
    with pytest.raises(ValueError, match="gemv: item 1: x must have one dimension"):
        listed.adopt_all("gemv", "x", [vector, matrix], HOME)
    with pytest.raises(ValueError, match="gemv: item 0: a must have two dimensions"):
        listed.adopt_all("gemv", "a", [vector, matrix], HOME)
    assert listed.adopt_all("gemv", "a", [], HOME) == []


def exists(shape=(3, 4), strides=(4, 1), pointer=1 << 40, dtype="d"):
    return listed._exist(len(shape), np.dtype(dtype), [shape], [strides], [pointer])


def test_what_cannot_be_in_memory_is_looked_at_by_itself():
    assert exists() and exists((0, 4), pointer=0) and exists(strides=(-4, -1))
    assert not exists(pointer=0), "it was freed"
    assert not exists(pointer=(1 << 40) + 4), "it is not aligned"
    assert exists(pointer=(1 << 40) + 4, dtype="f")
    assert not exists(pointer=-8)
    assert not exists((-1, 4))
    assert not exists((1 << 40, 2), (1 << 40, 1)), "it reaches beyond all memory"
    assert not exists((200, 4), (-4, 1), pointer=1024), "it begins before all memory"


#: Numba's own arrays, for which a GPU is needed only where memory is asked for.
NUMBA = """
    import numpy as np
    from cuda.bindings.driver import CUdeviceptr
    from numba.cuda import MemoryPointer
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    import gc, weakref

    from gemv.arrays import libraries, listed
    from gemv.arrays.adopt import adopt

    class Home:
        def in_host_memory(self):
            return False
        def device_of(self, pointer):
            return pointer % 7
        def devices_of(self, pointers):
            return [self.device_of(each) for each in pointers]

    def array(shape, strides, dtype, at, **rest):
        memory = MemoryPointer(None, CUdeviceptr(at), 4000)
        return DeviceNDArray(shape, strides, np.dtype(dtype), gpu_data=memory, **rest)

    arrays = [array((3, 5), (40, 8), "f8", 1 << 40), array((3, 5), (8, 24), "f8", 4096)]
    assert listed.together("a", arrays, Home()) == [
        adopt("gemv", "a", each, None, Home()) for each in arrays
    ]
    for odd in (
        array((3, 5), (40, 8), "f8", 4096, stream=8), array((3, 5), (20, 4), "f4", 4096),
        array((3, 5), (44, 4), "f8", 4096),
    ):
        assert listed.together("a", [*arrays, odd], Home()) is None

    whole = array((1000,), (4,), "f4", 1 << 40)
    parts = libraries.BY_NAME["numba"].parts(whole, [0, 16, 48], [3, 30, 3])
    assert [each.shape for each in parts] == [(3,), (30,), (3,)]
    assert [each.gpu_data.device_pointer_value - (1 << 40) for each in parts] == [0, 64, 192]
    assert [each.gpu_data.size for each in parts] == [12, 120, 12]
    assert [each.alloc_size for each in parts] == [12, 120, 12]
    for each in parts:
        twin = DeviceNDArray(each.shape, each.strides, each.dtype, gpu_data=each.gpu_data)
        assert each.__cuda_array_interface__ == twin.__cuda_array_interface__
        assert vars(each).keys() == vars(twin).keys()
    kept = weakref.ref(whole.gpu_data)
    del whole, parts[:2], each, twin
    gc.collect()
    assert kept() is not None, "a part keeps the memory of all"
    parts.clear()
    gc.collect()
    assert kept() is None
"""


def test_arrays_of_numba_without_a_gpu():
    code = "import os; os.environ['NUMBA_ENABLE_CUDASIM'] = '0'\n" + textwrap.dedent(NUMBA)
    done = processes.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=120,
        cwd=Path(gemv.__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_library_without_a_way_for_many_gives_slices():
    whole = np.arange(9)
    parts = libraries.NUMPY.parts(whole, [0, 5], [3, 4])
    assert [each.tolist() for each in parts] == [[0, 1, 2], [5, 6, 7, 8]]
    assert all(each.base is whole for each in parts)
    assert libraries.NUMPY.read_all([whole]) is None
