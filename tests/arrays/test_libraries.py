"""Arrays of every library: taken without a copy, given back in their kind, ordered, kept alive."""

from __future__ import annotations

import contextlib
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import processes
from helpers.arrays import LIBRARIES, MUTABLE
from helpers.exporters import Export, Interface

import gemv
from gemv.arrays import dlpack, libraries
from gemv.arrays import jax as arrays_jax
from gemv.arrays.adopt import adopt
from gemv.arrays.numba import Numba
from gemv.core.dtypes import BFLOAT16
from gemv.core.narrow import cast
from gemv.engines.backend import HOME

needs_device_arrays = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to hold device arrays"
)


@pytest.fixture(params=LIBRARIES)
def library(request):
    return LIBRARIES[request.param]()


@pytest.fixture(params=MUTABLE)
def mutable(request):
    return LIBRARIES[request.param]()


# Stand-ins, which need no GPU ------------------------------------------------------------------


STAND_INS = {
    "interface": Interface,
    "dlpack": Export,
    "dlpack_versioned": lambda array: Export(array, versioned=True),
    "dlpack_managed": lambda array: Export(array, device_type=13),
}


@pytest.mark.parametrize("kind", STAND_INS)
@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
def test_stand_in_operand(kind, dtype):
    memory = np.zeros((4, 6), dtype)
    operand = adopt("gemv", "a", STAND_INS[kind](memory[1:, ::2]), None, HOME)
    assert operand.kind == ("cuda_array_interface" if kind == "interface" else "dlpack")
    assert (operand.shape, operand.strides) == ((3, 3), (6, 2))
    assert (operand.dtype, operand.pointer) == (dtype, memory[1:].ctypes.data)
    assert not operand.on_host and not operand.readonly


@pytest.mark.skipif(gemv.backend() != "simulator", reason="a stand-in's memory is the host's")
@pytest.mark.parametrize("kind", STAND_INS)
def test_stand_in_computes(kind):
    make = STAND_INS[kind]
    rng = np.random.default_rng(0)
    a, x, y = rng.standard_normal((4, 5))[:, ::2], rng.standard_normal(6)[::2], np.ones(8)[::2]
    expected = 2 * a @ x + 3 * y
    result = gemv.gemv(2, make(a), make(x), 3, make(y))
    np.testing.assert_allclose(result.copy_to_host(), expected)
    target = make(y)
    assert gemv.gemv(2, make(a), make(x), 3, target, overwrite_y=1) is target
    np.testing.assert_allclose(y, expected)


def test_dlpack_is_asked_without_waiting_and_again_with_the_stream():
    exporter = Export(np.zeros((2, 3)))
    operand = adopt("gemv", "a", exporter, None, HOME)
    assert exporter.streams == [-1]
    assert operand.exporter.ordered_by_export


@pytest.mark.skipif(gemv.backend() != "simulator", reason="a stand-in's memory is the host's")
def test_dlpack_exporter_waits_on_the_stream_of_the_call():
    a, x = Export(np.ones((2, 3))), Export(np.ones(3))
    gemv.gemv(1, a, x)
    # Only an export tells how many dimensions a has; 1 names the legacy default stream.
    assert a.streams == [-1, -1, 1] and x.streams == [-1, 1]


def test_readonly_export():
    y = Export(np.zeros(3), versioned=True, readonly=True)
    assert adopt("gemv", "y", y, None, HOME).readonly
    assert not adopt("gemv", "y", Export(np.zeros(3), versioned=True), None, HOME).readonly


@pytest.mark.parametrize(
    ("exporter", "error"),
    [
        (Export(np.zeros(3), device_type=10), "DLPack's type 10, which is no CUDA GPU"),
        (Export(np.zeros(3, "i4"), code=9), "of DLPack's type 9:32x1"),
        (Interface(np.zeros(3), mask=Interface(np.zeros(3))), "masked device array"),
        (Interface(np.zeros(3), version=1), "version 1"),
    ],
    ids=["device", "dtype", "mask", "version"],
)
def test_export_refused(exporter, error):
    with pytest.raises(TypeError, match=f"gemv: x .*{error}.*failed for 3rd argument x"):
        adopt("gemv", "x", exporter, None, HOME)


