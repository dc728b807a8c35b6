"""Machine code of every kernel, made without a GPU: no spills, no .ftz, the constant bank."""

import os
import re
import sys

import pytest
from helpers import processes
from helpers.codegen import (
    COEFFICIENT_BYTES,
    NARROW,
    REAL_BYTES,
    access_of,
    disassemble,
    listing_of,
)
from helpers.combinations import of_all
from helpers.problems import ALL_ROWS
from helpers.selection import tuned

from gemv.core.dtypes import DTYPES, dtype_name
from gemv.core.geometry import Device
from gemv.kernels import REGISTRY, get
from gemv.measure.inputs import make_problem
from gemv.selection.ragged import groups

KERNELS = list(REGISTRY.values())
#: Names of the kernels with wide loads, which have one access each, and one kernel that has none.
WIDE = [kernel.name for kernel in KERNELS if kernel.wide]
WIDE_AND_ONE = [kernel.name for kernel in KERNELS if kernel.wide or kernel.name == "last_block"]
BY_NAME = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


def accepted(kernel, dtype):
    """Whether the kernel is for this dtype at all."""
    from gemv.measure.inputs import make_problem

    (element,) = (each for each in DTYPES.values() if dtype_name(each) == dtype)
    return any(kernel.accepts(make_problem(3, 3, element, order, "N")) is None for order in "CF")


def by_name_and_dtype(*few):
    """Every kernel with each dtype that it is for, or with a few that take other instructions."""
    return pytest.mark.parametrize(
        ("kernel", "dtype"),
        [
            pytest.param(kernel, dtype, id=f"{kernel.name}-{dtype}")
            for kernel in KERNELS
            for dtype in (COEFFICIENT_BYTES if ALL_ROWS else few)
            if accepted(kernel, dtype)
        ],
    )


def in_turn(name, values):
    """What a kernel gets where one of `values` will do: all of them have some kernel.

    All kernels get all of them with ``GEMV_ALL_ROWS=1`` or on a GPU.
    """
    return values if ALL_ROWS else [values[WIDE_AND_ONE.index(name) % len(values)]]


def is_compiled(access, kernel, dtype):
    # the first rungs load one element at a time, along rows and down columns alike
    few = ("float32", "complex128", "bfloat16") if kernel.wide or access == "dot" else ("float32",)
    few = ALL_ROWS or dtype in few
    is_for = not kernel.wide or access == access_of(kernel)
    return few and is_for and accepted(kernel, dtype)


@of_all(is_compiled, access=("dot", "axpy"), kernel=KERNELS, dtype=COEFFICIENT_BYTES)
def test_no_stack_no_spills_no_flushed_denormals(kernel, dtype, access, compiler):
    for function in compiler(kernel, dtype, access):
        assert function["stack"] == 0
        assert function["spills"] == 0
        assert ".ftz" not in function["ptx"]
        assert "ld.local" not in function["ptx"]
        assert function["registers"] <= 128, "fewer than two blocks of 256 threads would fit"


@of_all(
    lambda access, kernel, dtype: not kernel.teaching and is_compiled(access, kernel, dtype),
    access=("dot", "axpy"), kernel=KERNELS, dtype=("float32", "bfloat16")[: 1 + ALL_ROWS],
)  # fmt: skip
def test_an_old_y_beside_the_new_one_costs_a_parameter(kernel, dtype, access, compiler):
    """And few registers, if any, because it is read in the end. It may start as early."""
    for own, other in zip(
        compiler(kernel, dtype, access), compiler(kernel, dtype, access, old_y=True), strict=True
    ):
        assert other["arguments"] == [
            name for each in own["arguments"] for name in ([each, "old"] if each == "y" else [each])
        ]
        assert other["stack"] == other["spills"] == 0 and other["waits"] == own["waits"]
        assert other["registers"] <= min(own["registers"] + 8, 128)
        bounds = re.compile(r"\.(?:maxntid|minnctapersm|reqnctapercluster)[^\n]*")
        assert bounds.findall(other["ptx"]) == bounds.findall(own["ptx"])


def has_wide_loads(dtype, name):
    # of float64 and complex64 one, whose loads are those of complex128 and float32
    return dtype not in (both := ("float64", "complex64")) or dtype in in_turn(name, both)


@of_all(has_wide_loads, dtype=COEFFICIENT_BYTES, name=WIDE)
def test_wide_loads_are_as_wide_as_the_hardware_has_them(name, dtype, compiler):
    (function,) = compiler(REGISTRY[name], dtype)
    wide = {"float32": "v4.f32", "complex64": "v4.f32", "float64": "v2.f64", "complex128": "v2.f64"}
    wide |= dict.fromkeys(NARROW, "v4.u32")
    assert f"ld.global.nc.L1::no_allocate.L2::128B.{wide[dtype]}" in function["ptx"]
    if REGISTRY[name].phased:
        return  # there is no problem that it has narrower loads for
    if dtype not in ("float32", "bfloat16", "complex128")[: 2 + (name == "vector_rows")]:
        if not ALL_ROWS:
            return  # as these
    (narrow,) = compiler(REGISTRY[name], dtype, widths=(1, 0))
    assert ".v4." not in narrow["ptx"]
    assert narrow["stack"] == 0 and narrow["spills"] == 0


