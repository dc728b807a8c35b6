"""Plant the faults of the GPU's half of the vocabulary, and see whether its GPU shows them.

``python tests/mutants/on_gpu.py --jobs 14`` runs each against the small kernels that are nearest to
it, which takes some seconds, and writes ``gpu.md`` in this folder. Without a GPU it runs the same
from PTX and writes nothing. Outcomes are kept, as those of ``run.py`` are.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import run  # noqa: E402
from faults import TOP, Fault, all_faults  # noqa: E402

HALF = "gemv/language/numba_cuda/"
#: Small kernels by the file that they show faults of: see ``tests/helpers/words``.
KERNELS = {
    "arrivals.py": "posts or peeks",
    "clusters.py": "clusters",
    "copies.py": "stages or some_copies",
    "formats.py": "vectors or pointers or old_ones_of_y",
    "gathers.py": "one_by_one or numbers_for_short_columns or as_stored",
    "intrinsics.py": "integers or pointers or atomics or tickets or vector_of_reals",
    "loads.py": "stream_tile or pass_some or inside or vectors or old_ones or addresses"
    " or integers",
    "phases.py": "around or next_lane",
    "registers.py": "some_wide or units or lanes or registers or old_ones_of_y",
    "rows.py": "row or anywhere or first_sums",
    "stores.py": "old_ones_of_y or vectors",
    "sums.py": "lanes or products or units or trees",
    "twofold.py": "(products or trees or lanes) and wide",
    "votes.py": "votes",
}
#: Faults of that half that no number shows, and what does.
UNSEEN = {
    "ptx-early-start": "when the next kernel starts is a matter of time; the PTX tells",
    "ptx-pass-tile-settles": "the L1 cache changes no number; the PTX tells",
    "ptx-kept-may-move": "what is computed again is the same; the compiler's input tells",
    "ptx-times-fused": "only a sum that follows a product shows it; test_small_ptx.py has some",
    "ptx-round-to-odd": "for sums of float64 that are stored as bfloat16; test_ptx.py has some",
    "ptx-post-ones": "who waits for such a NaN waits for ever; test_ptx.py has one",
    "ptx-take-any-word": "words of a sum come apart by chance alone; in test_ptx.py they do",
    "ptx-cluster-counter-of-own": "an H100 counts the bytes where the sum goes; the PTX tells",
    "words-vote-of-some": "where all lanes agree, the first one's answer is theirs; the PTX tells",
    "twofold-odd": "for sums of two numbers that are stored in 2 bytes; test_ptx.py has some",
    "compile-sparse": "what comes to the L2 cache changes no number; the PTX tells",
    "prefetch-bytes": "what comes to the L2 cache changes no number; the PTX tells",
    "votes-none": "the lanes agree in any case; the machine code tells",
    "ptx-store-step": "for vectors of 32 bytes, which few kernels store; test_ptx.py has some",
    "lists-end": "what follows a list must not come early; the PTX tells that it waits",
    "ptx-bfloat16-tie": "GPUs from compute capability 9.0 on have an instruction for it",
}


def chosen() -> list[Fault]:
    """The faults, with tests that a GPU runs; those that only a GPU shows keep their own."""
    found = []
    for fault in all_faults():
        kernels = KERNELS.get(fault.file.removeprefix(HALF))
        if fault.file.startswith(HALF) and kernels and fault.id not in UNSEEN:
            few = "not (d-plain or h-plain or s-wide or z-wide)"  # others have as many bytes
            tests = f"tests/language/test_words.py -k '({kernels}) and {few}'"
            found.append(fault._replace(tests=tests, found="host"))
        elif fault.found == "gpu":
            found.append(fault)
    return found


def page(faults: list[Fault], outcomes: dict[str, dict], seconds: float) -> str:
    """What has become of each fault, as Markdown."""
    from gemv.engines import backend

    found = sum(outcomes[fault.id]["outcome"] == run.KILLED for fault in faults)
    lines = [
        "# Planted faults on a GPU",
        "",
        f"{found} of {len(faults)} found on {backend.engine().device().name} in {seconds:.0f} s.",
        "`on_gpu.py` writes this page.",
        "",
        "| fault | | seconds | by |",
        "| --- | --- | ---: | --- |",
    ]
    for fault in faults:
        outcome = outcomes[fault.id]
        by = outcome.get("by", "").rpartition("::")[2]
        lines.append(
            f"| `{fault.id}` | {outcome['outcome']} | {outcome.get('seconds', '')} | {by} |"
        )
    lines += ["", "Not run, because no number shows them:", ""]
    lines += [f"- `{name}`: {why}" for name, why in UNSEEN.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time, each in a copy")
    parser.add_argument("--results", type=Path, default=TOP / "build" / "mutants-gpu.json")
    options = parser.parse_args()
    # A kernel that waits for ever keeps its place on the GPU from the others.
    run.PATIENCE = 15
    faults, begun = chosen(), time.monotonic()
    outcomes = run.everything(faults, options.results, options.jobs)
    print("\n" + "\n".join([*run.wrong_ones(faults, outcomes), "", run.table(faults, outcomes)]))
    if run.on_gpu():
        text = page(faults, outcomes, time.monotonic() - begun)
        (HERE / "gpu.md").write_text(text, encoding="utf-8")
    return any(outcomes[fault.id]["outcome"] != run.KILLED for fault in faults)


if __name__ == "__main__":
    sys.exit(main())