def test_host_memory_by_dlpack_is_a_host_array():
    class HostOnly:
        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

    operand = adopt("gemv", "x", HostOnly(np.arange(3.0)), None, HOME)
    assert operand.on_host and operand.owner.tolist() == [0, 1, 2]


def test_capsule_of_something_else():
    with pytest.raises(BufferError, match="no capsule of DLPack"):
        dlpack.read(dlpack._capsule_new(1, b"other", None))


def test_exported_memory_is_freed_with_its_capsule():
    class Array:
        __cuda_array_interface__ = {"shape": (3,), "typestr": "<f8", "data": (4096, False)}

    export = dlpack.Export(Array(), device=0)
    before = len(dlpack._exported)
    capsule = export.__dlpack__(stream=-1)
    assert len(dlpack._exported) == before + 1
    tensor = dlpack.read(capsule)
    assert (tensor.pointer, tensor.shape, tensor.strides) == (4096, (3,), (1,))
    assert tensor.dtype == np.float64
    del capsule, tensor
    assert len(dlpack._exported) == before
    consumed = export.__dlpack__(stream=-1)
    address = dlpack._capsule_pointer(consumed, b"dltensor")
    dlpack._deleter(address)  # what a consumer calls
    assert len(dlpack._exported) == before


def test_memory_that_is_freed_may_free_more():
    class Array:
        __cuda_array_interface__ = {"shape": (3,), "typestr": "<f8", "data": (4096, False)}

        def __init__(self, more=None):
            self.more = more

        def __del__(self):
            self.more = None

    before = len(dlpack._exported)
    inner = dlpack.Export(Array(), device=0).__dlpack__(stream=-1)
    outer = dlpack.Export(Array(inner), device=0).__dlpack__(stream=-1)
    address = dlpack._capsule_pointer(outer, b"dltensor")
    del inner
    worker = threading.Thread(target=dlpack._deleter, args=(address,), daemon=True)
    worker.start()
    worker.join(10)
    assert not worker.is_alive(), "a deleter waits for itself"
    assert len(dlpack._exported) == before


class FakeTensor:
    """A tensor of PyTorch in host memory, as far as it is asked there."""

    device = SimpleNamespace(type="cpu")

    def __init__(self, array, conj=False):
        self.array, self.conj, self.dtype = array, conj, array.dtype

    def view(self, dtype):
        return FakeTensor(self.array.view(dtype))

    __torch_dispatch__ = None

    def is_conj(self):
        return self.conj

    def is_neg(self):
        return False

    def resolve_conj(self):
        return FakeTensor(self.array.conj()) if self.conj else self

    def resolve_neg(self):
        return self

    def numpy(self):
        return self.array


@pytest.fixture
def fake_torch(monkeypatch):
    counted = []
    graph = SimpleNamespace(increment_version=counted.append)
    module = SimpleNamespace(
        Tensor=FakeTensor, _C=None, from_numpy=FakeTensor, autograd=SimpleNamespace(graph=graph)
    )
    module.bfloat16, module.int16 = BFLOAT16, np.int16
    monkeypatch.setitem(sys.modules, "torch", module)
    return counted


def test_autograd_is_told_of_overwritten_tensors(fake_torch):
    a, x, y = (FakeTensor(np.ones(shape)) for shape in ((2, 2), 2, 2))
    gemv.gemv(1, a, x)
    gemv.gemv(1, a, x, 1, y)
    gemv.gemv(0, a, x, 1, y, overwrite_y=1)
    assert not fake_torch
    gemv.gemv(1, a, x, 1, y, overwrite_y=1)
    assert fake_torch == [y]


@pytest.mark.parametrize("form", ["tuple", "tensor"])
def test_autograd_is_told_of_many_tensors_at_once(fake_torch, form):
    """Where PyTorch takes a tuple; tensors that count nothing do not keep it from the others."""
    told = []

    def private(tensors):
        if form == "tensor":
            raise TypeError("it takes a single tensor")
        if "inference" in tensors:
            raise RuntimeError("made in inference mode")
        told.append(tensors)

    torch = sys.modules["torch"]
    torch._C, torch.empty = SimpleNamespace(_increment_version=private), lambda length: "empty"
    written = libraries.BY_NAME["torch"].notes_writes_to(["one", "two"])
    mixed = libraries.BY_NAME["torch"].notes_writes_to(["three", "inference"])
    told.clear()
    written()
    mixed()
    if form == "tuple":
        assert told == [("one", "two"), ("three",)]
    else:
        assert told == [] and fake_torch == ["one", "two", "three", "inference"]
    assert libraries.BY_NAME["numba"].notes_writes_to(["one"]) is None