@pytest.mark.parametrize("name", ["vector_rows", "vector_columns", "phased_rows", "long_columns"])
def test_loads_of_a_sparse_matrix_bring_nothing_else(name, compiler):
    (usual,) = compiler(REGISTRY[name], "float32")
    (sparse,) = compiler(REGISTRY[name], "float32", sparse=True)
    loads = [function["ptx"].count("ld.global") for function in (usual, sparse)]
    assert loads[0] == loads[1] > usual["ptx"].count(".L2::128B") > 0
    assert "L2::" not in sparse["ptx"] and usual["registers"] == sparse["registers"]


def test_copies_of_a_sparse_matrix_bring_nothing_else(compiler):
    kernel = get("several_staged_rows")
    (function,) = compiler(kernel, "float32", levels=1, whole=True, sparse=True)
    assert "cp.async.cg.shared.global [" in function["ptx"]
    assert "L2::" not in function["ptx"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "bfloat16"])
def test_loads_of_one_element_leave_nothing_behind_them(dtype, compiler):
    """Each load of A is there twice, for passes and under a predicate; no loop for a rest."""
    (function,) = compiler(REGISTRY["vector_rows"], dtype, widths=(1, 1))
    loads = re.findall(r"(@p )?ld\.global\.nc\.L2::128B", function["ptx"])
    assert len(loads) == 2 * loads.count("@p ") > 0


def loops(function):
    """Branches to a label that stands before them."""
    found, labels = 0, set()
    for line in function["ptx"].splitlines():
        if label := re.match(r"(\$L\w+):", line):
            labels.add(label[1])
        elif branch := re.search(r"\bbra(?:\.uni)?\s+(\$L\w+);", line):
            found += branch[1] in labels
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["vector_rows", "vector_columns", "long_columns"])
def test_lines_of_whole_vectors_leave_nothing_behind_them(name, dtype, compiler):
    """Fewer loads than where elements may fill no vector, and no loop if there was one for them."""
    access = "dot" if name == "vector_rows" else "axpy"
    for knobs in ({}, {"BLOCKS_PER_SM": 0}) if name != "long_columns" else ({},):
        usual, whole = (
            compiler(REGISTRY[name], dtype, access, knobs=knobs, whole=each)[0]
            for each in (False, True)
        )
        few, more = (len(re.findall(r"\bld\.global", each["ptx"])) for each in (whole, usual))
        assert few < more
        assert loops(whole) < loops(usual) or name == "vector_rows" and dtype != "bfloat16"
        assert len(whole["cubin"]) <= len(usual["cubin"])  # in steps of some hundred bytes
        assert whole["stack"] == 0 and whole["spills"] == 0


def test_a_loop_over_the_rows_of_a_tile_is_none_where_each_has_a_thread(compiler):
    """In whole lines and without splits: one loop over columns, and none over rows."""
    knobs = {"BLOCKS_PER_SM": 0, "LANES": 2, "COLUMNS": 4, "THREADS_PER_BLOCK": 128}
    (one,) = compiler(REGISTRY["vector_columns"], "float32", "axpy", knobs=knobs, whole=True)
    more = {**knobs, "LANES": 64}
    (two,) = compiler(REGISTRY["vector_columns"], "float32", "axpy", knobs=more, whole=True)

    assert loops(one) == 1
    assert loops(two) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_staged_numbers_of_x_come_by_16_bytes_and_from_shared_memory(dtype, compiler):
    """For each load of A of a pass, the factors of eight vectors are two loads; none is of x."""
    knobs = {"COUNT": 8, "LOADS": 4, "STAGED": 1, "LANES": 32, "BLOCKS_PER_SM": 0}
    kernel = get("several_columns")
    (function,) = compiler(kernel, dtype, "axpy", knobs=knobs, whole=True)
    assert function["stack"] == 0 and function["spills"] == 0
    listing = disassemble(function)
    full, rest = listing.split("BAR.SYNC")[1:3]  # behind each barrier, up to the next one
    for part in (full, rest):
        assert len(re.findall(r"\bLDS\.128\b", part)) == 4 * 2
    # A thread loads one number of x for the first stage, and one for the stage behind each.
    single = r"\bLDG\.E(?:\.U16)?\.CONSTANT"
    assert len(re.findall(single, listing)) == 2
    (loading,) = compiler(kernel, dtype, "axpy", knobs={**knobs, "STAGED": 0}, whole=True)
    assert len(re.findall(single, disassemble(loading))) == 4 * 8  # of the rest


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_units_of_x_are_converted_where_they_are_stored(dtype, compiler):
    """What is loaded behind a barrier, for the next stage, is left alone by the products."""
    knobs = {"COUNT": 8, "LOADS": 4, "STAGED": 1, "LANES": 8, "THREADS_PER_BLOCK": 512}
    kernel = get("several_columns")
    for as_stored, uses in ((1, 2), (0, 3)):  # a zero, what is loaded, and a conversion
        own = {**knobs, "AS_STORED": as_stored}
        (function,) = compiler(kernel, dtype, "axpy", knobs=own, whole=True)
        before, behind = function["ptx"].split("bar.sync")[:2]
        loop = behind.split("bra")[0]
        assert loop.count("fma.rn.f32") == 8 * 8 * 4
        loaded = re.findall(r"ld\.global\.nc\.u16 (%\w+),", loop)
        assert len(loaded) == 4
        for register in loaded:
            assert len(re.findall(rf"{register}\b", loop)) == uses, (as_stored, register)
        assert len(re.findall(r"st\.shared\.v4", before)) == as_stored


