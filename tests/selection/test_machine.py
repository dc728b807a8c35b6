"""Machines: their files, what is refused in them, their compiled form, GPUs without a file."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import processes
from helpers.selection import is_compiled, problem_of, problem_with

import gemv
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Chip, Device
from gemv.kernels import REGISTRY
from gemv.measure.inputs import make_problem
from gemv.selection import choices as selection_choices
from gemv.selection import compiled
from gemv.selection import machine as selection_machine
from gemv.selection import select as selection_select
from gemv.selection.cells import kinds
from gemv.selection.choices import choices
from gemv.selection.formula import Machine
from gemv.selection.host_or_gpu import Numbers
from gemv.selection.machine import Constants, code_for, code_of, machine, machines
from gemv.selection.parse import parse
from gemv.selection.row import RANGES, numbers
from gemv.selection.select import select

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / "gemv" / "selection" / "machines"
FILES = sorted(FOLDER.glob("*.toml"))
BY_FILE = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
DEVICE = Device("some GPU", (9, 0), 100)
GOLDEN = Path(__file__).with_name("golden.json")

NUMBERS = "[numbers]\n" + "".join(f"{name} = 1e-7\n" for name in Machine._fields)
SET = '[portfolio]\nconstants = [{{ kernel = "{}", knobs = {{ {} }}, registers = {{ s = 40 }} }}]\n'
GENERAL = SET.format("last_block", "")
HOST = "[host]\n" + "".join(f"{name} = 1e-7\n" for name in Numbers._fields)
ROW = '[[row]]\nkernel = "last_block"\nreason = "why"\n'


def forget():
    selection_machine.machine.cache_clear()
    selection_machine._of_package.cache_clear()
    choices.cache_clear()
    selection_select.forget()


@pytest.fixture
def own_machine(tmp_path, monkeypatch):
    """A file that GEMV_MACHINE names; call it with the text."""
    file = tmp_path / "mine.toml"

    def write(text):
        if isinstance(text, bytes):
            file.write_bytes(text)
        else:
            file.write_text(text)
        forget()
        return file

    monkeypatch.setenv("GEMV_MACHINE", str(file))
    yield write
    forget()


# The files of the package -----------------------------------------------------------------------


@BY_FILE
def test_what_a_process_reads_is_made_of_the_toml(file):
    toml = file.read_bytes()
    content = parse(toml.decode("utf-8"), str(file))
    about = compiled.hash_of(toml)
    lines_file, cells_file = file.with_suffix(".jsonl"), file.with_suffix(".cells")
    found = compiled.content_of(lines_file.read_bytes(), about)
    assert found is not None, "the TOML was edited: run make fit"
    found["constants"] = list(found["constants"])
    assert found == json.loads(json.dumps(content))
    assert lines_file.read_text("utf-8") == compiled.text_of(toml, content)
    made = compiled.choices_of(cells_file.read_bytes(), about)
    assert cells_file.read_text("ascii") == compiled.cells_text_of(toml, made)
    assert set(made["kinds"]) <= set(map(str, kinds())) and made["entries"]


@BY_FILE
def test_a_file_is_short_and_says_where_it_is_from(file):
    import tomllib

    content = tomllib.loads(file.read_text("utf-8"))
    about = content["about"]
    assert {"gpu", "compute_capability", "multiprocessors", "date", "versions"} <= set(about)
    fitted = file.read_text("utf-8").partition("\n[host]")[0]
    # those of a fit, and sets that were the fastest on sizes that people like
    sets = len(content["portfolio"]["constants"])
    assert sets <= 160 + 16 and len(fitted.splitlines()) - sets <= 60
    rows = content.get("row", [])
    assert len(rows) <= 30
    for row in rows:  # measured, or because of registers
        assert "figure" in row or "registers" in row["reason"]


def test_every_kernel_that_counts_its_work_is_in_a_portfolio_or_there_to_teach():
    used = {each.kernel.name for found in machines() for each in found.constants}
    assert used == {kernel.name for kernel in REGISTRY.values() if not kernel.teaching}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_exception_decides_somewhere(file):
    found = machine(Device(file.stem.replace("-", " "), (9, 0), 132))
    for row in found.exceptions:
        told = row.conditions.get
        lines = told("lines_min", told("lines_max", 5000))
        kind = {
            "dtype": row.letters[0],
            "accumulate": told("accumulate", "plain"),
            "load_bytes": told("load_bytes_max", 16),
            "lda_alignment": told("lda_alignment_max"),
        }
        length = told("line_bytes_max", told("line_bytes_min", 4096)) // 16 * 16
        problem = problem_with(told("access", "dot"), length, lines, **kind)
        assert row.matches(problem) and row.can_match(problem)
        assert select(problem, Device(file.stem, (9, 0), 132)).reason == row.reason


def test_the_choices_are_these():
    """500 problems and what they get: the same on every machine with this GPU and this release."""
    wanted = json.loads(GOLDEN.read_text("utf-8"))
    assert len(wanted) == 500
    h200 = Device("NVIDIA H200", (9, 0), 132)
    assert [golden_line(each["problem"], h200) for each in wanted] == wanted


def golden_line(problem, device):
    from gemv.core.dtypes import DTYPES
    from gemv.core.problem import Problem

    choice = select(Problem(**{**problem, "dtype": DTYPES[problem["dtype"]]}), device)
    launch = choice.geometry.launches[0]
    return {
        "problem": problem, "kernel": choice.kernel.name, "knobs": choice.knobs,
        "grid": list(launch.grid), "block": list(launch.block),
    }  # fmt: skip


# Ready at once ----------------------------------------------------------------------------------


def test_a_process_parses_no_toml():
    code = (
        "import json, sys; from gemv.selection.machine import machine;"
        "from gemv.core.geometry import Device;"
        "found = machine(Device('NVIDIA H200', (9, 0), 132));"
        "print(json.dumps([len(found.constants), 'tomllib' in sys.modules]))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GEMV_MACHINE"}
    run = processes.run(
        [sys.executable, "-c", code], cwd=TOP, env=environment, stdout=subprocess.PIPE, check=True
    )
    assert json.loads(run.stdout) == [len(machines()[0].constants), False]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The machines of the package, in a folder that a test may change."""
    folder = tmp_path / "machines"
    shutil.copytree(FOLDER, folder)
    monkeypatch.setattr(selection_machine, "FOLDER", folder)
    forget()
    yield folder
    forget()


