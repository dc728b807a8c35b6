"""Call frames of XLA made by hand: how they are read, answered and computed, without JAX."""

from __future__ import annotations

import contextlib
import ctypes
from ctypes import addressof, c_void_p, pointer, sizeof

import numpy as np
import pytest
from helpers.xla_frames import STREAM, HandMade, attributes, call

import gemv
import gemv.driver
from gemv.calls import jax_again, jax_frames, jax_handlers, jax_ticketed
from gemv.core import memo
from gemv.core.dtypes import DTYPES
from gemv.core.narrow import cast
from gemv.core.operand import Operand
from gemv.engines import backend


def test_a_frame_is_read():
    a, x, y = np.ones((2, 3), np.float32), np.ones(3, np.float32), np.empty(2, np.float32)
    seen = []
    made = HandMade([a, x], [y], attributes(kernel="vector_rows"))
    assert call(seen.append, made.frame) is None and not made.errors
    (frame,) = seen
    assert frame.arguments == [("s", a.ctypes.data, (2, 3)), ("s", x.ctypes.data, (3,))]
    assert frame.results == [("s", y.ctypes.data, (2,))]
    assert frame.attributes == attributes(kernel="vector_rows")
    assert frame.stream() == STREAM


def test_what_lies_beside_a_dtype_is_not_read():
    """A word holds the dtype's number and four bytes that XLA may leave as they were."""
    x, nothing = np.ones(3, np.float32), np.array(2.0, np.float32)
    made, seen = HandMade([x, nothing], [], {}), []
    for place in (0, 1):
        at = made.frame.args.items[place] + jax_frames.Buffer.dtype.offset
        ctypes.c_uint32.from_address(at + 4).value = 0xFFFFFFFF
    assert call(seen.append, made.frame) is None, made.errors
    assert [(each.letter, each.shape) for each in seen[0].arguments] == [("s", (3,)), ("s", ())]


def test_only_the_stage_that_executes_computes():
    made = HandMade([], [], {}, stage=0)
    assert call(lambda frame: 1 / 0, made.frame) is None and not made.errors


@pytest.mark.parametrize("size", ["whole", "older"])
def test_the_metadata_is_answered(size):
    metadata = jax_frames.Metadata(state_type_id=5, traits=9)
    newest = size == "whole"
    metadata.struct_size = sizeof(metadata) if newest else jax_frames.Metadata.state_type_id.offset
    extension = jax_frames.MetadataExtension(
        jax_frames.Extension(sizeof(jax_frames.MetadataExtension), 1, None), pointer(metadata)
    )
    made = HandMade([], [], {})
    made.frame.api, made.frame.extension_start = None, addressof(extension)
    handler = jax_frames.handler(lambda frame: 1 / 0, (0, 7))
    assert handler(addressof(made.frame)) is None
    answered = metadata.api_version.major_version, metadata.api_version.minor_version
    assert answered == (0, 7) and metadata.traits == 0
    assert metadata.state_type_id == (0 if newest else 5), "no field that is not there is written"


def test_errors_are_handed_to_xla():
    def wrong(frame):
        raise ValueError("the rule")

    def broken(frame):
        raise KeyError("missing")

    def interrupted(frame):
        raise KeyboardInterrupt

    made = HandMade([], [], {})
    for each in (wrong, broken, interrupted):
        assert call(each, made.frame) == 1
    assert made.errors == [
        (3, "the rule"),
        (13, "KeyError: 'missing'"),
        (13, "KeyboardInterrupt: "),
    ]


def test_dtypes_that_nobody_computes_in_are_refused():
    made = HandMade([np.ones(2, np.float32)], [], {})
    jax_frames.Buffer.from_address(made.frame.args.items[0]).dtype = 17
    assert call(print, made.frame) == 1
    assert made.errors == [(3, "argument 0 of XLA's call has dtype number 17")]


def product(a, x, alpha, trans):
    matrix = np.swapaxes(a, -1, -2) if trans else a
    return alpha * (matrix @ x[..., None])[..., 0]


