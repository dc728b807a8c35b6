"""The call frame of XLA's FFI, as ctypes reads it: a handler's arguments, results and attributes.

XLA calls a handler with one pointer. What it points to is laid down in ``xla/ffi/api/c_api.h``,
which lies in ``jax.ffi.include_dir()``; the structures below have its fields under its names, less
the prefix. A handler answers 0, or an error that XLA has made of a text.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32
from ctypes import c_void_p as pointer
from pathlib import Path
from typing import Any, NamedTuple

#: The version of the interface that this file was written for, where its header cannot be read.
WRITTEN_FOR = 0, 3
#: The letter of tickets: see :mod:`gemv.driver.tickets`.
TICKET = "i"
_EXECUTE = 3
_METADATA = 1
_BUFFER = 1
_STRING = 4
_INTERNAL, _INVALID_ARGUMENT = 13, 3
#: XLA's numbers of the dtypes that products have, and of int32, which tickets have.
DTYPE_NUMBERS = {11: "s", 12: "d", 15: "c", 18: "z", 10: "h", 16: "b", 4: TICKET}
#: Memory as a list of words, by their number: one slice is read in the time of one field. XLA's
#: platforms have words of 64 bits and put the lower half first.
_WORDS = [ctypes.c_uint64 * count for count in range(16)]
_HALF = 0xFFFFFFFF


class Extension(Structure):
    _fields_ = [("struct_size", c_size_t), ("type", c_int), ("next", pointer)]


class ApiVersion(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", pointer), ("major_version", c_int),
        ("minor_version", c_int),
    ]  # fmt: skip


class Buffer(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", pointer), ("dtype", c_int),
        ("data", pointer), ("rank", c_int64), ("dims", POINTER(c_int64)),
    ]  # fmt: skip


class ByteSpan(Structure):
    _fields_ = [("ptr", pointer), ("len", c_size_t)]


class Items(Structure):
    """Arguments, or results."""

    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", pointer), ("size", c_int64),
        ("types", POINTER(c_int)), ("items", POINTER(pointer)),
    ]  # fmt: skip


class Attributes(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", pointer), ("size", c_int64),
        ("types", POINTER(c_int)), ("names", POINTER(POINTER(ByteSpan))),
        ("attrs", POINTER(pointer)),
    ]  # fmt: skip


class CallFrame(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", pointer), ("api", pointer),
        ("ctx", pointer), ("stage", c_int), ("args", Items), ("rets", Items),
        ("attrs", Attributes),
    ]  # fmt: skip


class Metadata(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("api_version", ApiVersion), ("traits", c_uint32),
        ("state_type_id", c_int64),
    ]  # fmt: skip


class MetadataExtension(Structure):
    _fields_ = [("base", Extension), ("metadata", POINTER(Metadata))]


class StreamGet(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", pointer), ("ctx", pointer),
        ("stream", pointer),
    ]  # fmt: skip


class ErrorCreate(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", pointer), ("message", c_char_p),
        ("errc", c_int),
    ]  # fmt: skip


class Api(Structure):
    """The first functions of XLA's table, as many as are called here."""

    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", pointer), ("api_version", ApiVersion),
        ("internal_api", pointer), ("error_create", ctypes.CFUNCTYPE(pointer, pointer)),
        ("error_get_message", pointer), ("error_destroy", pointer), ("handler_register", pointer),
        ("stream_get", ctypes.CFUNCTYPE(pointer, pointer)),
    ]  # fmt: skip


class Array(NamedTuple):
    """A buffer of a call: contiguous, in the order of C."""

    letter: str
    address: int
    shape: tuple[int, ...]


class Frame(NamedTuple):
    """What a call of XLA's asks for."""

    arguments: list[Array]
    results: list[Array]
    attributes: dict[str, str]
    #: Asks XLA for the handle of the stream that the call belongs to.
    stream: Callable[[], int]


#: Computes one call.
Handle = Callable[[Frame], None]


