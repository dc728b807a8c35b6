"""Device arrays of other libraries: how each is recognised, read, made, ordered and kept alive.

No library is imported here. One of its arrays was passed, so the library is in ``sys.modules``.
A :class:`Library` is what the rest of the package knows about one of them; adding one is adding a
subclass to :data:`LIBRARIES`.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gemv import _dlpack
from gemv.core.dtypes import BFLOAT16, DTYPES
from gemv.core.rules import describe, shown

#: DLPack's device types for CUDA memory, and for host memory (plain and pinned).
CUDA_TYPES = (2, 13)
HOST_TYPES = (1, 3)

#: numpy.dtype by the name of torch's; bfloat16 is the one that NumPy lacks.
_TORCH_NAMES = (
    "float16", "float32", "float64", "complex64", "complex128", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip


class View(NamedTuple):
    """What a library says about one of its arrays."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In bytes; None where the array is C-contiguous."""
    pointer: int
    readonly: bool = False
    device: int | None = None
    """Ordinal of its GPU; None where only the pointer can tell."""
    stream: int | None = None
    """A stream that the array itself names."""
    conj: bool = False
    neg: bool = False
    keep: Any = None
    """What else has to live as long as the view."""


class Refusal(TypeError):
    """An array of a kind that cannot be computed with; the text follows the argument's name."""


def element_type(dtype: Any) -> Any:
    """A NumPy dtype as this package names it: ml_dtypes' bfloat16 is ours."""
    return BFLOAT16 if getattr(dtype, "name", None) == "bfloat16" else dtype


def dtype_called(name: Any) -> np.dtype | None:
    """The dtype that a name, or the dtype of some library, stands for; None for no such."""
    text = getattr(name, "name", None) or getattr(name, "__name__", None) or str(name)
    text = text.removeprefix("torch.")
    for dtype in DTYPES.values():
        if text in (dtype.name, dtype.str) or name == dtype:
            return dtype
    return BFLOAT16 if text == "bfloat16" else None


def plain_bfloat16(array: np.ndarray) -> np.ndarray:
    """The same memory, with our name for ml_dtypes' bfloat16."""
    return array.view(BFLOAT16) if element_type(array.dtype) is BFLOAT16 else array


class Library:
    """One source of device arrays."""

    name = ""
    #: Its arrays never change, so y is always a new one.
    immutable = False
    #: Whether its allocator may be called while a stream is captured.
    allocates_in_capture = False
    #: Whether work on an array is ordered by asking the array itself, at each call.
    ordered_by_export = False

    def owns(self, obj: Any) -> bool:
        """Whether `obj` is a device array of this library."""
        raise NotImplementedError

    def read(self, obj: Any) -> View:
        """Its metadata: nothing is copied, moved, launched or waited for."""
        raise NotImplementedError

    def current_stream(self, device: int) -> int | None:
        """The stream on which the library works now; None where it has no such thing."""
        return None

    def empty(self, like: Any, length: int, dtype: Any, device: int) -> Any:
        """A new vector on `device`, on the library's current stream, beside the array `like`."""
        from numba import cuda

        return cuda.device_array(length, dtype)

    def resolved(self, obj: Any, conj: bool) -> Any:
        """A contiguous copy of an array with lazy values, which most libraries do not have."""
        raise NotImplementedError

    @property
    def notes_writes(self) -> Callable[[Any], None] | None:
        """What to call with an array that was overwritten, if the library counts that."""
        return None

    def record(self, obj: Any, stream: int, device: int) -> bool:
        """Tell the allocator that `obj` is used on `stream`; False where it cannot be told."""
        return False


def _module(name: str) -> Any:
    """A library that the process has imported, or None."""
    return sys.modules.get(name)


def _is_instance(obj: Any, module: str, name: str) -> bool:
    # A library in the middle of its own import lacks the name.
    known = getattr(_module(module), name, None)
    return isinstance(known, type) and isinstance(obj, known)


class Numba(Library):
    name = "numba"

    def owns(self, obj: Any) -> bool:
        if getattr(type(obj), "__cuda_ndarray__", False):
            return True
        packages = {base.__module__.partition(".")[0] for base in type(obj).__mro__}
        return bool(packages & {"numba", "numba_cuda"}) and hasattr(obj, "__cuda_array_interface__")

    def read(self, obj: Any) -> View:
        fake = getattr(obj, "_ary", None)
        if isinstance(fake, np.ndarray):
            # Numba's simulator: a wrapper around host memory.
            address = fake.__array_interface__["data"][0]
            readonly = not fake.flags.writeable
            return View(fake.dtype, fake.shape, fake.strides, address, readonly, keep=fake)
        view = read_interface(obj)
        # Its interface calls broadcast arrays contiguous and leaves their zero strides out.
        strides = getattr(obj, "strides", None)
        return view if strides is None else view._replace(strides=tuple(strides))


