"""A kernel is one file: what is there is found everywhere, and what is missing is said."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from helpers import processes
from helpers.kernel_files import PARTS, complaints

from gemv.kernels import REGISTRY

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / "gemv" / "kernels"
FILES = sorted(FOLDER.glob("[kt][0-9][0-9]_*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_is_missing_in(path):
    assert complaints(path, TOP) == []


def test_every_file_of_the_folder_is_a_kernel_or_what_kernels_are_made_of():
    others = {path.stem for path in FOLDER.glob("*.py")} - {path.stem for path in FILES}
    assert others == {"__init__", *PARTS}, "a kernel file is kNN_name.py or tNN_name.py"
    assert len(REGISTRY) == len(FILES)


#: A complete rung; what it does is that of `thread_per_row`, without a limit of the grid.
RUNG = '''"""Each thread takes one row, from its first element to its last.

Idea
    As in thread_per_row.

Picture
    ::

        row 0      T0> T0> T0>  ...   y0
        row 1      T1> T1> T1>  ...   y1

Bytes
    (m*n + len(x) + len(y) * (1 + [beta != 0])) * itemsize from memory.

Wins
    Never.

Loses
    Always.

Sums
    Left to right over the columns. Same bits on every run.

Source
    A test.
"""

from gemv.core.geometry import Geometry, Launch, ceil_div
from gemv.kernels.kernel import Kernel


def build(spec):
    from gemv.language import cuda, update

    zero, op = spec.zero, spec.op

    def one_more(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        i = cuda.grid(1)
        if alpha == 0:
            cols = 0
        if i < rows:
            total = zero
            for j in range(cols):
                total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
            update(alpha, total, beta, y, i * incy)

    return (one_more,)


def geometry(problem, device, knobs):
    threads = knobs["THREADS_PER_BLOCK"]
    return Geometry((Launch((ceil_div(problem.rows, threads), 1, 1), (threads, 1, 1)),))


KERNEL = Kernel(
    name="one_more",
    rung=16,
    build=build,
    geometry=geometry,
    tile=lambda knobs: (knobs["THREADS_PER_BLOCK"], 1),
    teaching=True,
    knobs={"THREADS_PER_BLOCK": 64},
    small_knobs={"THREADS_PER_BLOCK": 4},
    doc=__doc__,
)
'''

#: What a rung lacks: a piece of the text, what stands there, and what is said.
MISSING = [
    ("Wins\n    Never.\n\n", "", "write the heading Wins into the docstring, after Bytes"),
    ("Wins\n    Never.\n", "Wins\n", "write the text of the heading Wins below it"),
    ('"""Each thread takes one row, from its first element to its last.\n', '"""\n',
     "begin the docstring with one sentence"),
    ("Wins\n    Never.\n\nLoses\n    Always.", "Loses\n    Always.\n\nWins\n    Never.",
     "put the headings into this order: Idea"),
    ("KERNEL = ", "kernel = ", "end the file with KERNEL = Kernel("),
    ('    name="one_more",\n', "", "'name'; the docstring of Kernel describes each field"),
    ('    name="one_more",\n', '    name="other",\n', "write name='one_more' into KERNEL"),
    ("rung=16", "rung=13", "write rung=16 into KERNEL"),
    ("teaching=True,", "teaching=True, beside=True,", "write beside=False into KERNEL"),
    ("    doc=__doc__,\n", "", "'doc'; the docstring of Kernel describes each field"),
    ('    small_knobs={"THREADS_PER_BLOCK": 4},\n', "", "write small_knobs into KERNEL"),
    ('small_knobs={"', 'small_knobs={"OTHER": 1, "', "small_knobs has OTHER, which knobs lacks"),
    ('"THREADS_PER_BLOCK": 64', '"THREADS_PER_BLOCK": 6.4, "A": 0',
     "change knobs: one_more: A must be an integer from 1"),
    ('lambda knobs: (knobs["THREADS_PER_BLOCK"], 1)', "lambda knobs: 64",
     "let tile(knobs) give the rows and columns"),
    ("    teaching=True,\n", "", "write teaching=True into KERNEL, or count its work"),
    ("return (one_more,)", "return one_more", "let build(spec) return a tuple of functions"),
    ("x, incx, beta", "x, incx, count, beta", "nobody fills in the parameter count of one_more"),
    ("    return Geometry((Launch((ceil_div(problem.rows, threads), 1, 1), (threads, 1, 1)),))",
     "    return threads", "let geometry return a Geometry, not int"),
    ("    teaching=True,", "    teaching=True,\n    depth=lambda *all: None,",
     "let depth give a number of additions, not None"),
    ("    teaching=True,", "    teaching=True,\n    accepts=lambda problem: 'no',",
     "let accepts take a small problem"),
    ("total = zero", "total = 0 * zero + 1.0", "goes wrong"),
    ("from gemv.kernels.kernel import Kernel\n",
     "from gemv.kernels.kernel import Kernel\nfrom gemv.language import update\n",
     "import gemv.language inside build"),
    ("from gemv.kernels.kernel import Kernel\n",
     "from gemv.kernels.kernel import Kernel\nfrom numba import cuda\n", "the file imports numba"),
]  # fmt: skip

SCRIPT = """
import json, runpy, sys
from pathlib import Path
import numpy as np
import gemv
from gemv.kernels import REGISTRY, get
from helpers.kernel_files import complaints

