"""Several blocks finish a tile whose columns are split: the same sums in every order of blocks."""

from __future__ import annotations

import pytest
from helpers import family_cases
from helpers.problems import ALL_ROWS

import gemv
from gemv.engines import backend
from gemv.kernels import ends_of_splits, helpers_of_ends

if backend.backend() != "simulator":
    pytest.skip("only the simulator runs blocks in a chosen order", allow_module_level=True)

from gemv.language.simulator.scheduler import Schedule, scheduled

ROWS = {**family_cases.ROWS, "LANES": 8, "THREADS_PER_BLOCK": 64, "BLOCKS_PER_SM": 8}
COLUMNS = {**family_cases.COLUMNS, "BLOCKS_PER_SM": 8}
#: Kernel, rows and columns of A, constants of the single product and of the kernel.
CASES = [
    ("several_rows", 5, 421, ROWS, {"PARTS": 4, "ROWS": 2, "COUNT": 4}),
    ("several_rows", 3, 451, ROWS, {"PARTS": 1, "COUNT": 2}),
    ("several_columns", 9, 150, COLUMNS, {"LOADS": 2, "COUNT": 2}),
    ("several_columns", 30, 200, {**COLUMNS, "PIECES": 2},
     {"LOADS": 2, "COUNT": 4, "STAGED": 1, "PIECES": 1, "OF_PIECES": 2}),
    ("several_staged_rows", 5, 424, ROWS,
     {"LANES": 8, "PARTS": 2, "TURNS": 1, "ROWS": 2, "VECTORS": 2, "COUNT": 4, "STAGES": 2,
      "THREADS_PER_BLOCK": 64, "MIN_BLOCKS": 1, "BLOCKS_PER_SM": 8, "OF_ROWS": 1, "OF_VECTORS": 1,
      "OF_THREADS": 64}),
]  # fmt: skip
#: With ``GEMV_ALL_ROWS=1``, twice as many orders of chance, and all of them where the last block
#: has no helpers.
ORDERS = [Schedule("forward"), Schedule("forward", late=True), Schedule("reversed"),
          *(Schedule("random", k) for k in range(8 if ALL_ROWS else 4))]  # fmt: skip


def is_helped(name, m, n, alone, constants, helpers):
    """Down the columns, each helper takes some vectors."""
    return name != "several_columns" or helpers <= constants["COUNT"]


@pytest.mark.parametrize("name, m, n, alone, constants, helpers", [
    pytest.param(*case, helpers, id="-".join(map(str, [*case[:3], f"constants{k}", helpers])))
    for k, case in enumerate(CASES) for helpers in (1, 2, 4) if is_helped(*case, helpers)
])  # fmt: skip
def test_helpers_give_the_same_sums_in_every_order(
    name, m, n, alone, constants, helpers, monkeypatch
):
    """A share that a helper does not take, as not all blocks have begun, goes to the last one."""
    for rule in ("helpers_of_columns", "helpers_of_rows"):
        monkeypatch.setattr(ends_of_splits, rule, lambda *_: helpers)
    family_cases.choose(name, alone, constants, monkeypatch)
    gemv.use_alignment(True)  # forgets the choices
    right, run = family_cases.products(name, m, n)
    for order in ORDERS if ALL_ROWS or helpers > 1 else ORDERS[1:4]:
        with scheduled(order), gemv.trace() as calls:
            assert run().copy_to_host().tobytes() == right.tobytes(), order
        (call,) = calls
        assert call.kernel == name and call.geometry.sizes["helpers"] == helpers
        assert call.geometry.sizes["splits"] >= helpers
    gemv.use_alignment(True)


def test_few_splits_have_few_helpers():
    """Powers of two: half of the splits at most, and not more than there is work for."""
    found = [helpers_of_ends.helpers_of(splits, 100) for splits in (1, 3, 4, 7, 8, 66, 1000)]
    assert found == [1, 1, 2, 2, 4, 4, 4]
    assert [helpers_of_ends.helpers_of(66, most) for most in (0, 1, 2, 3)] == [1, 1, 2, 2]