def test_host_tensor_is_overwritten_and_given_back(fake_torch):
    a, memory = FakeTensor(np.eye(2, 3)), np.ones(2)
    for y in (FakeTensor(memory), memory):
        memory[:] = 1
        assert gemv.gemv(2, a, np.ones(3), 1, y, overwrite_y=1) is y
        assert memory.tolist() == [3, 3]


def test_host_y_that_cannot_be_overwritten_gives_a_new_tensor(fake_torch):
    """The result once went into a copy, and y came back as it was."""
    a, memory = FakeTensor(np.eye(2, 3) + 0j), np.array([1j, 2j])
    for y, expected in (
        (FakeTensor(memory, conj=True), [2 - 1j, 2 - 2j]),
        ([1j, 2j], [2 + 1j, 2 + 2j]),
    ):
        result = gemv.gemv(2, a, np.ones(3), 1, y, overwrite_y=1)
        assert isinstance(result, FakeTensor) and result is not y
        assert result.array.tolist() == expected
    assert memory.tolist() == [1j, 2j]


def test_host_tensor_of_bfloat16(fake_torch):
    a, x = (FakeTensor(cast(np.ones(shape), BFLOAT16)) for shape in ((2, 3), 3))
    y = FakeTensor(cast([1, 2], BFLOAT16))
    assert gemv.gemv(2, a, x, 1, y, overwrite_y=1) is y
    assert cast(y.array, np.dtype("d")).tolist() == [7, 8]
    result = gemv.gemv(2, a, x)
    assert isinstance(result, FakeTensor) and result.dtype == BFLOAT16
    assert cast(result.array, np.dtype("d")).tolist() == [6, 6]


def test_bfloat16_in_arrays_of_numba():
    """On a GPU their interface names no dtype for it, and the array itself does."""
    host = cast([1, 2], BFLOAT16)

    class DeviceNDArray:
        shape, strides, dtype = (2,), (2,), BFLOAT16
        __cuda_array_interface__ = {
            "shape": (2,), "strides": None, "typestr": host.dtype.str, "version": 3,
            "data": (host.ctypes.data, False), "stream": None,
        }  # fmt: skip

    assert host.dtype.str == "|V2"
    array = DeviceNDArray()
    for dtype, read in (
        (BFLOAT16, BFLOAT16),
        (SimpleNamespace(name="bfloat16"), BFLOAT16),  # ml_dtypes'
        (np.dtype("V2"), np.dtype("V2")),
    ):
        DeviceNDArray.dtype = dtype
        assert Numba().read(array).dtype == read


@pytest.mark.parametrize(("order", "strides"), [((0, 1), (3, 1)), ((1, 0), (1, 2))])
def test_jax_layout(monkeypatch, order, strides):
    class Array:
        shape, dtype = (2, 3), np.dtype("f")
        format = SimpleNamespace(layout=SimpleNamespace(major_to_minor=order))

        def devices(self):
            return [SimpleNamespace(platform="gpu", local_hardware_id=0)]

        def unsafe_buffer_pointer(self):
            return np.zeros(6, "f").ctypes.data

    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=Array, core=None))
    view = arrays_jax.Jax().read(Array())
    assert (view.strides or (12, 4)) == tuple(4 * stride for stride in strides)


def test_libraries_are_not_imported():
    code = (
        "import sys, numpy as np, gemv\n"
        "gemv.use_backend('host')\n"
        "gemv.gemv(1.0, np.eye(2), np.ones(2))\n"
        "print({'torch', 'cupy', 'jax'} & set(sys.modules))"
    )
    done = processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@needs_device_arrays
