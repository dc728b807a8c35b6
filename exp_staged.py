"""Staged kernels against today's way over batches, on a GPU (an experiment, not for the package).

    python exp_staged.py OUT.json [--seconds 110] [--dtypes sdb] [--shapes 129x129,256x256]

It resumes from OUT.json. Rows of the table: floor time / time, in percent.
"""
import argparse, dataclasses, itertools, json, os, sys, time
from pathlib import Path
import numpy as np

SHAPES = [(129, 129), (65, 65), (511, 511), (100, 100), (257, 257), (300, 90), (81, 400), (100, 66),
          (201, 201), (63, 500), (500, 63), (1000, 45), (45, 1001), (256, 256), (128, 128), (512, 512)]


def sets_for(problem, batch, alone, name, device):
    """(label, staged kernel, knobs of the spec, further keys for the geometry) of each variant."""
    from gemv.kernels import get
    from gemv.kernels.batched import b02_staged_rows as R, b03_staged_columns as C
    found = []
    if name == "vector_rows":
        K = get("staged_rows")
        if K.accepts(problem): return []
        for label, chunk, stages, threads, chunks in (
            ("r17x2/c4", 17408, 2, 128, 4), ("r17/1", 17408, 2, 128, 1), ("r8/1", 8960, 2, 128, 1),
            ("r8/2", 8960, 3, 128, 2), ("r17x2/64", 17408, 2, 64, 4), ("r12/1/64", 12288, 2, 64, 1),
            ("r8x3/c6", 8960, 3, 128, 6),
        ):
            R.CHUNKS = chunks
            knobs = R.for_items(problem, alone, chunk, stages, threads, chunks)
            if knobs is not None:
                found.append((label, K, knobs, {"CHUNKS": chunks}))
    if name == "vector_columns":
        K = get("staged_columns")
        if K.accepts(problem): return []
        seen = []
        for label, chunk, stages, threads in (
            ("c17x2", 17408, 2, 256), ("c17x2/128", 17408, 2, 128), ("c36/1", 36864, 2, 256),
            ("c36/1/128", 36864, 2, 128), ("c8x4", 9216, 4, 256), ("c12x3/128", 13312, 3, 128),
            ("c8x3/64", 9216, 3, 64),
        ):
            knobs = C.for_items(problem, alone, chunk, stages, threads)
            if knobs is None or knobs in seen: continue
            seen.append(knobs)
            found.append((label, K, knobs, {}))
    return found