def test_an_edited_toml_is_read_in_place_of_the_lines(package):
    h200 = Device("NVIDIA H200", (9, 0), 132)
    before = machine(h200)
    file = package / "nvidia-h200.toml"
    text = re.sub(r"(?m)^start = .*", "start = 1e-6", file.read_text("utf-8"))
    file.write_text(text, encoding="utf-8")
    forget()
    after = machine(h200)
    assert after.numbers.start == 1e-6 != before.numbers.start
    assert not after.choices and before.choices and after.hash != before.hash
    select(problem_of("dot", 100, 100), h200)  # by the formula


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"toml": 1}'])
@pytest.mark.parametrize("ending", [".jsonl", ".cells"])
def test_a_file_that_was_not_made_of_the_toml_is_not_used(package, ending, content):
    file = package / f"nvidia-h200{ending}"
    file.unlink()
    if content is not None:
        file.write_text(content)
    found = machine(Device("NVIDIA H200", (9, 0), 132))
    assert found.constants and bool(found.choices) == (ending == ".jsonl")


@pytest.mark.parametrize("lines", [3, 40, None])
def test_a_part_of_the_lines_is_not_used(package, lines):
    """The file was cut off, between two lines or in one: the TOML is parsed."""
    file = package / "nvidia-h200.jsonl"
    whole = file.read_text("utf-8")
    cut = whole[:-9] if lines is None else "".join(whole.splitlines(keepends=True)[:lines])
    file.write_text(cut, "utf-8")
    found = machine(Device("NVIDIA H200", (9, 0), 132))
    assert len(found.constants) == whole.count("\n") - 2
    assert all(each.kernel is not None for each in found.constants)


