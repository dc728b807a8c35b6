"""The handler of XLA's in machine code: which frames it launches itself, and which go to Python."""

from __future__ import annotations

import ctypes
import threading
import time
from ctypes import addressof

import numpy as np
import pytest
from helpers.xla_frames import NUMBERS, STREAM, HandMade, attributes

import gemv
from gemv.calls import jax_frames
from gemv.core import memo
from gemv.driver import block as driver_block
from gemv.driver import handler_ir, known_frames, machine

LAUNCHED: list[tuple] = []
PYTHON: list[int] = []
#: What the stand-ins answer: the driver for a launch and for the current GPU.
ANSWERS = {
    "launch": 0, "device": 0, "status": 0, "stream": 0, "identity": 900, "capturing": 0, "asked": 0
}  # fmt: skip


@ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
def launch(config, function, parameters, extra):
    stream = ctypes.c_size_t.from_address(config + 32).value
    places = (ctypes.c_void_p * 7).from_address(parameters)
    a, x, y, scratch, counters = (
        ctypes.c_size_t.from_address(places[k]).value for k in (0, 1, 2, 5, 6)
    )
    alpha, beta = (ctypes.c_float.from_address(places[k]).value for k in (3, 4))
    LAUNCHED.append((stream, a, x, y, alpha, beta, scratch, counters))
    return ANSWERS["launch"]


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
def current_device(into):
    into[0] = ANSWERS["device"]
    return ANSWERS["status"]


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))
def stream_id(stream, into):
    assert stream == STREAM
    assert not ANSWERS["capturing"] and not ANSWERS["asked"], "that would end the capture"
    into[0] = ANSWERS["identity"]
    return ANSWERS["stream"]


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
def is_capturing(stream, into):
    into[0] = ANSWERS["capturing"]
    return ANSWERS["asked"]


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def in_python(frame):
    PYTHON.append(frame)
    return 0xE4404


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


MACHINE = machine.machine(
    machine.Driver(
        address(launch), 0, 0, address(is_capturing), address(current_device),
        stream_id=address(stream_id),
    )
)  # fmt: skip
HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(MACHINE.handler)
NAMES = "a", "x", "y", "alpha", "beta", "scratch", "counters"
BLOCK = driver_block.Block([driver_block.Function(1, (1, 1, 1), (32, 1, 1), NAMES)], 4, 1, {}, 0, 0)


@pytest.fixture(autouse=True)
def chains(monkeypatch):
    """Empty chains, and the handler in Python of this test."""
    memo.forget()
    LAUNCHED.clear()
    PYTHON.clear()
    ANSWERS.update(launch=0, device=0, status=0, stream=0, identity=900, capturing=0, asked=0)
    before = int(known_frames.STATE[known_frames.PYTHON])
    known_frames.STATE[known_frames.PYTHON] = address(in_python)
    monkeypatch.setattr(known_frames, "_entries", list(known_frames._entries))
    yield
    memo.forget()
    known_frames.STATE[known_frames.PYTHON] = before


def at(offset, shape, dtype=np.float32):
    """An array whose address is `offset` bytes behind a multiple of 16."""
    count = int(np.prod(shape))
    memory = np.zeros(count * np.dtype(dtype).itemsize + 32, np.uint8)
    first = -memory.ctypes.data % 16 + offset
    return memory[first:][: count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


def operands(rows=8, cols=4, dtype=np.float32, result=None, offsets=(0, 0, 0)):
    shapes = (rows, cols), (cols,), (rows,)
    dtypes = dtype, dtype, dtype if result is None else result
    return [at(*each) for each in zip(offsets, shapes, dtypes, strict=True)]


def frame_of(arrays, options=None, stage=3):
    return HandMade(arrays[:2], arrays[2:], attributes(**(options or {})), stage)


def handled(made):
    """What the handler answers to a frame, which lives as long as the call."""
    return HANDLER(addressof(made.frame))


def key_of(arrays, options=None, device=0):
    a, _, y = arrays
    letters = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}
    return known_frames.Key(
        device, *a.shape, NUMBERS[letters[a.dtype]], NUMBERS[letters[y.dtype]],
        tuple(array.ctypes.data & 15 for array in arrays),
        attributes(**(options or {}))["call"].encode(),
    )  # fmt: skip


def values(alpha=2.0, beta=0.5, scratch=0, counters=0):
    made = np.zeros(6, np.int64)
    made[0:1].view(np.float32)[0], made[2:3].view(np.float32)[0] = alpha, beta
    made[4:] = scratch, counters
    return made


