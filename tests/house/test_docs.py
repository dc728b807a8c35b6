"""The documentation: examples run, tables are true, links lead somewhere.

Pages run in a process of their own on the simulator, where what they print is the same on every
machine: ``python tests/house/test_docs.py PAGE``. So do exercises. As long as there are several,
each process is a fork of one that has imported what all of them need.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import forks, processes

import gemv

TOP = Path(__file__).resolve().parents[2]
DOCS = TOP / "docs"
#: What a build writes.
MADE = {DOCS / "course" / "rungs", DOCS / "course" / "beyond", DOCS / "_build"}
PAGES = sorted(
    page
    for page in DOCS.rglob("*.md")
    if not MADE & set(page.parents) and page != DOCS / "changelog.md"
)
#: What `docs/_ext/parts.py` has written into a page.
PART = re.compile(r"<!-- (\w+):begin -->\n<!-- Written by .*?<!-- \1:end -->", re.S)
EXERCISES = sorted((DOCS / "exercises").glob("[a-z]*.py"))
BLOCK = re.compile(r"^( *)```(python|pycon)\n(.*?)^\1```", re.M | re.S)
#: Needs CuPy and PyTorch and a GPU for them.
GPU_BLOCK = re.compile(r"^```python gpu\n(.*?)^```", re.M | re.S)


def written_by(page: Path) -> str | None:
    """The script that wrote all of a committed page from results, as the page says itself."""
    text = PART.sub("", page.read_text(encoding="utf-8"))
    found = re.search(r"<!-- Written by (\S+) from (\S+?)\.? -->", text)
    return found.group(1) if found else None


def page_id(page: Path) -> str:
    return page.relative_to(DOCS).with_suffix("").as_posix()


def blocks(page: Path) -> list[tuple[str, str]]:
    """Kind and text of each piece of Python on a page."""
    found = BLOCK.findall(PART.sub("", page.read_text(encoding="utf-8")))
    return [(kind, re.sub(rf"^{indent}", "", text, flags=re.M)) for indent, kind, text in found]


def environment() -> dict[str, str]:
    # What this process may import, wherever it was told of it.
    path = os.pathsep.join([str(TOP), *(each for each in sys.path if each)])
    found = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": path}
    found.pop("GEMV_BACKEND", None)
    return found


def on_simulator(*command: str) -> subprocess.CompletedProcess:
    return processes.run(
        [sys.executable, *command], cwd=TOP, env=environment(), capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def forked():
    """Run this file with some arguments: status and output, of a fork where there are forks."""
    if hasattr(os, "fork"):
        with forks.forking([sys.executable, __file__], TOP, environment()) as run:
            yield run
    else:

        def run(*arguments: str) -> tuple[int, str]:
            done = on_simulator(__file__, *arguments)
            return done.returncode, done.stdout + done.stderr

        yield run


# --------------------------------------------------------------------------------------------------
# examples


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=page_id)
def test_examples_run(page, forked):
    if written_by(page):  # what it shows are fragments for its figures
        for _, text in blocks(page):
            assert ast.parse(text).body
        return
    status, said = forked(str(page))
    assert status == 0, said


def gpu_blocks(page: Path) -> list[str]:
    return GPU_BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [page for page in PAGES if gpu_blocks(page)], ids=page_id)
def test_examples_for_the_gpu_are_python(page):
    for text in gpu_blocks(page):
        assert ast.parse(text).body


@pytest.mark.gpu
@pytest.mark.parametrize("page", [page for page in PAGES if gpu_blocks(page)], ids=page_id)
def test_examples_run_on_the_gpu(page):
    code = "\n".join(gpu_blocks(page))
    for library in ("cupy", "torch", "jax"):
        if f"import {library}" in code:
            pytest.importorskip(library)
    names: dict = {"__name__": "page"}
    for text in gpu_blocks(page):
        exec(compile(text, str(page), "exec"), names)
    from numba import cuda

    cuda.synchronize()  # faults show here
    assert len(names) > 1, "the page defines nothing"


def run_page(page: Path) -> int:
    """Run the blocks of a page in order, in one namespace; the number of failures."""
    names: dict = {"__name__": "page"}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for kind, text in blocks(page):
        if kind == "python":
            exec(compile(text, str(page), "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), 0)
        test.globs = names  # what a block defines, later ones use
        runner.run(test, clear_globs=False)
    return runner.failures


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_exercise_is_open_and_has_an_answer(path, forked):
    from gemv.kernels import REGISTRY

    assert path.stem in REGISTRY, "an exercise is named for the kernel whose page shows it"
    status, said = forked(str(path), str(path.parent / "answers" / path.name))
    assert status == 0, said
    start, answer = said.splitlines()
    assert start.startswith("1 not yet: ") and answer.startswith("0 done: ")
    goal = next(
        (n for n in ast.parse(path.read_text("utf-8")).body if getattr(n, "name", "") == "goal"),
        None,
    )
    assert goal is not None and ast.get_docstring(goal)


def test_exercise_says_what_is_wrong_where(tmp_path, forked):
    answer = (DOCS / "exercises" / "answers" / "thread_per_row.py").read_text(encoding="utf-8")
    faults = {
        "colon": ("range(cols):", "range(cols)", "syntax error in ", "expected ':'"),
        "name": ("xj = x[j * incx]", "xj = z[j * incx]", "NameError: name 'z'", ""),
        "sums": ("update(alpha, total_k", "update(alpha, total_i", "y[16]: expected ", ", got "),
        "pairs": ("", "", "a request of a warp touches 2 lines", "neighbouring rows"),
        "bare": (answer, "x = 1", "has no kernel", "KERNEL = Kernel(...)"),
    }
    for name, (old, new, *_) in faults.items():
        text = answer.replace(old, new) if old else answer
        if name == "pairs":  # rows 2i and 2i + 1 in place of i and i + half
            text = re.sub("k = i [+] half.*", "k = 2 * i + 1", text)
            text = text.replace("a[i * row_stride", "a[2 * i * row_stride")
            text = text.replace("y, i * incy", "y, 2 * i * incy")
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    status, said = forked(*(str(tmp_path / f"{name}.py") for name in faults))
    assert status == 0, said
    for line, (*_, first, second) in zip(said.splitlines(), faults.values(), strict=True):
        assert line.startswith("1 not yet: ") and first in line and second in line, line


def test_a_rung_runs_by_itself():
    done = on_simulator(str(DOCS / "course" / "rung_05.py"), "--all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Rung 5, coalesced: The tile turned")
    assert "--- tile2d" in done.stdout and "+    DOWN_THE_COLUMNS = " in done.stdout
    assert "coalesced on the backend simulator" in done.stdout and " right: " in done.stdout
    done = on_simulator(str(DOCS / "course" / "rung.py"), "long_columns")
    assert "stored by rows, op T" in done.stdout and "more lines: --all" in done.stdout
    done = on_simulator(str(DOCS / "course" / "rung.py"), "99")
    assert done.returncode == 1 and "there is no rung '99'; there are: 1 serial" in done.stderr
    done = on_simulator(str(DOCS / "course" / "rung_05.py"), "--help")
    assert done.returncode == 0 and "usage: rung_05.py [-h] [--all]\n" in done.stdout


def test_every_rung_has_a_script(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(DOCS / "_ext"), *sys.path])
    import rung_scripts

    assert not rung_scripts.stale(), "python docs/_ext/parts.py --write"
    monkeypatch.setattr(rung_scripts, "COURSE", tmp_path)
    (tmp_path / "rung_99.py").write_text("", encoding="utf-8")  # of a rung that is gone
    (tmp_path / "rung.py").write_text("", encoding="utf-8")
    rung_scripts.write()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"rung.py", *(path.name for path in (DOCS / "course").glob("rung_*.py"))}
    assert not rung_scripts.stale()
    (tmp_path / "rung_05.py").write_text("", encoding="utf-8")
    assert list(rung_scripts.stale()) == [tmp_path / "rung_05.py"]


def test_exercises_explain_themselves():
    done = on_simulator(str(DOCS / "exercises"), "--help")
    assert done.returncode == 0 and done.stdout.startswith("Check a kernel without a GPU")


def test_every_rung_before_the_vectors_has_an_exercise():
    from gemv.kernels import REGISTRY

    with_exercise = {path.stem for path in EXERCISES}
    rungs = [k.name for k in REGISTRY.values() if not k.beside and k.rung <= 7]
    assert set(rungs) <= with_exercise


# --------------------------------------------------------------------------------------------------
# the tables of special values


def rules() -> list[tuple[str, str, str]]:
    return rows_of((DOCS / "guide" / "rules.md").read_text(encoding="utf-8"))


def rows_of(text: str) -> list[tuple[str, str, str]]:
    return re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| (.+?) \|$", text, re.M)


def numeric_rules() -> list[tuple[str, str, str]]:
    """Those of numbers, shapes and places, which hold for device arrays as well."""
    text = (DOCS / "guide" / "rules.md").read_text(encoding="utf-8")
    return rows_of(text.split("## What is taken for an array")[0])


def rule_names(module) -> dict:
    names: dict = {}
    ((_, setup),) = [each for each in blocks(DOCS / "guide" / "rules.md") if each[0] == "python"]
    exec(setup, names)
    names.update({name: getattr(module, name, None) for name in ("dgemv", "zgemv", "gemv")})
    return names


def agree(got, expected) -> bool:
    if isinstance(expected, np.dtype):
        return got == expected
    got, expected = np.asarray(got), np.asarray(expected)
    same = np.array_equal(got, expected, equal_nan=True)
    if not same or got.dtype.kind == "c":
        return same
    number = ~np.isnan(expected)
    return bool((np.signbit(got) == np.signbit(expected))[number].all())


def test_rules_cover_what_the_issue_of_a_blas_is_about():
    assert len(rules()) > 30


@pytest.mark.parametrize("call, gives, scipy", rules(), ids=[call for call, _, _ in rules()])
def test_rule(call, gives, scipy):
    import gemv
    from gemv.engines import backend

    if backend.backend() == "host":
        pytest.skip("there are no kernels on the host backend")
    names = rule_names(gemv)
    expected = eval(gives, names)
    if isinstance(expected, type) and issubclass(expected, Exception):
        with pytest.raises(expected):
            eval(call, names)
    else:
        assert agree(eval(call, names), expected)

    blas = pytest.importorskip("scipy.linalg.blas")
    if scipy == "same":
        assert agree(eval(call, rule_names(blas)), expected)
    elif scipy == "raises":
        with pytest.raises(Exception, match="."):
            eval(call, rule_names(blas))
    elif scipy.startswith("`"):
        names = rule_names(blas)
        assert agree(eval(call, names), eval(scipy.strip("`"), names))
    else:
        assert scipy in ("has none", "raises or is wrong")


def on_device(way: str):
    """dgemv on copies of its arrays in device memory, and of alpha and beta, if asked."""
    import gemv

    def dgemv(alpha, a, x, beta=0, y=None, **options):
        from numba import cuda

        def moved(value):
            return None if value is None else cuda.to_device(np.array(value, np.float64))

        if way == "device scalars":
            alpha, beta = moved(alpha), moved(beta)
        if way == "wide sums":
            options["accumulate"] = "wide"
        return gemv.dgemv(alpha, moved(a), moved(x), beta, moved(y), **options).copy_to_host()

    return dgemv


@pytest.mark.parametrize("way", ["numbers", "device scalars", "wide sums"])
@pytest.mark.parametrize(
    "call, gives", [row[:2] for row in numeric_rules()], ids=[row[0] for row in numeric_rules()]
)
def test_rule_on_the_device(call, gives, way):
    import gemv
    from gemv.engines import backend

    if backend.backend() == "host":
        pytest.skip("there are no kernels on the host backend")
    names = {**rule_names(gemv), "dgemv": on_device(way)}
    expected = eval(gives, names)
    if isinstance(expected, type) and issubclass(expected, Exception):
        with pytest.raises(expected):
            eval(call, names)
    else:
        assert agree(eval(call, names), expected)


# --------------------------------------------------------------------------------------------------
# links


def drawings() -> set[str]:
    """Names of the figures, read from the drawing code: Matplotlib need not be there."""
    from gemv.kernels import REGISTRY

    text = "".join(path.read_text("utf-8") for path in (DOCS / "figures").glob("*.py"))
    named = set(re.findall(r'^@drawing\("([^"]+)"', text, re.M))
    kinds = ("matrix", "lines", "banks")
    return named | {f"{kind}-{name}" for kind in kinds for name in REGISTRY}


LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def idea_rows() -> list[list[str]]:
    text = (DOCS / "course" / "ideas.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] not in ("idea", "---")]


def test_ideas_name_all_sources():
    text = (DOCS / "course" / "ideas.md").read_text(encoding="utf-8")
    for source in ("Collange", "Sanders and", "Acceleware", "EPCC"):
        assert f"## {source}" in text
    assert len(idea_rows()) > 50


@pytest.mark.parametrize("row", idea_rows(), ids=lambda row: row[0])
def test_idea_leads_to_a_place_or_says_why_not(row):
    idea, here, figure = row
    assert re.search(r"\]\(|`[a-z_]+/|below", here) or re.match(r"no use\b.*: \S", here)
    check_links(DOCS / "course" / "ideas.md", " ".join(row))
    if figure != "–":
        assert LINK.fullmatch(figure).group(2) in drawings()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_of_page(page):
    check_links(page, page.read_text(encoding="utf-8"))


def check_links(page: Path, text: str) -> None:
    known = drawings()
    for name in re.findall(r"^```\{drawing\} (\S+)", PART.sub("", text), re.M):
        assert name in known, name
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    for path, label in LINK.findall(re.sub(r"`[^`]+`", "`code`", text)):
        if "://" in path:
            continue
        assert (page.parent / path).is_file(), path
        if label and path.endswith(".md"):
            assert label in known, label
    text = PART.sub("", text)
    for path in re.findall(r"`((?:gemv|tests|docs|benchmarks)/[\w./]+)`", text):
        if "kNN" in path or "name" in path or page.name == "changelog.md":
            continue
        assert (TOP / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_page_reads_on_github(page):
    """GitHub shows a directive as code, so only figures have one, with words for GitHub.

    It knows no lists of definitions either.
    """
    text = re.sub(r"^<!-- sphinx\n.*?^-->$", "", page.read_text("utf-8"), flags=re.M | re.S)
    figures = r"^```\{drawing\} (\S+)\nmake docs draws this figure: \1\n```$"
    assert not re.findall(r"^ *(?:```+|:::+)\{.*", re.sub(figures, "", text, flags=re.M), re.M)
    assert not re.findall(r"^: .*", text, re.M)


def test_parts_of_pages_are_up_to_date(monkeypatch):
    """What the simulator has to count for is checked by a build of the documentation."""
    monkeypatch.setattr(sys, "path", [str(DOCS / "_ext"), *sys.path])
    import parts

    marked = [name for page in PAGES for name in parts.MARK.findall(page.read_text("utf-8"))]
    assert set(parts.PARTS) == set(marked)
    late = [page_id(page) for page in parts.stale(parts.COUNTED)]
    assert not late, "python docs/_ext/parts.py --write"


def test_a_part_that_is_out_of_date_is_found_and_written(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(DOCS / "_ext"), *sys.path])
    import parts

    monkeypatch.setattr(parts, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    text = (DOCS / "course" / "rungs.md").read_text(encoding="utf-8")
    page.write_text(text.replace("One thread takes", "Two threads take"), encoding="utf-8")
    where = DOCS / "course" / "rungs.md"  # links depend on the place
    assert parts.stale().keys() == {page}
    assert parts.written(where, page.read_text(encoding="utf-8")) == text


def test_roles_become_links(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(DOCS / "_ext"), *sys.path])
    import links

    page = DOCS / "course" / "gpu.md"
    wide = "../../gemv/kernels/k08_vector_rows.py"
    told = {
        "{ref}`vector_rows`": f"[`vector_rows`]({wide})",
        "{ref}`wide loads <vector_rows>`": f"[wide loads]({wide})",
        "{doc}`/install`": "[Install](../install.md)",
        "{doc}`the call <../guide/call>`": "[the call](../guide/call.md)",
        "{py:func}`gemv.gemv`": "[`gemv.gemv`](../../gemv/blas.py#gemv.gemv)",
        "```text\n{doc}`/install`\n```": "```text\n{doc}`/install`\n```",
    }
    for role, link in told.items():
        assert links.plain(page, role) == link
    assert links.plain(page, "{doc}`x <rungs/08-vector_rows>`") == f"[x]({wide})"
    with pytest.raises(ValueError, match="names no kernel"):
        links.plain(page, "{ref}`nothing`")
    read = links.for_sphinx(f"[a]({wide}), [b]({wide}#tree), [c](gpu.md#machine-x), [d](gpu.md)")
    assert read == "[a](#vector_rows), [b](#tree), [c](#machine-x), [d](gpu.md)"
    assert links.for_sphinx("<!-- sphinx\n```{toctree}\n```\n-->") == "```{toctree}\n```"


def test_commands_of_pages_are_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text("utf-8"), re.M))
    for page in PAGES:
        named = re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.M)
        assert set(named) <= targets, page


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_no_measured_figure_is_typed_by_hand(page):
    script = written_by(page)
    if script:
        assert (TOP / script).is_file()
        return
    text = PART.sub("", page.read_text(encoding="utf-8"))
    typed = re.findall(r"\d[\d.]*\s*(?:[GT]B/s|µs|us|ms|times\s+as\s+(?:fast|long))\b", text)
    assert typed == [], "figures come from benchmarks/results"


# --------------------------------------------------------------------------------------------------
# the reference


@pytest.mark.parametrize("name", gemv.__all__)
def test_public_classes_say_what_their_methods_take(name):
    """What has no such section is not for callers, and has a name that says so."""
    value = getattr(gemv, name)
    if not isinstance(value, type):
        return
    ours = [base for base in value.__mro__ if base.__module__.startswith("gemv.")]
    for method, function in (item for base in ours for item in vars(base).items()):
        if inspect.isfunction(function) and (method == "__call__" or not method.startswith("_")):
            if len(inspect.signature(function).parameters) > 1:
                assert "Parameters\n" in (inspect.getdoc(function) or ""), f"{name}.{method}"


def check_exercises(paths: list[str]) -> int:
    """What ``python docs/exercises`` says of each file, behind its status; in one process."""
    check = runpy.run_path(str(DOCS / "exercises"))["main"]
    for path in paths:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = check([path])
        print(status, said.getvalue().strip())
    return 0


def main(arguments: list[str]) -> int:
    first, *others = arguments
    return check_exercises(arguments) if others else int(run_page(Path(first)) > 0)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main(sys.argv[1:]))
    # what pages and exercises import
    import numba.cuda  # noqa: F401

    import gemv.language.simulator.scheduler

    forks.fork_for_each_line(main)
