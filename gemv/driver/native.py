"""Machine code in this process: brought into memory, and called like a built-in function.

LLVM, which Numba brings along, compiles functions for the host. One with the signature of a
built-in function (``METH_FASTCALL``) is called by the interpreter like its own: it gets the objects
as they are, and asks Python's C functions for their values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from gemv.driver import image as images
from gemv.driver.image import TABLE, TABLE_AT

#: ``kept(compiled)`` gives the bytes of an image: those that another process has left, or those
#: that ``compiled()`` makes. Only the second needs LLVM.
Kept = Callable[[Callable[[], bytes]], bytes]
#: ``fill(table, address_of)``: write to the table at this address what the code calls.
Fill = Callable[[int, Callable[[str], int]], None]


def compiled_now(compiled: Callable[[], bytes]) -> bytes:
    return compiled()


def load(write: Callable[[], Any], kept: Kept, fill: Fill | None = None) -> Callable[[str], int]:
    """The address of each function by its name.

    Parameters
    ----------
    write : callable
        ``write()`` gives the functions as a module of LLVM's intermediate representation.
    kept : callable
        What keeps the image.
    fill : callable, optional
        For code with a table of addresses.
    """
    address_of = _from_image(write, kept, fill) if images.is_possible() else None
    if address_of is None:
        from gemv.driver import machine_writer

        engine, address_of = machine_writer.in_place(write())
        keep(engine)
        if fill is not None:
            fill(ctypes.CFUNCTYPE(ctypes.c_size_t)(address_of(TABLE_AT))(), address_of)
    return address_of


def _from_image(
    write: Callable[[], Any], kept: Kept, fill: Fill | None
) -> Callable[[str], int] | None:
    """The address of each function of the image; None where there can be no image.

    Memory may not be allowed to become executable, or LLVM makes an object that
    :func:`gemv.driver.image.link` cannot link.
    """

    def compiled() -> bytes:
        from gemv.driver import machine_writer

        return images.link(machine_writer.object_file(write())).pack()

    try:
        image = images.Image.unpack(kept(compiled))
        memory, start = images.mapped(image)

        def address_of(name: str) -> int:
            return start + image.symbols[name]

        if fill is not None:
            fill(address_of(TABLE), address_of)
        images.make_executable(memory, start)
    except (OSError, ValueError):  # ValueError: an LLVM that relocates otherwise
        return None
    keep(memory)
    return address_of


def python(name: str) -> int:
    """The address of a function of Python's C interface."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def in_capsule(capsule: Any, name: bytes | None) -> int:
    """The address that a capsule of this name holds; another library's C interface."""
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return pointer_of(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, name) or 0


def keep(thing: Any) -> None:
    """Let something live as long as the process: functions are called until its very end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL = 0x0080


def builtin(name: str, address: int, own: Any = None) -> Callable[..., Any]:
    """A built-in function of the interpreter, made of machine code.

    Parameters
    ----------
    own : object, optional
        What the code gets before its arguments, and what lives as long as the function.
    """
    definition = _MethodDef(name.encode(), address, _FASTCALL, None)
    keep(definition)
    make = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p
    )(("PyCFunction_NewEx", ctypes.pythonapi))
    return make(ctypes.byref(definition), own, None)