def remember(key, stream=known_frames.ANY, **factors):
    return known_frames.remember(
        key, memo.generation(), MACHINE.publish, BLOCK, stream, values(**factors), None
    )


def test_the_words_are_those_of_the_structures():
    """Machine code counts words where ctypes counts bytes."""
    frame, buffer, api = jax_frames.CallFrame, jax_frames.Buffer, jax_frames.Api
    bases = {"_ARGUMENTS": frame.args, "_RESULTS": frame.rets, "_ATTRIBUTES": frame.attrs}
    for name, base in bases.items():
        items = jax_frames.Attributes if name == "_ATTRIBUTES" else jax_frames.Items
        last = items.attrs if name == "_ATTRIBUTES" else items.items
        expected = base.offset + items.size.offset, base.offset + last.offset
        assert tuple(8 * word for word in getattr(handler_ir, name)) == expected
    for name, field in (
        ("_EXTENSION", frame.extension_start), ("_API", frame.api), ("_CONTEXT", frame.ctx),
        ("_STAGE", frame.stage), ("_DTYPE", buffer.dtype), ("_DATA", buffer.data),
        ("_RANK", buffer.rank), ("_DIMS", buffer.dims), ("_STREAM_GET", api.stream_get),
    ):  # fmt: skip
        assert 8 * getattr(handler_ir, name) == field.offset, name
    assert ctypes.sizeof(jax_frames.StreamGet) == 8 * handler_ir._ASKED_WORDS
    assert jax_frames.StreamGet.ctx.offset == 16 and jax_frames.StreamGet.stream.offset == 24
    assert jax_frames.ByteSpan.len.offset == 8


def test_a_known_frame_is_launched_without_python():
    arrays = operands()
    assert remember(key_of(arrays), alpha=-1.5, beta=0.25, scratch=77, counters=78)
    for _ in range(2):
        made = frame_of(arrays)
        assert handled(made) is None
    a, x, y = (array.ctypes.data for array in arrays)
    assert LAUNCHED == [(STREAM, a, x, y, -1.5, 0.25, 77, 78)] * 2 and not PYTHON


def test_a_frame_that_is_not_known_goes_to_python():
    made = frame_of(operands())
    assert handled(made) == 0xE4404
    assert PYTHON == [addressof(made.frame)] and not LAUNCHED