def test_a_choice_decodes_what_it_needs_alone(package, monkeypatch):
    """Of the many constants one set, of the many kinds one."""
    decoded, unpacked = [], []
    loads, b85decode = json.loads, selection_choices.unpacked
    monkeypatch.setattr(
        json, "loads", lambda text, **more: decoded.append(text) or loads(text, **more)
    )
    monkeypatch.setattr(
        selection_choices, "unpacked", lambda text: unpacked.append(text) or b85decode(text)
    )
    chosen = select(problem_of("dot", 300, 640).at(256, 256), Device("NVIDIA H200", (9, 0), 132))
    assert chosen.kernel.name == "vector_rows"
    assert len(decoded) == 3  # all but the constants, the launches, and one set of constants
    assert len(unpacked) == 1


# Which machine ----------------------------------------------------------------------------------


def test_a_gpu_without_a_file_gets_scaled_numbers():
    h200 = machine(Device("NVIDIA H200", (9, 0), 132))
    same = machine(Device("another GPU", (9, 0), 132))
    assert same.numbers == h200.numbers and same.hash != h200.hash
    chip = Chip(clock_khz=990_000, memory_khz=3_201_000, bus_bits=3072)
    half = machine(Device("half of it", (9, 0), 66, chip=chip)).numbers
    assert half.memory_rate == pytest.approx(h200.numbers.memory_rate / 2)
    assert half.cache_rate == pytest.approx(h200.numbers.cache_rate / 4)
    assert half.load == pytest.approx(2 * h200.numbers.load)
    assert half.memory_latency == h200.numbers.memory_latency


@pytest.mark.parametrize(
    ("capability", "multiprocessors", "chip"),
    [
        ((9, 0), 132, Chip(memory_khz=2_619_000, bus_bits=5120, cache_bytes=50 << 20)),
        ((9, 0), 132, Chip(shared_bytes=100 << 10)),
        ((9, 0), 132, Chip(registers=32768)),
        ((9, 0), 132, Chip(threads=1536)),
        ((9, 0), 132, Chip(blocks=16)),
        ((9, 0), 114, Chip()),
        ((10, 0), 132, Chip()),
    ],
)
def test_choices_made_ahead_are_for_gpus_with_these_multiprocessors(
    capability, multiprocessors, chip
):
    h200 = machine(Device("NVIDIA H200", (9, 0), 132))
    device = Device("another GPU", capability, multiprocessors, chip=chip)
    other = machine(device)
    if chip.memory_khz == 2_619_000:  # slower memory alone: an H100
        assert other.choices is h200.choices
        problem = problem_of("dot", 200, 200).at(256, 256)
        chosen = select(problem, device)
        reference = select(problem, Device("NVIDIA H200", (9, 0), 132))
        assert (chosen.kernel, chosen.knobs) == (reference.kernel, reference.knobs)
    else:
        assert not other.choices
    assert other.hash != h200.hash


def test_the_simulator_takes_what_the_reference_does():
    assert machine(Device("simulator", (0, 0), 1)) is machine(Device("NVIDIA H200", (9, 0), 132))


def test_a_machine_of_ones_own(own_machine):
    own_machine(NUMBERS + GENERAL)
    assert machine(DEVICE).name == "mine"
    assert select(problem_of("dot", 100, 100), DEVICE).kernel.name == "last_block"
    one = machine(DEVICE).hash
    own_machine("# other words\n" + NUMBERS + GENERAL + '[about]\ngpu = "mine"\n')
    assert machine(DEVICE).hash == one and len(one) == 64
    own_machine(NUMBERS.replace("start = 1e-7", "start = 2e-7", 1) + GENERAL)
    assert machine(DEVICE).hash != one


def test_numbers_for_host_arrays_are_no_part_of_a_choice(own_machine):
    usual = selection_machine._of_package("nvidia-h200").host
    own_machine(NUMBERS + GENERAL)
    without = machine(DEVICE).hash
    assert selection_machine.host_numbers("NVIDIA H200") == usual.cautious()
    own_machine(NUMBERS + GENERAL + HOST)
    assert machine(DEVICE).hash == without
    assert selection_machine.host_numbers("NVIDIA H200") == Numbers(*[1e-7] * len(usual))


