"""Streams and lifetimes: races that a wrong stream loses, memory that must outlive its names."""

from __future__ import annotations

import os
import sys
import threading
from functools import partial

import numpy as np
import pytest
from helpers import processes
from helpers.arrays import LIBRARIES

import gemv

pytestmark = pytest.mark.gpu

#: Clock cycles of a kernel that does nothing: some 200 ms, against microseconds of the host.
LONG = 400_000_000


@pytest.fixture
def torch():
    return LIBRARIES["torch"]().torch


@pytest.fixture
def cupy():
    return LIBRARIES["cupy"]().cupy


def operands(torch, size=64):
    """A, x and y. Every kernel that a test will need has run once: compiling one takes the host
    longer than the GPU sleeps, and whether the host waits for the GPU could not be told."""
    a = torch.eye(size, device="cuda")
    x, y = torch.zeros(size, device="cuda"), torch.zeros(size, device="cuda")
    x.fill_(0)
    gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
    gemv.gemv(1.0, a, x)
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    return a, x, y


def test_current_stream_of_torch(torch):
    """x is filled late on a side stream: the call must come after it, and before what follows."""
    a, x, y = operands(torch)
    side = torch.cuda.Stream()
    gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
    for overwrite in (1, 0, 1):
        x.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            x.fill_(3)
            if overwrite:
                result = gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
            else:
                result = gemv.gemv(1.0, a, x)
            x.fill_(7)
            assert not side.query(), "the host has waited"
        side.synchronize()
        assert result.unique().tolist() == [3]


def test_current_stream_of_cupy(torch, cupy):
    a = cupy.eye(64, dtype="f")
    x, y = cupy.zeros(64, "f"), cupy.zeros(64, "f")
    stream = cupy.cuda.Stream(non_blocking=True)
    gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
    gemv.gemv(1.0, a, x)
    x.fill(3)  # compiled now, and not while the GPU sleeps
    for _ in range(2):
        x.fill(0)
        cupy.cuda.Device().synchronize()
        with stream:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
                torch.cuda._sleep(LONG)
            x.fill(3)
            result = gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
            made = gemv.gemv(1.0, a, x)
            x.fill(7)
            assert not stream.done, "the host has waited"
        stream.synchronize()
        assert set(result.get()) == set(made.get()) == {3}


@pytest.mark.parametrize("form", ["torch", "int", "cupy", "numba"])
def test_named_stream_waits_for_the_producer(torch, cupy, form):
    from numba import cuda

    a, x, y = operands(torch)
    side = torch.cuda.Stream()
    stream = {
        "torch": lambda: side,
        "int": lambda: side.cuda_stream,
        "cupy": lambda: cupy.cuda.Stream.from_external(side),
        "numba": lambda: cuda.external_stream(side.cuda_stream),
    }[form]()
    for k in range(3):
        torch.cuda._sleep(LONG)
        x.fill_(k + 1)
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, stream=stream)
        assert not side.query(), "the host has waited"
        side.synchronize()
        assert y.unique().tolist() == [k + 1]


def test_streams_of_two_libraries_are_joined(torch, cupy):
    """x comes late from CuPy's stream, y is read at once on torch's: neither names a stream."""
    a, _, y = operands(torch)
    x = cupy.zeros(64, "f")
    stream = cupy.cuda.Stream(non_blocking=True)
    for k in range(2):
        with stream:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
                torch.cuda._sleep(LONG)
            x.fill(k + 1)
            gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
            x.fill(9)  # must come after the call, which runs on another stream
        torch.cuda.current_stream().synchronize()
        assert y.unique().tolist() == [k + 1]
        stream.synchronize()


def test_stream_in_the_interface_is_honoured(torch):
    class Bound:
        def __init__(self, tensor, stream):
            interface = dict(tensor.__cuda_array_interface__)
            self.__cuda_array_interface__ = interface | {"stream": stream, "version": 3}

    a, x, y = operands(torch)
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(two):
        torch.cuda._sleep(LONG)
        x.fill_(5)
    bound = [Bound(t, s.cuda_stream) for t, s in ((a, one), (x, two), (y, one))]
    gemv.gemv(1.0, bound[0], bound[1], 0.0, bound[2], overwrite_y=1)
    assert not one.query(), "the host has waited"
    one.synchronize()
    assert y.unique().tolist() == [5]


def test_bound_stream_of_numba():
    from numba import cuda

    stream = cuda.stream()
    a, x, y = (cuda.to_device(np.ones(shape, "f")) for shape in ((3, 3), 3, 3))
    for _ in range(2):
        gemv.gemv(1.0, a.bind(stream), x.bind(stream), 1.0, y, overwrite_y=1)
    stream.synchronize()
    assert y.copy_to_host().tolist() == [7, 7, 7]