def test_kinds_of_one_place_mix_and_y_is_of_the_kind_of_a():
    numba = LIBRARIES["numba"]()
    if gemv.backend() == "simulator":
        x = Interface(np.ones(3))
    else:
        x = Wrapped(numba.array(np.ones(3)))
    result = gemv.gemv(1, numba.array(np.ones((2, 3))), x)
    assert numba.host(result).tolist() == [3, 3]


class Wrapped:
    """An array of a library that nobody knows, in device memory."""

    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__


# Every library, on a GPU -----------------------------------------------------------------------


def random(rng, shape, dtype):
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def close(got, expected):
    single = expected.dtype in (np.float32, np.complex64)
    np.testing.assert_allclose(got, expected, rtol=1e-4 if single else 1e-11, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
def test_result_is_of_the_kind_of_a(library, dtype):
    rng = np.random.default_rng(0)
    a, x, y = random(rng, (70, 50), dtype), random(rng, 50, dtype), random(rng, 70, dtype)
    arrays = [library.array(each) for each in (a, x, y)]
    for _ in range(3):  # the second call is the remembered one
        result = gemv.gemv(2, arrays[0], arrays[1])
        assert library.is_mine(result)
        close(library.host(result), 2 * a @ x)
        result = gemv.gemv(2, *arrays[:2], 3, arrays[2])
        assert library.is_mine(result) and result is not arrays[2]
        close(library.host(result), 2 * a @ x + 3 * y)
        close(library.host(gemv.gemv(1, arrays[0], arrays[2], trans="C")), a.conj().T @ y)
    np.testing.assert_array_equal(library.host(arrays[2]), y)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
def test_in_place(mutable, dtype):
    rng = np.random.default_rng(1)
    a, x, y = random(rng, (33, 65), dtype), random(rng, 65, dtype), random(rng, 33, dtype)
    device_a, device_x, device_y = (mutable.array(each) for each in (a, x, y))
    expected = y
    for k in range(4):
        alpha, beta = 1 + k / 2, 0.5 - k
        expected = (alpha * (a @ x) + beta * expected).astype(dtype)
        with gemv.trace() as calls:
            result = gemv.gemv(alpha, device_a, device_x, beta, device_y, overwrite_y=1)
        assert result is device_y and len(calls) == 1 and calls[0].backend == "cuda"
        close(mutable.host(device_y), expected)


@pytest.mark.gpu
def test_strided_views_are_not_copied(mutable):
    rng = np.random.default_rng(2)
    memory = [random(rng, (40, 60), "f"), random(rng, 90, "f"), random(rng, 90, "f")]
    device = [mutable.array(each) for each in memory]
    cut = (np.s_[2:30:2, 5:50:3], np.s_[4 : 4 + 15], np.s_[1 : 1 + 3 * 14 : 3])
    a, x, y = (each[key] for each, key in zip(memory, cut, strict=True))
    views = [each[key] for each, key in zip(device, cut, strict=True)]
    for _ in range(2):
        expected = 2 * a @ x + 3 * y
        gemv.gemv(2, views[0], views[1], 3, views[2], overwrite_y=1)
        y[...] = expected
        close(mutable.host(device[2]), memory[2])
    np.testing.assert_array_equal(mutable.host(device[0]), memory[0])


@pytest.mark.gpu
def test_remembered_calls_raise_as_first_ones_do(mutable):
    ones = [mutable.array(np.ones(shape, "f")) for shape in ((4, 3), 3, 4)]
    a, x, y = ones
    double = mutable.array(np.ones(3))

    def outcomes():
        for arguments, keywords in (
            ((1.0, a, double), {}),
            ((1j, a, x, 0.0, y), {"overwrite_y": 1}),
            (("1", a, x, 0.0, y), {"overwrite_y": 1}),
            ((1.0, a, x, 0.0, y), {"overwrite_y": 1, "incx": 1.0}),
            ((1.0, a, x, 0.0, y), {"overwrite_y": 1, "incx": 0}),
            ((1.0, a, x, 0.0, y), {"overwrite_y": None}),
            ((1.0, a, x, 0.0, x), {"overwrite_y": 1}),
            ((1.0, a, x[:2]), {}),
            ((1.0, a, np.ones(3, "f")), {}),
            ((1.0, a, x, 0.0, y), {"overwrite_y": 1, "kernel": "none such"}),
            ((1.0, a, x, 0.0, y), {"overwrite_y": 1, "stream": "none such"}),
        ):
            with pytest.raises((TypeError, ValueError)) as caught:
                gemv.gemv(*arguments, **keywords)
            yield type(caught.value), str(caught.value)

    from gemv.calls.remembered import remembered_calls
    from gemv.core import memo

    memo.forget()
    first = list(outcomes())
    for _ in range(2):
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
        gemv.gemv(1.0, a, x)
    assert remembered_calls
    assert list(outcomes()) == first


@pytest.mark.gpu
def test_overlap_is_found_in_remembered_calls(mutable):
    memory = mutable.array(np.zeros(40, "f"))
    a = mutable.array(np.eye(4, dtype="f"))
    for _ in range(2):
        gemv.gemv(1.0, a, memory[:4], 0.0, memory[8:12], overwrite_y=1)
    with pytest.raises(ValueError, match="y overlaps x"):
        gemv.gemv(1.0, a, memory[:4], 0.0, memory[3:7], overwrite_y=1)
    # Windows that interleave share nothing.
    work = mutable.array(np.arange(8, dtype="f"))
    for _ in range(2):
        gemv.gemv(1.0, a, work[::2], 0.0, work[1::2], overwrite_y=1)
    assert mutable.host(work).tolist() == [0, 0, 2, 2, 4, 4, 6, 6]


@pytest.mark.gpu
def test_too_large_a_number_becomes_infinite_each_time(mutable):
    a, x, y = (mutable.array(np.ones(shape, "f")) for shape in ((2, 2), 2, 2))
    for _ in range(3):
        gemv.gemv(1e300, a, x, 0.0, y, overwrite_y=1)
        assert mutable.host(y).tolist() == [np.inf, np.inf]
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
        assert mutable.host(y).tolist() == [2, 2]


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in LIBRARIES if name != "numba"])
def test_host_and_device_do_not_mix(name):
    library = LIBRARIES[name]()
    a = library.array(np.ones((2, 3)))
    with pytest.raises(TypeError, match=rf"a is on cuda:0 \({name}\) but x is in host memory"):
        gemv.gemv(1, a, np.ones(3))
    with pytest.raises(TypeError, match=rf"a is in host memory but x is on cuda:0 \({name}\)"):
        gemv.gemv(1, np.ones((2, 3)), library.array(np.ones(3)))