def test_an_exception_comes_before_the_formula(own_machine):
    row = '[[row]]\nkernel = "vector_rows"\nreason = "few"\nlines_max = 9\naccess = "dot"\n'
    own_machine(NUMBERS + GENERAL + row + "knobs = { LANES = 32 }\n")
    chosen = select(problem_of("dot", 9, 100), DEVICE)
    assert chosen.reason == "few" and chosen.knobs["LANES"] == 32
    for other in (problem_of("dot", 10, 100), problem_of("axpy", 9, 100)):
        assert select(other, DEVICE).kernel.name == "last_block"
    # Asked for by name, the kernel has these constants too.
    assert select(problem_of("dot", 9, 100), DEVICE, "vector_rows").knobs["LANES"] == 32
    assert select(problem_of("dot", 9, 100), DEVICE, "vector_rows", {}).knobs["LANES"] == 256


@pytest.mark.parametrize(
    "condition, yes, no",
    [
        ({"dtype": "sd"}, {"dtype": "d"}, {"dtype": "c"}),
        ({"accumulate": "wide"}, {"accumulate": "wide"}, {"accumulate": "plain"}),
        ({"element_bytes_max": 4}, {"dtype": "s"}, {"dtype": "d"}),
        ({"element_bytes_min": 8}, {"dtype": "c"}, {"dtype": "s"}),
        ({"load_bytes_min": 16}, {"load_bytes": 16}, {"load_bytes": 8}),
        ({"load_bytes_max": 8}, {"load_bytes": 4}, {"load_bytes": 16}),
        ({"load_bytes_max": 8}, {"dtype": "d", "load_bytes": 8}, {"dtype": "d"}),
        ({"line_bytes_max": 4096}, {}, {"line_bytes": 4112}),
        ({"lda_alignment_max": 64}, {"lda_alignment": 64}, {"lda_alignment": 128}),
    ],
    ids=str,
)
@pytest.mark.parametrize("access", ["dot", "axpy"])
def test_exceptions_for_a_dtype_or_an_alignment(condition, yes, no, access, own_machine):
    said = "".join(f"{name} = {value!r}\n" for name, value in condition.items())
    own_machine(NUMBERS + GENERAL + (ROW + said).replace("'", '"'))
    (row,) = machine(DEVICE).exceptions
    for facts, matches in ((yes, True), (no, False)):
        problem = problem_with(access, **{"line_bytes": 4096, "lines": 77, **facts})
        assert row.matches(problem) == matches
        assert (select(problem, DEVICE).reason == "why") == matches


def test_ranges_are_in_the_order_of_their_numbers():
    def numbers_of(problem):
        return numbers(problem, problem.access, problem.widths[0])

    problem = problem_with("axpy", 4096, 77, "c", 8)
    assert dict(zip(RANGES, numbers_of(problem), strict=True)) == {
        "line_bytes": 4096, "lines": 77, "element_bytes": 8, "load_bytes": 8, "lda_alignment": 128,
    }  # fmt: skip
    wide = problem_with("axpy", 4096 + 16, 77, "s", 16)
    assert numbers_of(wide)[-1] == 16
    assert numbers_of(wide._replace(col_stride=4096))[-1] == 128
    assert numbers_of(wide._replace(cols=1))[-1] == 128


# What is refused --------------------------------------------------------------------------------


def row_text(**fields):
    said = "".join(f"{name} = {value!r}\n" for name, value in fields.items())
    return NUMBERS + GENERAL + (ROW + said).replace("'", '"')


def set_text(text):
    return NUMBERS + f"[portfolio]\nconstants = [{text}]\n"


