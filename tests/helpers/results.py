"""Results of a grid, made up."""

from __future__ import annotations

from gemv.measure.ragged_records import RaggedResult, RaggedResults
from gemv.measure.records import CellResult, GridResults


def row(**changes) -> CellResult:
    """The result of a cell of 3 GB: 1 ms is 3 TB/s."""
    usual = dict(m=8, n=9, dtype="s", op="N", order="C", view="", hot=False, beta=0)
    known = dict(nbytes=3 * 10**9, frames=2, kernel="vector_rows", knobs={"LANES": 8})
    return CellResult(**{**usual, **known, **changes})


def timed_grid() -> GridResults:
    rows = [
        row(
            m=m,
            n=n,
            op=op,
            dtype=dtype,
            time_s=1e-3,
            plain_s=0.9e-3,
            spread=0.01,
            peers={"torch.mv": peer},
        )  # fmt: skip
        for dtype in "sd"
        for m, n, peer in ((8, 9, 2e-3), (16, 4, 0.5e-3))
        for op in "NT"
    ]
    return GridResults(
        "A GPU", "cuda", {"torch": "9"}, 5, [*rows, row(n=77, refused={"gemv": "too big"})]
    )


def timed_lists() -> RaggedResults:
    """Lists of products, made up: with float64 another way is faster."""
    rows = [
        RaggedResult(
            count=1474, dtype=dtype, op=op, order="C", least=4, most=512, seed=0,
            nbytes=3 * 10**8, frames=4, padding=24.5, launches=["one", "two"], time_s=1e-4,
            plain_s=0.9e-4, spread=0.01,
            peers={"gemv.gemv, one by one": 5e-3, "torch.bmm, padded": bmm},
        )
        for dtype, bmm in (("s", 1e-3), ("d", 0.5e-4))
        for op in "NT"
    ]  # fmt: skip
    rows[0].refused = {"cuBLAS gemv, one by one": "not here"}
    return RaggedResults("A GPU", "cuda", {"torch": "9"}, 5, rows)