@pytest.mark.gpu
def test_libraries_mix_on_one_gpu():
    numba, cupy, torch = (LIBRARIES[name]() for name in MUTABLE)
    a, x, y = np.ones((2, 3), "f"), np.ones(3, "f"), np.ones(2, "f")
    for one, two, three in ((numba, cupy, torch), (torch, numba, cupy), (cupy, torch, numba)):
        for _ in range(2):
            made = gemv.gemv(1, one.array(a), two.array(x))
            assert one.is_mine(made) and one.host(made).tolist() == [3, 3]
            target = three.array(y)
            assert gemv.gemv(1, one.array(a), two.array(x), 1, target, overwrite_y=1) is target
            assert three.host(target).tolist() == [4, 4]


# PyTorch ---------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return LIBRARIES["torch"]().torch


def complex_case(torch):
    generator = torch.Generator("cuda").manual_seed(0)
    make = [
        torch.randn(shape, dtype=torch.complex64, device="cuda", generator=generator)
        for shape in ((5, 4), (4, 5), (4,), (5,))
    ]
    return make


@pytest.mark.gpu
def test_torch_lazy_conjugates(torch):
    a, b, x, y = complex_case(torch)
    for matrix in (a, b.mH, a.conj(), b.T, a.conj().conj()):
        for vector in (x, x.conj(), x.repeat_interleave(2)[::2].conj()):
            for _ in range(2):
                expected = 2j * (matrix @ vector)
                torch.testing.assert_close(gemv.gemv(2j, matrix, vector), expected)
                assert gemv.gemv(1, matrix, vector).is_conj() is False
            expected = 2j * (matrix.mH @ y)
            torch.testing.assert_close(gemv.gemv(2j, matrix, y, trans="C"), expected)
            for start in (y, y.conj()):
                expected = 2j * (matrix @ vector) + 1j * start
                torch.testing.assert_close(gemv.gemv(2j, matrix, vector, 1j, start), expected)
                target = start.clone(memory_format=torch.preserve_format)
                target = target.conj().resolve_conj().conj() if start.is_conj() else target
                assert target.is_conj() == start.is_conj()
                gemv.gemv(2j, matrix, vector, 1j, target, overwrite_y=1)
                torch.testing.assert_close(target, expected)