#: Text of a machine's file, and what is said of it.
BAD = [
    (row_text(row_min=3), "row 1: unknown field 'row_min'"),
    ("rows = 3\n" + NUMBERS + GENERAL, "unknown field 'rows'"),
    (row_text(dtype="sx"), "dtype must be one or more of .*, got str 'sx'"),
    (row_text(dtype=""), "dtype must be one or more of the letters"),
    (row_text(dtype=4), "dtype must be one or more of the letters .*, got int 4"),
    (row_text(accumulate="twice"), "accumulate must be one of .*, got str 'twice'"),
    (row_text(access="rows"), 'access must be one of "dot", "axpy", "strided", got'),
    (row_text(figure=1.5), "figure must be a string, got float 1.5"),
    (row_text(knobs=7), "knobs must be a table of constants, got int 7"),
    (row_text(lines_min=0), "row 1: lines_min must be .* from 1 to .*, got int 0"),
    (row_text(lines_max=-4), "lines_max must be an integer from 1 .*, got int -4"),
    (row_text(lines_min=1.0), "lines_min must be an integer .* got float 1.0"),
    (row_text(lines_min="9"), "lines_min must be an integer from 1 .*, got str '9'"),
    (row_text(lines_min=2**63), "lines_min must be an integer from 1 to 92233720"),
    (row_text(lines_min=5, lines_max=4), "lines_min = 5 is larger than lines_max"),
    (row_text() + "lines_min = true\n", "lines_min must be an integer from 1 .*, got bool"),
    (row_text() + "knobs = { BLOCK_X = 0 }\n", "last_block: BLOCK_X must be .* got int 0"),
    (row_text() + "knobs = { BLOCK_X = 8.0 }\n", "BLOCK_X must be an integer .*, got float"),
    (row_text() + "knobs = { X = 1 }\n", "row 1: kernel 'last_block' has no knob X; it has"),
    (NUMBERS + GENERAL + '[[row]]\nkernel = "nothing"\nreason = ""\n', "no kernel 'nothing'"),
    (NUMBERS + GENERAL + '[[row]]\nkernel = "serial"\nreason = ""\n', "cannot be selected"),
    (NUMBERS + GENERAL + '[[row]]\nreason = ""\n', "row 1: kernel is missing"),
    (NUMBERS + GENERAL + '[[row]]\nkernel = "last_block"\n', "row 1: reason is missing"),
    (NUMBERS + GENERAL + '[[row]]\nkernel = 3\nreason = ""\n', "kernel must be a string"),
    # Numbers of the formula
    (GENERAL, "numbers: start is missing"),
    (NUMBERS.replace("start = ", "begin = ", 1) + GENERAL, "numbers: unknown field 'begin'"),
    (NUMBERS.replace("1e-7", "-1e-7", 1) + GENERAL, "start must be a number .*, got float"),
    (NUMBERS.replace("1e-7", "nan", 1) + GENERAL, "start must be a number .*, got float nan"),
    (NUMBERS.replace("1e-7", "true", 1) + GENERAL, "start must be a number .*, got bool"),
    (NUMBERS.replace("1e-7", '"fast"', 1) + GENERAL, "start must be a number .*, got str"),
    (
        re.sub("memory_rate = .*", "memory_rate = 0", NUMBERS) + GENERAL,
        "memory_rate must be more than 0, got 0",
    ),
    ("numbers = 3\n" + GENERAL, "numbers must be a table, got int 3"),
    ("about = 3\n" + NUMBERS + GENERAL, "about must be a table, got int 3"),
    # Numbers for host arrays
    (NUMBERS + GENERAL + "[host]\nstart = 1.0\n", "host: item is missing"),
    (NUMBERS + GENERAL + HOST + "stop = 1.0\n", "host: unknown field 'stop'"),
    (NUMBERS + GENERAL + HOST.replace("1e-7", "-1", 1), "host: start must be a number .*-1"),
    (NUMBERS + GENERAL + HOST.replace("1e-7", "inf", 1), "host: start must be a number .*inf"),
    (
        NUMBERS + GENERAL + re.sub("\nrate = .*", "\nrate = 0", HOST),
        "host: rate must be more than 0, got 0",
    ),
    (
        NUMBERS + GENERAL + re.sub("link_thread_rate = .*", "link_thread_rate = 0.0", HOST),
        "host: link_thread_rate must be more than 0, got 0.0",
    ),
    ("host = 3\n" + NUMBERS + GENERAL, "host must be a table, got int 3"),
    # Factors
    (NUMBERS + "[factors]\nwarp = 3\n" + GENERAL, "no kernel 'warp'"),
    (NUMBERS + "[factors]\nvector_rows = 3\n" + GENERAL, "vector_rows must be a table"),
    (
        NUMBERS + "[factors]\nvector_rows = { start = 1 }\n" + GENERAL,
        "factors.vector_rows: issue must be a number .*, got None",
    ),
    # Constants
    (NUMBERS, "portfolio: constants are missing"),
    (NUMBERS + "[portfolio]\nconstants = 3\n", "constants must be an array of tables"),
    (set_text("1, 2"), "constants must be an array of tables"),
    (set_text('{ kernel = "last_block" }'), "constants 1: registers is missing"),
    (set_text('{ kernel = "serial", registers = {} }'), "constants 1: .*cannot be selected"),
    (
        set_text('{ kernel = "last_block", registers = { s = 256 } }'),
        "registers must be a table of integers from 0 to 255",
    ),
    (
        set_text('{ kernel = "vector_rows", knobs = { LANES = 0 }, registers = {} }'),
        "constants 1: vector_rows: LANES must be an integer from 1",
    ),
    # The whole
    ("", "constants are missing"),
    ("row = 3\n" + NUMBERS + GENERAL, "row must be an array of tables"),
    ("[[row]\n", "it is not valid TOML: .*line 1"),
    ("row = " + "[" * 100_000, "it is not valid TOML: "),
    (row_text() + f"lines_min = {'9' * 5000}\n", "it is not valid TOML: .*limit"),
    # What more there is of each table
    (
        NUMBERS + "[factors]\nvector_rows = { start = 1, issue = 1, stop = 1 }\n" + GENERAL,
        "factors.vector_rows: unknown field 'stop'",
    ),
    (
        NUMBERS + "[factors]\nvector_rows = { start = -1, issue = 1 }\n" + GENERAL,
        "factors.vector_rows: start must be a number .*, got int -1",
    ),
    (NUMBERS + "[factors]\nserial = { start = 1, issue = 1 }\n" + GENERAL, "cannot be selected"),
    (NUMBERS.replace("[numbers]", "[numbers]\nwarp = 1") + GENERAL, "unknown field 'warp'"),
    (NUMBERS.replace("1e-7", "inf", 1) + GENERAL, "start must be a number .*, got float inf"),
    (
        re.sub("cache_rate = .*", "cache_rate = 0.0", NUMBERS) + GENERAL,
        "numbers: cache_rate must be more than 0, got 0.0",
    ),
    (NUMBERS + GENERAL + "portfolio = 3\n", "portfolio: unknown field 'portfolio'"),
    (NUMBERS + GENERAL + "sets = []\n", "portfolio: unknown field 'sets'"),
    (
        set_text('{ kernel = "last_block", registers = {}, row = 1 }'),
        "constants 1: unknown field 'row'",
    ),
    (set_text('{ kernel = "last_block", registers = [40] }'), "registers must be a table of"),
    (set_text('{ kernel = "last_block", registers = { s = 40.0 } }'), "registers must be a table"),
    (set_text("{ registers = { s = 40 } }"), "constants 1: kernel is missing"),
    (
        set_text('{ kernel = "last_block", knobs = { TILE = 8 }, registers = {} }'),
        "constants 1: kernel 'last_block' has no knob TILE",
    ),
    (row_text(element_bytes_min=8, element_bytes_max=4), "element_bytes_min = 8 is larger than"),
    (
        NUMBERS.replace("= 1e-7", f"= {10**400}", 1) + GENERAL,
        "must be a number that is finite and not negative, got int",
    ),
    (row_text(lda_alignment_min=1.5), "lda_alignment_min must be an integer .*, got float"),
]


