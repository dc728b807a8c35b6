"""Copies to the GPU, on a stand-in for the driver whose device memory is host memory."""

from __future__ import annotations

import ctypes
import importlib
import itertools
import sys
import threading
from collections import defaultdict
from concurrent.futures import Future
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import gemv.driver
from gemv.core.dtypes import BFLOAT16
from gemv.engines import backend
from gemv.streaming import cut

if gemv.backend() == "cuda":
    pytest.skip("with a GPU the real driver is tested", allow_module_level=True)

POISON = 0xA5


class Driver:
    """Just enough of the driver: copies happen at once, in the order of the calls."""

    def __init__(self):
        self.pinned: list[tuple[int, int]] = []
        self.copies: list[int] = []
        #: Address, bytes, value and stream.
        self.fills: list[tuple[int, int, int, int]] = []
        self.waits = 0
        self.fail = False
        self.lock = threading.Lock()
        #: What surely comes before the next work on a stream, and what came before an event.
        self.before: dict[int, set] = defaultdict(set)
        self.events: dict[int, set] = {}
        handles = itertools.count(100)
        for name in ("cuStreamSynchronize", "cuCtxSetCurrent"):
            setattr(self, name, lambda *_: (0,))
        for name in ("cuStreamCreate", "cuCtxGetCurrent"):
            setattr(self, name, lambda *_: (0, 7))
        self.cuEventCreate = lambda *_: (0, next(handles))
        flag = SimpleNamespace(value=0)
        self.CUevent_flags = SimpleNamespace(
            CU_EVENT_DISABLE_TIMING=flag, CU_EVENT_BLOCKING_SYNC=flag
        )
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=flag)
        self.CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_HOST=1, CU_MEMORYTYPE_DEVICE=2)
        self.CUDA_MEMCPY2D = SimpleNamespace

    def cuEventRecord(self, event, stream):
        self.events[event] = set(self.before[stream])
        return (0,)

    def cuStreamWaitEvent(self, stream, event, flags):
        self.before[stream] |= self.events[event]
        return (0,)

    def cuEventSynchronize(self, event):
        self.waits += 1
        return (0,)

    def cuMemcpyHtoDAsync(self, target, source, nbytes, stream):
        return (self.quick(target, source, nbytes, stream),)

    def cuMemcpyDtoHAsync(self, target, source, nbytes, stream):
        ctypes.memmove(target, source, nbytes)
        return (0,)

    def cuMemcpy2DAsync(self, strip, stream):
        for line in range(strip.Height):
            source, target = (
                strip.srcHost + line * strip.srcPitch,
                strip.dstDevice + line * strip.dstPitch,
            )
            ctypes.memmove(target, source, strip.WidthInBytes)
        self.copies.append(strip.WidthInBytes * strip.Height)
        return (0,)

    def quick(self, target, source, nbytes, stream):
        if self.fail:
            return 2
        ctypes.memmove(target, source, nbytes)
        with self.lock:
            self.copies.append(nbytes)
            self.before[stream].add(("copy", target))
        return 0

    def cuMemsetD8Async(self, pointer, value, nbytes, stream):
        self.fills.append((pointer, nbytes, value, stream))
        ctypes.memset(pointer, value, nbytes)
        return (0,)

    def is_pinned(self, address):
        return any(low <= address < high for low, high in self.pinned)


class Array:
    """Device memory of the stand-in, poisoned."""

    def __init__(self, size, dtype):
        self.memory = np.empty(size, dtype)
        self.memory.view(np.uint8)[:] = POISON
        self.size, self.nbytes, self.dtype = size, self.memory.nbytes, self.memory.dtype
        self.__cuda_array_interface__ = {"data": (self.memory.ctypes.data, False)}


#: What is imported anew for each test, since there is no driver to import it with.
MODULES = ("libcuda", "capture", "devices", "memory", "stages", "link")