def test_memory_outlives_its_names_on_a_named_stream(torch):
    """Allocate, call on a second stream, delete, refill: the call must read the old values."""
    side = torch.cuda.Stream()
    size = 4096
    y = torch.zeros(size, device="cuda")
    gemv.gemv(1.0, torch.eye(size, device="cuda"), torch.zeros_like(y), 0.0, y, overwrite_y=1)
    for _ in range(3):
        a = torch.eye(size, device="cuda")
        x = torch.full((size,), 2.0, device="cuda")
        places = a.data_ptr(), x.data_ptr()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, stream=side)
        del a, x
        refill = [torch.full((size, size), 9.0, device="cuda") for _ in range(2)]
        refill += [torch.full((size,), 9.0, device="cuda") for _ in range(4)]
        assert not side.query(), "the host has waited"
        assert not {each.data_ptr() for each in refill} & set(places)
        side.synchronize()
        assert y.unique().tolist() == [2]


def new_stream():
    """The handle of a new stream, which the driver may have given to one that was destroyed."""
    from cuda.bindings import driver

    from gemv.driver.libcuda import check

    return int(check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))


def destroy(stream):
    from cuda.bindings import driver

    from gemv.driver.libcuda import check

    check(driver.cuStreamDestroy(stream))


def test_memory_outlives_a_named_stream(torch):
    """PyTorch asks for the stream as it takes the memory back, when that is destroyed."""
    size = 4096
    y = torch.zeros(size, device="cuda")
    gemv.gemv(1.0, torch.eye(size, device="cuda"), torch.zeros_like(y), 0.0, y, overwrite_y=1)
    for _ in range(3):
        a = torch.eye(size, device="cuda")
        x = torch.full((size,), 2.0, device="cuda")
        places = a.data_ptr(), x.data_ptr()
        torch.cuda.synchronize()
        stream, done = new_stream(), torch.cuda.Event()
        external = torch.cuda.ExternalStream(stream)
        with torch.cuda.stream(external):
            torch.cuda._sleep(LONG)
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, stream=stream)
        done.record(external)
        destroy(stream)
        other = new_stream()  # it may have the handle, and has nothing to do
        del a, x
        refill = [torch.full((size, size), 9.0, device="cuda") for _ in range(2)]
        refill += [torch.full((size,), 9.0, device="cuda") for _ in range(4)]
        assert not done.query(), "the host has waited"
        assert not {each.data_ptr() for each in refill} & set(places)
        done.synchronize()
        assert y.unique().tolist() == [2]
        destroy(other)


def test_memory_outlives_its_names_with_cupy(torch, cupy):
    engine = gemv.engines.backend.engine()
    side = cupy.cuda.Stream(non_blocking=True)
    size = 4096
    y = cupy.zeros(size, "f")
    gemv.gemv(1.0, cupy.eye(size, dtype="f"), y, 0.0, cupy.zeros(size, "f"), overwrite_y=1)
    for _ in range(3):
        a, x = cupy.eye(size, dtype="f"), cupy.full(size, 2, "f")
        cupy.cuda.Device().synchronize()
        with torch.cuda.stream(torch.cuda.ExternalStream(side.ptr)):
            torch.cuda._sleep(LONG)
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, stream=side)
        assert len(engine.held) > 0
        del a, x
        refill = [cupy.full((size, size), 9, "f"), cupy.full(size, 9, "f"), cupy.full(size, 9, "f")]
        assert not side.done, "the host has waited"
        side.synchronize()
        assert set(y.get()) == {2}
        del refill
    engine.held.sweep()
    assert len(engine.held) == 0


def test_memory_outlives_its_names_with_numba(torch):
    """Vectors of the pool go back in the order of a stream that this one does not wait for."""
    from numba import cuda

    engine = gemv.engines.backend.engine()
    side = torch.cuda.Stream()
    size = 4096
    a, ones = cuda.to_device(np.eye(size, dtype="f")), cuda.to_device(np.ones(size, "f"))
    y = cuda.to_device(np.zeros(size, "f"))
    for _ in range(3):
        x = gemv.gemv(2.0, a, ones)  # made by a call: from the pool
        cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, stream=side)
        assert len(engine.held) > 0
        del x
        refill = [gemv.gemv(9.0, a, ones) for _ in range(4)]
        assert not side.query(), "the host has waited"
        side.synchronize()
        assert set(y.copy_to_host()) == {2}
        del refill
    engine.held.sweep()
    assert len(engine.held) == 0


