"""The device functions that kernels call, for the GPU or for the simulator.

Numba decides when it is imported which of the two a process has. This module takes the functions
from that half, under the same names, so that a kernel is one source and never asks where it runs.
"""

from __future__ import annotations

from numba import cuda as cuda
from numba.cuda.core import config

#: Whether kernels run in the simulator, in plain Python.
SIMULATOR = bool(config.ENABLE_CUDASIM)

if SIMULATOR:
    pass
else:
    pass