@pytest.fixture
def staging(monkeypatch):
    driver = Driver()
    for name in MODULES:  # restored afterwards, so that no other test imports the stand-in
        monkeypatch.setitem(sys.modules, f"gemv.driver.{name}", None)
        del sys.modules[f"gemv.driver.{name}"]
        monkeypatch.setattr(gemv.driver, name, None, raising=False)

    def check(answer):
        if answer[0]:
            raise failed(answer[0])
        return answer[1] if len(answer) > 1 else None

    def failed(status):
        return RuntimeError(f"status {status}")

    library = ModuleType("gemv.driver.libcuda")
    library.libcuda = SimpleNamespace(_name=None)
    library.check, library.failed, library.OutOfMemory = check, failed, MemoryError
    devices = ModuleType("gemv.driver.devices")
    devices.is_pinned = driver.is_pinned
    capture = ModuleType("gemv.driver.capture")
    capture.outside_of_captures = nullcontext
    for module in (library, devices, capture):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(gemv.driver, module.__name__.rpartition(".")[2], module)
    quick = SimpleNamespace(
        cuMemcpyHtoDAsync_v2=lambda *arguments: driver.quick(*arguments),
        cuEventRecord=lambda *_: 0,
        cuEventQuery=lambda event: 600,
    )
    monkeypatch.setattr(ctypes, "PyDLL", lambda name: quick)
    memory, stages, link = (
        importlib.import_module(f"gemv.driver.{name}") for name in ("memory", "stages", "link")
    )
    for module in (memory, stages, link):
        monkeypatch.setattr(module, "driver", driver)
    for module in (memory, link):
        monkeypatch.setattr(module, "DeviceBytes", Array)
    for module in (stages, link):
        monkeypatch.setattr(module, "pinned_array", lambda size, dtype: np.zeros(size, dtype))
        monkeypatch.setattr(module, "LEAST_BYTES", 512, raising=False)
        monkeypatch.setattr(module, "LEAST_GATHERED_BYTES", 256, raising=False)
        monkeypatch.setattr(module, "STRIP_BYTES", 64, raising=False)
    monkeypatch.setattr(stages, "PIECE_BYTES", 4096)
    monkeypatch.setattr(link, "SMALL_BYTES", 256)
    return SimpleNamespace(
        module=link, stages=stages, memory=memory, driver=driver, link=link.Link()
    )


def wait(futures):
    for future in futures:
        future.result()


def pin(driver, array):
    low, high = np.lib.array_utils.byte_bounds(array)
    driver.pinned.append((low, high))
    return array


MATRICES = {
    "contiguous": lambda a: a,
    "padded": lambda a: np.pad(a, ((0, 0), (0, 5)))[:, : a.shape[1]],
    "backwards": lambda a: a[::-1],
    "every second": lambda a: np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2],
    "swapped": lambda a: a.astype(">f8"),
    "integers": lambda a: np.round(a * 100).astype(np.int32),
    "repeated": lambda a: np.broadcast_to(a[:1], a.shape),
    "unaligned": lambda a: (
        np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape)
    ),
}


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("pitch", [0, 3])
@pytest.mark.parametrize("shape", [(60, 40), (3, 5000), (1, 9000), (700, 3), (1, 1)])
@pytest.mark.parametrize("kind", MATRICES)
def test_lines_arrive_whole(staging, kind, shape, pitch, pinned):
    rng = np.random.default_rng(0)
    block = MATRICES[kind](rng.standard_normal(shape))
    if pinned:
        pin(staging.driver, block)
    lines, length = block.shape
    pitch += length
    target = Array(lines * pitch, np.float64)
    address = target.memory.ctypes.data
    wait(staging.link.copy(block, np.dtype(np.float64), address, pitch))
    got = target.memory.reshape(lines, pitch)[:, :length]
    assert np.array_equal(got, np.asarray(block, np.float64))
    assert max(staging.driver.copies) <= 4096 or pinned


def test_pinned_memory_is_read_by_the_copy_engine(staging, monkeypatch):
    for name in ("link", "stages"):  # however many processors there are
        monkeypatch.setattr(sys.modules[f"gemv.driver.{name}"], "THREADS", 1)
    block = pin(staging.driver, np.arange(40_000.0).reshape(40, 1000))
    target = Array(block.size, np.float64)
    assert staging.module.is_pinned(block)
    assert staging.link.copy(block, block.dtype, target.memory.ctypes.data, 1000) == []
    assert staging.driver.copies == [block.nbytes], "in one copy, through no stage"
    assert staging.link.copy(block[:, :500], block.dtype, target.memory.ctypes.data, 512) == []
    # Short strips are gathered by the CPU: a copy engine takes as long for few bytes as for many.
    wait(staging.link.copy(block[:, :4], block.dtype, target.memory.ctypes.data, 4))
    assert staging.driver.copies[2:] == [1280] and staging.driver.waits == 1, "from a stage"
    assert not staging.module.is_pinned(np.zeros(5))
    assert not staging.module.is_pinned(np.zeros(0))


def test_stages_are_waited_for(staging):
    block = np.arange(40_000.0).reshape(40, 1000)
    target = Array(block.size, np.float64)
    wait(staging.link.copy(block, block.dtype, target.memory.ctypes.data, 1000))
    assert staging.driver.waits == len(staging.driver.copies) > 10


def test_a_longer_vector_gets_longer_memory(staging):
    short, long = (staging.link.reserve("x", n, np.dtype("f")) for n in (10, 1000))
    assert short.pointer != long.pointer and long.owner.nbytes >= 4000
    assert staging.link.reserve("x", 999, np.dtype("f")).pointer == long.pointer