@pytest.mark.gpu
def test_torch_lazy_negatives(torch):
    a, _, x, y = complex_case(torch)
    parts = [each.conj().imag for each in (a, x, y)]
    assert all(part.is_neg() for part in parts)
    plain = [part.resolve_neg() for part in parts]
    gemv.gemv(1, *plain[:2])  # the remembered call must not be taken for these
    gemv.gemv(1, *plain[:2], 1, plain[2].clone(), overwrite_y=1)
    for choice in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)):
        m, v, w = (
            part if lazy else value for part, value, lazy in zip(parts, plain, choice, strict=True)
        )
        expected = 2 * (plain[0] @ plain[1]) + 3 * plain[2]
        torch.testing.assert_close(gemv.gemv(2, m, v, 3, w), expected)
        torch.testing.assert_close(gemv.gemv(2, m, v), 2 * (plain[0] @ plain[1]))
        if choice[2]:
            target = torch._neg_view(-plain[2])
            assert target.is_neg()
        else:
            target = w.clone()
        gemv.gemv(2, m, v, 3, target, overwrite_y=1)
        torch.testing.assert_close(target, expected)


@pytest.mark.gpu
def test_torch_gradients_are_refused_or_switched_off(torch):
    a = torch.nn.Parameter(torch.eye(3, device="cuda"))
    x = torch.ones(3, device="cuda")
    for _ in range(2):
        with pytest.raises(TypeError, match=r"a requires a gradient.*detach\(\)"):
            gemv.gemv(1.0, a, x)
        with torch.no_grad():
            assert gemv.gemv(1.0, a, x).tolist() == [1, 1, 1]
            assert gemv.gemv(1.0, a, x).tolist() == [1, 1, 1]
        with torch.inference_mode():
            assert gemv.gemv(1.0, a, x).tolist() == [1, 1, 1]
        assert gemv.gemv(1.0, a.detach(), x).tolist() == [1, 1, 1]
    with pytest.raises(TypeError, match=r"x requires a gradient"):
        gemv.gemv(1.0, a.detach(), x.clone().requires_grad_())


@pytest.mark.gpu
def test_torch_tensors_without_memory_are_refused(torch):
    x = torch.ones(3, device="cuda")
    eye = torch.eye(3, device="cuda")
    gemv.gemv(1.0, eye, x)
    with pytest.raises(TypeError, match="layout torch.sparse_coo"):
        gemv.gemv(1.0, eye.to_sparse(), x)
    with pytest.raises(TypeError, match=r"torch\.func transformation"):
        torch.func.vmap(lambda row: gemv.gemv(1.0, eye, row))(eye)
    with pytest.raises(TypeError, match=r"torch\.func transformation"):
        torch.func.grad(lambda v: gemv.gemv(1.0, eye, v).sum())(x)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3, 3, device="cuda")
    with pytest.raises(TypeError, match="a is a FakeTensor"):
        gemv.gemv(1.0, fake, x)
    with pytest.raises(TypeError, match="on device meta"):
        gemv.gemv(1.0, eye.to("meta"), x)
    with pytest.raises(TypeError, match="x has dtype int64"):
        gemv.gemv(1.0, eye, torch.ones(3, dtype=torch.int64, device="cuda"))


@pytest.mark.gpu
def test_torch_in_host_memory_gives_tensors(torch):
    a, x, y = torch.eye(3), torch.ones(3), torch.ones(3)
    result = gemv.gemv(2.0, a, x)
    assert type(result) is torch.Tensor and not result.is_cuda and result.tolist() == [2, 2, 2]
    assert gemv.gemv(2.0, a, x, 1.0, y, overwrite_y=1) is y
    assert y.tolist() == [3, 3, 3]
    with pytest.raises(TypeError, match="in host memory"):
        gemv.gemv(1.0, a.cuda(), x)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, as it loads its compiler