@pytest.mark.parametrize("name", ["torch", "cupy"])
@pytest.mark.parametrize("how", ["list", "vector", "plan"])
def test_tables_of_a_batch_outlive_it_on_another_stream(torch, cupy, name, how):
    """Their library takes them back in the order of the stream that the first call was on.

    Zeros in their place are sizes and factors of 0, by which nothing is computed.
    """
    if name == "torch":
        full = partial(torch.full, device="cuda", dtype=torch.float32)
        zeros = partial(torch.zeros, device="cuda", dtype=torch.int64)
    else:
        full, zeros = partial(cupy.full, dtype="f"), partial(cupy.zeros, dtype=np.int64)
    side = torch.cuda.Stream()
    of_cupy = cupy.cuda.Stream.from_external(side)
    rows = [33, 300, 65]
    a = [full((m, 64), k + 1.0) for k, m in enumerate(rows)]
    x, whole = [full((64,), 1.0) for _ in rows], full((64 * len(rows),), 1.0)
    zeros(1)
    for _ in range(3):
        batch, y = gemv.Batch(a), [full((m,), 0.0) for m in rows]
        call = {
            "list": partial(batch.gemv, 1, x, 0, y, overwrite_y=1),
            "vector": partial(batch.__matmul__, whole),
            "plan": batch.plan(x, y),
        }[how]
        call()  # which makes the tables
        call()
        torch.cuda.synchronize()
        with torch.cuda.stream(side), of_cupy:
            torch.cuda._sleep(LONG)
            result = call()
        del call, batch
        refill = [zeros((n,)) for n in (16, 64, 128, 256, 1024) for _ in range(20)]
        assert not side.query(), "the host has waited"
        side.synchronize()
        if how == "vector":
            result = [result[:33], result[33:333], result[333:]]
        for k, part in enumerate(result):
            assert set(part.tolist()) == {64.0 * (k + 1)}
        del refill


def test_a_vector_that_another_thread_drops_with_default_streams_for_each(torch):
    """It is freed behind the work of the thread that uses it, not of the one that drops it."""
    code = """
import threading
import numpy as np, torch
from numba import cuda
import gemv
size = 4096
a, ones = cuda.to_device(np.eye(size, dtype="f")), cuda.to_device(np.ones(size, "f"))
gemv.gemv(2.0, a, ones).copy_to_host()
with torch.cuda.stream(torch.cuda.ExternalStream(2)):
    torch.cuda._sleep(1)
torch.cuda.synchronize()
for _ in range(5):
    made, used, end = [], threading.Event(), threading.Event()
    def use():
        with torch.cuda.stream(torch.cuda.ExternalStream(2)):
            torch.cuda._sleep(400_000_000)
        made.append(gemv.gemv(2.0, a, ones))
        used.set()
        end.wait()  # with the thread its stream would end
    thread = threading.Thread(target=use)
    thread.start()
    used.wait()
    made.clear()
    later = [gemv.gemv(9.0, a, ones) for _ in range(8)]
    torch.cuda.synchronize()
    end.set()
    thread.join()
    for each in later:
        assert set(each.copy_to_host()) == {9}
"""
    environment = {**os.environ, "NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM": "1"}
    done = processes.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_stream_of_another_kind_is_refused(torch):
    a, x, y = operands(torch)
    for _ in range(2):
        with pytest.raises(TypeError, match="stream must be an int or a stream object, not str"):
            gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, stream="main")
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)


@pytest.mark.parametrize("kernel", [None, "last_block", "coalesced"])
def test_many_threads_on_many_streams(torch, kernel):
    """Other factors and another y in each of them; kernels that share scratch memory as well."""
    size, count, calls = 300, 8, 100
    a = torch.rand(size, 4000, device="cuda")
    x = torch.rand(4000, device="cuda")
    exact = (a.double() @ x.double()).float()
    gemv.gemv(1.0, a, x, kernel=kernel)
    errors = []
    torch.cuda.synchronize()

    def work(number):
        try:
            # Half of them share a stream.
            own = torch.cuda.Stream() if number % 2 else torch.cuda.default_stream()
            with torch.cuda.stream(own):
                y = torch.zeros(size, device="cuda")
                for k in range(calls):
                    alpha = 1.0 + number + k / 128
                    gemv.gemv(alpha, a, x, 0.0, y, overwrite_y=1, kernel=kernel)
                    if k % 10 == 0:
                        torch.testing.assert_close(y, alpha * exact, rtol=1e-4, atol=1e-2)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