def test_bfloat16_travels_as_it_is(staging):
    block = np.arange(3000, dtype=np.uint16).view(BFLOAT16).reshape(30, 100)
    target = Array(block.size, np.uint16)
    wait(staging.link.copy(block, BFLOAT16, target.memory.ctypes.data, 100))
    assert target.memory.tobytes() == block.tobytes()


@pytest.mark.parametrize("n", [1, 20, 5000])
def test_vectors_go_and_come_back(staging, n):
    link, dtype = staging.link, np.dtype(np.float32)
    x = np.arange(n, dtype=dtype)
    operand = link.send("x", x, dtype, 0)
    assert link.receive(operand, 0).tobytes() == x.tobytes()
    again = link.send("x", x * 2, dtype, 0)
    assert again.pointer == operand.pointer, "the memory is kept"
    assert link.receive(again, 0).tolist() == (x * 2).tolist()
    y = link.reserve("y", n, dtype)
    assert y.pointer != again.pointer


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_panels_are_fed_in_order(staging, count):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((count * 10, 50))
    panels = tuple(cut.Panel(10 * k, 10, 0, 50, 0, 1, 50) for k in range(count))
    made = cut.Cut("rows", panels, 10 * 50 * 8)
    source = SimpleNamespace(
        dtype=a.dtype, block=lambda panel: a[panel.row : panel.row + panel.rows]
    )
    arrays = staging.link.panels(made.buffers, made.panel_bytes, 64)
    seen = []
    for panel, place in staging.link.feed(source, made, arrays, 0):
        values = arrays[place].memory.view(np.float64)[: 10 * 50].reshape(10, 50)
        assert np.array_equal(values, source.block(panel))
        seen.append(panel)
    assert tuple(seen) == panels


def test_kernels_and_copies_of_panels_wait_for_each_other(staging):
    """A kernel comes after the copy of its panel, and the copy that follows after the kernel."""
    driver, reader = staging.driver, 3
    a = np.arange(7 * 50.0).reshape(7, 50)
    panels = tuple(cut.Panel(k, 1, 0, 50, 0, 1, 50) for k in range(7))
    made = cut.Cut("rows", panels, 50 * 8)
    source = SimpleNamespace(dtype=a.dtype, block=lambda panel: a[panel.row : panel.row + 1])
    arrays = staging.link.panels(made.buffers, made.panel_bytes, 512)
    addresses = [each.memory.ctypes.data for each in arrays]
    copied, plain = [], driver.quick

    def quick(target, nbytes_from, nbytes, stream):
        place, number = addresses.index(target), len(copied)
        if number >= 2:
            assert ("kernel", number - 2) in driver.before[stream], "it still reads the panel"
        copied.append(place)
        driver.before[stream].add(("panel", number))
        return plain(target, nbytes_from, nbytes, stream)

    driver.quick = quick
    for number, (_, place) in enumerate(staging.link.feed(source, made, arrays, reader)):
        assert place == number % 2
        assert ("panel", number) in driver.before[reader], "it may read before the panel is there"
        driver.before[reader].add(("kernel", number))
    assert copied == [0, 1, 0, 1, 0, 1, 0]


def test_a_copy_that_fails_is_told_and_leaves_all_stages(staging):
    block = np.arange(40_000.0).reshape(40, 1000)
    target = Array(block.size, np.float64)
    staging.driver.fail = True
    with pytest.raises(RuntimeError, match="status 2"):
        staging.link.fill(block, block.dtype, target.memory.ctypes.data)
    staging.driver.fail = False
    staging.link.fill(block, block.dtype, target.memory.ctypes.data)
    assert target.memory.tobytes() == block.tobytes()


def test_a_single_piece_has_no_thread_and_no_stage_of_theirs(staging, monkeypatch):
    """So whatever interrupts it leaves them all, and what was enqueued is waited for."""
    module, link = staging.module, staging.link
    block = np.arange(40.0).reshape(4, 10)
    target = Array(block.size, np.float64)
    monkeypatch.setattr(module, "LEAST_BYTES", block.nbytes)
    settled = []
    monkeypatch.setattr(link, "_settle", lambda futures: settled.append(list(futures)))
    link._start()
    # A pool that can end and take no work: no thread is asked.
    no_pool = SimpleNamespace(shutdown=lambda **_: None)
    monkeypatch.setattr(module, "ThreadPoolExecutor", lambda *_: no_pool)
    monkeypatch.setattr(link, "_pool", no_pool)
    monkeypatch.setattr(link, "_free", "no stage of theirs is taken")
    for fails in (RuntimeError, KeyboardInterrupt):

        def query(event, fails=fails):
            raise fails

        with monkeypatch.context() as patch:
            patch.setattr(module, "query", query)
            for _ in range(2 * module.THREADS * module.PIECES_PER_THREAD):
                with pytest.raises(fails):
                    link.fill(block, block.dtype, target.memory.ctypes.data)
                with pytest.raises(fails):
                    link.send("x", block.ravel(), block.dtype, 0)
    assert settled == [[]] * len(settled) and len(settled) >= 8
    link.fill(block, block.dtype, target.memory.ctypes.data)
    assert target.memory.tobytes() == block.tobytes() and len(staging.driver.copies) == 1


