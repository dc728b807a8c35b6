"""Several GPUs that are not there: a stand-in for the driver's library, and an engine above it.

The package's own modules of the driver run on it unchanged. Device memory is host memory, and
kernels are those of the simulator. Work is enqueued and done late: a wait runs what it needs and
nothing else, the latest first. So a product whose streams are not ordered reads what is not there
yet, and a stream that does not wait for a product does not see its y.
"""

from __future__ import annotations

import bisect
import copy
import ctypes
import importlib
import itertools
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
from cuda.bindings import driver as bindings

import gemv.driver
import gemv.shards
from gemv.core.operand import array_at
from gemv.engines import backend
from gemv.engines.simulator import DEVICE, SimulatorEngine
from gemv.language.copy_lines import copy_lines
from gemv.language.fetch import PREFETCH_BYTES, WORD, fetch
from gemv.language.simulator import memory
from gemv.language.simulator.scheduler import launch

OUT_OF_MEMORY, NO_CONTEXT, INVALIDATED, UNJOINED, ISOLATION, LOST = 2, 201, 901, 904, 905, 999
CANNOT_BE_CAPTURED = 900
#: Those that the package's modules of the driver consist of, and modules that import them.
DRIVER = ("libcuda", "capture", "devices", "memory", "streams")
SHARDS = ("cuda", "chains", "graph", "again")


class Node:
    """Work on a stream: what is done, after which other work."""

    def __init__(self, act, after):
        self.act, self.after, self.done = act, list(after), False

    def run(self):
        waiting = [self]
        while waiting:
            node = waiting[-1]
            left = [each for each in node.after if not each.done]
            if node.done or not left:
                if not node.done:
                    node.done = True
                    node.act()
                waiting.pop()
            else:
                waiting.append(left[-1])


class Stream:
    identities = itertools.count(1000)

    def __init__(self, device):
        self.identity = next(self.identities)
        self.device, self.last, self.waits, self.capture = device, None, [], None