top, files = Path(sys.argv[1]), json.load(sys.stdin)
answer = {"version": gemv.__file__}
answer["rungs"] = [kernel.name for kernel in REGISTRY.values() if not kernel.beside]
a = np.arange(35.0).reshape(5, 7)
with gemv.trace() as calls:
    y = gemv.gemv(2.0, a, np.ones(7), kernel="one_more")
answer["ran"] = [call.kernel for call in calls]
answer["right"] = bool(np.array_equal(y, 2 * a.sum(axis=1)))
pages = runpy.run_path(str(top / "docs" / "_ext" / "kernel_pages.py"))
kernel = get("one_more")
answer["idea"] = kernel.idea
answer["headings"] = list(pages["sections"](kernel.doc))
answer["list"] = pages["rung_list"]({})
answer["page"] = [pages[name](kernel) for name in ("stem", "code", "exercise")]
sys.path.insert(0, str(top / "docs" / "figures"))
from watch import watch
answer["watched"] = len(watch(kernel, 5, 7).of("a"))
path = top / "gemv" / "kernels" / "k16_one_more.py"
answer["unlisted"] = complaints(path, top)
for name, old, new in (
    ("benchmarks/suites/kernels.py", '"cluster_columns",', '"cluster_columns", "one_more",'),
    ("README.md", "<!-- ladder:end -->", "`one_more`<!-- ladder:end -->"),
):
    text = (top / name).read_text("utf-8")
    assert text.count(old) == 1, name
    (top / name).write_text(text.replace(old, new), "utf-8")
answer["listed"] = complaints(path, top)
answer["missing"] = []
for text in files:
    path.write_text(text, "utf-8")
    answer["missing"].append(complaints(path, top))
json.dump(answer, sys.stdout)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the checkout with one rung more."""
    top = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__", "out", "results", "_build")
    for folder in ("gemv", "docs", "benchmarks", "tests"):
        shutil.copytree(TOP / folder, top / folder, ignore=ignored)
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(TOP / name, top)
    (top / "gemv" / "kernels" / "k16_one_more.py").write_text(RUNG, encoding="utf-8")
    return top


def run(top, *command, **options):
    environment = {
        **os.environ,
        "NUMBA_ENABLE_CUDASIM": "1",
        "PYTHONPATH": os.pathsep.join([str(top), str(top / "tests"), *filter(None, sys.path)]),
    }
    return processes.run(
        [sys.executable, *command], cwd=top, env=environment, capture_output=True, text=True,
        **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def answer(copy):
    texts = []
    for old, new, _ in MISSING:
        assert RUNG.count(old) == 1, old
        texts.append(RUNG.replace(old, new))
    done = run(copy, "-c", SCRIPT, str(copy), input=json.dumps(texts))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_new_rung_is_found(copy, answer):
    assert answer["version"].startswith(str(copy))
    assert answer["rungs"] == [k.name for k in REGISTRY.values() if not k.beside] + ["one_more"]
    assert answer["ran"] == ["one_more"] and answer["right"]
    assert answer["idea"].startswith("Each thread takes one row")
    assert answer["headings"][1:] == ["Idea", "Picture", "Bytes", "Wins", "Loses", "Sums", "Source"]
    assert "| 16 | {doc}`one_more <rungs/16-one_more>` |" in answer["list"]
    stem, code, exercise = answer["page"]
    assert stem == "16-one_more" and "gemv/kernels/k16_one_more.py" in code
    assert "gemv/kernels/k16_one_more.py" in exercise
    assert answer["watched"] == 5 * 7


def test_the_lists_that_a_new_rung_needs_are_named(answer):
    unlisted = answer["unlisted"]
    assert len(unlisted) == 2
    assert unlisted[0] == "add 'one_more' to KERNELS in benchmarks/suites/kernels.py, at its rung"
    assert unlisted[1].startswith("run make table")
    assert answer["listed"] == []


@pytest.mark.parametrize("number", range(len(MISSING)))
def test_what_is_missing_is_said(number, answer):
    said = answer["missing"][number]
    assert len(said) >= 1 and any(MISSING[number][2] in each for each in said), said


def test_tests_of_a_new_rung_are_selected_by_its_name(copy):
    (copy / "gemv" / "kernels" / "k16_one_more.py").write_text(RUNG, encoding="utf-8")
    files = [f"tests/kernels/test_{name}.py" for name in ("kernels", "kernel_files", "depth")]
    done = run(
        copy, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "-k", "one_more",
        *files,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for name in files:
        assert name in done.stdout