@pytest.mark.parametrize("handle", [jax_ticketed.on_host, jax_ticketed.on_gpu])
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("letter", [*"sdcz", "h>s", "b"])
@pytest.mark.parametrize("batch", ["one", "vectors", "both"])
def test_products(handle, trans, letter, batch):
    """On the GPU's way the simulator computes, with kernels."""
    if handle is jax_ticketed.on_gpu and gemv.backend() != "simulator":
        pytest.skip("frames made by hand lie in host memory")
    dtype, result = DTYPES[letter[0]], DTYPES[letter[-1]]
    rng = np.random.default_rng(5)
    front = () if batch == "one" else (2,)
    rows, cols = (5, 4) if trans else (4, 5)
    a = rng.integers(-3, 4, (*(front if batch == "both" else ()), 4, 5))
    x = rng.integers(-3, 4, (*front, cols))
    alpha = 2 - 1j if dtype.kind == "c" else 2.0
    if dtype.kind == "c":
        a, x = a + 1j * a[..., ::-1], x - 2j * x
    y = np.full((*front, rows), 3).astype(np.float32)
    y = cast(y, result) if result.itemsize == 2 else y.astype(result)
    y = y.copy()
    made = HandMade(
        [cast(a.astype(np.float32) if dtype.itemsize == 2 else a, dtype).copy(),
         cast(x.astype(np.float32) if dtype.itemsize == 2 else x, dtype).copy()],
        [y], attributes(trans=trans, shapes=(a.shape, x.shape) if front else ()),
    )  # fmt: skip
    with gemv.trace() as calls:
        assert call(handle, made.frame) is None, made.errors
    wide = cast(y, np.dtype(np.float32)) if letter == "b" else y
    assert np.array_equal(wide, product(a, x, alpha, trans))
    on_host = handle is jax_ticketed.on_host  # item after item; a GPU computes all in one launch
    expected = "host" if on_host else "simulator"
    assert [call.backend for call in calls] == [expected] * (2 if front and on_host else 1)


@pytest.mark.parametrize("status", [0, -1], ids=["launched", "refused"])
def test_a_remembered_call_is_launched_on_the_stream_of_xla(monkeypatch, status):
    """And where it is refused, as while a graph is captured, the engine runs it."""
    launched, run = [], []

    class Known:
        def launch(self, *arguments):
            launched.append(arguments)
            return status

        def record(self):
            raise AssertionError("no trace is open")

    class Engine:
        on = staticmethod(lambda device: contextlib.nullcontext())
        in_host_memory = staticmethod(lambda: False)
        device_of = staticmethod(lambda address: 3)

        def run(self, choice, problem, alpha, a, x, beta, y, stream):
            run.append((alpha, a.pointer, x.pointer, beta, y.pointer, a.device, stream))

    a, x, y = np.ones((2, 3)), np.ones(3), np.empty(2)
    operands = tuple(Operand("jax", a.dtype, (1,), (1,), 0, False, None) for _ in range(3))
    monkeypatch.setattr(jax_handlers.engines_backend, "backend", lambda: "cuda")
    monkeypatch.setattr(jax_handlers.engines_backend, "engine", Engine)
    monkeypatch.setattr(
        jax_handlers, "selected", lambda *rest: ("choice", operands, "problem", Known())
    )
    monkeypatch.setattr(jax_handlers, "_remembered", {})
    told = []
    monkeypatch.setattr(jax_again, "remember", lambda *arguments: told.append(arguments[1:]))
    made = HandMade([a, x], [y], attributes())
    assert call(jax_handlers.on_gpu, made.frame) is None, made.errors
    at = [each.ctypes.data for each in (a, x, y)]
    assert launched == [(STREAM, *at, 2.0, 0.0)]
    assert run == ([(2.0, *at[:2], 0, at[2], 3, STREAM)] if status else [])
    assert len(told) == (0 if status else 1), "machine code is told what was launched"


def part_of(memory, first, *shape):
    return memory[first : first + np.prod(shape)].reshape(shape)


@pytest.fixture
def selections(monkeypatch):
    """The problems for which a kernel has been selected."""
    from gemv.selection import select as room

    if gemv.backend() != "simulator":
        pytest.skip("frames made by hand lie in host memory")
    asked, right = [], room.select

    def select(problem, *arguments, **options):
        asked.append(problem)
        return right(problem, *arguments, **options)

    monkeypatch.setattr(room, "select", select)
    memo.forget()
    yield asked
    memo.forget()