class Driver:
    """Functions of the driver as the bindings have them; enumerations are the bindings' own."""

    def __init__(self, count):
        self.count, self.handles = count, itertools.count(100)
        #: Each thread has a current GPU, and those that it will go back to; a new one has none.
        self._mine = threading.local()
        self.current = 0
        self.streams, self.events, self.graphs = {}, {}, {}
        #: By their handles, what captures consist of; see :meth:`captured`.
        self.nodes, self.capturing = {}, {}
        #: How many streams are being captured, others that joined them left out.
        self.captures = 0
        #: First addresses, and by them: memory, and its GPU.
        self.addresses, self.blocks = [], {}
        self.room = dict.fromkeys(range(count), 1 << 30)
        #: Names of calls, in order, each with the GPU that was current.
        self.calls = []
        #: GPUs whose calls all fail, by name of the call if not all: see :meth:`_refused`.
        self.broken = {}

    def __getattr__(self, name):
        return getattr(bindings, name)

    @property
    def current(self):
        return getattr(self._mine, "current", -1)

    @current.setter
    def current(self, device):
        self._mine.current = device

    def break_(self, device, name=None, status=LOST, after=0):
        """Let calls on a GPU fail from now on: those of one name, after so many that succeed."""
        self.broken[device] = [name, status, after]

    def _refused(self, name, device):
        self.calls.append((name, device))
        if device < 0:  # on the default stream, without a current GPU
            return NO_CONTEXT
        found = self.broken.get(device)
        if found is None or found[0] not in (None, name):
            return 0
        found[2] -= 1
        return found[1] if found[2] < 0 else 0

    # Answers are as the bindings': a status with the name of an error, and results.

    @staticmethod
    def _said(status, *results):
        return (bindings.CUresult(status), *results)

    def cuGetErrorString(self, result):
        return self._said(0, result.name.encode())

    # GPUs: a context is its ordinal plus 1, and 0 stands for none

    def cuDeviceGetCount(self):
        return self._said(0, self.count)

    def cuDeviceGet(self, index):
        return self._said(0, index)

    def cuDevicePrimaryCtxRetain(self, device):
        return self._said(0, device + 1)

    def cuDevicePrimaryCtxGetState(self, device):
        return self._said(0, 0, 1)

    def cuCtxGetCurrent(self):
        return self._said(0, self.current + 1)

    def cuCtxPushCurrent(self, context):
        self.calls.append(("cuCtxPushCurrent", context - 1))
        self._mine.pushed = [*getattr(self._mine, "pushed", ()), self.current]
        self.current = context - 1
        return self._said(0)

    def cuCtxPopCurrent(self):
        self.current = self._mine.pushed.pop()
        return self._said(0)

    def cuCtxSetCurrent(self, context):
        self.current = context - 1
        return self._said(0)

    # Memory

    def cuMemAlloc(self, nbytes):
        status = self._refused("cuMemAlloc", self.current)
        if status or nbytes > self.room[self.current]:
            return self._said(status or OUT_OF_MEMORY, None)
        memory = np.full(nbytes + 512, 0xFF, np.uint8)  # NaN
        first = -(-memory.ctypes.data // 256) * 256
        self.room[self.current] -= nbytes
        bisect.insort(self.addresses, first)
        self.blocks[first] = memory[first - memory.ctypes.data :][:nbytes], self.current
        return self._said(0, first)

    def cuMemFree(self, pointer):
        block, device = self.blocks.pop(pointer)
        self.addresses.remove(pointer)
        self.room[device] += len(block)
        self.freed = [*getattr(self, "freed", []), block]  # late work may still use it
        return self._said(0)

    def cuMemGetInfo(self):
        return self._said(0, self.room[self.current], 1 << 30)

    def block_at(self, pointer):
        """The bytes from an address to the end of its allocation, and its GPU."""
        place = bisect.bisect(self.addresses, pointer) - 1
        first = self.addresses[place]
        block, device = self.blocks[first]
        assert place >= 0 and pointer - first < max(1, len(block)), "no device memory"
        return block[pointer - first :], device

    def array(self, pointer, dtype):
        block, _ = self.block_at(pointer)
        count = len(block) // dtype.itemsize
        return block[: count * dtype.itemsize].view(dtype)

    def cuMemcpyAsync(self, target, source, nbytes, stream):
        found = self._stream(stream)
        status = self._refused("cuMemcpyAsync", found.device)
        if status:
            return self._said(status)
        of_target, of_source = self.block_at(target)[0], self.block_at(source)[0]
        assert nbytes <= min(len(of_target), len(of_source))

        def act():
            of_target[:nbytes] = of_source[:nbytes]

        self.enqueue(found, act)
        return self._said(0)

    cuMemcpyDtoDAsync = cuMemcpyAsync

    def cuMemcpy2DAsync(self, lines, stream):
        found = self._stream(stream)
        status = self._refused("cuMemcpy2DAsync", found.device)
        if status:
            return self._said(status)
        unified = bindings.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        assert {lines.srcMemoryType, lines.dstMemoryType} == {unified}
        shape = lines.Height, lines.WidthInBytes
        source = self.lines(int(lines.srcDevice), shape, lines.srcPitch)
        target = self.lines(int(lines.dstDevice), shape, lines.dstPitch)

        def act():
            target[...] = source

        self.enqueue(found, act)
        return self._said(0)

    def lines(self, pointer, shape, pitch):
        """Lines of bytes, which all belong to one allocation."""
        count, length = shape
        assert length <= pitch and (count - 1) * pitch + length <= len(self.block_at(pointer)[0])
        return array_at(pointer, shape, (pitch, 1), "|u1", False)

    def cuMemsetD8Async(self, pointer, value, nbytes, stream):
        self._set(pointer, np.dtype("u1"), value, nbytes, stream)
        return self._said(0)

    def cuMemsetD32Async(self, pointer, value, count, stream):
        self._set(pointer, np.dtype("u4"), value, count, stream)
        return self._said(0)

    def _set(self, pointer, dtype, value, count, stream):
        elements = self.array(pointer, dtype)[:count]
        assert len(elements) == count
        self.enqueue(self._stream(stream), lambda: elements.fill(value))

    # Streams and events

    def _stream(self, handle):
        key = (self.current, 0) if handle in (0, 1) else int(handle)
        if key not in self.streams:
            assert key == (self.current, 0), "no stream"
            self.streams[key] = Stream(self.current)
        return self.streams[key]

    def enqueue(self, stream, act):
        before = [] if stream.last is None else [stream.last]
        stream.last = Node(act, [*before, *stream.waits])
        stream.waits = []
        if stream.capture is not None:
            stream.capture.nodes.append(stream.last)

    def cuStreamCreate(self, flags):
        assert flags == bindings.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        handle = next(self.handles)
        self.streams[handle] = Stream(self.current)
        return self._said(0, handle)

    def cuStreamDestroy(self, stream):
        return self._said(0)

    def cuStreamGetFlags(self, stream):
        return self._said(0, 1)

    def cuStreamGetId(self, stream):
        found = self.streams[stream]
        if found.capture is not None:  # as a GPU's driver does
            found.capture.broken = True
        return self._said(0, found.identity)

    def cuEventCreate(self, flags):
        handle = next(self.handles)
        self.events[handle] = SimpleNamespace(device=self.current, node=None, capture=None)
        return self._said(0, handle)

    def cuEventDestroy(self, event):
        return self._said(0)

    def cuEventQuery(self, event):
        node = self.events[event].node
        return self._said(0 if node is None or node.done else 600)

    def cuEventRecord(self, event, stream):
        found, into = self._stream(stream), self.events[event]
        status = self._refused("cuEventRecord", found.device)
        if status:
            return self._said(status)
        assert into.device == found.device, "an event of another GPU"
        self.enqueue(found, lambda: None)
        into.node, into.capture = found.last, found.capture
        return self._said(0)

    def cuStreamWaitEvent(self, stream, event, flags):
        found, waited = self._stream(stream), self.events[event]
        status = self._refused("cuStreamWaitEvent", found.device)
        if status:
            return self._said(status)
        if waited.capture is not None and found.capture is None:
            found.capture = waited.capture
            found.last = None
            found.capture.streams.append(found)
        if found.capture is not waited.capture:
            (found.capture or waited.capture).broken = True
            return self._said(ISOLATION)
        if waited.node is not None:
            found.waits.append(waited.node)
        return self._said(0)

    def cuEventSynchronize(self, event):
        node = self.events[event].node
        if node is not None:
            node.run()
        return self._said(0)

    def cuStreamSynchronize(self, stream):
        found = self._stream(stream)
        status = self._refused("cuStreamSynchronize", found.device)
        if status:
            return self._said(status)
        assert found.capture is None
        self.enqueue(found, lambda: None)
        found.last.run()
        return self._said(0)

    # Graphs

    def cuStreamBeginCapture(self, stream, mode):
        found = self._stream(stream)
        status = self._refused("cuStreamBeginCapture", found.device)
        if not status:
            found.capture = SimpleNamespace(nodes=[], streams=[found], broken=False, loose=set())
            found.last = None
            self.captures += 1
        return self._said(status)

    def cuStreamEndCapture(self, stream):
        found = self._stream(stream)
        capture = found.capture
        self.captures -= 1
        reached, left = set(), [each for each in (found.last, *found.waits) if each is not None]
        while left:
            node = left.pop()
            if id(node) not in reached:
                reached.add(id(node))
                left += node.after
        joined = all(id(node) in reached | capture.loose for node in capture.nodes)
        for each in capture.streams:
            each.capture, each.last, each.waits = None, None, []
        if capture.broken:
            return self._said(INVALIDATED, None)
        if not joined:
            return self._said(UNJOINED, None)
        handle = next(self.handles)
        self.graphs[handle] = capture.nodes
        return self._said(0, handle)

    def cuGraphInstantiate(self, graph, flags):
        status = self._refused("cuGraphInstantiate", self.current)
        handle = next(self.handles)
        self.graphs[handle] = self.graphs[graph]
        return self._said(status, None if status else handle)

    def cuGraphDestroy(self, graph):
        del self.graphs[graph]
        return self._said(0)

    cuGraphExecDestroy = cuGraphDestroy

    def cuGraphLaunch(self, executable, stream):
        found = self._stream(stream)
        status = self._refused("cuGraphLaunch", found.device)
        if found.capture is not None:
            found.capture.broken = True
            return self._said(CANNOT_BE_CAPTURED)
        if not status:
            self.enqueue(found, self._played(executable))
        return self._said(status)

    def _played(self, graph):
        """What does the work of a graph, which may be destroyed by then."""
        nodes = self.graphs[graph]

        def act():
            again = {}
            for node in nodes:  # as they were enqueued, so each comes behind what it needs
                again[id(node)] = Node(node.act, [again[id(each)] for each in node.after])
            for node in reversed(again.values()):
                node.run()

        return act

    # Without the bindings: pointers to results come first.

    def captured(self, stream, status, identity, whole, before=None, count=None):
        found = self._stream(stream or 0).capture
        status._obj.value = int(found is not None)
        if found is not None:
            whole._obj.value = identity._obj.value = id(found)
            self.capturing[id(found)] = found
            if before is not None:
                one = self._stream(stream or 0)
                nodes = [each for each in (one.last, *one.waits) if each is not None]
                self.nodes |= {id(each): each for each in nodes}
                self.front = (ctypes.c_void_p * len(nodes))(*map(id, nodes))
                before._obj.value, count._obj.value = ctypes.addressof(self.front), len(nodes)
        return 0

    def child(self, node, whole, before, count, graph):
        status = self._refused("cuGraphAddChildGraphNode", self.current)
        if not status:
            assert len(before) == count
            made = Node(self._played(graph), [self.nodes[each] for each in before])
            capture = self.capturing[whole]
            capture.nodes.append(made)
            capture.loose.add(id(made))
            self.nodes[id(made)] = made
            node._obj.value = id(made)
        return status

    def behind(self, stream, nodes, count, flags):
        assert count == len(nodes) and flags == 1, "they take the place of what came before"
        found = self._stream(stream)
        found.last, found.waits = None, [self.nodes[each] for each in nodes]
        return 0


def library(virtual):
    """The few functions that are called without the bindings."""

    class Function:
        def __init__(self, body):
            self.body = body

        def __call__(self, *arguments):
            return self.body(*arguments)

    def context(into):
        into._obj.value = virtual.current + 1
        return 0

    def device(into):
        into._obj.value = virtual.current
        return NO_CONTEXT if virtual.current < 0 else 0

    def attribute(into, which, pointer):
        into._obj.value = virtual.block_at(pointer.value)[1] if which == 9 else 1
        return 0

    functions = {
        "cuCtxGetCurrent": context, "cuCtxGetDevice": device, "cuPointerGetAttribute": attribute,
        "cuThreadExchangeStreamCaptureMode": lambda mode: 0,
        "cuStreamGetCaptureInfo_v2": lambda stream, *into: virtual.captured(stream, *into[:5]),
        "cuGraphAddChildGraphNode": virtual.child,
        "cuStreamUpdateCaptureDependencies": virtual.behind,
    }  # fmt: skip
    found = {name: Function(body) for name, body in functions.items()}
    return SimpleNamespace(_name="libcuda of the virtual GPUs", **found)


class Array:
    """A device array as Numba's are, which may name a stream."""

    __cuda_ndarray__ = True

    def __init__(self, virtual, values, stream=None):
        values = np.asarray(values)
        order = "F" if values.ndim == 2 and values.flags.f_contiguous else "C"
        pointer = virtual.check(virtual.cuMemAlloc(max(1, values.nbytes)))
        self._virtual, self.shape, self.dtype = virtual, values.shape, values.dtype
        self.ndim = values.ndim
        self.strides = np.empty(values.shape, values.dtype, order=order).strides
        self.interface = {
            "shape": values.shape, "typestr": values.dtype.str, "data": (pointer, False),
            "strides": self.strides, "version": 3, "stream": stream,
        }  # fmt: skip
        self.values()[...] = values

    @property
    def __cuda_array_interface__(self):
        return self.interface

    def _view(self, shape, strides):
        view = copy.copy(self)
        view.shape, view.strides, view.ndim = shape, strides, len(shape)
        view.interface = {**self.interface, "shape": shape, "strides": strides}
        return view

    def reshape(self, shape):
        return self._view(shape, np.empty(shape, self.dtype).strides)

    @property
    def T(self):
        return self._view(self.shape[::-1], self.strides[::-1])

    def values(self):
        """The memory as it is now, whatever is enqueued."""
        pointer, _ = self.interface["data"]
        return array_at(pointer, self.shape, self.strides, self.dtype.str, False)


class Engine:
    """What shards ask of the engine of GPUs."""

    name, several = "cuda", True

    def __init__(self, virtual):
        self.virtual = virtual
        self._devices = importlib.import_module("gemv.driver.devices")
        self.wait = importlib.import_module("gemv.driver.streams").wait
        self.capture_of = importlib.import_module("gemv.driver.capture").capture_of
        self._simulator = SimulatorEngine()
        self._blocks = {}
        #: GPUs and words for which there is the kernel that copies.
        self._loaded = set()
        self.machine = SimpleNamespace(enqueue=self._launch, enqueue_complex=self._launch)
        self.held = SimpleNamespace(hold=lambda things, stream: self.kept.append(things))
        self.kept = []
        self.transfers = SimpleNamespace(link=lambda index: self)
        #: Pairs of GPUs of which the first does not reach the memory of the second.
        self.apart = set()
        self.computes = True
        #: What a device is, but for its ordinal.
        self.kind = DEVICE
        #: The work of all launches so far, and the bytes of those that are copies.
        self.launched, self.copied = [], []
        #: GPU, address and bytes of each fetch, as it is enqueued and as it is done.
        self.fetches, self.fetched = [], []

    def device(self):
        return self.kind._replace(index=self.virtual.current)

    def on(self, index):
        return self._on() if index is None else self._devices.on_device(index)

    @contextmanager
    def _on(self):
        yield

    def device_of(self, pointer):
        return self.virtual.block_at(pointer)[1]

    def in_host_memory(self):
        return False

    def default_stream(self):
        return 0

    def reach(self, routine, device, peer):
        if (device, peer) in self.apart:
            raise ValueError(f"{routine}: cuda:{device} cannot reach cuda:{peer}")

    def free_memory(self):
        return self.virtual.room[self.virtual.current]

    def release(self):
        pass

    def fill(self, lines, dtype, pointer, pitch):
        size = dtype.itemsize
        target = array_at(pointer, lines.shape, (pitch * size, size), dtype.str, False)
        target[...] = lines

    def empty(self, n, dtype):
        return Array(self.virtual, np.zeros(n, dtype))

    def vectors(self, cols, rows, dtype):
        x, y = self.empty(cols, dtype), self.empty(rows, dtype)

        def put(values, old, stream):
            x.values()[...] = values
            y.values()[...] = np.nan

        def get(stream):
            self.virtual.cuStreamSynchronize(0)
            return y.values().copy()

        return SimpleNamespace(x=x, y=y, put=put, get=get)

    def copy(self, source, target, stream):
        views = [
            array_at(o.pointer, o.shape, (o.strides[0] * o.dtype.itemsize,), o.dtype.str, False)
            for o in (source, target)
        ]

        def act():
            views[1][...] = views[0]

        self.virtual.enqueue(self.virtual._stream(stream), act)

    def load(self, choice, device, stream=None):
        return choice

    def block(self, choice, functions, sizes, x_start, y_start):
        return self._packed(choice=choice, sizes=sizes)

    def copying_block(self, word, count):
        key = self.virtual.current, word.itemsize
        assert key in self._loaded or not self.virtual.captures, "loading breaks a capture"
        self._loaded.add(key)
        return self._packed(choice=None, nbytes=word.itemsize * count, word=word.itemsize)

    def line_copying_block(self, word, count, length, x_step, y_step):
        key = self.virtual.current, word.itemsize, "lines"
        assert key in self._loaded or not self.virtual.captures, "loading breaks a capture"
        self._loaded.add(key)
        sizes = count, length, x_step, y_step
        return self._packed(choice=None, lines=sizes, word=word)

    def fetching_block(self, pieces):
        assert pieces > 0 and not self.virtual.captures, "loading breaks a capture"
        return self._packed(choice=None, pieces=pieces)

    def _packed(self, **what):
        block = SimpleNamespace(address=len(self._blocks) + 1, device=self.virtual.current, **what)
        self._blocks[block.address] = block
        return block

    def _launch(self, address, stream, a, x, y, *numbers):
        virtual, block = self.virtual, self._blocks[address]
        found = virtual._stream(stream)
        status = virtual._refused("launch", found.device)
        if status:
            return status
        assert virtual.current == found.device == block.device, "a launch on another GPU"
        if hasattr(block, "pieces"):
            self._fetch(found, block.pieces, x)
            return 0
        if hasattr(block, "lines"):
            self._copy_lines(found, block, x, y)
            return 0
        if block.choice is None:
            self._copy(found, block, x, y)
            return 0
        assert {virtual.block_at(each)[1] for each in (a, x)} == {found.device}, "read from afar"
        if self.computes:
            spec = block.choice.spec
            arrays = [virtual.array(each, spec.dtype) for each in (a, x, y)]
            sizes = dict(block.sizes)
            for name, dtype in (("scratch", spec.precision.sums), ("counters", np.dtype("u4"))):
                if name in sizes:
                    sizes[name] = memory.pointer_to(virtual.array(sizes[name], dtype), name=name)
            virtual.enqueue(found, lambda: self._compute(block.choice, sizes, *arrays))
        else:
            virtual.enqueue(found, lambda: None)
        self.launched.append(found.last)
        return 0

    def _ends_of_copy(self, stream, word, *pointers):
        """The memory behind the addresses of a copy, which is one that the GPU can make."""
        assert not any(each % word for each in pointers), "a word that is not aligned"
        found = [self.virtual.block_at(each) for each in pointers]
        for each in {device for _, device in found} - {stream.device}:
            assert (stream.device, each) not in self.apart, "a copy out of reach"
        return [block for block, _ in found]

    def _copy_lines(self, stream, block, x, y):
        """By the kernel itself, which checks bounds: those of the allocations."""
        self._ends_of_copy(stream, block.word.itemsize, x, y)
        count, length, *steps = block.lines
        words = [self.virtual.array(each, block.word) for each in (x, y)]
        x, y = (memory.pointer_to(each, name=name) for each, name in zip(words, "xy", strict=True))
        sizes = [count, length, x, steps[0], y, steps[1]]
        self.virtual.enqueue(stream, lambda: launch(copy_lines, 1, 32, sizes))
        self.launched.append(stream.last)
        self.copied.append(count * length * block.word.itemsize)

    def _copy(self, stream, block, x, y):
        virtual = self.virtual
        source, target = self._ends_of_copy(stream, block.word, x, y)
        assert block.nbytes <= min(len(source), len(target))

        def act():
            target[: block.nbytes] = source[: block.nbytes]

        virtual.enqueue(stream, act)
        self.launched.append(stream.last)
        self.copied.append(block.nbytes)

    def _fetch(self, stream, pieces, x):
        """By the kernel itself, which checks bounds: those of the allocation."""
        words = self.virtual.array(x, WORD)
        what = stream.device, x, pieces * PREFETCH_BYTES
        self.fetches.append(what)

        def act():
            launch(fetch, 1, 32, [pieces, memory.pointer_to(words, name="x")])
            self.fetched.append(what)

        self.virtual.enqueue(stream, act)

    def _compute(self, choice, sizes, *arrays):
        operands = [SimpleNamespace(owner=each) for each in arrays]
        problem = SimpleNamespace(
            x_offset=0, y_offset=0, arguments=lambda geometry: sizes, incx=1, cols=sizes["cols"]
        )
        self._simulator.run(choice, problem, 1, operands[0], operands[1], 0, operands[2])


def installed(monkeypatch):
    """Three GPUs for one test: the driver, with its engine as an attribute."""
    virtual = Driver(3)
    for kind in ("CDLL", "PyDLL"):  # the second kind keeps the interpreter's lock
        monkeypatch.setattr(ctypes, kind, lambda name: library(virtual))
    rooms = (("gemv.driver", DRIVER, gemv.driver), ("gemv.shards", SHARDS, gemv.shards))
    for package, names, room in rooms:
        for name in names:  # restored afterwards, so that no other test imports the stand-in
            monkeypatch.setitem(sys.modules, f"{package}.{name}", None)
            del sys.modules[f"{package}.{name}"]
            monkeypatch.setattr(room, name, None, raising=False)
    for package, names, _ in rooms:
        for name in names:
            made = importlib.import_module(f"{package}.{name}")
            if hasattr(made, "driver"):
                made.driver = virtual  # for good: what is freed later asks it
    virtual.check = sys.modules["gemv.driver.libcuda"].check
    sys.modules["gemv.driver.memory"].free_what_numba_keeps = lambda: False
    virtual.engine = Engine(virtual)
    monkeypatch.setattr(backend, "backend", lambda: "cuda")
    monkeypatch.setattr(backend, "engine", lambda: virtual.engine)
    monkeypatch.setattr(backend, "probe", lambda: ("cuda", "virtual"))
    # Asked for by name: of themselves, host arrays would stay on the host.
    monkeypatch.setattr(backend, "chosen", lambda: "cuda")
    return virtual