def compiled_sets():
    """Constants that selection chooses among: every twelfth, with one of its dtypes in turn.

    With ``GEMV_ALL_ROWS=1`` or on a GPU, all of them with all of these.
    """
    for number, each in enumerate(tuned()):
        if ALL_ROWS:
            yield from ((each, letter) for letter in each.letters)
        elif number % 12 == 0 and each.letters:
            yield each, each.letters[number // 12 % len(each.letters)]


@pytest.mark.parametrize(
    "each, letter", list(compiled_sets()), ids=lambda value: getattr(value, "name", value)
)
def test_what_selection_chooses_does_not_spill(each, letter, compiler):
    kernel = REGISTRY[each.kernel]
    width = max(16 // DTYPES[letter].itemsize, 1)
    wide = {"widths": (width, width)} if kernel.wide else {}
    functions = compiler(
        kernel, dtype_name(DTYPES[letter]), each.access, knobs=each.knobs,
        accumulate=each.accumulate, whole=kernel.wide and not kernel.phased and width > 1, **wide,
    )  # fmt: skip
    for function in functions:
        assert function["stack"] == 0
        assert function["spills"] == 0


#: Constants for columns of a few rows, of one vector and of several.
FEW_ROWS = {
    "vector_columns": {"LANES": 1, "COLUMNS": 16, "MIN_BLOCKS": 2},
    "several_columns": {"LANES": 1, "COLUMNS": 16, "COUNT": 8, "LOADS": 4, "MIN_BLOCKS": 2},
}


def is_narrow(narrow, dtype, name):
    # without all rows, each kernel has each dtype, and each number of loads
    of_dtype = ((1, 4), (2,)) if name == "vector_columns" else ((2,), (1, 4))
    return ALL_ROWS or narrow in of_dtype[dtype == "bfloat16"]


@of_all(is_narrow, narrow=[1, 2, 4], dtype=["float32", "bfloat16"], name=list(FEW_ROWS))
def test_narrow_loads_of_a_few_rows_do_not_spill(name, dtype, narrow, compiler):
    """So many loads of one element stand for one of 16 bytes: as many lanes, side by side."""
    (function,) = compiler(
        get(name), dtype, "axpy", knobs=FEW_ROWS[name], widths=(1, 0), narrow=narrow
    )
    assert function["stack"] == 0 and function["spills"] == 0


@pytest.mark.parametrize("letter", "sdb")
@pytest.mark.parametrize(
    ("m", "n", "knobs"),
    [
        (256, 256, {"LANES": 16, "MIN_BLOCKS": 16, "THREADS_PER_BLOCK": 64, "VECTORS": 4}),
        (1000, 40, {"LANES": 8, "MIN_BLOCKS": 8, "THREADS_PER_BLOCK": 128, "VECTORS": 2}),
    ],
    ids=["small-blocks", "few-columns"],
)
def test_constants_of_a_batch_do_not_spill(m, n, knobs, letter, compiler):
    """They come from those of a single product, whose blocks have fewer threads or rows."""
    kernel, dtype = REGISTRY["vector_rows"], DTYPES[letter]
    problem = make_problem(m, n, dtype, "C", "N").at(0, 0)
    single = {**kernel.knobs, "ROWS": 1, "BLOCKS_PER_SM": 0, **knobs}
    (function,) = compiler(
        kernel, dtype_name(dtype), "dot", knobs=kernel.in_batches(problem, single), levels=1,
        widths=problem.widths, whole=problem.whole,
    )  # fmt: skip
    assert function["stack"] == 0 and function["spills"] == 0


@of_all(accepted, kernel=KERNELS, dtype=("float32", "complex128", "bfloat16"))
def test_y_is_first_to_leave_the_cache_where_that_was_measured(kernel, dtype, compiler):
    """At the roofline, but not numbers of two bytes, which lost by it; nor the first rungs.

    A complex number is aligned like its real part, so one alone takes two stores.
    """
    access = access_of(kernel) if kernel.wide else "axpy"

    def stores(**more):
        functions = compiler(kernel, dtype, access, **more)
        text = "".join(function["ptx"] for function in functions)
        return set(re.findall(r"\bst\.global\.cs\.([\w.]+)", text))

    alone = {"float32": {"f32"}, "complex128": {"f64"}, "bfloat16": set()}[dtype]
    together = {"float32": {"v4.f32"}, "complex128": {"v2.f64"}, "bfloat16": {"v4.u32"}}[dtype]
    together = together if kernel.name == "long_columns" else set()
    assert stores() == (alone | together if kernel.wide else set())
    if kernel.name == "long_columns" and dtype != "complex128":  # whose one number is a vector
        assert stores(widths=(1, 1)) == alone


#: The loads of float16 are in the first of them, the stores of float32 in the last one.
NARROW_SUMS = [("float16", None), ("bfloat16", None), ("bfloat16", "float32")]
NARROW_SUMS += [("float16", "float32")] * ALL_ROWS


@pytest.mark.parametrize(
    "name, dtype, y_dtype",
    [(name, *each) for name in WIDE for each in in_turn(name, NARROW_SUMS)],
)
def test_narrow_numbers_are_unpacked_in_registers_and_added_in_float32(
    name, dtype, y_dtype, compiler
):
    access = "axpy" if name == "vector_columns" else "dot"
    (function,) = compiler(REGISTRY[name], dtype, access, y_dtype=y_dtype)
    listing = disassemble(function)
    # With two zero registers it is the assembler's way to move a constant.
    products = re.findall(r"\b(?:HFMA2|HMUL2|FFMA)\b(?!.*-RZ, RZ)", listing)
    assert products and set(products) == {"FFMA"}, set(products)
    assert re.search(r"\bLDG\.E\S*\.128\b", listing)
    assert not re.search(r"\b(LDL|STL)\b", listing)
    stores = set(re.findall(r"\bSTG\.E\S*", listing))
    assert any(".U16" in store for store in stores) == (y_dtype is None), stores


def has_wide_sums(dtype, name):
    # complex128 has the most registers; sums of float64 are added in the same way in all kernels
    few = ("vector_rows", "vector_columns", "last_block")
    return ALL_ROWS or dtype == "complex128" or dtype == "bfloat16" and name in few


@of_all(has_wide_sums, dtype=COEFFICIENT_BYTES, name=WIDE_AND_ONE)
def test_wide_sums_stay_in_registers_and_are_float64(name, dtype, compiler):
    access = "dot" if name in ("vector_rows", "last_block") else "axpy"
    (function,) = compiler(REGISTRY[name], dtype, access, accumulate="wide")
    assert function["stack"] == 0 and function["spills"] == 0
    assert ".ftz" not in function["ptx"]
    listing = disassemble(function)
    # The assembler moves constants with an HFMA2 of two zero registers.
    operations = set(re.findall(r"\b(FFMA|FADD|FMUL|HADD2|HMUL2)\b(?!\.F32)(?!.*-RZ)", listing))
    assert operations <= {"FMUL"}, operations
    if dtype in ("float64", "complex128"):
        # An operation without a named rounding is one that the assembler may fuse.
        assert not re.search(r"\b(add|sub|mul)\.f64", function["ptx"])
        assert len(re.findall(r"\bDMUL\b", listing)) > 0
    else:
        # float32 holds a product of two float16, so these are added to float64 by themselves.
        added = r"\bDADD\b" if dtype == "float16" else r"\bDFMA\b"
        assert len(re.findall(added, listing)) > 0


#: A kernel for vectors of complex numbers, and one for lists.
WHOLE_WAYS = [
    ("several_columns", "complex64", {}),
    ("list_rows", "float32", {"homes": ("pointer", "pointer"), "widths": (1, 0), "table": "warp"}),
]


def test_shorter_ways_through_the_compiler_give_the_same_code(compiler, whole_compiler):
    """Names that Numba counts up differ, and the order of what only Numba reads."""

    def code(compiler, name, dtype, more):
        (function,) = compiler(get(name), dtype, **more)
        lines = re.sub(r"_ZN\w+|_cudapy_smem_\d+", "name", function["ptx"]).splitlines()
        return [line for line in lines if not line.startswith(".common")]

    for case in WHOLE_WAYS:
        assert code(compiler, *case) == code(whole_compiler, *case), case


def has_pairs(name, dtype, compute_capability):
    # The oldest has the fewest instructions; for the others a dtype of each kind will do.
    oldest = REGISTRY[name].capability <= (7, 5)
    kinds = [(7, 5, "complex64"), (12, 0, "float32"), (7, 5, "bfloat16")]
    few = (*compute_capability, dtype) in in_turn(name, kinds if oldest else kinds[1:2])
    return (ALL_ROWS or few) and compute_capability >= REGISTRY[name].capability


@of_all(
    has_pairs, name=WIDE_AND_ONE,
    dtype=("float32", "complex64", *NARROW), compute_capability=((7, 5), (8, 9), (9, 0), (12, 0)),
)  # fmt: skip
def test_pairs_stay_in_registers_and_need_no_float64(name, dtype, compute_capability, compiler):
    access = "dot" if name in ("vector_rows", "last_block") else "axpy"
    (function,) = compiler(REGISTRY[name], dtype, access, compute_capability, accumulate="pairs")
    assert function["stack"] == 0 and function["spills"] == 0
    assert not re.search(r"\.(ftz|f64)\b", function["ptx"])


def test_error_free_steps_reach_the_machine_as_they_are(tmp_path):
    """A fused product and sum would make every error that is added up a zero."""
    script = """
import re, sys
import numpy as np
from gemv.language.numba_cuda.compile import compile_function
from gemv.core.dtypes import BFLOAT16, Precision

def one(a, x, y):
    y[0] = y[0] + a[0] * x[0]

for letter in "dDfFeb":
    dtype = np.dtype(letter) if letter != "b" else BFLOAT16
    precision = Precision.of(dtype, None, "pairs")
    binary = compile_function(one, precision, (9, 0))
    open(sys.argv[1] + letter, "wb").write(binary.cubin)
    size = 64 if letter in "dD" else 32
    steps = re.findall(rf"(add|sub|mul|fma)\\.rn\\.f{size}", binary.ptx)
    print(letter, *(steps.count(name) for name in ("add", "sub", "mul", "fma")))
"""
    run = processes.run(
        [sys.executable, "-c", script, str(tmp_path / "one.")], capture_output=True, text=True,
        check=True, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
    )  # fmt: skip
    for line in run.stdout.splitlines():
        letter, *counts = line.split()
        add, sub, mul, fma = map(int, counts)
        # A product is one of each; the sum after it is 2 additions and 4 subtractions, 2 more
        # additions take up the errors, and the rounding of each part is one of each. Where 16 bits
        # are stored, that is a sum and its error, and a subtraction to see whether it is finite.
        parts, products = (2, 4) if letter in "DF" else (1, 1)
        assert (mul, fma) == (products, products)
        last = (2, 5) if letter in "eb" else (parts, parts)
        assert (add, sub) == (4 * products + last[0], 4 * products + last[1])
        listing = listing_of((tmp_path / f"one.{letter}").read_bytes().hex())
        names = ("DADD", "DMUL", "DFMA") if letter in "dD" else ("FADD", "FMUL", "FFMA")
        found = [len(re.findall(rf"\b{name}\b(?!.*-RZ)", listing)) for name in names]
        assert found == [add + sub, mul, fma], letter
        assert letter in "dD" or not re.search(r"\bD[A-Z]+\b|F64", listing)


def is_for_gpu(compute_capability, kernel, dtype="float32"):
    """All kernels for the oldest GPUs that have them; every other one for new ones as well."""
    first = compute_capability == (7, 5) or kernel.capability > (7, 5)
    few = ALL_ROWS or first or kernel in KERNELS[dtype != "float32" :: 2]
    return few and compute_capability >= kernel.capability


@of_all(
    is_for_gpu,
    compute_capability=((7, 5), (8, 0), (12, 0)) if ALL_ROWS else ((7, 5), (12, 0)),
    kernel=[kernel for kernel in KERNELS if kernel.wide],
    dtype=NARROW if ALL_ROWS else ("bfloat16",),
)
def test_narrow_numbers_on_other_gpus(kernel, dtype, compute_capability, compiler):
    (function,) = compiler(kernel, dtype, "dot", compute_capability)
    assert function["spills"] == 0


@of_all(
    is_for_gpu,
    compute_capability=((7, 5), (8, 0), (10, 0), (12, 0)) if ALL_ROWS else ((7, 5), (12, 0)),
    kernel=KERNELS,
)
def test_assembles_for_other_gpus(kernel, compute_capability, compiler):
    for function in compiler(kernel, "float32", "dot", compute_capability):
        assert function["spills"] == 0
        assert len(function["cubin"]) > 0


@BY_NAME
def test_only_the_teaching_kernel_adds_floats_atomically(kernel, compiler):
    text = "".join(function["ptx"] for function in compiler(kernel, "complex128"))
    adds = re.findall(r"\b(?:atom|red)\.\S*add\S*\.f\d\d", text)
    assert bool(adds) == (not kernel.same_bits), adds


@pytest.mark.parametrize("dtype", ["float32", "complex128", "bfloat16"])
@pytest.mark.parametrize("name", [k.name for k in KERNELS if k.splits_apart and k.wide])
def test_sums_of_splits_wait_for_no_fence(name, dtype, compiler):
    """One number is drawn, by an integer; sums move by instructions that are as long as they."""
    access = "axpy" if name.endswith("columns") else "dot"
    (function,) = compiler(REGISTRY[name], dtype, access)
    ptx = function["ptx"]
    assert not re.search(r"\b(membar|fence)\b", ptx)
    assert re.findall(r"\b(?:atom|red)\.\S+", ptx) == ["atom.global.inc.u32"]
    size = "v2.b64" if dtype == "complex128" else "b32"
    assert f"st.relaxed.gpu.global.{size}" in ptx
    assert f"ld.relaxed.gpu.global.{size}" in ptx


@BY_NAME
def test_nothing_is_touched_before_the_kernel_ahead_is_done(kernel, compiler):
    """The wait of an early start comes before every load and store of memory."""
    for function in compiler(kernel, "complex128"):
        assert function["waits"]
        listing = disassemble(function)
        assert listing.count("ACQBULK") == listing.count("PREEXIT") == 1
        before = listing[: listing.index("ACQBULK")]
        instructions = re.findall(r"/\*[0-9a-f]{4,}\*/ +(.*?) ;", before)
        assert instructions
        memory = re.compile(r"(?:@!?U?P\w+ )?(?:LDG?|STG?|ATOMG?|RED|U?LDC)\b")
        # Constant bank 0 holds the parameters, which are the launch's own.
        early = [each for each in instructions if memory.match(each) and "c[0x0]" not in each]
        assert not early, listing


def test_older_gpus_have_no_early_start(compiler):
    kernel = REGISTRY["warp_per_row"]
    for function in compiler(kernel, "float32", compute_capability=(8, 0)):
        assert not function["waits"]
        assert "griddepcontrol" not in function["ptx"]


def parameter_offsets(ptx, arguments, dtype):
    """Byte offset of each argument in the parameter list, as PTX declares it."""
    declared = re.search(r"\.entry \w+\((.*?)\)", ptx, re.S).group(1)
    sizes = [int(bits) // 8 for bits in re.findall(r"\.param \.\w(\d\d)", declared)]
    offsets, at, sizes = {}, 0, iter(sizes)
    for name in arguments:
        parts = 2 if name in ("alpha", "beta") and dtype.startswith("c") else 1
        for part in range(parts):
            size = next(sizes)
            at = -(-at // size) * size
            offsets.setdefault(name, []).append(at)
            at += size
            assert part == 0 or size == REAL_BYTES[dtype]
    assert next(sizes, None) is None, "PTX declares more parameters than the function has"
    return offsets


@by_name_and_dtype("complex128")
def test_coefficients_are_read_from_the_constant_bank(kernel, dtype, compiler):
    """Kernel arguments live in constant bank 0, from 0x210 on compute capability 9.0."""
    first = 0x210
    seen = set()
    for function in compiler(kernel, dtype):
        offsets = parameter_offsets(function["ptx"], function["arguments"], dtype)
        listing = disassemble(function)
        # A wide load of the bank covers the words behind the address that it names.
        covered = set()
        for line in listing.splitlines():
            width = 8 if ".64" in line else 16 if ".128" in line else 4
            for address in re.findall(r"c\[0x0\]\[(?:\w+\+)?0x([0-9a-f]+)\]", line):
                covered.update(range(int(address, 16), int(address, 16) + width))
        for name in ("alpha", "beta"):
            for offset in offsets.get(name, ()):
                assert first + offset in covered, f"{name} is not read from c[0x0]\n{listing}"
                seen.add(name)
        # x alone may be there, in the kernel that shows it.
        assert "c[0x3]" not in listing or kernel.x_home(kernel.knobs) == "constant"
    assert seen == {"alpha", "beta"}


HOMES = ("constant", "pointer", "global", "literal")
LITERALS = (1.25, -0.75)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize(
    "name, dtype",
    [("thread_per_row", "float32"), ("last_block", "complex128")]
    + [("thread_per_row", "complex128"), ("last_block", "float32")] * ALL_ROWS,
)
def test_each_home_has_its_own_load(name, home, dtype, compiler):
    kernel = REGISTRY[name]
    (function,) = compiler(kernel, dtype, homes=(home, home), literals=LITERALS)
    listing = disassemble(function)
    places = {"alpha", "beta", "slot", "alpha_pointer", "beta_pointer"}
    assert (
        places & set(function["arguments"])
        == {
            "constant": {"slot"},
            "pointer": {"alpha_pointer", "beta_pointer"},
            "global": {"alpha_pointer", "beta_pointer"},
            "literal": set(),
        }[home]
    )
    assert ("c[0x3]" in listing) == (home == "constant")
    assert (re.search(r"LDG\.E\S*\.CONSTANT", listing) is not None) == (home == "pointer")
    assert ("ld.global.nc" in function["ptx"]) == (home == "pointer")
    if home == "literal" and dtype == "float32":
        assert re.search(r"\bF(MUL|FMA)\b.*, 1\.25\b", listing)


@pytest.mark.parametrize("name", [k.name for k in KERNELS] if ALL_ROWS else WIDE[::2])
def test_a_home_costs_no_call_and_no_spill(name, compiler):
    for function in compiler(REGISTRY[name], "complex64", homes=("constant", "pointer")):
        assert function["stack"] == 0
        assert function["spills"] == 0
        assert "call.uni" not in function["ptx"].replace("__nv_", "")


@pytest.mark.parametrize(
    "dtype, lanes",
    [("float32", 1), ("float64", 32)] + [("float64", 1), ("float32", 32)] * ALL_ROWS,
)
def test_x_is_read_where_it_lives(dtype, lanes, compiler):
    from gemv.kernels.t06_where_x_lives import HOMES as X_HOMES
    from gemv.kernels.t06_where_x_lives import KERNEL

    marks = {
        "constant": r"c\[0x3\]\[U?R",
        "value": r"c\[0x0\]\[U?R\d+\+0x",
        "read_only": r"LDG\.E\S*\.CONSTANT",
        "shared": r"\bLDS",
    }
    for number, home in enumerate(X_HOMES):
        if not ALL_ROWS and number % 2 == (lanes == 1):
            continue  # each home with one of the two
        knobs = {"X_HOME": number, "LANES_PER_ROW": lanes, "VALUE_BYTES": 32640}
        (function,) = compiler(KERNEL, dtype, "axpy", knobs=knobs)
        listing = disassemble(function)
        found = {mark for mark, pattern in marks.items() if re.search(pattern, listing)}
        assert found == ({home} & set(marks)), listing
        assert function["stack"] == 0, "an array of parameters must not be copied to the stack"


def test_the_64_kb_of_constant_memory_are_a_limit():
    """Ours names it; the assembler refuses as well, and puts nothing elsewhere."""
    script = """
import numpy as np
from gemv.language.numba_cuda import compile, ptx as text_of
from gemv.kernels.t06_where_x_lives import KERNEL
from gemv.kernels.spec import Spec

spec = Spec(np.dtype("f"), False, "axpy", tuple(sorted(KERNEL.knobs.items())))
(function,) = KERNEL.functions(spec)
ptx = compile.compile_ptx(function, spec.dtype, (9, 0))
compile.assemble(ptx, (9, 0))
assert "[65536]" in ptx
longer = ptx.replace("[65536]", "[65540]")
for action in (text_of.check_constant_memory, lambda text: compile.assemble(text, (9, 0))):
    try:
        action(longer)
    except (ValueError, RuntimeError) as error:
        print(type(error).__name__, " ".join(str(error).split()))
"""
    run = processes.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
    )  # fmt: skip
    ours, assembler = run.stdout.strip().splitlines()
    assert ours == (
        "ValueError constant memory: 65540 (gemv_x) = 65540 bytes, but a module has 65536 bytes"
        " (64 KB) of it"
    )
    assert assembler.startswith("AssemblerError nvJitLink")
    assert "too much global constant data" in assembler and "0x10000 max" in assembler


@pytest.mark.parametrize(
    "name, dtype, knobs",
    [
        ("vector_rows", "float32", {"LANES": 512}),
        ("vector_rows", "bfloat16", {"LANES": 512}),
        ("vector_rows", "float32", {"LANES": 32}),
        ("vector_columns", "float16", {"LANES": 8, "THREADS_PER_BLOCK": 512}),
    ],
)
def test_items_of_different_sizes_need_no_local_memory(name, dtype, knobs, compiler):
    """The constants that they share leave registers enough for blocks of any size."""
    kernel = REGISTRY[name]
    shared = kernel.in_tables(None, {**kernel.knobs, **knobs})
    (function,) = compiler(
        kernel, dtype, knobs=shared, homes=("pointer", "pointer"), table="block",
    )  # fmt: skip
    assert function["stack"] == 0 and function["spills"] == 0


def blocks_of_lists(kernel, dtype):
    """How many blocks of a multiprocessor the host counts with, for a list of one matrix."""
    (element,) = (each for each in DTYPES.values() if dtype_name(each) == dtype)
    cols = 8 if kernel.name == "list_in_order" else 64
    problem = make_problem(32, cols, element, "C" if kernel.name == "list_rows" else "F", "N")
    h100 = Device("NVIDIA H100 80GB HBM3", (9, 0), 132)
    (group,) = groups([problem.at(0, 0)], [(0, 0, 0)], h100)
    assert group.choice.kernel.name == kernel.name
    words = dict(zip(group.words, group.table.T, strict=True))
    return kernel.tiles_of(words, group.choice.spec).blocks


LISTS = ("list_rows", "list_columns", "list_in_order")


def is_of_list(dtype, name):
    # float64, complex64 and float16 with one kernel each
    in_turn = LISTS[list(COEFFICIENT_BYTES).index(dtype) % len(LISTS)]
    return ALL_ROWS or dtype in ("float32", "complex128", "bfloat16") or name == in_turn


@of_all(is_of_list, dtype=COEFFICIENT_BYTES, name=LISTS)
def test_items_of_any_size_in_one_launch_need_no_local_memory(name, dtype, compiler):
    """As many blocks as the host counts with fit on a multiprocessor, and nothing is spilled."""
    kernel = get(name)
    access = "dot" if name == "list_rows" else "axpy"
    (function,) = compiler(
        kernel, dtype, access, homes=("pointer", "pointer"), widths=(1, 0), table="warp",
    )  # fmt: skip
    assert function["stack"] == 0 and function["spills"] == 0
    assert ".ftz" not in function["ptx"]
    # Tiles of blocks, and those of single warps, whose lanes read each other's sums.
    for barrier in ("bar.sync", "bar.warp.sync"):
        assert (barrier in function["ptx"]) == (name == "list_columns"), barrier
    blocks = blocks_of_lists(kernel, dtype)
    assert f".minnctapersm {blocks}\n" in function["ptx"]
    registers = -(-function["registers"] // 8) * 8  # as they are given out
    assert blocks * 128 * registers <= 65536
    if name == "list_in_order":
        return  # a lane loads one row of each column
    wide = {"float32": "v4.f32", "complex64": "v4.f32", "float64": "v2.f64", "complex128": "v2.f64"}
    wide |= dict.fromkeys(NARROW, "v4.u32")
    assert f"ld.global.nc.L1::no_allocate.L2::128B.{wide[dtype]}" in function["ptx"]


@pytest.mark.parametrize("name", [
    "vector_rows", "vector_columns", "long_columns", "phased_rows", "list_rows", "list_columns",
    "list_in_order",
])  # fmt: skip
def test_launches_of_a_list_run_beside_each_other_and_end_in_order(name, compiler):
    """A block lets the next launch come first of all; each thread waits where it ends."""
    kernel = get(name)
    shared = kernel.in_tables(None, dict(kernel.knobs)) if kernel.in_tables else kernel.knobs
    (function,) = compiler(
        kernel, "float32", knobs=shared, homes=("pointer", "pointer"),
        table="warp" if name.startswith("list_") else "block",
    )  # fmt: skip
    assert function["waits"], "else it is not launched early"
    entry = function["ptx"][function["ptx"].index(".entry") :]
    body = entry[entry.index("{") : entry.index("\n}")]
    instructions = re.findall(r"^\t((?:@\S+ )?[a-z][a-z0-9_.]*)", body, re.M)
    assert instructions[0] == "griddepcontrol.launch_dependents"
    ends = [k for k, each in enumerate(instructions) if each in ("ret", "exit")]
    assert ends and all(instructions[k - 1] == "griddepcontrol.wait" for k in ends)
    assert instructions.count("griddepcontrol.wait") == len(ends)


def test_a_kernel_with_another_exit_cannot_run_beside_others():
    script = """
from gemv.language.numba_cuda.ptx import beside
plain = ".visible .entry one()\\n{\\n\\tmov.u32 %r1, 0;\\n\\tret;\\n\\n}\\n"
print(beside(plain, (8, 0)) == plain)
try:
    beside(plain.replace("\\tret", "\\t@%p1 exit;\\n\\tret"), (9, 0))
except RuntimeError as error:
    print(error)
"""
    run = processes.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
    )  # fmt: skip
    is_left, refusal = run.stdout.strip().splitlines()
    assert is_left == "True", "an older GPU starts nothing early"
    assert refusal == "a kernel has an exit that is no plain return"


#: A list kernel and a dtype: without all rows, that with the most sums has both.
WIDER = [
    ("list_rows", "bfloat16"), ("list_rows", "float64"), ("list_columns", "float64"),
    ("list_in_order", "bfloat16"),
    *([("list_columns", "bfloat16"), ("list_in_order", "float64")] * ALL_ROWS),
]  # fmt: skip


@pytest.mark.parametrize("name, dtype", WIDER)
def test_lists_add_up_wider_than_their_numbers(name, dtype, compiler):
    """Sums of four units of shared memory, and of two numbers: the simulator takes any."""
    (function,) = compiler(get(name), dtype, accumulate="wide")
    assert (function["stack"], function["spills"]) == (0, 0)
