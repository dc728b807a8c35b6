"""The stream that a vector of the caller is used on."""

from __future__ import annotations

from typing import Any

from gemv.arrays import dlpack
from gemv.core.operand import Operand
from gemv.engines import backend


def stream_of(vector: Operand) -> int:
    """The stream on which work on a vector may be pending.

    It is the one that the array itself names, else the current one of its library, else the default
    stream.
    """
    if vector.stream is not None:
        return 0 if vector.stream == 1 else vector.stream
    current = None if vector.device is None else vector.exporter.current_stream(vector.device)
    return int(backend.engine().default_stream() if current is None else current)


def stream_by_now(vector: Operand) -> int:
    """As :func:`stream_of`, for a vector that was read before.

    If its array named a stream then, the array is read again, since it may name another stream by
    now. An array that named none is not read again.
    """
    if vector.stream is not None:
        vector = vector._replace(stream=vector.exporter.read(vector.origin).stream)
    return stream_of(vector)


def exported(vector: Operand, stream: int) -> Any:
    """Let `stream` wait for pending work on a vector whose library names no stream.

    Such a library (JAX) orders that work itself as the array is exported by DLPack.

    Returns
    -------
    object or None
        The export, which has to be kept until the vector was read; None for other libraries.
    """
    if vector.exporter is not None and vector.exporter.ordered_by_export:
        return dlpack.export(vector.origin, stream or 1)
    return None


def hold(vector: Operand, capsule: Any, stream: int) -> None:
    """Keep a vector, and what :func:`exported` gave, until all work so far on `stream` is done.

    Nothing is kept for a library whose allocator frees memory in the order of its stream.
    """
    engine = backend.engine()
    if engine.name == "cuda" and (capsule is not None or vector.exporter.held_until_done):
        with engine.on(vector.device):
            engine.held.hold((capsule, vector.origin), stream)