def test_there_are_as_many_kinds_as_are_promised():
    assert len(BAD) >= 60


@pytest.mark.parametrize("text, complaint", BAD, ids=lambda value: value[-60:])
def test_a_bad_machine_is_refused(text, complaint):
    with pytest.raises(ValueError, match=f"^machine f.toml(, |: )(.*{complaint})"):
        parse(text, source="f.toml")


@pytest.mark.parametrize(
    "knobs, complaint",
    [
        ("LANES = 24", "vector_rows: ROWS must be 1 to 4, got 1, and LANES .* 24"),
        ("ROWS = 9", "vector_rows: ROWS must be 1 to 4, got 9"),
        ("LANES = 4096", "a block has at most 1024 threads, and .* of vector_rows .* 4096"),
    ],
)
def test_constants_that_do_not_go_together_are_refused_with_their_place(
    knobs, complaint, own_machine
):
    row = '[[row]]\nkernel = "vector_rows"\nreason = "why"\naccess = "dot"\n'
    file = own_machine(NUMBERS + GENERAL + row + f"knobs = {{ {knobs} }}\n")
    said = f"^machine {re.escape(file.stem)}.toml, row 1: {complaint}"
    with pytest.raises(ValueError, match=said):
        select(problem_of("dot", 100, 100), DEVICE)