class CuPy(Library):
    name = "cupy"
    allocates_in_capture = True

    def owns(self, obj: Any) -> bool:
        return _is_instance(obj, "cupy", "ndarray")

    def read(self, obj: Any) -> View:
        dtype = element_type(obj.dtype)
        return View(dtype, obj.shape, obj.strides, obj.data.ptr, device=obj.data.device_id)

    def current_stream(self, device: int) -> int | None:
        return int(_module("cupy").cuda.get_current_stream(device).ptr)

    def empty(self, like: Any, length: int, dtype: Any, device: int) -> Any:
        cupy = _module("cupy")
        with cupy.cuda.Device(device):
            return cupy.empty(length, like.dtype if dtype == element_type(like.dtype) else dtype)


class Torch(Library):
    name = "torch"
    allocates_in_capture = True

    def owns(self, obj: Any) -> bool:
        if not _is_instance(obj, "torch", "Tensor"):
            return False
        compiler = getattr(_module("torch"), "compiler", None)
        if compiler is not None and compiler.is_compiling():
            # torch.compile ends its graph here and makes the call itself, on real tensors.
            raise Refusal(
                "is traced by torch.compile, whose graph keeps products alone, and those without"
                " accumulate=, out_dtype=, peer= and device_memory_limit="
            )
        _refuse_transformed(obj)
        place = obj.device.type
        if place not in ("cuda", "cpu"):
            raise Refusal(f"is a tensor on device {obj.device}, which is no CUDA GPU")
        return place == "cuda"

    def read(self, obj: Any) -> View:
        torch = _module("torch")
        if obj.layout is not torch.strided:
            raise Refusal(
                f"is a tensor of layout {obj.layout}; only dense ones can be multiplied here:"
                " call its to_dense() first"
            )
        if obj.requires_grad and torch.is_grad_enabled():
            raise Refusal(
                "requires a gradient, which this product does not record: pass its detach(), or"
                " call under torch.no_grad()"
            )
        dtype = self._dtype(torch, obj.dtype)
        size = obj.element_size()
        return View(
            dtype,
            tuple(obj.shape),
            tuple(stride * size for stride in obj.stride()),
            obj.data_ptr(),
            device=obj.get_device(),
            conj=obj.is_conj(),
            neg=obj.is_neg(),
        )

    @staticmethod
    def _dtype(torch: Any, dtype: Any) -> Any:
        if dtype is torch.bfloat16:
            return BFLOAT16
        for name in _TORCH_NAMES:
            if dtype is getattr(torch, name, None):
                return np.dtype(name)
        raise Refusal(f"has dtype {dtype}, in which nothing is computed here")

    def current_stream(self, device: int) -> int | None:
        torch = _module("torch")
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        if raw is not None:
            return int(raw(device))
        return int(torch.cuda.current_stream(device).cuda_stream)

    def empty(self, like: Any, length: int, dtype: Any, device: int) -> Any:
        torch = _module("torch")
        if dtype == self._dtype(torch, like.dtype):
            named = like.dtype
        else:
            named = getattr(torch, str(dtype))
        return torch.empty(length, dtype=named, device=like.device)

    def resolved(self, obj: Any, conj: bool) -> Any:
        """A tensor of the values of `obj`, or of their conjugates, written out in new memory."""
        value = obj.conj() if conj else obj
        written = value.resolve_conj().resolve_neg().contiguous()
        return written.clone() if written.data_ptr() == obj.data_ptr() else written

    @property
    def notes_writes(self) -> Callable[[Any], None] | None:
        torch = _module("torch")
        graph = getattr(getattr(torch, "autograd", None), "graph", None)
        public = getattr(graph, "increment_version", None)
        if public is None:
            return None
        count: Callable[[Any], Any] = public
        private = getattr(torch._C, "_increment_version", None)
        if private is not None:  # half the price of the public one, where it takes a tuple
            try:
                private((torch.empty(0),))
            except TypeError:
                pass
            else:

                def count(tensor: Any) -> None:
                    private((tensor,))

        def written(tensor: Any) -> None:
            """Tell autograd: what it saved of this tensor for a backward is out of date."""
            try:
                count(tensor)
            except RuntimeError:  # made in inference mode, where nobody counts
                pass

        return written

    def record(self, obj: Any, stream: int, device: int) -> bool:
        torch = _module("torch")
        obj.record_stream(torch.cuda.ExternalStream(stream, device=device))
        return True