def test_ctrl_c_while_a_call_waits_for_its_copies(staging, monkeypatch):
    """What is still on its way is waited for by the next call, which has the same memory."""
    module, link, driver = staging.module, staging.link, staging.driver
    old, new = np.zeros((40, 1000)), np.ones((40, 1000))
    target = Array(old.size, np.float64)
    gate, waited = threading.Event(), []
    quick = driver.quick

    def slow(*arguments):
        assert gate.wait(60)
        return quick(*arguments)

    def settle(futures):
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "quick", slow)
    with monkeypatch.context() as patch:
        patch.setattr(link, "_settle", settle)
        patch.setattr(Future, "result", settle)
        with pytest.raises(KeyboardInterrupt):
            link.fill(old, old.dtype, target.memory.ctypes.data)
    # The threads are still in the first copies. They go on when the next call has begun.
    threading.Timer(0.3, gate.set).start()
    monkeypatch.setattr(
        driver, "cuStreamSynchronize", lambda stream: (waited.append(stream), 0)[1:]
    )
    with link.session(5):
        assert gate.is_set() and waited == [link.stream, 5]
        wait(link.copy(new, new.dtype, target.memory.ctypes.data, 1000))
    assert target.memory.tobytes() == new.tobytes()
    assert link._free.qsize() == module.THREADS * module.PIECES_PER_THREAD, "no stage is lost"
    waited.clear()
    with link.session(5):
        assert not waited, "the last session came to its end"


def test_launches_of_one_product_share_memory_that_no_other_has(staging):
    """An interrupted call leaves counters that are not zero: the next call has its own."""
    geometry, dtype = SimpleNamespace(scratch=6, counters=3, posts=True), np.dtype(np.float64)
    first = staging.memory.Shared(geometry, dtype, 9)
    second = staging.memory.Shared(geometry, dtype, 9)
    filled = staging.driver.fills
    for shared in (first, second):
        at = shared.at(2)
        assert at["scratch"] == shared.at(0)["scratch"] + 16 and at["counters"]
        wanted = [(at["counters"], 12, 0, 9), (shared.at(0)["scratch"], 48, 0xFF, 9)]
        assert [filled.pop(0), filled.pop(0)] == wanted
    assert not set(first.at(0).values()) & set(second.at(0).values())


def test_what_is_gathered_is_cut_into_smaller_pieces(staging, monkeypatch):
    """It takes a thread longer, so more of them share it."""
    a = np.arange(480.0).reshape(8, 60)
    target = Array(a.size, np.float64)
    monkeypatch.setattr(staging.module, "LEAST_BYTES", a.nbytes)
    for module in (staging.module, staging.stages):
        monkeypatch.setattr(module, "THREADS", 4)
    for block, pieces in ((a, 1), (a.astype(np.float32), 4), (a[:, ::-1], 4)):
        staging.driver.copies.clear()
        staging.link.fill(block, np.dtype(np.float64), target.memory.ctypes.data)
        assert np.array_equal(target.memory.reshape(a.shape), block)
        assert len(staging.driver.copies) == pieces


def test_the_memory_of_panels_is_kept_if_small(staging):
    first = staging.link.panels(2, 100, 128)
    assert staging.link.panels(2, 128, 128) == first
    large = staging.link.panels(2, 129, 128)
    assert large[0] not in first and staging.link.panels(1, 1, 128) == first[:1]
    staging.link.release()
    assert staging.link.panels(1, 1, 128) != first[:1]


def test_a_matrix_that_stays(staging):
    vectors = staging.module.Vectors(Array(5, np.float64), Array(3, np.float64))
    vectors.put(np.arange(5), 7, 0)
    assert vectors.x.memory.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert vectors.get(0).tolist() == [7.0] * 3
    vectors.y.memory[:] = [1, 2, 3]
    vectors.put(np.ones(5), None, 0)
    assert vectors.get(0).tolist() == [1.0, 2.0, 3.0], "y is not sent where it is not read"


def test_the_simulator_is_what_other_tests_run_on():
    assert backend.backend() in ("simulator", "host")
    assert "gemv.driver.link" not in sys.modules
