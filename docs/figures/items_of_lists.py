"""Figures of the kernels that compute a list of matrices in one launch: what each warp does."""

from __future__ import annotations

import functools

import numpy as np
from style import canvas, drawing

from gemv.core.geometry import Device
from gemv.core.problem import all_at
from gemv.measure.ragged import cells, lay_out
from gemv.selection.ragged import Group, groups

#: The kernels, and the storage order of the matrices that each is shown with.
ORDERS = {"list_rows": "C", "list_columns": "F", "list_in_order": "F"}
#: The dtypes of the table, by the prefix of their routines.
SHOWN = {"s": "float32", "d": "float64", "b": "bfloat16"}
H200 = Device("NVIDIA H200", (9, 0), 132)
#: Of the warps, every so manieth is drawn.
DRAWN = 24


@functools.cache
def launch_of(kernel: str, dtype: str = "s") -> Group:
    """The launch of `kernel` that an H200 gets for 64 MiB of matrices of many sizes."""
    (cell,) = cells(None, dtype, "N", ORDERS[kernel])
    layout, start = lay_out(cell), 1 << 20
    problems = all_at(
        layout.problems, *([start + at for at in each] for each in (layout.a_at, layout.x_at))
    )
    found = groups(problems, [(0, 0, 0)] * len(problems), H200)
    (group,) = (each for each in found if each.choice.kernel.name == kernel)
    return group


def work_of(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """For each warp and each turn the item, negative where there is none, and the KB of A."""
    sizes = group.choice.geometry.sizes
    entries = group.blocks.reshape(sizes["takers"], sizes["turns"])
    slots = np.maximum(entries, 0) >> 32
    words = {name: group.table[:, k] for k, name in enumerate(group.words)}
    tiles = group.choice.kernel.tiles_of(words, group.choice.spec)
    rows = tiles.rows[slots] * sizes["each"]
    rows = np.minimum(rows, words["rows"][slots] - (entries & 0xFFFFFFFF))
    # Warps that share a tile have equal parts of it.
    rows = rows / np.broadcast_to(tiles.warps, tiles.rows.shape)[slots]
    moved = rows * words["cols"][slots] * group.problem.dtype.itemsize / 1000
    return np.where(entries < 0, -1, group.slots[slots]), np.where(entries < 0, 0.0, moved)


def facts(kernel: str) -> dict[str, dict]:
    """What the page of a kernel tells, a column of its table for each dtype."""
    told = {}
    for dtype, name in SHOWN.items():
        group = launch_of(kernel, dtype)
        items, moved = work_of(group)
        shares = moved.sum(axis=1)
        told[name] = {
            "matrices of the launch": len(group.items),
            "blocks": group.choice.geometry.launches[0].grid[0],
            "warps": len(items),
            "tiles": int((items >= 0).sum()),
            "tiles of a warp, the most": int((items >= 0).sum(axis=1).max()),
            "KB of A for a warp, in the mean": round(float(shares.mean()), 1),
            "the most": round(float(shares.max()), 1),
        }
    return told


def draw_warps(palette, kernel: str):
    """Tiles of some warps, one after the other, as long as their part of A."""
    items, moved = work_of(launch_of(kernel))
    figure, axes = canvas(3.2)
    for place, warp in enumerate(np.linspace(0, len(items) - 1, DRAWN).astype(int)):
        begin = 0.0
        for item, size in zip(items[warp], moved[warp], strict=True):
            if item >= 0:
                axes.barh(
                    place, size, left=begin, height=0.86, color=palette.block(int(item)),
                    edgecolor=palette.paper, linewidth=0.8,
                )  # fmt: skip
                begin += size
    axes.axvline(moved.sum(axis=1).mean(), color=palette.accent, linewidth=1)
    axes.set(xlabel="KB of A", ylabel="warps", yticks=[], ylim=(DRAWN - 0.4, -0.6))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


for _name, _order in ORDERS.items():
    drawing(
        f"lists-{_name}",
        f"What {DRAWN} of the warps read of 64 MiB of float32 matrices, stored along"
        f" {'rows' if _order == 'C' else 'columns'}, on an H200: each piece is a tile, and"
        " neighbouring tiles of another colour are of another matrix. The line is the mean of all"
        " warps.",
    )(functools.partial(draw_warps, kernel=_name))
