"""Rules of the house: who imports whom, what a kernel file says, what the documents promise."""

from __future__ import annotations

import ast
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import processes
from helpers.programs import program

TOP = Path(__file__).resolve().parents[2]
PACKAGE = TOP / "gemv"
MODULES = sorted(PACKAGE.rglob("*.py"))
KERNEL_FILES = sorted((PACKAGE / "kernels").glob("[kt][0-9][0-9]_*.py"))
BASE = {
    "gemv.core", "gemv.core.dtypes", "gemv.core.geometry", "gemv.core.problem", "gemv.core.shares",
    "gemv.kernels", "gemv.kernels.depths", "gemv.kernels.grids", "gemv.kernels.kernel",
    "gemv.kernels.spec", "gemv.language",
}  # fmt: skip


def module_name(path: Path) -> str:
    parts = path.relative_to(TOP).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, top_level_only: bool = False) -> set[str]:
    """Modules of ours that a file imports, in any place or only while it is itself imported.

    What stands under ``if TYPE_CHECKING`` is for the type checker and never runs.
    """
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import; the rules read full names"
            found.add(node.module or "")
            # `from gemv import _x` imports gemv._x
            found.update(f"{node.module}.{a.name}" for a in node.names if is_module(node, a.name))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if top_level_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return {name for name in found if name.split(".")[0] == "gemv"}


def is_module(node: ast.ImportFrom, name: str) -> bool:
    folder = TOP.joinpath(*(node.module or "").split("."))
    return (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()


@pytest.mark.parametrize("path", KERNEL_FILES, ids=lambda path: path.stem)
def test_kernel_imports_base_only(path):
    assert imports(path) <= BASE, "a kernel never imports another one, nor the host side"


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda path: path.stem)
def test_command_line_starts_on_the_standard_library(path):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
        for name in names:
            ours = name.startswith("gemv.cli")
            assert ours or name.split(".")[0] in sys.stdlib_module_names, name


HEADINGS = ["Idea", "Picture", "Bytes", "Wins", "Loses", "Sums", "Source"]


@pytest.mark.parametrize("path", KERNEL_FILES, ids=lambda path: path.stem)
def test_kernel_docstring_has_the_headings(path):
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    # a heading starts a line, or follows another heading's text after some space
    places = [re.search(rf"(?:^|\s{{2,}}){heading}(?:\s|$)", doc, re.M) for heading in HEADINGS]
    assert [h for h, place in zip(HEADINGS, places, strict=True) if place is None] == []
    starts = [place.start() for place in places]
    assert starts == sorted(starts), "the headings come in this order"


def test_registry_has_every_kernel_file():
    from gemv.kernels import REGISTRY

    assert len(REGISTRY) == len(KERNEL_FILES) > 0
    for path in KERNEL_FILES:
        kernel = REGISTRY[path.stem.split("_", 1)[1]]
        assert kernel.rung == int(path.stem[1:3])
        assert kernel.beside == path.stem.startswith("t")
        assert kernel.idea


def test_a_point_of_the_history_takes_minutes():
    """Few processes have a context and a compiler; those of a suite that measures once look up."""
    measuring, looking = 0, 0
    for name in ("kernels", "api"):
        suite = vars(program(f"suites.{name}"))
        for each in filter(lambda value: isinstance(value, type), suite.values()):
            kinds = ("track", "time", "timeraw", "peakmem")
            methods = [m for m in dir(each) if m.split("_")[0] in kinds]
            sets = len(methods) * math.prod(map(len, getattr(each, "params", ())))
            if hasattr(each, "setup_cache"):
                measuring, looking = measuring + 1, looking + sets
            else:
                measuring += sets
    assert 5 < measuring <= 60
    assert 200 < looking <= 300


def test_benchmarks_list_every_rung():
    from gemv.kernels import REGISTRY

    listed = program("suites.kernels").KERNELS
    assert listed == [kernel.name for kernel in REGISTRY.values() if not kernel.beside]
    # What the pages of the history show is what this file has.
    path = TOP / "benchmarks" / "results" / "benchmarks.json"
    shown = json.loads(path.read_text("utf-8"))["kernels.Bandwidth.track_bandwidth"]["params"][0]
    assert shown == [repr(name) for name in listed]


# --------------------------------------------------------------------------------------------------
# README


README = TOP / "README.md"


def test_readme_commands_are_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text("utf-8"), re.M))
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (TOP / name).read_text(encoding="utf-8")
        # in a block of code or between backticks; in prose "make" is a verb
        named = re.findall(r"(?:^|`)make ([a-z][a-z -]*[a-z])", text, re.M)
        words = {word for group in named for word in group.split()}
        assert words >= {"demo", "test"} or name != "README.md"
        assert words <= targets, name