@pytest.mark.filterwarnings("ignore::UserWarning")  # it says which functions it cannot trace
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_keeps_the_call(torch, backend):
    a, x = torch.eye(3, device="cuda"), torch.ones(3, device="cuda")

    def step(a, x, y):
        z = gemv.gemv(2.0, a + 1, x) * 3
        assert gemv.sgemv(1.0, a, z, 2.0, y, trans="T", overwrite_y=1) is y
        return z + y

    y, expected = torch.ones(3, device="cuda"), torch.ones(3, device="cuda")
    result = step(a, x, expected)
    torch._dynamo.reset()
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    for _ in range(2):
        y.fill_(1)
        with gemv.trace() as calls:
            assert torch.equal(compiled(a, x, y), result)
        assert torch.equal(y, expected)
        assert len(calls) == 2
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"stream": "0"}, "keeps a stream of PyTorch's, or a stream's handle as an int, got str"),
        ({"coefficients": "arguments"}, "coefficients cannot be kept in a graph"),
    ],
)
def test_what_torch_compile_cannot_keep(torch, changes, match):
    a, x = torch.eye(3, device="cuda"), torch.ones(3, device="cuda")
    gemv.gemv(2.0, a, x)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda a, x: gemv.gemv(2.0, a, x, **changes), backend="eager", fullgraph=True
    )
    with pytest.raises(Exception, match=match):
        compiled(a, x)
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.parametrize("planned", [False, True], ids=["call", "plan"])
def test_autograd_sees_that_y_was_overwritten(torch, planned):
    a, x = torch.eye(3, device="cuda"), torch.ones(3, device="cuda")
    weight = torch.ones(3, device="cuda", requires_grad=True)
    y = torch.ones(3, device="cuda")
    plan = gemv.plan(a, x, y)
    for _ in range(3):
        saved = (weight * y).sum()
        if planned:
            plan(1.0, 0.0)
        else:
            gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.backward()
    with torch.inference_mode():
        inner = torch.ones(3, device="cuda")
    for _ in range(3):
        gemv.gemv(2.0, a, x, 0.0, inner, overwrite_y=1)
    assert inner.tolist() == [2, 2, 2]


@pytest.mark.gpu
def test_lazy_negatives_after_many_calls(torch):
    """The short way must not take a negative for what lies in its memory."""
    a, x, y = (torch.ones(shape, device="cuda") for shape in ((3, 3), 3, 3))
    for _ in range(3):
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
        gemv.gemv(1.0, a, x)
    for _ in range(3):
        negative = torch._neg_view(x)
        assert gemv.gemv(1.0, a, negative, 0.0, y, overwrite_y=1).tolist() == [-3, -3, -3]
        assert gemv.gemv(1.0, a, negative).tolist() == [-3, -3, -3]
        assert gemv.gemv(1.0, a, x).tolist() == [3, 3, 3]
        other = torch._neg_view(torch.ones(3, device="cuda"))
        gemv.gemv(1.0, a, x, 0.0, other, overwrite_y=1)
        assert other.tolist() == [3, 3, 3]


@needs_device_arrays
def test_peer_changes_nothing_on_one_gpu():
    library = LIBRARIES["numba"]()
    a, x, y = (library.array(np.ones(shape, "f")) for shape in ((2, 3), 3, 2))
    for peer in (True, 1, False):
        assert gemv.gemv(2, a, x, 1, y, overwrite_y=1, peer=peer) is y
    assert library.host(y).tolist() == [19, 19]
    for wrong in ("yes", None, 1.0):
        with pytest.raises(TypeError, match=r"peer.*keyword peer"):
            gemv.gemv(2, a, x, 1, y, overwrite_y=1, peer=wrong)
    with pytest.raises(TypeError, match="a is in host memory but x is on"):
        gemv.gemv(2, np.ones((2, 3), "f"), x, peer=True)
    assert library.host(y).tolist() == [19, 19]


