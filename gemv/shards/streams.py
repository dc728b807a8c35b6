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
    """As :func:`stream_of`, for a vector that was read earlier: its array may name another one."""
    if vector.stream is not None:
        vector = vector._replace(stream=vector.exporter.read(vector.origin).stream)
    return stream_of(vector)


def exported(vector: Operand, stream: int) -> Any:
    """Let `stream` come after the pending work that only the array's library can order.

    Returns
    -------
    object or None
        What has to live until the vector was read.
    """
    if vector.exporter is not None and vector.exporter.ordered_by_export:
        return dlpack.export(vector.origin, stream or 1)
    return None


def hold(vector: Operand, capsule: Any, stream: int) -> None:
    """Keep a vector, and what :func:`exported` gave, until what is on `stream` by now is done.

    That is for libraries of which neither the stream nor the allocator is known.
    """
    engine = backend.engine()
    if engine.name == "cuda" and (capsule is not None or vector.exporter.held_until_done):
        with engine.on(vector.device):
            engine.held.hold((capsule, vector.origin), stream)
