"""Predicted against measured times, from the campaigns in ``benchmarks/results/fit``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.colors import ListedColormap
from style import canvas, drawing

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP), str(TOP / "docs" / "_ext")]
from selection_pages import FITS, fits, predicted_of  # noqa: E402

from benchmarks.pages.page import duration  # noqa: E402


@drawing("predicted")
def predicted(palette):
    """Every launch that a campaign timed: the time that the formula predicts over the time that was
    measured. A darker field has more launches. On the line the two are equal. Launches that are
    wrong by more than a factor of 4 are not shown."""
    files = [file for name in fits() if (file := FITS / f"{name}.json").exists()]
    if not files:
        return None
    found, terms = predicted_of(files[0], keep=True)
    figure, axes = canvas(3.3)
    x, y = np.log10(found.times), np.log2(terms.seconds / found.times)
    shades = ListedColormap([palette.fade(palette.strong, 0.85 * (1 - k / 31)) for k in range(32)])
    inside = np.abs(y) <= 2
    axes.hexbin(x[inside], y[inside], gridsize=(60, 26), bins="log", mincnt=1, cmap=shades,
                linewidths=0.1)  # fmt: skip
    axes.axhline(0, color=palette.accent, linewidth=1.2)
    powers = range(int(np.floor(x.min())), int(np.ceil(x.max())) + 1)
    axes.set_xticks(list(powers), [duration(10.0**power) for power in powers])
    axes.set_yticks([-2, -1, 0, 1, 2], ["1/4", "1/2", "1", "2", "4"])
    axes.set(xlim=(x.min() - 0.1, x.max() + 0.1), ylim=(-2.05, 2.05))
    axes.set(xlabel="measured", ylabel="predicted / measured")
    axes.grid(color=palette.grid, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
