"""Products that kernels of batches and of several vectors make, with constants for each.

:data:`CASES` are those in which the lines matter that keep threads in order, and :data:`FURTHER`
has kernels without such lines.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

import gemv
from gemv.core.batch import aligned_step
from gemv.core.dtypes import DTYPES
from gemv.core.narrow import cast
from helpers import forced
from helpers.items import constants_for_many

ROWS = {"ROWS": 1, "VECTORS": 1, "MIN_BLOCKS": 1, "BLOCKS_PER_SM": 0}
UNSPLIT = {"BLOCKS_PER_SM": 0, "OF_ROWS": 1, "OF_VECTORS": 1, "OF_THREADS": 32}
SHORT = {"ROWS": 4, "COUNT": 4, "LOADS": 3, "LANES": 4, "FULL": 0, "MIN_BLOCKS": 1}
COLUMNS = {"COLUMNS": 2, "THREADS_PER_BLOCK": 64, "MIN_BLOCKS": 1, "ACROSS": 1, "LANES": 4,
           "PIECES": 1, "BLOCKS_PER_SM": 0}  # fmt: skip
#: By kernel, the cases in which its lines matter: rows and columns of A, then constants of the
#: kernel for one product and of the kernel itself.
CASES = {
    # numbers that come by loads, and by copies
    "small_items": [(16, 16, None, None), (16, 16, None, {"many": True})],
    "staged_rows": [
        # sums of two warps, which meet, in a ring that goes round
        (7, 67, {**ROWS, "LANES": 64, "THREADS_PER_BLOCK": 64},
         {"ROWS": 2, "VECTORS": 1, "THREADS_PER_BLOCK": 64, "CHUNK_ROWS": 2}),
    ],
    "staged_columns": [
        (45, 37, {**COLUMNS, "LANES": 8},
         {"WHOLE": 0, "THREADS_PER_BLOCK": 32, "LINE_THREADS": 4, "POOL_BYTES": 4096}),
    ],
    "several_rows": [
        # one sum of a row is left, and a thread finishes neighbours; two warps; lanes in four turns
        (37, 131, {**ROWS, "LANES": 4, "THREADS_PER_BLOCK": 32},
         {"PARTS": 4, "ROWS": 2, "COUNT": 2, "THREADS_PER_BLOCK": 64}),
        (2, 517, {**ROWS, "LANES": 64, "THREADS_PER_BLOCK": 64}, {"PARTS": 2}),
        (5, 1031, {**ROWS, "LANES": 128, "THREADS_PER_BLOCK": 128},
         {"PARTS": 2, "TURNS": 4, "ROWS": 2, "COUNT": 2, "THREADS_PER_BLOCK": 128}),
        # splits: two blocks finish each of two tiles, and four one tile of two turns
        (5, 421, {**ROWS, "LANES": 8, "THREADS_PER_BLOCK": 64, "BLOCKS_PER_SM": 8},
         {"PARTS": 4, "ROWS": 2, "COUNT": 4}),
        (3, 451, {**ROWS, "LANES": 8, "THREADS_PER_BLOCK": 64, "BLOCKS_PER_SM": 8},
         {"PARTS": 1, "COUNT": 2}),
    ],
    "several_columns": [
        # x in registers, and in two stages with a rest; sums of one vector after the other; splits
        (37, 70, {**COLUMNS, "PIECES": 2}, {"LOADS": 3}),
        (9, 170, COLUMNS, {"LOADS": 1, "COUNT": 8, "STAGED": 1}),
        (9, 170, COLUMNS, {"LOADS": 1, "COUNT": 8, "STAGED": 2}),
        (9, 150, {**COLUMNS, "BLOCKS_PER_SM": 8}, {"LOADS": 2, "COUNT": 2}),
        # blocks of half the rows, whose splits are those of one vector
        (37, 150, {**COLUMNS, "PIECES": 2, "BLOCKS_PER_SM": 8},
         {"LOADS": 2, "COUNT": 4, "STAGED": 1, "PIECES": 1, "OF_PIECES": 2}),
        # splits of one vector after the other, by two blocks: see FEW_BYTES, which changes what is
        # built from constants, so no other test has these
        (9, 150, {**COLUMNS, "BLOCKS_PER_SM": 8}, {"LOADS": 2, "COUNT": 4, "MIN_BLOCKS": 2}),
    ],
    "several_long_columns": [
        # x of some columns after the other; A straight from memory, and a ring that goes round
        (150, 37, {"PIECES": 2, "COLUMNS": 2, "THREADS_PER_BLOCK": 8, "MIN_BLOCKS": 1},
         {"PIECES": 1, "COLUMNS": 4, "THREADS_PER_BLOCK": 64, "STAGES": 0, "CHUNK_COLUMNS": 8}),
        (150, 37, {"PIECES": 2, "COLUMNS": 2, "THREADS_PER_BLOCK": 8, "MIN_BLOCKS": 1},
         {"PIECES": 2, "COLUMNS": 2, "THREADS_PER_BLOCK": 64, "STAGES": 3, "CHUNK_COLUMNS": 8}),
    ],
    "several_short_rows": [
        # rings that go round: of one warp, and of two that share it
        (150, 36, {**ROWS, "LANES": 4, "THREADS_PER_BLOCK": 32},
         {**SHORT, "SHARERS": 2, "WARPS": 1, "STAGES": 2, "THREADS_PER_BLOCK": 32}),
        (150, 36, {**ROWS, "LANES": 4, "THREADS_PER_BLOCK": 32},
         {**SHORT, "SHARERS": 1, "WARPS": 2, "STAGES": 2, "THREADS_PER_BLOCK": 64}),
    ],
    "several_long_rows": [
        # a row of two warps, whose rings go round, in several tiles of a block
        (9, 400, {**ROWS, "LANES": 16, "THREADS_PER_BLOCK": 32},
         {"LANES": 16, "LOADS": 4, "FULL": 0, "COUNT": 4, "THREADS_PER_BLOCK": 64, "MIN_BLOCKS": 1,
          "STAGES": 2, "AT_ONCE": 1}),
    ],
    "several_staged_rows": [
        # a ring that goes round, in several tiles of a block; lanes in turns
        (37, 200, {**ROWS, "LANES": 8, "THREADS_PER_BLOCK": 32},
         {"LANES": 8, "PARTS": 2, "TURNS": 1, "ROWS": 2, "VECTORS": 2, "COUNT": 4, "STAGES": 2,
          "THREADS_PER_BLOCK": 64, "MIN_BLOCKS": 1, **UNSPLIT}),
        (9, 512, {**ROWS, "LANES": 64, "THREADS_PER_BLOCK": 64},
         {"LANES": 64, "PARTS": 2, "TURNS": 2, "ROWS": 2, "VECTORS": 1, "COUNT": 2, "STAGES": 3,
          "THREADS_PER_BLOCK": 64, "MIN_BLOCKS": 1, **UNSPLIT}),
    ],
    "several_rows_in_shares": [
        # a ring that goes round, and sums of two blocks; threads of a lane in two warps
        (5, 1032, {**ROWS, "LANES": 64, "THREADS_PER_BLOCK": 64},
         {"LANES": 64, "SPLITS": 1, "FINISHERS": 1, "PARTS": 2, "ROWS": 2, "VECTORS": 1,
          "COUNT": 2, "STAGES": 2, "THREADS_PER_BLOCK": 64, "MIN_BLOCKS": 1}),
    ],
    # tiles of warps, and tiles of blocks
    "list_columns": [(45, 70, None, None), (44, 300, None, None)],
}  # fmt: skip
#: The same for the other kernels.
FURTHER = {
    "several_small": [(9, 7, None, None), (31, 32, None, None)],
}  # fmt: skip
#: The letter of the dtype, where it is not float32.
LETTERS = {"staged_rows": "d", "several_long_rows": "h", "several_staged_rows": "h"}
#: The kernel for one product that has the sums.
ALONE = {
    "staged_rows": "vector_rows", "staged_columns": "vector_columns",
    "several_rows": "vector_rows", "several_columns": "vector_columns",
    "several_long_columns": "long_columns", "several_short_rows": "vector_rows",
    "several_long_rows": "vector_rows", "several_staged_rows": "vector_rows",
    "several_rows_in_shares": "vector_rows",
}  # fmt: skip


def operands(name, m, n, letter):
    """Small integers, whose sums are exact in any order."""
    rng = np.random.default_rng([m, n])
    shared = name.startswith("several")
    a = rng.integers(-4, 5, (m, n) if shared else (9 if name == "small_items" else 2, m, n))
    x = rng.integers(-4, 5, (3 if shared else len(a), n))
    return cast(a.astype("d"), DTYPES[letter]), cast(x.astype("d"), DTYPES[letter])


class Listed:
    """Results of a list as one array."""

    def __init__(self, arrays):
        self._arrays = arrays

    def copy_to_host(self):
        return np.array([each.copy_to_host() for each in self._arrays])


def products(name, m, n, letter=None):
    """What is right, and a call that makes it; the matrices end where their memory does."""
    a, x = operands(name, m, n, letter or LETTERS.get(name, "s"))
    lines = a if "_rows" in name else a.swapaxes(-1, -2)  # as they are in memory
    if name.startswith("list"):
        own = [cuda.to_device(np.asfortranarray(each)) for each in a]
        listed = [cuda.to_device(each) for each in x]
        return np.matmul(a, x[..., None])[..., 0], lambda: Listed(gemv.gemv_batched(1, own, listed))
    if name.startswith("staged"):  # one element behind a multiple of 16 bytes
        whole = np.concatenate([[0], lines.ravel()]).astype(a.dtype)
        stored = cuda.to_device(whole)[1:].reshape(lines.shape)
    else:  # each line whole vectors of 16 bytes long
        length = lines.shape[-1]
        whole = np.zeros((*lines.shape[:-1], aligned_step(length)), a.dtype)
        whole[..., :length] = lines
        every = (slice(None),) * (lines.ndim - 1)  # Numba's arrays know no ellipsis
        stored = cuda.to_device(whole)[(*every, slice(length))]
    vectors = cuda.to_device(x)
    if not name.startswith("several"):
        run = lambda: gemv.gemv(1, stored, vectors, trans=int(lines is not a))  # noqa: E731
    elif lines is a:
        run = lambda: gemv.matvec(stored, vectors)  # noqa: E731
    else:
        run = lambda: gemv.vecmat(vectors, stored)  # noqa: E731
    return np.matmul(a, x[..., None])[..., 0], run


def choose(name, alone, constants, monkeypatch):
    """Let products have the kernel `name`, with these constants, until the test ends."""
    if name.startswith("staged"):
        pool = {"MIN_BLOCKS": 1, "POOL_BYTES": 14 << 10, "STAGES": 3}
        forced.in_stages(monkeypatch, ALONE[name], alone, {**pool, **constants})
    elif name == "small_items" and constants is not None:
        constants_for_many(monkeypatch, **constants)
    elif alone is not None:
        forced.together(monkeypatch, ALONE[name], alone, name, constants)


def every_family(monkeypatch):
    """Make all products, most of them in float32; which kernels have made them."""
    made = set()
    for name, cases in (CASES | FURTHER).items():
        for m, n, alone, constants in cases:
            with monkeypatch.context() as patch:
                choose(name, alone, constants, patch)
                gemv.use_alignment(True)  # forgets the choices
                right, run = products(name, m, n)
                with gemv.trace() as calls:
                    found = run().copy_to_host()
            assert found.tobytes() == right.tobytes(), (name, m, n)
            made |= {call.kernel for call in calls}
    gemv.use_alignment(True)
    return made
