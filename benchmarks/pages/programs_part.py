"""The README's table of what whole programs, single calls and several GPUs gain or lose."""

from __future__ import annotations

from benchmarks.pages import solver_gains
from benchmarks.pages.page import markdown, number
from gemv.measure.records import CellResult

#: The lines of several GPUs: what is called, the way, and the sizes of A in float32.
SHARDS = (
    ("`Matrix.plan`, cut by rows", "plan, shards of rows", ("144 MB", "1 GiB")),
    ("`Matrix.plan`, cut by columns", "plan, shards of columns", ("144 MB", "1 GiB")),
    ("`A @ x`, cut by rows", "shards of rows", ("144 MB", "1 GiB")),
)


def on_several(found: dict) -> list[list[str]]:
    """What several GPUs gain over one."""
    times = {(row["size"], row["way"]): row["time_s"] for row in found["rows"]}
    count = len(found["devices"])
    return [
        [
            f"{count} GPUs, {said}, {' and '.join(sizes)}", "`gemv.plan`, one GPU",
            ", ".join(number(times[s, "gemv.plan, one GPU"] / times[s, way]) for s in sizes),
        ]
        for said, way, sizes in SHARDS
    ]  # fmt: skip


def programs(
    solvers: dict, memories: dict, calls: dict, shards: dict, rows: list[CellResult], device: str
) -> str:
    """What whole programs, single calls and several GPUs gain or lose, from the other results."""
    found = solver_gains.gains(solvers, rows if solvers["device"] == device else [])
    alone = [gain.alone for gain in found if gain.alone is not None]
    lines = [
        [what, peer, f"{min(each):.2f} to {max(each):.2f}"]
        for what, peer, each in (
            (f"SciPy's solvers on a `gemv.Matrix`, {len(found)} problems",
             "on NumPy's array", [gain.scipy for gain in found]),
            (f"CuPy's solvers on a `gemv.Matrix`, {len(found)} problems",
             "on CuPy's array", [gain.cupy for gain in found]),
            ("the products of these solvers alone", "cuBLAS's gemv", alone),
        )
        if each
    ]  # fmt: skip
    times = {row["name"]: row["time_s"] for row in calls["rows"] if row["group"] == "64 x 64"}
    for library, peer in (("CuPy", "cublas.gemv"), ("PyTorch", "mv(out=)")):
        name = {"CuPy": "cupy", "PyTorch": "torch"}[library]
        gain = times[f"{name}.{peer}"] / times[f"gemv, {name}, in place"]
        what = f"the host's part of a call, 64 x 64, {library}"
        lines.append([what, f"{library}'s `{peer}`", number(gain)])
    shared = times["torch.mv(out=), 8 threads"] / times["gemv, torch, in place, 8 threads"]
    what = "the same, from 8 threads at once"
    lines.append([what, "PyTorch's `mv(out=)`", number(shared)])
    sizes = {size["n"]: size for size in memories["sizes"]}
    shown = (256, max(sizes))
    for what, key in (
        ("x and y in host memory, a `gemv.Matrix`", "kept_s"),
        ("A in host memory, copied for each product", "call_s"),
    ):
        gains = ", ".join(number(sizes[n]["host_s"] / sizes[n][key]) for n in shown)
        said = " and ".join(f"{n}²" for n in shown)
        lines.append([f"{what}, {said}", "SciPy on the CPU", gains])
    lines += on_several(shards)
    return markdown(["what", "compared with", "times as fast"], "wwf", lines)
