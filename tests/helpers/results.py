"""Results of a grid, made up."""

from __future__ import annotations

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