def read(frame: CallFrame) -> Frame:
    """The arguments, results and attributes of a frame, with copies of all that XLA owns."""

    def stream() -> int:
        asked = StreamGet(ctypes.sizeof(StreamGet), None, frame.ctx, None)
        if Api.from_address(frame.api).stream_get(ctypes.addressof(asked)):
            raise RuntimeError("XLA has no stream for this call")
        return asked.stream or 0

    return Frame(_arrays(frame.args), _arrays(frame.rets), _attributes(frame.attrs), stream)


def _arrays(items: Items) -> list[Array]:
    found = []
    size = items.size
    kinds, places = items.types[:size], items.items[:size]
    for place, (kind, at) in enumerate(zip(kinds, places, strict=True)):
        if kind != _BUFFER:
            raise TypeError(f"argument {place} of XLA's call is no buffer")
        # The fields of a Buffer.
        _, _, number, address, rank, dims = _WORDS[6].from_address(at)[:]
        letter = DTYPE_NUMBERS.get(number & _HALF)
        if letter is None:
            raise TypeError(f"argument {place} of XLA's call has dtype number {number & _HALF}")
        shape = tuple(_WORDS[rank].from_address(dims)[:]) if rank else ()
        found.append(Array(letter, address, shape))
    return found


def _attributes(attributes: Attributes) -> dict[str, str]:
    found = {}
    for place in range(attributes.size):
        name = _text(ctypes.addressof(attributes.names[place].contents))
        if attributes.types[place] != _STRING:
            raise TypeError(f"attribute {name} of XLA's call is no text")
        found[name] = _text(attributes.attrs[place])
    return found


def _text(address: int) -> str:
    """The text of a ByteSpan."""
    at, length = _WORDS[2].from_address(address)[:]
    return ctypes.string_at(at, length).decode() if length else ""


def handler(handle: Handle, version: tuple[int, int]) -> Any:
    """A function for XLA that computes a call by `handle`; it has to be kept.

    XLA asks a handler for its metadata as it is registered. The answer says that a call cannot be
    traced into a command buffer: the first one compiles, and some take memory.
    """

    def call(address: int) -> int | None:
        frame = CallFrame.from_address(address)
        try:
            if frame.extension_start:
                extension = Extension.from_address(frame.extension_start)
                if extension.type == _METADATA:
                    _answer(MetadataExtension.from_address(frame.extension_start), version)
                    return None
            if frame.stage == _EXECUTE:
                handle(read(frame))
        except BaseException as error:  # nothing of Python's can pass through XLA
            return _error(frame, error)
        return None

    return ctypes.CFUNCTYPE(pointer, pointer)(call)


def _answer(extension: MetadataExtension, version: tuple[int, int]) -> None:
    metadata = extension.metadata.contents
    metadata.api_version.major_version, metadata.api_version.minor_version = version
    metadata.traits = 0
    if metadata.struct_size >= Metadata.state_type_id.offset + Metadata.state_type_id.size:
        metadata.state_type_id = 0


def _error(frame: CallFrame, error: BaseException) -> int | None:
    wrong = isinstance(error, (ValueError, TypeError))
    text = str(error) if wrong else f"{type(error).__name__}: {error}"
    made = ErrorCreate(
        ctypes.sizeof(ErrorCreate), None, text.encode(),
        _INVALID_ARGUMENT if wrong else _INTERNAL,
    )  # fmt: skip
    return Api.from_address(frame.api).error_create(ctypes.addressof(made))


def version_in(folder: str) -> tuple[int, int]:
    """The version of the interface whose header lies in a folder of includes."""
    try:
        text = (Path(folder) / "xla" / "ffi" / "api" / "c_api.h").read_text(encoding="utf-8")
        major, minor = (
            int(re.search(rf"#define XLA_FFI_API_{name} (\d+)", text)[1])  # type: ignore[index]
            for name in ("MAJOR", "MINOR")
        )
    except (OSError, TypeError):
        return WRITTEN_FOR
    return major, minor
