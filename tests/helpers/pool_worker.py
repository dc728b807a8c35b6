"""On which streams the vectors of a pool are freed: found out without a GPU and its driver.

test_pool.py runs this in a process of its own, where stand-ins replace the modules that load the
driver's library. It prints what the tests compare, as JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np
from numba import cuda


def stand_in(module, **names):
    """A module of the driver's, which cannot be imported where there is no driver."""
    made = ModuleType(module)
    vars(made).update(names)
    sys.modules[module] = made


stand_in("gemv.driver.libcuda", check=lambda answer: answer)
stand_in("gemv.driver.streams", PER_THREAD=2)
stand_in("gemv.driver.machine", Machine=None)
cuda.current_context = lambda: None

from gemv.engines import pool  # noqa: E402

pool.driver = mock.MagicMock(CUdeviceptr=lambda address: address)
pool.driver.cuMemPoolCreate.return_value = 77

#: Of 8 bytes each: too many for the pool to keep by itself.
LENGTH = pool.SPARE_BYTES


def freed(stream, answers=()):
    """Addresses of what is freed, and on which stream: by the thread that made it, by another one.

    `answers` are what the driver says to the first of these.
    """
    addresses, told, said = itertools.count(1), [], list(answers)

    def give_back(address, on, device):
        told.append((address, on))
        return said.pop(0) if said else 0

    machine = SimpleNamespace(
        allocate=lambda handle, on, nbytes: next(addresses), give_back=give_back
    )
    own = pool.Pool(0, stream, machine)
    made = [own.vector(LENGTH, np.dtype(np.float64)) for _ in range(2)]
    made.pop()
    thread = threading.Thread(target=made.clear)
    thread.start()
    thread.join()
    own.vector(LENGTH, np.dtype(np.float64))
    return told


if __name__ == "__main__":
    answers = {"legacy": freed(0), "per_thread": freed(2), "late": freed(2, [900])}
    print(json.dumps(answers))
