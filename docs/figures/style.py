"""What all drawings share: two palettes (light and dark pages), the register, the saving."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")  # before any drawing imports Numba

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

#: A colour in an SVG file; names of its parts have another form.
COLOUR = re.compile(r"#[0-9a-f]{6}\b")
#: Inches; narrow, so that a phone has to shrink it only a little.
WIDTH = 6.2


@dataclass(frozen=True)
class Palette:
    """Colours of one kind of page."""

    name: str
    ink: str
    quiet: str
    grid: str
    paper: str
    accent: str
    strong: str
    blocks: tuple[str, ...]  # of areas
    lines: tuple[str, ...]  # lines are thin, so they need stronger colours

    def block(self, number: int) -> str:
        return self.blocks[number % len(self.blocks)]

    def line(self, number: int) -> str:
        return self.lines[number % len(self.lines)]

    def fade(self, colour: str, amount: float) -> str:
        """`colour` moved towards the page by `amount` of the way."""
        faded = _mixed(colour, self.paper, amount)
        dark_of.setdefault(faded, _mixed(dark_of[colour], DARK.paper, amount))
        return faded

    def colours(self) -> tuple[str, ...]:
        own = self.ink, self.quiet, self.grid, self.paper, self.accent, self.strong
        return (*own, *self.blocks, *self.lines)


def _mixed(colour: str, paper: str, amount: float) -> str:
    pairs = zip(to_rgb(colour), to_rgb(paper), strict=True)
    return to_hex([c + (p - c) * amount for c, p in pairs])


LIGHT = Palette(
    "light", "#1c2024", "#5b6470", "#c9d0d8", "#ffffff", "#c2255c", "#1971c2",
    ("#8ec7ee", "#f7c77a", "#a5d99a", "#d0b8ea", "#f5a9a3", "#9fdcd6"),
    ("#1971c2", "#e8590c", "#2f9e44", "#7048e8", "#c2255c"),
)  # fmt: skip
DARK = Palette(
    "dark", "#e8eaed", "#a7b0ba", "#49525c", "#131416", "#ff7aa8", "#74c0fc",
    ("#1f6393", "#8a5d14", "#347a33", "#67479a", "#9a3f3a", "#22736d"),
    ("#74c0fc", "#ffa94d", "#8ce99a", "#b197fc", "#ff7aa8"),
)  # fmt: skip
#: What a colour of a light page is on a dark one; :meth:`Palette.fade` adds the mixtures.
dark_of = dict(zip(LIGHT.colours(), DARK.colours(), strict=True))


@dataclass(frozen=True)
class Drawing:
    """A figure by name; the docstring of its function is its caption."""

    name: str
    draw: Callable[[Palette], Figure | None]
    caption: str


DRAWINGS: dict[str, Drawing] = {}


def drawing(name: str, caption: str | None = None):
    """Register a function that draws the figure `name` for a palette."""

    def register(function):
        text = " ".join((caption or function.__doc__ or name).split())
        DRAWINGS[name] = Drawing(name, function, text)
        return function

    return register


def settings(palette: Palette) -> dict:
    """Matplotlib's settings for a page; the salt makes equal drawings equal files."""
    return {
        "font.size": 10.5, "font.family": "DejaVu Sans",
        "svg.hashsalt": "gemv", "svg.fonttype": "path",
        "text.color": palette.ink, "axes.edgecolor": palette.quiet,
        "axes.labelcolor": palette.ink, "xtick.color": palette.ink, "ytick.color": palette.ink,
    }  # fmt: skip


def canvas(height: float, width: float = WIDTH, **options):
    """A figure and its axes: one or several."""
    return plt.subplots(figsize=(width, height), layout="constrained", **options)


def bare(axes: Axes, x: tuple[float, float], y: tuple[float, float], equal: bool = False) -> None:
    """Only a surface to draw on; y runs downwards if its limits do."""
    axes.set(xlim=x, ylim=y, xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_visible(False)
    if equal:
        axes.set_aspect("equal")


def box(axes: Axes, palette: Palette, x, y, w, h, text="", colour=None, size=10.5, **options):
    """A rounded box with a text in its middle."""
    face = colour if colour is not None else "none"
    axes.add_patch(
        FancyBboxPatch((x, y), w, h, boxstyle="round,pad=0,rounding_size=0.08", facecolor=face,
                       edgecolor=palette.quiet, linewidth=0.9, **options)
    )  # fmt: skip
    if text:
        axes.text(x + w / 2, y + h / 2, text, ha="center", va="center", fontsize=size,
                  color=palette.ink)  # fmt: skip


def cell(axes: Axes, palette: Palette, x, y, w=1.0, h=1.0, colour="none", edge=None, width=0.5):
    """A square of a matrix or of memory."""
    axes.add_patch(
        Rectangle((x, y), w, h, facecolor=colour, edgecolor=edge or palette.paper, linewidth=width)
    )


def cells(axes: Axes, palette: Palette, places, colours, w=1.0, h=1.0) -> None:
    """Many squares at once, which is much faster than one after the other."""
    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y in places]
    axes.add_collection(
        PolyCollection(corners, facecolors=colours, edgecolors=palette.paper, linewidths=0.5)
    )


def arrow(axes: Axes, palette: Palette, start, end, colour=None, curve=0.0, width=1.1, style="-|>"):
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle=style, mutation_scale=9, linewidth=width,
                        color=colour or palette.quiet, shrinkA=0, shrinkB=0,
                        connectionstyle=f"arc3,rad={curve}")
    )  # fmt: skip


def save(one: Drawing, folder: Path) -> list[Path]:
    """Write the figure for light and for dark pages; the same input gives the same bytes.

    It is drawn once, in the light palette. The dark page gets the same text with other colours,
    which takes a hundredth of the time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    light, dark = (folder / f"{one.name}.{palette.name}.svg" for palette in (LIGHT, DARK))
    with plt.rc_context(settings(LIGHT)):
        figure = one.draw(LIGHT)
        if figure is None:  # nothing to show
            return []
        figure.savefig(light, transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = light.read_text(encoding="utf-8")
    dark.write_text(COLOUR.sub(lambda found: dark_of[found[0]], text), encoding="utf-8")
    return [light, dark]
