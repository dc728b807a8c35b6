"""What the measurement of shards does with arrays: on GPUs by PyTorch, and on the simulator."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

Ways = dict[str, Callable[[], Callable[[], Any]]]

#: Rows that are compared with float64 at a time; graphs that are timed.
CHECKED_ROWS, GRAPHS = 2048, 15


class Torch:
    """Arrays of PyTorch on GPUs.

    Attributes
    ----------
    devices : sequence of int
        One for each shard; x and y are on the first.
    """

    timed = True

    def __init__(self, devices: Sequence[int]) -> None:
        import torch

        self.torch, self.devices = torch, list(devices)
        self.home = torch.device("cuda", self.devices[0])
        self.names = [torch.cuda.get_device_name(index) for index in self.devices]

    def random(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        generator = self.torch.Generator(self.home).manual_seed(seed)
        named = getattr(self.torch, dtype)
        return self.torch.randn(shape, dtype=named, device=self.home, generator=generator)

    def part(self, a: Any, number: int, axis: int) -> Any:
        """An equal share of the rows or columns, on its device."""
        start, end = shares(a.shape[axis], len(self.devices))[number]
        mine = a[start:end] if axis == 0 else a[:, start:end]
        return mine.contiguous().to(self.torch.device("cuda", self.devices[number]))

    def empty(self, n: int, like: Any) -> Any:
        return self.torch.full((n,), float("nan"), dtype=like.dtype, device=self.home)

    def wait(self) -> None:
        for index in set(self.devices):
            self.torch.cuda.synchronize(index)

    def wait_for_y(self) -> None:
        """Until the GPU of y is idle."""
        self.torch.cuda.synchronize(self.home)

    def in_graph(self, product: Callable[[], Any], count: int) -> float:
        """Seconds of one of `count` products in a CUDA graph, by the events of the first GPU."""
        torch, home = self.torch, torch_stream(self.torch, self.devices[0])
        others = [torch_stream(torch, index) for index in set(self.devices) - {self.devices[0]}]
        graph, begun = torch.cuda.CUDAGraph(), torch.cuda.Event()
        self.wait()
        with ExitStack() as stack:
            for stream in others:
                stack.enter_context(torch.cuda.stream(stream))
            with torch.cuda.graph(graph, stream=home, capture_error_mode="relaxed"):
                # The streams of the other GPUs take part in the capture from its first event on.
                begun.record(home)
                for stream in others:
                    stream.wait_event(begun)
                for _ in range(count):
                    product()
                for stream in others:
                    home.wait_stream(stream)
        seconds = []
        with torch.cuda.device(self.home):
            for _ in range(GRAPHS):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self.wait()
                graph.replay()  # so that its end covers the time that the next launch takes
                start.record()
                graph.replay()
                end.record()
                self.wait()
                seconds.append(start.elapsed_time(end) / 1e3 / count)
        return statistics.median(seconds)

    def error(self, a: Any, x: Any, y: Any) -> float:
        """The largest error, in units of ``eps*(|A||x|)``."""
        torch, eps, worst = self.torch, self.torch.finfo(x.dtype).eps, 0.0
        y = self.as_tensor(y)
        for row in range(0, len(a), CHECKED_ROWS):
            some = a[row : row + CHECKED_ROWS].double()
            exact, size = some @ x.double(), some.abs() @ x.double().abs()
            wrong = (y[row : row + CHECKED_ROWS].double() - exact).abs() / (eps * size)
            worst = max(worst, float(torch.nan_to_num(wrong, nan=float("inf")).max()))
        return worst

    def as_tensor(self, y: Any) -> Any:
        return y if isinstance(y, self.torch.Tensor) else self.torch.as_tensor(y, device=self.home)

    def bits(self, y: Any) -> bytes:
        return bytes(self.as_tensor(y).cpu().numpy().tobytes())

    def other_ways(self, a: Any, x: Any) -> Ways:
        """The ways of other libraries."""
        return {
            "torch.mv, one GPU": partial(self._one, a, x),
            "torch.mv, peer copies": partial(self._peers, a, x),
            "cupyx.distributed.array": partial(self._cupy, a, x),
        }

    def _one(self, a: Any, x: Any) -> Callable[[], Any]:
        y = self.empty(len(a), x)
        return lambda: self.torch.mv(a, x, out=y)

    def _peers(self, a: Any, x: Any) -> Callable[[], Any]:
        torch, y = self.torch, self.empty(len(a), x)
        parts = [self.part(a, number, 0) for number in range(len(self.devices))]
        bounds = shares(len(a), len(parts))
        xs = [x if part.device == x.device else torch.empty_like(x, device=part.device)
              for part in parts]  # fmt: skip
        ys = [
            y[start:end]
            if part.device == y.device
            else torch.empty(end - start, dtype=x.dtype, device=part.device)
            for part, (start, end) in zip(parts, bounds, strict=True)
        ]

        def product() -> Any:
            for mine in xs:
                if mine is not x:
                    mine.copy_(x, non_blocking=True)
            for part, mine, out in zip(parts, xs, ys, strict=True):
                torch.mv(part, mine, out=out)
            for out, (start, end) in zip(ys, bounds, strict=True):
                if out.device != y.device:
                    y[start:end].copy_(out, non_blocking=True)
            return y

        return product

    def _cupy(self, a: Any, x: Any) -> Callable[[], Any]:
        import cupy
        from cupyx.distributed.array import distributed_array

        if len(set(self.devices)) < len(self.devices):
            raise ValueError("CuPy takes each GPU once")
        bounds = shares(len(a), len(self.devices))
        rows = {i: slice(*b) for i, b in zip(self.devices, bounds, strict=True)}
        with cupy.cuda.Device(self.devices[0]):
            shared = distributed_array(cupy.from_dlpack(a), rows)
            column = cupy.from_dlpack(x).reshape(-1, 1)
            vector = distributed_array(column, {i: slice(0, len(x)) for i in self.devices})
            y = cupy.empty(len(a), column.dtype)

        def product() -> Any:
            result = shared @ vector
            with cupy.cuda.Device(self.devices[0]):
                for index, (start, end) in zip(self.devices, bounds, strict=True):
                    (chunk,) = result.all_chunks()[index]
                    y[start:end] = chunk.reshape(-1)
            return y

        return product


class Simulated:
    """Arrays of Numba's simulator: what the program does, on a few elements and without times."""

    timed = False

    def __init__(self, devices: Sequence[int]) -> None:
        self.devices, self.names = [0] * len(devices), ["simulator"] * len(devices)

    def random(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        return _on_device(np.random.default_rng(seed).standard_normal(shape).astype(dtype))

    def part(self, a: Any, number: int, axis: int) -> Any:
        start, end = shares(a.shape[axis], len(self.devices))[number]
        host = a.copy_to_host()
        return _on_device((host[start:end] if axis == 0 else host[:, start:end]).copy())

    def empty(self, n: int, like: Any) -> Any:
        return _on_device(np.full(n, np.nan, like.dtype))

    def wait(self) -> None:
        pass

    def error(self, a: Any, x: Any, y: Any) -> float:
        a, x, y = (each.copy_to_host().astype(np.float64) for each in (a, x, y))
        eps = np.finfo(np.float32).eps
        return float(np.nan_to_num(np.abs(y - a @ x) / (eps * (abs(a) @ abs(x))), nan=np.inf).max())

    def bits(self, y: Any) -> bytes:
        return bytes(y.copy_to_host().tobytes())

    def other_ways(self, a: Any, x: Any) -> Ways:
        return {"torch.mv, one GPU": partial(_needs, "torch.mv needs a GPU")}


def torch_stream(torch: Any, index: int) -> Any:
    return torch.cuda.Stream(torch.device("cuda", index))


def _on_device(array: np.ndarray) -> Any:
    from numba import cuda

    return cuda.to_device(array)


def _needs(what: str) -> Callable[[], Any]:
    raise RuntimeError(what)


def shares(extent: int, count: int) -> list[tuple[int, int]]:
    """Nearly equal stretches, which begin at multiples of 16."""
    bounds = [number * extent // count // 16 * 16 for number in range(count)] + [extent]
    return list(zip(bounds[:-1], bounds[1:], strict=True))
