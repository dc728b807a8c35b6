"""PyTorch's tensors, on a GPU and in host memory: how they are recognised, read and made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gemv.arrays.base import Library, Place, Refusal, View, Views, imported, is_instance
from gemv.core.dtypes import BFLOAT16

#: numpy.dtype by the name of torch's; bfloat16 is the one that NumPy lacks.
_TORCH_NAMES = (
    "float16", "float32", "float64", "complex64", "complex128", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip


class Torch(Library):
    name = "torch"
    allocates_in_capture = True

    def place(self, obj: Any) -> Place | None:
        if not is_instance(obj, "torch", "Tensor"):
            return None
        compiler = getattr(imported("torch"), "compiler", None)
        if compiler is not None and compiler.is_compiling():
            # torch.compile ends its graph at this error and makes the call on real tensors.
            raise Refusal(
                "is traced by torch.compile, whose graph keeps products alone, and those without"
                " peer= and device_memory_limit="
            )
        _refuse_transformed(obj)
        place = obj.device.type
        if place not in ("cuda", "cpu"):
            raise Refusal(f"is a tensor on device {obj.device}, which is no CUDA GPU")
        return "device" if place == "cuda" else "host"

    def as_numpy(self, obj: Any) -> Any:
        # NumPy has no lazy conjugates and negatives: they are written out. Others are not copied.
        values = obj.resolve_conj().resolve_neg()
        torch = imported("torch")
        if values.dtype is torch.bfloat16:
            return values.view(torch.int16).numpy().view(BFLOAT16)
        return values.numpy()

    def is_array(self, obj: Any) -> bool:
        return True

    def written_through(self, obj: Any) -> bool:
        return not (obj.is_conj() or obj.is_neg())  # then as_numpy has made a copy

    def from_numpy(self, like: Any, result: np.ndarray) -> Any:
        torch = imported("torch")
        if result.dtype == BFLOAT16:
            return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(result)

    def read(self, obj: Any) -> View:
        torch = imported("torch")
        if obj.layout is not torch.strided:
            raise Refusal(
                f"is a tensor of layout {obj.layout}; only dense ones can be multiplied here:"
                " call its to_dense() first"
            )
        if obj.requires_grad and torch.is_grad_enabled():
            raise Refusal(
                "requires a gradient, which this product does not record: call gemv.torch.mv or"
                " addmv, which do, pass its detach(), or call under torch.no_grad()"
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

    def read_all(self, arrays: Sequence[Any]) -> Views | None:
        torch = imported("torch")
        plain = torch.Tensor.__torch_dispatch__
        kinds: set[Any] = set(map(type, arrays))
        if any([getattr(kind, "__torch_dispatch__", None) is not plain for kind in kinds]):
            return None
        functorch = getattr(torch._C, "_functorch", None)
        is_wrapped = getattr(functorch, "is_functorch_wrapped_tensor", bool)
        dtype, strided, grad = arrays[0].dtype, torch.strided, torch.is_grad_enabled()
        for array in arrays:
            if (
                not array.is_cuda
                or array.dtype is not dtype
                or array.layout is not strided
                or (grad and array.requires_grad)
                or (functorch is not None and is_wrapped(array))
            ):
                return None
        return Views(
            self._dtype(torch, dtype),
            [tuple(array.shape) for array in arrays],
            [array.stride() for array in arrays],
            [array.data_ptr() for array in arrays],
            [False] * len(arrays),
            [array.get_device() for array in arrays],
            [array.is_conj() for array in arrays],
            [array.is_neg() for array in arrays],
            [None] * len(arrays),
        )

    def parts(self, whole: Any, starts: Sequence[int], lengths: Sequence[int]) -> list[Any]:
        # One call for all of them. As slices they would share one count of what is written, so
        # that autograd took a y for overwritten once another one is; and views of split() cannot
        # be written to in a graph.
        sizes, end = [], 0
        for start, n in zip(starts, lengths, strict=True):
            sizes += [start - end, n]
            end = start + n
        sizes.append(whole.shape[0] - end)
        return list(imported("torch").unsafe_split_with_sizes(whole, sizes)[1::2])

    @staticmethod
    def _dtype(torch: Any, dtype: Any) -> Any:
        if dtype is torch.bfloat16:
            return BFLOAT16
        for name in _TORCH_NAMES:
            if dtype is getattr(torch, name, None):
                return np.dtype(name)
        raise Refusal(f"has dtype {dtype}, in which nothing is computed here")

    def stream_getter(self) -> Callable[[int], int]:
        torch = imported("torch")
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        return raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)

    def empty(self, like: Any, length: int, dtype: Any, device: int) -> Any:
        torch = imported("torch")
        if dtype == self._dtype(torch, like.dtype):
            named = like.dtype
        else:
            named = getattr(torch, str(dtype))
        place = like.device if like.device.index == device else torch.device("cuda", device)
        return torch.empty(length, dtype=named, device=place)

    def shared(self, array: Any, device: int) -> Any:
        return imported("torch").as_tensor(array, device=f"cuda:{device}")

    def resolved(self, obj: Any, conj: bool) -> Any:
        value = obj.conj() if conj else obj
        written = value.resolve_conj().resolve_neg().contiguous()
        return written.clone() if written.data_ptr() == obj.data_ptr() else written

    @property
    def notes_writes(self) -> Callable[[Any], None] | None:
        torch = imported("torch")
        graph = getattr(getattr(torch, "autograd", None), "graph", None)
        public = getattr(graph, "increment_version", None)
        if public is None:
            return None
        count: Callable[[Any], Any] = public
        many = counts_many()  # half the price of the public one

        def written(tensor: Any) -> None:
            """Tell autograd that what it saved of this tensor is out of date."""
            try:
                if many is not None:
                    many((tensor,))
                else:
                    count(tensor)
            except RuntimeError:  # made in inference mode, which counts nothing
                pass

        return written

    def notes_writes_to(self, arrays: Sequence[Any]) -> Callable[[], None] | None:
        one_by_one = super().notes_writes_to(arrays)
        many = None if one_by_one is None else counts_many()
        if one_by_one is None or many is None:
            return one_by_one
        each, together, tensors = one_by_one, many, tuple(arrays)

        def written() -> None:
            try:
                together(tensors)
            except RuntimeError:  # one of them was made in inference mode
                each()

        return written

    def record(self, obj: Any, behind: Callable[[], int], device: int) -> bool:
        torch = imported("torch")
        obj.record_stream(torch.cuda.ExternalStream(behind(), device=device))
        return True


def counts_many() -> Callable[[tuple[Any, ...]], Any] | None:
    """PyTorch's own function that counts writes to a tuple of tensors, where it has one."""
    torch = imported("torch")
    private = getattr(torch._C, "_increment_version", None)
    if private is None:
        return None
    try:
        private((torch.empty(0),))
    except TypeError:  # it takes a single tensor
        return None
    found: Callable[[tuple[Any, ...]], Any] = private
    return found


def _refuse_transformed(tensor: Any) -> None:
    """Refuse tensors without memory of their own, which stand for others."""
    torch = imported("torch")
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and functorch.is_functorch_wrapped_tensor(tensor):
        raise Refusal(
            "is a tensor inside a torch.func transformation (vmap, grad, ...), which cannot see"
            " through this product; it sees through gemv.torch.mv and addmv"
        )
    plain = torch.Tensor.__torch_dispatch__
    if type(tensor).__torch_dispatch__ is not plain:
        raise Refusal(
            f"is a {type(tensor).__name__}, a tensor without memory of its own that a kernel could"
            " read"
        )