def _refuse_transformed(tensor: Any) -> None:
    """Refuse tensors that stand for others: they have no memory of their own."""
    torch = _module("torch")
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and functorch.is_functorch_wrapped_tensor(tensor):
        raise Refusal(
            "is a tensor inside a torch.func transformation (vmap, grad, ...), which cannot see"
            " through this product"
        )
    plain = torch.Tensor.__torch_dispatch__
    if type(tensor).__torch_dispatch__ is not plain:
        raise Refusal(
            f"is a {type(tensor).__name__}, a tensor without memory of its own that a kernel could"
            " read"
        )


class Jax(Library):
    name = "jax"
    immutable = True
    ordered_by_export = True

    def owns(self, obj: Any) -> bool:
        core = getattr(_module("jax"), "core", None)
        tracer = getattr(core, "Tracer", None)
        if isinstance(tracer, type) and isinstance(obj, tracer):
            raise Refusal(
                "is traced by JAX (jit, grad, vmap, ...), where arrays have no values yet: call"
                " this product outside of the transformation"
            )
        if not _is_instance(obj, "jax", "Array"):
            return False
        devices = obj.devices()
        if len(devices) != 1:
            raise Refusal(f"lies on {len(devices)} devices; all of it must be on one")
        (device,) = devices
        if device.platform not in ("gpu", "cuda", "cpu"):
            raise Refusal(f"is an array on {device}, which is no CUDA GPU")
        return device.platform != "cpu"

    def read(self, obj: Any) -> View:
        dtype = element_type(np.dtype(obj.dtype))
        (device,) = obj.devices()
        ordinal = device.local_hardware_id
        # JAX lays arrays out along rows, which is what None says, unless it is told otherwise.
        layout = getattr(getattr(obj, "format", None), "layout", None)
        strides = None
        if tuple(getattr(layout, "major_to_minor", None) or ()) == (1, 0):
            strides = (dtype.itemsize, dtype.itemsize * obj.shape[0])
        return View(dtype, obj.shape, strides, obj.unsafe_buffer_pointer(), True, ordinal or 0)

    def empty(self, like: Any, length: int, dtype: Any, device: int) -> Any:
        code = _dlpack.BFLOAT if dtype == BFLOAT16 else None
        return _dlpack.Export(super().empty(like, length, dtype, device), device, code)

    @staticmethod
    def finish(export: Any) -> Any:
        """The array that JAX makes of our memory, which it frees in the end."""
        return _module("jax").dlpack.from_dlpack(export)


class Interface(Library):
    """Anything else with ``__cuda_array_interface__``."""

    name = "cuda_array_interface"

    def owns(self, obj: Any) -> bool:
        return hasattr(obj, "__cuda_array_interface__")

    def read(self, obj: Any) -> View:
        return read_interface(obj)


class DLPack(Library):
    """Anything else with ``__dlpack__``."""

    name = "dlpack"
    ordered_by_export = True

    def owns(self, obj: Any) -> bool:
        if not (hasattr(type(obj), "__dlpack__") and hasattr(type(obj), "__dlpack_device__")):
            return False
        kind = int(obj.__dlpack_device__()[0])
        if kind not in CUDA_TYPES + HOST_TYPES:
            raise Refusal(f"lies on a device of DLPack's type {kind}, which is no CUDA GPU")
        return kind in CUDA_TYPES

    def read(self, obj: Any) -> View:
        # -1: only look, wait for nothing; the call asks again with its stream.
        tensor = _dlpack.read(_dlpack.export(obj, -1))
        dtype = BFLOAT16 if tensor.dtype == "bfloat16" else tensor.dtype
        if not isinstance(dtype, np.dtype) and isinstance(dtype, str):
            raise Refusal(f"has dtype {dtype}, in which nothing is computed here")
        return View(
            dtype,
            tensor.shape,
            None if tensor.strides is None else tuple(s * tensor.itemsize for s in tensor.strides),
            tensor.pointer,
            tensor.readonly,
            tensor.device,
            keep=tensor.capsule,
        )


#: In the order in which they are asked; the protocols come last, since most libraries speak them.
LIBRARIES: tuple[Library, ...] = (Torch(), Jax(), CuPy(), Numba(), Interface(), DLPack())
BY_NAME: dict[str, Library] = {library.name: library for library in LIBRARIES}


def exporter_of(obj: Any) -> Library | None:
    """The library whose device array `obj` is; None for host memory and for no array at all."""
    if isinstance(obj, (np.ndarray, np.generic, list, tuple, int, float)):
        # Numba's mapped and managed arrays are NumPy's as well, and a kernel can read them where
        # they are. A slice of one is an array of that class too, but knows no address there.
        if not (getattr(type(obj), "__cuda_ndarray__", False) and hasattr(obj, "gpu_data")):
            return None
    for library in LIBRARIES:
        if library.owns(obj):
            return library
        if library.name == "torch" and _is_instance(obj, "torch", "Tensor"):
            return None  # in host memory
        if library.name == "jax" and _is_instance(obj, "jax", "Array"):
            return None
    return None