def made_for(bench, cell, framed, layout):
    from gemv.kernels.batched import b02_staged_rows as R
    from gemv.selection import batches
    from gemv.selection.parts import parts
    problem, batch, device = framed.problem, layout.batch, bench.device
    batches.gains_by_stages = lambda problem: False  # today's way is that without stages
    (part, *more) = parts(problem, batch, device)
    single = batches.select_item(problem, batch, device)
    made = [("today", part)]
    if more or single.geometry.scratch or single.geometry.sizes.get("splits", 1) > 1:
        return made, single
    for label, K, knobs, further in sets_for(problem, batch, single.knobs, single.kernel.name, device):
        try:
            R.CHUNKS = further.get("CHUNKS", 8)
            geometry = K.of_batch(problem, batch, device, {**K.knobs, **knobs})
        except ValueError as error:
            print("  refused", cell.m, cell.n, cell.dtype, label, error, file=sys.stderr)
            continue
        spec = dataclasses.replace(K.spec(problem, knobs, single.spec.homes), conjugate_x=False)
        made.append((label, part._replace(choice=batches.Choice(K, spec, geometry, ""))))
    return made, single


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--dtypes", default="sdbc")
    parser.add_argument("--shapes", default="")
    parser.add_argument("--mib", type=int, default=96)
    parser.add_argument("--all", action="store_true", help="lines of whole 16 bytes, too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--dry", action="store_true", help="count what would be compiled; no GPU")
    o = parser.parse_args()
    from gemv.core.dtypes import DTYPES
    from gemv.measure.cells import Cell
    from gemv.measure.frames import FramedCell, lay_out
    shapes = [tuple(map(int, s.split("x"))) for s in o.shapes.split(",")] if o.shapes else SHAPES
    end = time.monotonic() + o.seconds
    stored = json.loads(o.file.read_text()) if o.file.exists() else []
    done = {(r["m"], r["n"], r["dtype"], r["order"], r["op"]) for r in stored}
    cells = []
    for (m, n), letter in itertools.product(shapes, o.dtypes):
        if not o.all and n * DTYPES[letter].itemsize % 16 == 0:
            continue
        if letter == "c" and (m, n) not in ((129, 129), (128, 128), (256, 256)):
            continue
        count = max(1, (o.mib << 20) // (m * n * DTYPES[letter].itemsize))
        for op in "NT":
            if (m, n, letter, "C", op) not in done:
                cells.append(Cell(m, n, letter, op, "C", batch=count))
    if o.dry:
        from types import SimpleNamespace
        from gemv.core.geometry import Device
        bench = SimpleNamespace(device=Device("NVIDIA H100 80GB HBM3", (9, 0), 132))
        specs = {}
        for cell in cells:
            layout = lay_out(cell)
            framed = FramedCell.at(cell, 0, 1)
            made, single = made_for(bench, cell, framed, layout)
            print(cell.dtype, f"{cell.m}x{cell.n}", cell.op, single.kernel.name, single.knobs.get("LANES"), framed.problem.widths)
            for label, part in made:
                specs[part.choice.kernel.name, part.choice.spec] = 1
                g = part.choice.geometry
                keys = ("tiles", "tile_rows", "chunk_rows", "segments", "length", "stage", "steps")
                print("   ", label, g.launches[0].grid, g.launches[0].block[0], {k: g.sizes[k] for k in keys if k in g.sizes} if label != "today" else "")
        print(len(specs), "specs")
        return
    from benchmarks.fit.compilers import Compilers
    from gemv.measure import peers_of_batches
    from gemv.measure.grid import Bench
    from gemv.measure.plain import Mover
    from gemv.measure.traffic import traffic
    try:
        import torch  # noqa: F401
        libraries = ("torch",)
    except ImportError:
        libraries = ()
    bench = Bench(cells, libraries)
    compilers = Compilers(o.jobs, bench.device.compute_capability)
    tasks = []
    for cell in cells:
        layout = lay_out(cell)
        framed = FramedCell.at(cell, bench.frames.base, bench.frame_count(cell, layout))
        tasks.append((cell, layout, framed, *made_for(bench, cell, framed, layout)))
        compilers.order(part.choice for _, part in tasks[-1][3])
    mover, filled = Mover(bench.engine, bench.clock), None
    for cell, layout, framed, made, single in tasks:
        if not compilers.wait((part.choice for _, part in made), end):
            print("out of time"); break
        clock, frames = bench.clock, bench.frames
        dtype, place = framed.problem.dtype, framed.places[0]
        elements = layout.items * framed.problem.rows
        starts = [(framed.start(each), each.y) for each in framed.places]
        plain = min(clock.time(each, 3) for each in mover.calls(starts, *traffic(layout, 0), False))
        total = len(starts) * layout.nbytes // dtype.itemsize
        frames.fill("random", dtype, frames.base, total)
        right, sets = None, {}
        for label, part in made:
            try:
                frames.spoil(place.y, elements * dtype.itemsize)
                bench.our_call(framed, [part], place)(clock.stream)
                found = frames.read(place.y, dtype, elements).view(np.uint8)
                if right is None: right = found
                same = bool(np.array_equal(found, right))
                calls = [bench.our_call(framed, [part], each) for each in framed.places]
                sets[label] = (round(clock.time(calls, 3) * 1e6, 2), same)
            except Exception as error:
                sets[label] = (float("inf"), f"{type(error).__name__}: {error}"[:200])
                if "CUDA" in str(error) or "illegal" in str(error).lower(): raise
        again = bench.our_call
        calls = [again(framed, [made[0][1]], each) for each in framed.places]
        sets["today"] = (min(sets["today"][0], round(clock.time(calls, 3) * 1e6, 2)), True)
        peer_us = {}
        for library in libraries:
            try:
                for peer in peers_of_batches.peers(library, framed, bench.frames.array)[0]:
                    peer_us[peer.name] = round(min(clock.race({peer.name: [peer.at(p) for p in framed.places]}, 3)[peer.name]) * 1e6, 2)
            except Exception as error:
                peer_us[library] = str(error)[:100]
        stored.append({"m": cell.m, "n": cell.n, "dtype": cell.dtype, "order": cell.order,
                       "op": cell.op, "items": layout.items, "plain_us": round(plain * 1e6, 2),
                       "alone": single.kernel.name, "knobs": single.knobs, "sets": sets, "peers": peer_us})
        o.file.write_text("[\n" + ",\n".join(map(json.dumps, stored)) + "\n]\n")
    compilers.close()
    show(stored)


def show(stored):
    """A line for each dtype and shape: percent of the floor, N and T (A stored by rows)."""
    lines, means, wrongs = {}, {}, []
    for r in stored:
        sets = {k: v[0] for k, v in r["sets"].items()}
        wrongs += [(r["dtype"], r["m"], r["n"], r["op"], k, v[1]) for k, v in r["sets"].items() if v[1] is not True]
        staged = {k: v for k, v in sets.items() if k != "today"}
        peer = min((v for v in r["peers"].values() if not isinstance(v, str)), default=float("nan"))
        floor = min(r["plain_us"], peer, *sets.values())
        text = f"{r['op']} {floor:6.1f}us today {100 * floor / sets['today']:3.0f} torch {100 * floor / peer:3.0f}"
        if staged:
            order = sorted(staged, key=staged.get)
            text += " new " + " ".join(f"{100 * floor / staged[k]:.0f}:{k}" for k in order[:3])
        for k, v in sets.items():
            means.setdefault((r["alone"], k), []).append(floor / v)
        lines.setdefault((r["dtype"], f"{r['m']}x{r['n']}"), []).append(text.ljust(84))
    for (dtype, shape), texts in sorted(lines.items()):
        print(dtype, shape.ljust(8), "|", " | ".join(texts))
    for kernel in sorted({alone for alone, _ in means}):
        found = [(float(np.exp(np.mean(np.log(v)))), len(v), k) for (alone, k), v in means.items() if alone == kernel]
        print(kernel, " ".join(f"{100 * mean:.0f}:{k}({n})" for mean, n, k in sorted(found, reverse=True)[:14]))
    print("WRONG BITS OR ERRORS:", wrongs[:12] if wrongs else "none", len(wrongs))


if __name__ == "__main__":
    main()