def test_calls_that_differ_are_remembered_apart(selections):
    """Addresses, dtypes and options of one shape; each call is selected once, and then known."""
    memory = {
        letter: np.ones(100, DTYPES[letter] if letter != "h" else np.float16) for letter in "sh"
    }

    def run(letter, result, first=0, **options):
        a, x = part_of(memory[letter], first, 8, 8), part_of(memory[letter], 72, 8)
        y = np.zeros(8, DTYPES[result])
        made = HandMade([a, x], [y], attributes(**options))
        with gemv.trace() as calls:
            assert call(jax_handlers.on_gpu, made.frame) is None, made.errors
        assert y.tolist() == [16] * 8
        return calls[0].kernel, calls[0].knobs

    variants = [
        (("s", "s"), {}), (("s", "s", 1), {}), (("s", "s"), {"trans": 1}),
        (("s", "s"), {"accumulate": "wide"}), (("s", "s"), {"kernel": "serial"}),
        (("h", "h"), {}), (("h", "s"), {}),
    ]  # fmt: skip
    alone = []
    for arguments, options in variants:
        memo.forget()
        alone.append(run(*arguments, **options))
    memo.forget()
    selections.clear()
    for _ in range(2):
        assert [run(*arguments, **options) for arguments, options in variants] == alone
        assert len(selections) == len(variants)
    keys = [
        (each.dtype, each.y_dtype, each.a_alignment, each.accumulate, each.trans)
        for each in selections
    ]
    assert len(set(keys)) == len(variants) - 1  # the kernel is no part of a problem


def test_remembered_calls_are_few_and_follow_the_settings(selections, monkeypatch):
    monkeypatch.setattr(jax_handlers, "MAX_REMEMBERED", 2)

    def run(rows):
        y = np.zeros(rows, np.float32)
        made = HandMade([np.ones((rows, 4), "f"), np.ones(4, "f")], [y], attributes())
        assert call(jax_handlers.on_gpu, made.frame) is None and y.tolist() == [8] * rows

    for rows in (1, 2, 3, 4, 5):
        run(rows)
        assert len(jax_handlers._remembered) <= 2
    assert len(selections) == 5
    run(5)
    assert len(selections) == 5
    memo.forget()  # as every change of a setting does
    run(5)
    assert len(selections) == 6


def test_what_is_selected_while_a_setting_changes_is_not_remembered(selections, monkeypatch):
    selected = jax_handlers.selected

    def changing(*arguments):
        found = selected(*arguments)
        memo.forget()
        return found

    a, x, y = np.ones((3, 4), "f"), np.ones(4, "f"), np.zeros(3, "f")
    with monkeypatch.context() as patch:
        patch.setattr(jax_handlers, "selected", changing)
        assert call(jax_handlers.on_gpu, HandMade([a, x], [y], attributes()).frame) is None
    assert not jax_handlers._remembered
    assert call(jax_handlers.on_gpu, HandMade([a, x], [y], attributes()).frame) is None
    assert len(selections) == 2 and jax_handlers._remembered


def test_what_the_host_cannot_compute():
    a, x, y = np.ones((2, 3)), np.ones(3), np.empty(2)
    made = HandMade([a, x], [y], attributes(accumulate="wide"))
    assert call(jax_handlers.on_host, made.frame) == 1
    assert "accumulate='wide' in float64 needs a GPU" in made.errors[0][1]
    made = HandMade([a, x], [y], attributes(kernel="vector_rows"))
    assert call(jax_handlers.on_host, made.frame) == 1
    assert "kernel='vector_rows' needs a GPU" in made.errors[0][1]


def test_arrays_on_a_gpu_are_refused_where_the_backend_is_host():
    a, x, y = np.ones((2, 3)), np.ones(3), np.full(2, 7.0)
    made = HandMade([a, x], [y], attributes())
    with backend.using("host"):
        assert call(jax_handlers.on_gpu, made.frame) == 1
    assert "gemv.jax.matvec: a is on a GPU, but the backend is host" in made.errors[0][1]
    assert y.tolist() == [7, 7]


