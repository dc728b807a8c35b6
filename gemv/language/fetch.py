"""The kernel that brings memory to the L2 cache before it is asked for; no rung of the ladder.

Idea
    While a GPU waits for another one, its memory is idle. Each thread asks for one piece of what
    the next kernel reads first. Nothing waits for the numbers: the kernel ends once all have been
    asked for, and they arrive while the GPU still waits.

Bytes
    Those of the pieces, once. The next kernel reads them from the L2 cache instead.

Wins
    Between two products in a CUDA graph on several GPUs, each of which waits for x or y of the
    others (docs/notes_gpus.md has the figures).

Loses
    Where the pieces are in the cache already, or where other memory takes their place before they
    are read.

Source
    ``cp.async.bulk.prefetch.L2`` of the PTX manual; it needs compute capability 9.0.
"""

import numpy as np

from gemv.core.geometry import PREFETCH_BYTES
from gemv.language.vocabulary import cuda, prefetch

#: What the memory is counted in here, whatever it holds.
WORD = np.dtype(np.uint64)
_PIECE_WORDS = PREFETCH_BYTES // 8


def fetch(rows, x):
    for piece in range(cuda.grid(1), rows, cuda.gridsize(1)):
        prefetch(x, piece * _PIECE_WORDS, PREFETCH_BYTES)
