"""Integer arithmetic that kernels do by intrinsics: the twins, and the code that a GPU gets."""

import itertools
import os
import sys

import pytest
from helpers import processes

DIVISORS = (1, 2, 3, 6, 8, 24, 32, 192, 256, 1 << 20)
NUMBERS = [*range(-40, 41), -(2**40) - 1, -(2**31), 2**31, 2**40 + 7, 2**62]
#: first, step, last, stride, rows: whole tiles, over the edge, behind it, before the first; also
#: backwards.
TILES = list(
    itertools.product(
        (-7, 0, 5, 2**33), (1, 32, 4096), (-3, 0, 6, 2**33 + 40), (1, -7, 2**33), (1, 4)
    )
)

#: Builds each intrinsic as Numba does, but for the CPU, and prints what it gives.
SCRIPT = """
import ctypes, json, sys
from llvmlite import binding, ir
from numba.core import types
from gemv import language

assert not language.SIMULATOR
binding.initialize_native_target()
binding.initialize_native_asmprinter()
TARGET = binding.Target.from_triple(binding.get_process_triple())
LONG = ir.IntType(64)

class Context:
    def make_tuple(self, builder, kind, values):
        return values

def function(intrinsic, signature, give):
    module = ir.Module()
    count = sum(not isinstance(each, types.IntegerLiteral) for each in signature)
    made = ir.Function(module, ir.FunctionType(LONG, [LONG] * count), "made")
    builder = ir.IRBuilder(made.append_basic_block())
    given = iter([
        builder.trunc(each, ir.IntType(32)) if kind == types.int32 else each
        for each, kind in zip(made.args, signature)
    ])
    arguments = [
        ir.Constant(LONG, each.literal_value) if isinstance(each, types.IntegerLiteral)
        else next(given)
        for each in signature
    ]
    told, codegen = intrinsic._defn(None, *signature)
    builder.ret(give(codegen(Context(), builder, told, arguments)))
    machine = TARGET.create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)
    call = call(engine.get_function_address("made"))
    call.engine = engine
    return call

divisors, numbers, tiles = json.load(sys.stdin)
answer = {"quotient": [], "rounded_down": [], "natural": [], "row_starts": []}
for name in ("quotient", "rounded_down"):
    for divisor in divisors:
        signature = types.int64, types.IntegerLiteral(divisor)
        call = function(getattr(language, name), signature, lambda value: value)
        answer[name].append([call(number) for number in numbers])
    for bad in (0, -4):
        try:
            function(getattr(language, name), (types.int64, types.IntegerLiteral(bad)), None)
        except ValueError as error:
            answer[name].append(str(error))
call = function(language.natural, (types.int64,), lambda value: value)
answer["natural"] = [call(number) for number in numbers if number >= 0]
call = function(language.natural, (types.int32,), lambda value: value)  # as threadIdx.x is
answer["short"] = [call(number) for number in (0, 1, 1023, 2**31 - 1)]
for first, step, last, stride, rows in tiles:
    signature = (types.int64,) * 4 + (types.IntegerLiteral(rows),)
    answer["row_starts"].append([
        function(language.row_starts, signature, lambda values: values[r])(
            first, step, last, stride
        )
        for r in range(rows)
    ])
json.dump(answer, sys.stdout)
"""


@pytest.fixture(scope="module")
def answer():
    import json

    run = processes.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([DIVISORS, NUMBERS, TILES]), capture_output=True, text=True,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_division_by_a_constant_is_pythons(answer):
    quotients = [[number // divisor for number in NUMBERS] for divisor in DIVISORS]
    assert answer["quotient"][: len(DIVISORS)] == quotients
    multiples = [[number // divisor * divisor for number in NUMBERS] for divisor in DIVISORS]
    assert answer["rounded_down"][: len(DIVISORS)] == multiples
    assert answer["natural"] == [number for number in NUMBERS if number >= 0]
    assert answer["short"] == [0, 1, 1023, 2**31 - 1]


def test_a_constant_that_is_no_divisor(answer):
    for name in ("quotient", "rounded_down"):
        for bad, told in zip((0, -4), answer[name][len(DIVISORS) :], strict=True):
            assert told == f"{name}: a divisor must be 1 or more, got {bad}"


def test_rows_of_a_tile_start_where_they_do(answer):
    wanted = [
        [min(first + r * step, last) * stride for r in range(rows)]
        for first, step, last, stride, rows in TILES
    ]
    signed = [[(each + 2**63) % 2**64 - 2**63 for each in starts] for starts in wanted]
    assert answer["row_starts"] == signed


def test_the_twins():
    from gemv import language

    if not language.SIMULATOR:
        pytest.skip("the twins are the simulator's")
    from gemv.language.simulator.thread import SimulatorError

    assert [language.quotient(n, 8) for n in (-9, -8, 7, 8)] == [-2, -1, 0, 1]
    assert [language.rounded_down(n, 6) for n in (-1, 5, 6, 13)] == [-6, 0, 6, 12]
    assert language.natural(3) == language.short(3) == 3
    for number in (-1, 1 << 32):
        with pytest.raises(SimulatorError, match="is negative or too large"):
            language.short(number)
    with pytest.raises(SimulatorError, match=r"natural\(-1\): it is negative"):
        language.natural(-1)


#: Prints what the compiler is given for :func:`gemv.language.kept` of two numbers.
KEPT = """
from llvmlite import ir
from numba.core import types
from gemv import language

class Context:
    def make_tuple(self, builder, kind, values):
        return values

module, pair = ir.Module(), ir.ArrayType(ir.FloatType(), 2)
made = ir.Function(module, ir.FunctionType(ir.VoidType(), [pair]), "made")
builder = ir.IRBuilder(made.append_basic_block())
kind, codegen = language.kept._defn(None, types.UniTuple(types.float32, 2))
codegen(Context(), builder, kind, made.args)
builder.ret_void()
print(module)
"""


def test_what_is_kept_may_not_be_moved():
    """A compiler may take a loop for a better place of whatever has no side effect."""
    run = processes.run(
        [sys.executable, "-c", KEPT], capture_output=True, text=True,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
    )  # fmt: skip
    assert run.stdout.count('asm sideeffect "mov.f32 $0, $1;"') == 2, run.stdout + run.stderr