def test_a_file_that_is_none_is_named(own_machine, monkeypatch, tmp_path):
    problem = problem_of("dot", 9, 100)
    file = own_machine(b"# \xff\n")
    with pytest.raises(ValueError, match=f"GEMV_MACHINE = '{re.escape(str(file))}' cannot be read"):
        select(problem, DEVICE)
    for wrong in (tmp_path, tmp_path / "none", "~nobody has this name/x"):
        monkeypatch.setenv("GEMV_MACHINE", str(wrong))
        forget()
        with pytest.raises(ValueError, match="GEMV_MACHINE = .* cannot be read: "):
            select(problem, DEVICE)


def test_calls_say_which_machine_is_bad_and_leave_y(own_machine):
    if gemv.backend() == "host":
        pytest.skip("nothing is selected on the host")
    own_machine(row_text(lines_max=-1))
    y = np.arange(80.0)
    arguments = 1.0, np.ones((80, 90)), np.ones(90), 1.0, y
    for call in (gemv.gemv, gemv.dgemv, gemv.explain, gemv.precompile):
        routine = "dgemv" if call is gemv.dgemv else "gemv"
        said = f"^{routine}: machine .*mine.toml, row 1: lines_max must be .*-1"
        with pytest.raises(ValueError, match=said):
            call(*arguments, overwrite_y=1)
    assert y.tolist() == list(range(80))


NASTY = (
    "0", "-1", "1", "3", "1.5", "true", "nan", '""', '"x"', '"dot"', '"sd"', '"serial"', "[]",
    "[1]", "{}", "{ a = 1 }", "{ LANES = 0 }", "{ ROWS = 2, LANES = 24 }", "1979-05-27", "0xff",
    "[", "=", str(2**63), str(2**70), "'''", '"last_block"', '"vector_rows"', '"\\ud800"',
)  # fmt: skip
NAMES = (
    "row", "about", "[row]", "[[row]]", "[[about]]", "kernel", "reason", "figure", "knobs",
    "access", "dtype", "accumulate", "constants", "[portfolio]", "[numbers]", "start",
    *(f"{name}_{end}" for name in RANGES for end in ("min", "max")),
)  # fmt: skip