def test_the_version_is_that_of_the_header(tmp_path):
    folder = tmp_path / "xla" / "ffi" / "api"
    folder.mkdir(parents=True)
    assert jax_frames.version_in(str(tmp_path)) == jax_frames.WRITTEN_FOR
    header = folder / "c_api.h"
    header.write_text("#define XLA_FFI_API_MAJOR 1\n\n#define XLA_FFI_API_MINOR 12\n")
    assert jax_frames.version_in(str(tmp_path)) == (1, 12)
    header.write_text("nothing")
    assert jax_frames.version_in(str(tmp_path)) == jax_frames.WRITTEN_FOR


# Calls that were made before ----------------------------------------------------------------------


def run(launches, a, x, y, **options):
    made = HandMade([a, x], [y], attributes(**options))
    assert launches.function(addressof(made.frame)) is None, made.errors
    return launches.engine.launched[-1]


@pytest.mark.parametrize("letter", [*"sdcz", "h", "b"])
@pytest.mark.parametrize("shape", [(40, 30), (2, 1 << 16)], ids=["plain", "with scratch memory"])
def test_the_second_call_enters_no_python(launches, letter, shape):
    dtype = DTYPES[letter]
    arrays = [np.zeros(size, dtype) for size in (shape, shape[1], shape[0])]
    alpha = {"alpha": 2.5, "alpha_imag": -1.0 if dtype.kind == "c" else 0.0}
    first = run(launches, *arrays, **alpha)
    assert len(launches.pythonic) == 1
    for _ in range(3):
        assert run(launches, *arrays, **alpha) == first
    assert len(launches.pythonic) == 1
    ((_, _, _, known),) = jax_handlers._remembered.values()
    assert known.shares_scratch == (shape[0] == 2)


def test_another_alpha_is_another_call(launches):
    arrays = [np.zeros(size, np.float32) for size in ((40, 30), 30, 40)]
    for alpha in (2.0, 3.0, 2.0, 3.0, 3.0):
        launched = run(launches, *arrays, alpha=alpha, alpha_imag=0.0)
        assert np.frombuffer(launched[4], np.float32) == alpha
    assert len(launches.pythonic) == 2
    assert len(jax_handlers._remembered) == 1, "the kernel does not depend on alpha"


def test_an_alpha_that_becomes_infinite_is_left_to_python(launches):
    arrays = [np.zeros(size, np.float32) for size in ((40, 30), 30, 40)]
    for expected in (1, 2):
        made = HandMade(arrays[:2], arrays[2:], attributes(alpha=1e39, alpha_imag=0.0))
        launches.function(addressof(made.frame))
        assert len(launches.pythonic) == expected and not launches.engine.launched


def test_a_setting_that_changes_is_followed(launches):
    arrays = [np.zeros(size, np.float32) for size in ((40, 30), 30, 40)]
    for _ in range(2):
        run(launches, *arrays)
    memo.forget()
    for _ in range(2):
        run(launches, *arrays)
    assert len(launches.pythonic) == 2


def test_scratch_memory_of_another_stream(launches):
    """The entry is that of one stream; on another one Python finds the memory.

    It is another one as well where it has the handle of a stream that was destroyed.
    """
    arrays = [np.zeros(size, np.float32) for size in ((2, 1 << 16), 1 << 16, 2)]
    for stream, identity, calls in (
        (STREAM, 50, 1), (STREAM, 50, 1), (STREAM + 1, 60, 2), (STREAM + 1, 60, 2), (STREAM, 50, 2),
        (STREAM, 70, 3), (STREAM, 70, 3), (STREAM + 1, 60, 3), (2, 2, 4), (2, 2, 5),
    ):  # fmt: skip
        launches.engine.identities[stream] = identity
        made = HandMade(arrays[:2], arrays[2:], attributes(alpha_imag=0.0))

        def other(address, stream=stream):
            jax_frames.StreamGet.from_address(address).stream = stream
            return None

        made.api.stream_get = made.kept(ctypes.CFUNCTYPE(c_void_p, c_void_p)(other))
        assert launches.function(addressof(made.frame)) is None, made.errors
        assert launches.engine.launched[-1][0] == stream
        assert len(launches.pythonic) == calls


def test_where_there_is_no_gpu_python_is_the_handler():
    handler = jax_frames.handler(print, (0, 3))
    with backend.using("host"):
        assert jax_again.handler(handler) is handler
