"""Machine code of candidates, compiled by other processes ahead of its first use."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

from gemv.selection.select import Choice


def compiled(task: tuple) -> None:
    """Compile the machine code of a choice and store it on disk; runs in another process."""
    from gemv.engines import binaries
    from gemv.kernels import get

    name, spec, capability = task
    binaries.binaries(get(name), spec, capability)


class Compilers:
    """Processes that compile the code of later cells while earlier cells are measured."""

    def __init__(self, jobs: int, capability: tuple[int, int]) -> None:
        # Spawned, because the CUDA driver does not work in a forked process.
        self._pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
        self._capability = capability
        self._futures: dict[tuple, Future] = {}

    def order(self, made: Iterable[Choice]) -> None:
        for each in made:
            task = each.kernel.name, each.spec, self._capability
            if task not in self._futures:
                self._futures[task] = self._pool.submit(compiled, task)

    def wait(self, made: Iterable[Choice], end: float) -> bool:
        """Wait for the code of the choices `made`; False if it is not there at the time `end`."""
        for each in made:
            left = end - time.monotonic()
            if left <= 0:
                return False
            try:
                self._futures[each.kernel.name, each.spec, self._capability].result(left)
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