def mutated(chance, text):
    """The bytes of a file with a few faults, in fields, in lines or in single bytes."""
    lines = text.splitlines()
    for _ in range(chance.choice((1, 1, 2, 5))):
        place = chance.randrange(len(lines))
        name, _, value = lines[place].partition(" = ")
        fault = chance.randrange(6)
        if fault == 0:
            del lines[place]
        elif fault == 1:
            lines.insert(chance.randrange(len(lines) + 1), lines[place])
        elif fault == 2:
            lines[place] = f"{chance.choice(NAMES)} = {value or chance.choice(NASTY)}"
        elif fault == 3 and "{" in value:
            lines[place] = lines[place].replace("2", chance.choice(NASTY), 1)
        else:
            lines[place] = f"{name} = {chance.choice(NASTY)}"
        lines = lines or [""]
    found = bytearray("\n".join(lines).encode())
    if chance.random() < 0.2:
        for _ in range(chance.choice((1, 3, 10))):
            at = chance.randrange(len(found) + 1)
            found[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
    return bytes(found)


def test_no_machine_raises_anything_else(own_machine):
    """Hundreds of files with a few faults each are used, or refused in the documented way."""
    chance = random.Random(7)
    sound = (
        '[about]\ngpu = "some GPU"\n' + NUMBERS + "[portfolio]\nconstants = [\n"
        '{ kernel = "vector_rows", knobs = { LANES = 8, ROWS = 2 }, registers = { s = 32 } },\n'
        '{ kernel = "vector_columns", knobs = { PIECES = 2 }, registers = { s = 32 } },\n'
        '{ kernel = "last_block", registers = { s = 32 } },\n]\n'
        + ROW
        + 'access = "dot"\nlines_max = 4096\nlines_min = 2\ndtype = "sd"\nload_bytes_min = 4\n'
        + ROW
        + "line_bytes_min = 100\nelement_bytes_max = 8\nlda_alignment_min = 16\n"
    )
    problems = [problem_of(access, 100, 900, "s") for access in ("dot", "axpy")]
    used = refused = 0
    for _ in range(600):
        own_machine(mutated(chance, sound))
        try:
            for problem in problems:
                select(problem, DEVICE)
            used += 1
        except ValueError as error:
            assert re.match("machine .*mine.toml(,|:)|GEMV_MACHINE = ", str(error)), error
            refused += 1
    assert used > 20 and refused > 300


@pytest.mark.parametrize("letter", "sdczhb")
def test_no_problem_gets_code_that_was_compiled_for_other_dtypes_only(letter):
    """Such code may need local memory; complex128 in short_columns with some constants does."""
    (h200,) = machines()
    constants = {(each.name, *sorted(each.knobs.items())): each for each in h200.constants}
    rng, seen = np.random.default_rng(ord(letter)), 0
    for _ in range(400):
        m, n = (int(2 ** rng.uniform(0, most)) for most in rng.permutation([6, 24]))
        problem = make_problem(m, n, DTYPES[letter], "CF"[rng.integers(2)], "NT"[rng.integers(2)])
        choice = select(problem.at(256, 256), Device("NVIDIA H200", (9, 0), 132))
        found = constants.get((choice.kernel.name, *sorted(choice.knobs.items())))
        if found is not None:  # else an exception's
            seen += 1
            assert is_compiled(found, letter), (m, n, choice.knobs)
    assert seen > 100


# Registers by what code is for -------------------------------------------------------------------


def test_code_for_a_few_rows_has_a_name_of_its_own():
    columns, rows = REGISTRY["vector_columns"], REGISTRY["vector_rows"]
    names = [
        code_of(problem_of("axpy", count, 5000).at(4, 4), columns, {"LANES": 1})
        for count in (1, 2, 3, 40)
    ]
    assert names == ["s1xn1", "s1xn2", "s1x", "s1x"]
    assert code_of(problem_of("axpy", 1, 5000).at(4, 4), columns, {"LANES": 4}) == "s1xn1"
    assert code_of(problem_of("axpy", 8, 5000).at(4, 4), columns, {"LANES": 4}) == "s1xn2"
    assert code_of(problem_of("axpy", 40, 5000).at(16, 16), columns, {"LANES": 1}) == "s4xw"
    assert code_for(rows, "h", (8, 8), True, 1) == "h8xw"
    assert code_for(rows, "s", (1, 0), False, 1) == "s1"


def test_registers_of_code_for_a_few_rows():
    """Its own if they are known, else those for more rows, else those of any code of the dtype."""
    one, two, many = (problem_of("axpy", count, 5000).at(4, 4) for count in (1, 2, 40))
    knobs = {**REGISTRY["vector_columns"].knobs, "LANES": 1}
    for registers, expected in (
        ({"s1x": 70, "s1xn1": 30, "s4xw": 90}, [30, 70, 70]),
        ({"s1xn1": 30, "s4xw": 90}, [30, 90, 90]),
        ({"s1x": 70, "s1xn1": 0}, [None, 70, 70]),
        ({"d1x": 70, "c1x": 80}, [None, None, None]),  # nobody compiled it for float32
        ({}, [64, 64, 64]),  # nor for anything else: a guess
    ):
        constants = Constants("vector_columns", knobs, registers)
        assert [constants.registers_for(each) for each in (one, two, many)] == expected