def read_interface(obj: Any) -> View:
    """The view that ``__cuda_array_interface__`` gives, version 2 or 3.

    Raises
    ------
    Refusal
        If an entry is missing or of another type than the protocol says.
    """
    interface = obj.__cuda_array_interface__
    if not isinstance(interface, dict):
        raise Refusal(f"has a CUDA array interface that is no dict but {describe(interface)}")
    for name in ("version", "data", "typestr", "shape"):
        if name not in interface:
            raise Refusal(f"has a CUDA array interface without {name!r}")
    version = _entry("version", interface["version"])
    if version < 2:
        raise Refusal(f"has a CUDA array interface of version {shown(version)}, not 2 or 3")
    if interface.get("mask") is not None:
        raise Refusal("is a masked device array, and a mask cannot be honoured")
    data = interface["data"]
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise _wrong("data", data, "an address and whether it is read-only")
    pointer, readonly = data
    if not isinstance(readonly, (bool, int, np.bool_)):
        raise _wrong("read-only flag", readonly, "True or False")
    typestr = interface["typestr"]
    if not isinstance(typestr, str):  # NumPy would take None for float64
        raise _wrong("typestr", typestr, "a string like '<f8'")
    try:
        dtype = np.dtype(typestr)
    except Exception:  # NumPy has several for strings that it cannot read
        raise _wrong("typestr", typestr, "a dtype that NumPy knows") from None
    stream = interface.get("stream")
    if stream is not None:
        stream = _entry("stream", stream)
        if not 0 <= stream < 2**64:
            raise _wrong("stream", stream, "the handle of a stream")
    strides = interface.get("strides")
    return View(
        dtype,
        _entries("shape", interface["shape"]),
        None if strides is None else _entries("strides", strides),
        0 if pointer is None else _entry("address", pointer),
        bool(readonly),
        stream=stream,
    )


def _entry(name: str, value: Any) -> int:
    """An int of an interface. True is equal to 1, but it is no version and no address."""
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except Exception:  # whatever an object's own method raises
            pass
    raise _wrong(name, value, "an integer")


def _entries(name: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)):
        raise _wrong(name, values, "a tuple of integers")
    try:
        numbers = tuple(_entry(name, value) for value in values)
    except Refusal:
        raise _wrong(name, values, "a tuple of integers") from None
    if any(number.bit_length() > 64 for number in numbers):
        raise _wrong(name, values, "a tuple of integers of 64 bits")
    return numbers


def _wrong(name: str, value: Any, rule: str) -> Refusal:
    return Refusal(f"has a CUDA array interface whose {name} is {describe(value)}, not {rule}")


def host_array(obj: Any) -> Any:
    """A tensor in host memory as a NumPy array that shares it; anything else as it is."""
    if _is_instance(obj, "torch", "Tensor"):
        # Lazy conjugates and negatives have no NumPy form; others are not copied by this.
        values = obj.resolve_conj().resolve_neg()
        torch = _module("torch")
        if values.dtype is torch.bfloat16:
            return values.view(torch.int16).numpy().view(BFLOAT16)
        return values.numpy()
    plain = ("__array__", "__array_interface__", "__array_struct__", "__len__")
    if hasattr(obj, "__dlpack__") and not any(hasattr(obj, name) for name in plain):
        return np.from_dlpack(obj)
    return obj


def is_host_array(obj: Any) -> bool:
    """Whether a host operand is an array itself, and not a list or the like that was read."""
    return isinstance(obj, np.ndarray) or _is_instance(obj, "torch", "Tensor")


def note_written(obj: Any) -> None:
    """A host array was overwritten: whoever counts that is told."""
    if _is_instance(obj, "torch", "Tensor"):
        note = BY_NAME["torch"].notes_writes
        if note is not None:
            note(obj)


def written_through(obj: Any) -> bool:
    """Whether a host array can be overwritten through :func:`host_array`.

    A tensor that is a lazy conjugate or negative is read from a copy, and JAX's arrays never
    change.
    """
    if _is_instance(obj, "torch", "Tensor"):
        return not (obj.is_conj() or obj.is_neg())
    return not _is_instance(obj, "jax", "Array")


def host_result(like: Any, result: np.ndarray) -> Any:
    """`result` in the kind of the host array `like`: a tensor for a tensor, else a NumPy array."""
    if _is_instance(like, "torch", "Tensor"):
        torch = _module("torch")
        if result.dtype == BFLOAT16:
            return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(result)
    theirs = getattr(like, "dtype", None)
    if result.dtype == BFLOAT16 and theirs is not None:
        result = result.view(theirs)
    if _is_instance(like, "jax", "Array"):
        return _module("jax").numpy.asarray(result)
    return result