@pytest.mark.parametrize("rows, cols", [(3, 3), (3, 100_000)], ids=["plain", "scratch"])
@pytest.mark.parametrize("stream", [None, 0], ids=["default", "stream 0"])
def test_first_call_of_a_fresh_thread(rows, cols, stream):
    """A thread has no current device until somebody sets one; here the call is remembered.

    The second shape sums in scratch memory, for which a call asks whether its stream captures.
    """
    numba = LIBRARIES["numba"]()
    a, x, y = (numba.array(np.ones(shape, "f")) for shape in ((rows, cols), cols, rows))
    for _ in range(3):
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, stream=stream)
    results = []

    def work():
        for _ in range(3):
            done = gemv.gemv(2.0, a, x, 0.0, y, overwrite_y=1, stream=stream)
            results.append(done is y)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [True] * 3
    assert numba.host(y).tolist() == [2 * cols] * rows


def test_coefficients_are_set_in_a_fresh_thread(torch):
    """Where no GPU is current, `set` makes that of the graph current."""
    a, x, y = (torch.ones(shape, device="cuda") for shape in ((3, 3), 3, 3))
    place = gemv.Coefficients()
    gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, coefficients=place)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, coefficients=place)
    errors = []

    def work():
        try:
            place.set(7.0)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors, errors[0]
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [21] * 3


def test_memory_is_steady(torch):
    a, x, y = operands(torch)
    import tracemalloc

    def calls(count):
        for k in range(count):
            gemv.gemv(1.0 + k % 7, a, x, 0.0, y, overwrite_y=1)
            gemv.gemv(1.0, a, x)

    calls(2000)
    for thread in threading.enumerate():  # the comparison of tensors is compiled beside the calls
        if "compile_exchange" in thread.name:
            thread.join()
    torch.cuda.synchronize()
    device = torch.cuda.memory_allocated()
    tracemalloc.start()
    calls(20)
    before = tracemalloc.get_traced_memory()[0]
    calls(20_000)
    torch.cuda.synchronize()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000, f"{grown} bytes more after 40000 calls"
    assert torch.cuda.memory_allocated() == device


def test_known_calls_are_bounded(torch, monkeypatch):
    from gemv.calls import remembered

    monkeypatch.setattr(remembered, "MAX_REMEMBERED", 5)
    a, x, y = operands(torch, 40)
    for m in range(1, 20):
        gemv.gemv(1.0, a[:m], x, 0.0, y[:m], overwrite_y=1)
    assert len(remembered.remembered_calls) <= 5


# Several GPUs ----------------------------------------------------------------------------------