def test_readme_examples_run():
    gemv = pytest.importorskip("gemv")
    if gemv.backend() == "host":
        pytest.skip("the examples use device arrays")
    names: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) >= 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["y_device"].copy_to_host().tolist() == (names["a"] @ names["x"]).tolist()


def test_readme_table_has_every_kernel():
    from gemv.kernels import REGISTRY

    text = README.read_text(encoding="utf-8")
    table = text.split("<!-- ladder:begin -->")[1].split("<!-- ladder:end -->")[0]
    for name in REGISTRY:
        assert f"`{name}`" in table


def test_readme_table_is_built_from_the_results():
    script = vars(program("pages.ladder_table"))
    text = README.read_text(encoding="utf-8")
    assert script["replaced"](text, script["table"](script["load"]())) == text, "make table"


def test_ladder_table_shows_measured_refused_and_missing(tmp_path):
    script = vars(program("pages.ladder_table"))
    case = {
        "m": 4,
        "n": 8,
        "dtype": "s",
        "order": "C",
        "op": "T",
        "device": "A GPU",
        "backend": "cuda",
        "ceiling_gb_per_s": 2000.0,
        "rows": [
            {"name": "serial", "gb_per_s": 0.01234, "share": 0.001, "refused": None},
            {"name": "tile2d", "gb_per_s": 1234.5, "share": 0.617, "refused": None},
            {"name": "threads_are_columns", "gb_per_s": None, "refused": "too wide"},
        ],
    }
    (tmp_path / "case.json").write_text(json.dumps(case), encoding="utf-8")
    lines = script["table"](script["load"](tmp_path)).splitlines()
    assert "4 x 8<br>C, T" in lines[0]
    cells = {line.split("|")[2].split()[0]: line.split("|")[-2].strip() for line in lines[2:-2]}
    assert cells["`serial`"] == "0.0123 (0%)"
    assert cells["`tile2d`"] == "1230 (62%)"
    assert cells["`threads_are_columns`"] == "refuses"
    assert cells["`coalesced`"] == "–"
    assert "A GPU" in lines[-1]

    (tmp_path / "case.json").write_text(json.dumps({**case, "backend": "simulator"}))
    with pytest.raises(ValueError, match="without a GPU"):
        script["load"](tmp_path)


def test_a_point_is_measured_below_asv_and_then_stored(tmp_path, monkeypatch, capsys):
    script = vars(program("history.point"))
    main = script["main"]
    with pytest.raises(SystemExit):
        main(["--machine", "h200", "--commit", "abc"])
    assert "all 40 digits" in capsys.readouterr().err

    seen = []
    monkeypatch.setattr(
        script["subprocess"], "run", lambda command, **options: seen.append((command, options))
    )
    for name, value in (("WORK", tmp_path / ".asv"), ("CONFIG", tmp_path / "local.json")):
        monkeypatch.setitem(main.__globals__, name, value)
    assert main(["--machine", "h200", "--commit", "ab" * 20, "--date", "5"]) == 0
    config = json.loads((tmp_path / "local.json").read_text())
    assert (
        config["results_dir"] == ".asv/results" and config["benchmark_dir"] == "benchmarks/suites"
    )
    git, commit, machine, *rest = (command for command, _ in seen)
    assert git[:2] == ["git", "init"] and commit[0] == "git" and "machine" in machine
    # Part by part, so that a run that is cut off keeps what it has.
    runs, stores = rest[::2], rest[1::2]
    assert tuple(run[run.index("--bench") + 1] for run in runs) == script["PARTS"]
    assert not any("--dry-run" in run for run in runs)
    assert [store[-4:] for store in stores] == [["--commit", "ab" * 20, "--date", "5"]] * len(runs)
    assert seen[3][1]["env"]["ASV_PYTHONPATH"].startswith(str(TOP))

    seen.clear()
    some = ["--bench", "Floor", "--bench", "^api"]
    assert main(["--machine", "h200", "--commit", "ab" * 20, *some]) == 0
    asked = [command for command, _ in seen if "--bench" in command]
    assert [run[run.index("--bench") + 1] for run in asked] == ["Floor", "^api"]

    seen.clear()
    assert main(["--smoke"]) == 0
    assert all(options["env"]["NUMBA_ENABLE_CUDASIM"] == "1" for _, options in seen[2:])
    assert "--dry-run" in seen[-1][0]