class TwoGpus:
    """An engine for streams, of which the second GPU's are waited for under that GPU."""

    name = "stand-in"

    def __init__(self):
        self.waits = []

    def default_stream(self):
        return 0

    def capture_of(self, stream):
        return None

    def on(self, device):
        return contextlib.nullcontext()

    def wait(self, waiting, other, waiting_device=None, other_device=None):
        self.waits.append(((waiting_device, waiting), (other_device, other)))


@pytest.mark.parametrize("kind", ["numba", "torch"])
def test_streams_of_two_gpus_are_joined_by_gpu(kind, monkeypatch):
    """Default streams of two GPUs have one handle and are two streams."""
    from gemv.calls.order import Order
    from gemv.core.operand import Operand

    exporter = libraries.BY_NAME[kind]
    monkeypatch.setattr(type(exporter), "current_stream", lambda self, device: None)
    if kind == "torch":
        monkeypatch.setattr(type(exporter), "current_stream", lambda self, device: 0)
    plain = {"dtype": np.dtype("f"), "pointer": 0, "readonly": False, "owner": None}
    plain["exporter"] = exporter
    a = Operand(kind, shape=(2, 2), strides=(2, 1), device=0, **plain)
    here = Operand(kind, shape=(2,), strides=(1,), device=0, **plain)
    there = Operand(kind, shape=(2,), strides=(1,), device=1, **plain)
    for x, y, peers in ((here, here, set()), (there, here, {1}), (here, there, {1})):
        engine = TwoGpus()
        call = SimpleNamespace(routine="gemv", a=a, x=x, y=y, alpha=1, beta=0, device=0)
        order = Order(call, engine, None)
        assert order.peers() == peers
        order.before()
        order.after()
        assert engine.waits == ([((0, 0), (1, 0)), ((1, 0), (0, 0))] if peers else [])
        assert order.plain == (not peers)


# JAX -------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_jax_arrays_stay_as_they_are():
    jax = LIBRARIES["jax"]()
    a, x, y = jax.array(np.eye(3)), jax.array(np.ones(3)), jax.array(np.ones(3))
    for overwrite in (0, 1):
        result = gemv.gemv(2, a, x, 3, y, overwrite_y=overwrite)
        assert result is not y and jax.is_mine(result)
        assert jax.host(result).tolist() == [5, 5, 5]
        assert jax.host(y).tolist() == [1, 1, 1]
    (device,) = result.devices()
    assert device.platform in ("gpu", "cuda")


@pytest.mark.gpu
def test_jax_results_are_waited_for_by_jax():
    jax = LIBRARIES["jax"]()
    numpy = jax.jax.numpy
    for k in range(20):
        a = numpy.full((2048, 2048), 1.0 + k, dtype="float32") * 1.0
        result = gemv.gemv(1.0, a, numpy.ones(2048, dtype="float32")) + 1.0
        assert jax.host(result).tolist() == [2048.0 * (1 + k) + 1] * 2048


@pytest.mark.gpu
def test_jax_traces_calls():
    jax = LIBRARIES["jax"]()
    a, x = jax.array(np.arange(6.0).reshape(2, 3)), jax.array(np.ones(3))
    with gemv.trace() as calls:
        result = jax.jax.jit(lambda a: gemv.gemv(2.0, a, x) + 1)(a)
        assert jax.host(result).tolist() == [7, 25]
    assert [call.backend for call in calls] == ["cuda"]
    with pytest.raises(TypeError, match="a is traced by JAX .*: call gemv.gemv or gemv.jax.matvec"):
        jax.jax.jit(lambda a: gemv.explain(1.0, a, x))(a)


# Unknown libraries -----------------------------------------------------------------------------


@pytest.mark.gpu
def test_unknown_exporters_on_the_device():
    numba = LIBRARIES["numba"]()
    a, x, y = (numba.array(np.ones(shape)) for shape in ((2, 3), 3, 2))
    result = gemv.gemv(1, Wrapped(a), Wrapped(x), 1, Wrapped(y))
    assert numba.host(result).tolist() == [4, 4]
    torch = LIBRARIES["torch"]()

    class OnlyDLPack:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

    tensors = [OnlyDLPack(torch.array(np.ones(shape))) for shape in ((2, 3), 3)]
    assert numba.host(gemv.gemv(1, *tensors)).tolist() == [3, 3]
    assert libraries.device_library(tensors[0]).name == "dlpack"