@pytest.fixture
def two_gpus(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


@pytest.mark.parametrize("name", ["numba", "cupy", "torch"])
def test_calls_run_where_the_arrays_are(two_gpus, name):
    from numba import cuda

    library = LIBRARIES[name]()

    def on(device):
        if name == "cupy":
            return library.cupy.cuda.Device(device)
        return library.torch.cuda.device(device) if name == "torch" else cuda.gpus[device]

    made = {}
    for device in (0, 1):
        with on(device):
            made[device] = [library.array(np.ones(shape, "f")) for shape in ((2, 3), 3, 2)]
    for _ in range(3):
        for current in (0, 1):
            for device in (1, 0):
                a, x, y = made[device]
                with on(current):
                    result = gemv.gemv(2.0, a, x)
                    gemv.gemv(2.0, a, x, 0.0, y, overwrite_y=1)
                    plan = gemv.plan(a, x, y)
                    plan(3.0, 1.0)
                    assert cuda.get_current_device().id == current
                with on(device):
                    assert library.host(result).tolist() == [6, 6]
                    assert library.host(y).tolist() == [15, 15]
    with pytest.raises(
        TypeError, match=rf"a is on cuda:0 \({name}\) but x is on cuda:1 \({name}\)"
    ):
        gemv.gemv(1.0, made[0][0], made[1][1])
    with pytest.raises(
        TypeError, match=rf"a is on cuda:1 \({name}\) but y is on cuda:0 \({name}\)"
    ):
        gemv.gemv(1.0, made[1][0], made[1][1], 0.0, made[0][2], overwrite_y=1)


@pytest.mark.parametrize("name", ["numba", "cupy", "torch"])
def test_vectors_on_a_peer(two_gpus, torch, name):
    """x comes late on its own GPU's stream, and is overwritten there right after the call."""
    from numba import cuda

    library = LIBRARIES[name]()

    def on(device):
        if name == "cupy":
            return library.cupy.cuda.Device(device)
        return library.torch.cuda.device(device) if name == "torch" else cuda.gpus[device]

    def everything(device):
        with cuda.gpus[device]:
            cuda.synchronize()

    size = 64
    with on(0):
        a, near = library.array(np.eye(size, dtype="f")), library.array(np.zeros(size, "f"))
    with on(1):
        x, y = library.array(np.zeros(size, "f")), library.array(np.zeros(size, "f"))
        values = [library.array(np.full(size, k, "f")) for k in range(3)]
    with pytest.raises(TypeError, match="peer=True"):
        gemv.gemv(1.0, a, x)
    for k, current in ((1, 0), (2, 1)):
        everything(0)
        everything(1)
        with torch.cuda.device(1):
            stream = torch.cuda.default_stream()
            if name == "cupy":
                with on(1):
                    stream = torch.cuda.ExternalStream(
                        library.cupy.cuda.get_current_stream(1).ptr, device=1
                    )
            with torch.cuda.stream(stream):
                torch.cuda._sleep(LONG // 4)
        with on(1):
            put(library, name, x, values[k])
        with on(current):
            gemv.gemv(2.0, a, x, 0.0, y, overwrite_y=1, peer=True)
            made = gemv.gemv(3.0, a, x, peer=True)
            gemv.gemv(4.0, a, x, 0.0, near, overwrite_y=1, peer=True)
            assert cuda.get_current_device().id == current
        with on(1):
            put(library, name, x, values[0])
        everything(0)
        everything(1)
        with on(1):
            assert set(library.host(y).tolist()) == {2.0 * k}
        with on(0):
            assert set(library.host(made).tolist()) == {3.0 * k}
            assert set(library.host(near).tolist()) == {4.0 * k}


def put(library, name, target, source):
    """An asynchronous copy on the library's current stream."""
    if name == "torch":
        target.copy_(source)
    elif name == "cupy":
        target[...] = source
    else:
        target.copy_to_device(source)


def test_coefficients_on_two_gpus(two_gpus, torch):
    place = gemv.Coefficients()
    arrays = [
        [torch.ones(shape, device=f"cuda:{device}") for shape in ((3, 3), 3, 3)]
        for device in (0, 1)
    ]
    graphs = []
    for device, (a, x, y) in enumerate(arrays):
        with torch.cuda.device(device):
            gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, coefficients=place)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Without a stream, PyTorch captures on one of the GPU that it captured on first.
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(device)):
                gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, coefficients=place)
            graphs.append(graph)
    for current, alpha in ((0, 5.0), (1, 7.0)):
        with torch.cuda.device(current):
            place.set(alpha)
        for device, graph in enumerate(graphs):
            with torch.cuda.device(device):
                torch.cuda.synchronize()
                graph.replay()
                torch.cuda.synchronize()
            assert arrays[device][2].tolist() == [3 * alpha] * 3


def test_vectors_of_numba_go_back_to_the_pool(torch):
    """Results that are dropped at once, and views that outlive them."""
    from cuda.bindings import driver
    from numba import cuda

    from gemv.driver import libcuda
    from gemv.engines import backend

    def used():
        """Bytes of this process's pool alone: others may use the GPU at the same time."""
        pool = driver.CUmemoryPool(backend.engine().pool().handle)
        what = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
        return int(libcuda.check(driver.cuMemPoolGetAttribute(pool, what)))

    a, x = cuda.to_device(np.eye(64, dtype="f")), cuda.to_device(np.ones(64, "f"))
    gemv.gemv(1.0, a, x)
    kept = gemv.gemv(5.0, a, x)[16:32]
    cuda.synchronize()
    before = used()
    assert before > 0
    for k in range(5000):
        last = gemv.gemv(1.0 + k % 3, a, gemv.gemv(2.0, a, x))
    assert set(last.copy_to_host()) == {2.0 * (1 + 4999 % 3)}
    assert set(kept.copy_to_host()) == {5}
    cuda.synchronize()
    assert used() <= before + (1 << 16)


def test_host_callbacks_behind_many_calls(torch):
    """A queue that is full because a callback waits for the interpreter must not block it."""
    cupy = LIBRARIES["cupy"]().cupy
    a, x, y = operands(torch)
    stream = cupy.cuda.Stream(non_blocking=True)
    done = []
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        for number in range(3):
            stream.launch_host_func(lambda number: done.append(sum(range(10000))), number)
            for _ in range(3000):
                gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
    stream.synchronize()
    assert len(done) == 3