def test_stored_benchmark_results_name_no_path(tmp_path):
    store = program("history.store").store
    raw = tmp_path / "raw"
    (raw / "h200").mkdir(parents=True)
    (raw / "benchmarks.json").write_text("{}")
    (raw / "h200" / "machine.json").write_text("{}")
    python = str(tmp_path / "venv" / "bin" / "python")
    result = {"env_name": f"existing-{python}", "python": python, "params": {"python": python}}
    result |= {"commit_hash": "0" * 40, "date": 1, "results": {"x": 1}}
    (raw / "h200" / "00000000-existing.json").write_text(json.dumps(result))

    facts = {"machine": "h200", "gpu": "A GPU", "python": "3.12", "version": 1}
    (written,) = store(raw, tmp_path / "results", facts, "ab" * 20, 5000)
    assert written.relative_to(tmp_path).as_posix() == (
        "results/h200/abababababab-existing-py3.12.json"
    )
    text = written.read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    stored = json.loads(text)
    assert (stored["commit_hash"], stored["date"]) == ("ab" * 20, 5000)
    assert stored["results"] == {"x": 1}
    assert stored["params"] == facts

    # What was missing is added, what was measured again is replaced; another GPU's is refused.
    result["results"] = {"x": 2, "y": 3}
    (raw / "h200" / "00000000-existing.json").write_text(json.dumps(result))
    store(raw, tmp_path / "results", {**facts, "torch": "2"}, "ab" * 20, 5000)
    stored = json.loads(written.read_text(encoding="utf-8"))
    assert stored["results"] == {"x": 2, "y": 3} and stored["params"]["torch"] == "2"
    result["results"] = {"z": 4}
    (raw / "h200" / "00000000-existing.json").write_text(json.dumps(result))
    store(raw, tmp_path / "results", facts, "ab" * 20, 5000)
    assert json.loads(written.read_text("utf-8"))["results"] == {"x": 2, "y": 3, "z": 4}
    before = written.read_bytes()
    with pytest.raises(SystemExit, match="was measured with gpu A GPU: remove it"):
        store(raw, tmp_path / "results", {**facts, "gpu": "Another"}, "ab" * 20, 5000)
    assert written.read_bytes() == before


# --------------------------------------------------------------------------------------------------
# files


def tracked_files() -> list[Path]:
    """What git tracks; in a copy without git, the files of our folders."""
    try:
        listing = processes.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=TOP,
            capture_output=True,
            check=True,
        ).stdout.decode()
        names = [name for name in listing.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = []
    if not names:
        folders = ("gemv", "tests", "benchmarks", "docs", ".ci")
        inside = [p for folder in folders for p in (TOP / folder).rglob("*")]
        names = [p for p in [*TOP.glob("*"), *inside] if ours(p.relative_to(TOP))]
    return [path for path in (TOP / name for name in names) if path.is_file()]


def ours(path: Path) -> bool:
    """Whether git would track `path`, as far as its name tells: no caches, nobody's own notes."""
    dotted = {part for part in path.parts if part[0] == "."}
    return dotted <= {".ci", ".gitignore", ".pre-commit-config.yaml"} and not (
        {"__pycache__", "_build"} & set(path.parts)
    )


@pytest.mark.parametrize("name", [".dev/x.py", "docs/_build/a.html", "gemv/__pycache__/a.pyc"])
def test_files_that_are_not_ours(name):
    assert not ours(Path(name))


def test_files_without_git_are_those_that_git_tracks(monkeypatch):
    tracked = {path for path in tracked_files() if ours(path.relative_to(TOP))}

    def no_git(*arguments, **options):
        raise FileNotFoundError("git")

    monkeypatch.setattr(processes, "run", no_git)
    without = set(tracked_files())
    assert tracked <= without and not any(".git" in path.parts for path in without)


def test_no_file_names_a_place_of_one_machine():
    places = "|".join(("home", "root", "work", "Users", "mnt", "opt"))
    pattern = re.compile(rf"(?<![\w.~$}})/-])/(?:{places})/\w")
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(TOP)}:{number}: {line.strip()}")
    assert found == []


def test_type_marker_and_tables_are_in_the_package():
    # .ci/run looks for them in the wheel as well
    assert (PACKAGE / "py.typed").is_file()
    assert list((PACKAGE / "selection" / "tables").glob("*.toml"))


def test_changelog_and_version_agree():
    import gemv

    text = (TOP / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^\]]+)\]", text, re.M)
    assert versions[0] == "Unreleased"
    assert len(versions) == 1 or gemv.__version__.startswith(versions[1].rsplit(".", 1)[0])
