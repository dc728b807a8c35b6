"""A chart for each act of the climb: the fastest rung so far, and the side steps below it."""

from __future__ import annotations

import functools
import itertools

from steps import steps, words
from style import canvas, drawing

from benchmarks.pages.ladder_table import load, title


def draw_climb(palette, case: dict):
    """The fastest rung so far as a flight of stairs, and the side steps below it."""
    every = steps(case)
    figure, axes = canvas(3.7)
    rates, ceiling = [step.gb_per_s for step in every], case["ceiling_gb_per_s"]
    stairs = list(itertools.accumulate(rates, max))
    places = range(len(every))
    axes.step([*places, len(every) - 0.5], [*stairs, stairs[-1]], where="post",
              color=palette.strong, linewidth=1.8, label="the fastest so far")  # fmt: skip
    for aside, face, label in ((False, palette.strong, "a step"), (True, "none", "a side step")):
        chosen = [place for place in places if every[place].is_aside == aside]
        axes.plot(chosen, [rates[place] for place in chosen], "o", markersize=7, label=label,
                  markerfacecolor=face, markeredgecolor=palette.strong)  # fmt: skip
    for place, rate in zip(places, rates, strict=True):
        text = f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}"
        if every[place].is_aside:
            at, shift, side = rate, (0, -14), "center"
        elif rate > ceiling / 2:  # there the line of the ceiling would go through it
            at, shift, side = ceiling, (0, 4), "center"
        else:
            at, shift, side = rate, (7, -12), "left"
        axes.annotate(text, (place, at), shift, textcoords="offset points", ha=side,
                      fontsize=8.5)  # fmt: skip
    axes.axhline(ceiling, color=palette.accent, linewidth=1.3, label="the ceiling")
    names = [f"{step.kernel.rung} {step.kernel.name}" for step in every]
    axes.set_xticks(list(places), names, rotation=35, ha="right", fontsize=9)
    axes.set(yscale="log", ylabel="GB/s", xlim=(-0.5, len(every) - 0.5))
    axes.set_ylim(min(rates) / 4, ceiling * 4)
    axes.grid(axis="y", color=palette.grid, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8.5, frameon=False, loc="outside lower center", ncols=4)
    return figure


def register() -> None:
    """A chart for each act whose problem was measured."""
    cases = load()
    for act, text in words().items():
        case = cases.get(text["results"])
        if case is not None:
            caption = (
                f"{title(case)} on {case['device']}: bytes a perfect gemv moves over the measured"
                " time of each rung, on a logarithmic scale. Filled dots are steps, hollow ones"
                " side steps, which are slower than a rung before them."
            )
            drawing(f"climb-{act}", caption)(functools.partial(draw_climb, case=case))


register()
