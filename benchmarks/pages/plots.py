"""A picture of the homes of x."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure.constants_records import ConstantsResults
from gemv.kernels.t06_where_x_lives import HOMES as X_HOMES


def plot_constants(measured: ConstantsResults, path: str | Path) -> None:
    """Draw the times of single loads, and of gemv over the length of x; needs matplotlib."""
    import matplotlib

    from gemv.measure.picture import save

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.5), constrained_layout=True)
    marks = dict(zip(X_HOMES, "osd^v", strict=True))
    for home in X_HOMES:
        rows = [r for r in measured.turns if r.home == home and r.pattern == "blocked"]
        if rows:
            axes[0].plot(
                [row.distinct for row in rows],
                [(row.load_s or 0) * 1e9 for row in rows],
                marker=marks[home],
                label=home,
            )
        for axis, lanes, order in ((axes[1], 1, "F"), (axes[2], 32, "C")):
            times = [
                (row.n, row.time_s * 1e6)
                for row in measured.vector
                if (row.home, row.lanes, row.order, row.source) == (home, lanes, order, "L2")
                and row.time_s is not None
                and not row.unrolled
            ]
            if times:
                axis.plot(*zip(*times, strict=True), marker=marks[home], label=home)
    axes[0].set(
        title="a load alone", xlabel="different addresses in a warp", ylabel="ns for a warp's load"
    )
    axes[1].set(title="gemv, all threads read the same x[j]", xlabel="length of x", ylabel="µs")
    axes[2].set(title="gemv, each thread reads its own x[j]", xlabel="length of x", ylabel="µs")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
        if axis.has_data():
            axis.legend()
    figure.suptitle(measured.device)
    save(figure, path, dpi=110)
    pyplot.close(figure)
