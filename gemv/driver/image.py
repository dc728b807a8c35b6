"""Machine code out of an object file: linked once, and mapped in every process that wants it.

An object file (ELF, x86-64) holds sections and a list of places where the distance to another
section has to be written. Once that is done, the sections lie one behind the other in an image that
runs at any address. Loading it takes a mapping of memory and a copy, about 0.1 ms, where compiling
takes 0.1 s.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import platform
import struct
import sys
from typing import NamedTuple

#: The symbol of a table of addresses that may lie beside the code, and the function that answers
#: where it is.
TABLE = "addresses"
TABLE_AT = "table_at"
_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_ALLOCATED = 2
_CODE_AND_DATA, _SYMBOLS, _RELOCATIONS, _ZEROS = 1, 2, 4, 8
#: A distance in 32 bits, to data and to a function.
_DISTANCES = (2, 4)


class Image(NamedTuple):
    """Linked machine code.

    Attributes
    ----------
    code : bytes
    symbols : dict of str to int
        Where each symbol is in `code`, in bytes.
    """

    code: bytes
    symbols: dict[str, int]

    def pack(self) -> bytes:
        """As bytes: a line of JSON, and the code."""
        return json.dumps(self.symbols).encode() + b"\n" + self.code

    @classmethod
    def unpack(cls, data: bytes) -> Image:
        """The image that :meth:`pack` made bytes of."""
        symbols, _, code = data.partition(b"\n")
        return cls(code, json.loads(symbols))


def is_possible() -> bool:
    """Whether images can be linked and mapped on this kind of machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def link(file: bytes) -> Image:
    """The image of an object file.

    Raises
    ------
    ValueError
        If the file needs something from outside, or a kind of relocation that is not known.
    """
    start, size, count, names = (
        *struct.unpack_from("<Q", file, 0x28),
        *struct.unpack_from("<3H", file, 0x3A),
    )
    headers = [_HEADER.unpack_from(file, start + size * k) for k in range(count)]

    def name_at(section: int, offset: int) -> str:
        first = headers[section][4] + offset
        return file[first : file.index(b"\0", first)].decode()

    code, places = bytearray(), {}
    for number, (name, kind, flags, _, offset, nbytes, _, _, alignment, _) in enumerate(headers):
        # Tables for unwinding the stack are left out: no exception passes through this code.
        if not flags & _ALLOCATED or name_at(names, name).startswith(".eh_frame"):
            continue
        if kind not in (_CODE_AND_DATA, _ZEROS):
            continue
        code += bytes(-len(code) % max(alignment, 1))
        places[number] = len(code)
        code += bytes(nbytes) if kind == _ZEROS else file[offset : offset + nbytes]

    (table,) = (header for header in headers if header[1] == _SYMBOLS)
    symbols = [
        _SYMBOL.unpack_from(file, table[4] + _SYMBOL.size * k)
        for k in range(table[5] // _SYMBOL.size)
    ]
    for _, kind, _, _, offset, nbytes, _, target, _, _ in headers:
        if kind != _RELOCATIONS or target not in places:
            continue
        for at in range(offset, offset + nbytes, _RELOCATION.size):
            place, info, addend = _RELOCATION.unpack_from(file, at)
            name, _, _, section, value, _ = symbols[info >> 32]
            if info & 0xFFFFFFFF not in _DISTANCES or section not in places:
                what = name_at(table[6], name) or f"section {section}"
                raise ValueError(f"relocation {info & 0xFFFFFFFF} to {what} cannot be done here")
            place += places[target]
            distance = places[section] + value + addend - place
            struct.pack_into("<i", code, place, distance)
    found = {
        name_at(table[6], name): places[section] + value
        for name, _, _, section, value, _ in symbols
        if name and section in places
    }
    return Image(bytes(code), found)


def mapped(image: Image) -> tuple[mmap.mmap, int]:
    """Memory of this process that holds the image, writable so far, and its address."""
    memory = mmap.mmap(-1, len(image.code), prot=mmap.PROT_READ | mmap.PROT_WRITE)
    memory.write(image.code)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def make_executable(memory: mmap.mmap, address: int) -> None:
    """Let code run there, and nobody write to it any more; an OSError where that is forbidden."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if libc.mprotect(address, len(memory), mmap.PROT_READ | mmap.PROT_EXEC):
        number = ctypes.get_errno()
        raise OSError(number, "memory cannot be made executable")
