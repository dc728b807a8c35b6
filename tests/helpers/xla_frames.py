"""Call frames of XLA's FFI, made by hand."""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_void_p, pointer, sizeof

import numpy as np

from gemv.calls import jax_frames, jax_handlers
from gemv.core.dtypes import DTYPES

NUMBERS = {letter: number for number, letter in jax_frames.DTYPE_NUMBERS.items()}
STREAM = 0x5EED


class HandMade:
    """A frame as XLA would make it, and the texts of the errors that a handler has answered."""

    def __init__(self, arguments, results, attributes, stage=3):
        self.keep, self.errors = [], []
        self.api = jax_frames.Api()
        self.api.error_create = self.kept(ctypes.CFUNCTYPE(c_void_p, c_void_p)(self.error))
        self.api.stream_get = self.kept(ctypes.CFUNCTYPE(c_void_p, c_void_p)(self.stream))
        self.frame = jax_frames.CallFrame(
            sizeof(jax_frames.CallFrame), None, addressof(self.api), 77, stage,
            self.items(arguments), self.items(results), self.attributes(attributes),
        )  # fmt: skip

    def kept(self, thing):
        self.keep.append(thing)
        return thing

    def error(self, address):
        made = jax_frames.ErrorCreate.from_address(address)
        self.errors.append((made.errc, made.message.decode()))
        return 1

    def stream(self, address):
        asked = jax_frames.StreamGet.from_address(address)
        assert asked.ctx == 77
        asked.stream = STREAM
        return None

    def items(self, arrays):
        buffers = []
        for array in arrays:
            known = {**DTYPES, jax_frames.TICKET: np.dtype(np.int32)}
            letter = next(letter for letter, dtype in known.items() if dtype == array.dtype)
            dims = self.kept((ctypes.c_int64 * max(array.ndim, 1))(*array.shape))
            address = self.kept(array).ctypes.data if array.size else None
            buffers.append(
                self.kept(
                    jax_frames.Buffer(
                        sizeof(jax_frames.Buffer), None, NUMBERS[letter], address, array.ndim, dims
                    )
                )
            )
        count = len(buffers)
        types = self.kept((ctypes.c_int * count)(*[1] * count))
        places = self.kept((c_void_p * count)(*map(addressof, buffers)))
        return jax_frames.Items(sizeof(jax_frames.Items), None, count, types, places)

    def span(self, text):
        memory = self.kept(ctypes.create_string_buffer(text.encode()))
        return self.kept(jax_frames.ByteSpan(addressof(memory), len(text)))

    def attributes(self, values):
        names, types, places = [], [], []
        for name, value in values.items():
            names.append(pointer(self.span(name)))
            types.append(4)
            places.append(addressof(self.span(value)))
        count = len(names)
        return jax_frames.Attributes(
            sizeof(jax_frames.Attributes), None, count, self.kept((ctypes.c_int * count)(*types)),
            self.kept((ctypes.POINTER(jax_frames.ByteSpan) * count)(*names)),
            self.kept((c_void_p * count)(*places)),
        )  # fmt: skip


def call(handle, frame):
    return jax_frames.handler(handle, (0, 3))(addressof(frame))


def attributes(**changes):
    plain = {"alpha": 2.0, "alpha_imag": -1.0, "trans": 0, "accumulate": "plain", "kernel": ""}
    return {"call": jax_handlers.written(**plain | changes)}