OTHERS = {
    "rows": lambda: (operands(rows=9), {}),
    "columns": lambda: (operands(cols=5), {}),
    "rows and columns of one chain": lambda: (operands(rows=8 + known_frames.HEADS), {}),
    "dtype": lambda: (operands(dtype=np.float64), {}),
    "dtype of y": lambda: (operands(result=np.float64), {}),
    "address of a": lambda: (operands(offsets=(4, 0, 0)), {}),
    "address of x": lambda: (operands(offsets=(0, 4, 0)), {}),
    "address of y": lambda: (operands(offsets=(0, 0, 8)), {}),
    "alpha": lambda: (operands(), {"alpha": 3.0}),
    "trans": lambda: (operands(), {"trans": 1}),
    "a longer text": lambda: (operands(), {"kernel": "serial"}),
    "an end of the text": lambda: (operands(), {"kernel": "serial2"}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_each_difference_is_seen(other):
    options = {"kernel": "serial1"} if other == "an end of the text" else {}
    assert remember(key_of(operands(), options))
    arrays, changes = OTHERS[other]()
    made = frame_of(arrays, changes)
    assert handled(made) == 0xE4404 and not LAUNCHED
    known = frame_of(operands(), options)
    assert handled(known) is None and len(LAUNCHED) == 1


@pytest.mark.parametrize("length", range(1, 9))
def test_the_last_byte_of_a_text_of_any_length(length):
    one, other = ({"kernel": "k" * length, "alpha_imag": last} for last in (1.0, 1.5))
    assert remember(key_of(operands(), one))
    last = {**one, "kernel": "k" * (length - 1) + "K"}
    for options, launched in ((other, 0), (last, 0), (one, 1)):
        handled(frame_of(operands(), options))
        assert len(LAUNCHED) == launched


def test_another_gpu_or_none():
    assert remember(key_of(operands(), device=1))
    for device, status, launched in ((0, 0, 0), (1, 201, 0), (1, 0, 1)):
        ANSWERS.update(device=device, status=status)
        handled(frame_of(operands()))
        assert len(LAUNCHED) == launched


def test_a_batch_goes_to_python():
    a, x, y = operands()
    assert remember(key_of([a, x, y]))
    for arrays in ([a, np.stack([x, x]), np.stack([y, y])], [np.stack([a, a]), x, y]):
        assert handled(frame_of(arrays)) == 0xE4404
    assert not LAUNCHED


def test_other_stages_and_questions_go_to_python():
    arrays = operands()
    assert remember(key_of(arrays))
    assert handled(frame_of(arrays, stage=2)) == 0xE4404
    made, extension = frame_of(arrays), jax_frames.Extension()
    made.frame.extension_start = addressof(extension)
    assert handled(made) == 0xE4404 and not LAUNCHED


def test_a_bound_stream():
    """Scratch memory is that of one stream, whichever has its handle."""
    assert remember(key_of(operands()), stream=901, alpha=1.0)
    for answers, launched in (
        ({"identity": 900}, 0), ({"stream": 400}, 0), ({"capturing": 1}, 0), ({"asked": 906}, 0),
        ({}, 1),
    ):  # fmt: skip
        ANSWERS.update({"identity": 901, "stream": 0, "capturing": 0, "asked": 0} | answers)
        handled(frame_of(operands()))
        assert len(LAUNCHED) == launched
    assert len(PYTHON) == 4


def test_what_fails_is_tried_again_in_python():
    assert remember(key_of(operands()))
    ANSWERS["launch"] = 700
    assert handled(frame_of(operands())) == 0xE4404
    assert len(LAUNCHED) == len(PYTHON) == 1
    made = frame_of(operands())
    made.api.stream_get = made.kept(ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: 1))
    assert handled(made) == 0xE4404 and len(LAUNCHED) == 1


def test_an_open_trace_goes_to_python():
    """In any thread: XLA runs products in threads of its own."""
    assert remember(key_of(operands()))
    opened, closed = threading.Event(), threading.Event()

    def tracing():
        with gemv.trace():
            opened.set()
            closed.wait(60)

    thread = threading.Thread(target=tracing)
    thread.start()
    opened.wait(60)
    try:
        with gemv.trace(), gemv.trace():
            handled(frame_of(operands()))
        handled(frame_of(operands()))
        assert not LAUNCHED and len(PYTHON) == 2
    finally:
        closed.set()
        thread.join()
    handled(frame_of(operands()))
    assert len(LAUNCHED) == 1


def test_many_entries_of_one_chain():
    """All are found, whichever came first, and each is that of its own text."""
    shapes = [(8 + known_frames.HEADS * k, 4) for k in range(5)]
    for number, (rows, cols) in enumerate(shapes):
        assert remember(key_of(operands(rows, cols)), alpha=float(number))
    assert len({key_of(operands(*shape)).chain for shape in shapes}) == 1
    for rows, cols in shapes:
        assert handled(frame_of(operands(rows, cols))) is None
    assert [each[4] for each in LAUNCHED] == [0.0, 1.0, 2.0, 3.0, 4.0] and not PYTHON


def test_settings_that_change_and_what_is_not_kept(monkeypatch):
    key = key_of(operands())
    old = memo.generation()
    assert remember(key) and remember(key)
    assert len(known_frames._known) == 1, "it is kept once"
    ends = [operands(32, 4), operands(known_frames.HEADS - 1 ^ 32, 4)]
    assert [key_of(arrays).chain for arrays in ends] == [0, known_frames.HEADS - 1]
    assert all(remember(key_of(arrays)) for arrays in ends)
    memo.forget()
    for arrays in (operands(), *ends):
        handled(frame_of(arrays))
    assert not LAUNCHED
    stale = known_frames.remember(key, old, MACHINE.publish, BLOCK, -1, values(), None)
    assert not stale and not known_frames._known
    assert not remember(key._replace(text=b"short"))
    monkeypatch.setattr(known_frames, "MAX_ENTRIES", len(known_frames._entries) + 1)
    assert remember(key) and not remember(key_of(operands(rows=9)))


def test_threads_without_the_lock_of_the_interpreter():
    """Frames are looked up while others are added and all are forgotten."""
    ending, wrong = threading.Event(), []
    made = frame_of(operands())

    def work():
        while not ending.is_set():
            # ctypes lets go of the lock for the handler.
            if handled(made) not in (None, 0xE4404):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    number, last = 0, time.monotonic() + 60
    # Goes on until a frame was found, and another one was not.
    while number < 300 or not (LAUNCHED and PYTHON) and time.monotonic() < last:
        remember(key_of(operands(8 + known_frames.HEADS * (number % 7), 4)))
        if number % 20 == 19:
            memo.forget()
        number += 1
    ending.set()
    for thread in threads:
        thread.join()
    assert not wrong and LAUNCHED and PYTHON
