"""Copies from memory to shared memory that no thread waits for, and loads of what they brought.

``cp.async`` of compute capability 8.0 moves 16 bytes past registers and past the L1 cache. Nothing
tells the compiler that shared memory has changed but the instruction that waits: it claims to
change all memory, as do those that begin a copy.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from gemv.core.geometry import LOAD_BYTES
from gemv.language.numba_cuda.formats import (
    decoded,
    decoded_pair,
    is_narrow,
    loaded_type,
    stored_bytes,
    widened,
)
from gemv.language.numba_cuda.registers import (
    KINDS,
    WHOLE_LINES,
    complex_of,
    integer_of,
    literal_of,
    present_at,
    real_of,
)

_BYTE, _HALF, _WORD = ir.IntType(8), ir.IntType(16), ir.IntType(32)
#: LLVM's number for the address space of shared memory.
_SHARED = 3


def _do(builder, text, *inputs):
    """An instruction without a result; "memory" keeps the compiler's loads and stores in place."""
    function = ir.FunctionType(ir.VoidType(), [each.type for each, _ in inputs])
    letters = ",".join([*(letter for _, letter in inputs), "~{memory}"])
    builder.call(
        ir.InlineAsm(function, text, letters, side_effect=True), [each for each, _ in inputs]
    )


def _place(context, builder, kind, stage, pointer, index):
    """Where element `index` of a stage is, as a pointer to a byte of shared memory."""
    first = context.make_array(kind)(context, builder, stage).data
    shared = builder.addrspacecast(first, _BYTE.as_pointer(_SHARED))
    return builder.gep(shared, [builder.mul(index, integer_of(stored_bytes(pointer)))])


@intrinsic
def copy_async(typingctx, stage, index, pointer, at):
    def codegen(context, builder, signature, arguments):
        array, index, base, at = arguments
        place = _place(context, builder, stage, array, pointer, index)
        text = f"cp.async.cg.shared.global{WHOLE_LINES} [$0], [$1], {LOAD_BYTES};"
        _do(builder, text, (builder.ptrtoint(place, _WORD), "r"), (builder.gep(base, [at]), "l"))
        return context.get_dummy_value()

    return types.void(stage, types.int64, pointer, types.int64), codegen


@intrinsic
def copy_or_zeros(typingctx, stage, index, pointer, at, present):
    """The instruction fills up with zeros what its source lacks of 16 bytes: all or nothing."""

    def codegen(context, builder, signature, arguments):
        array, index, base, at, present = arguments
        place = _place(context, builder, stage, array, pointer, index)
        size = builder.select(present, ir.Constant(_WORD, LOAD_BYTES), ir.Constant(_WORD, 0))
        text = f"cp.async.cg.shared.global{WHOLE_LINES} [$0], [$1], {LOAD_BYTES}, $2;"
        source = builder.gep(base, [at])
        _do(builder, text, (builder.ptrtoint(place, _WORD), "r"), (source, "l"), (size, "r"))
        return context.get_dummy_value()

    return types.void(stage, types.int64, pointer, types.int64, types.boolean), codegen


@intrinsic
def copy_one(typingctx, stage, index, pointer, at):
    """Real numbers, because a complex one may be aligned to its parts only."""
    size = stored_bytes(pointer)
    parts = 2 if isinstance(loaded_type(pointer), types.Complex) else 1
    word = ir.IntType(8 * size // parts)

    def codegen(context, builder, signature, arguments):
        array, index, base, at = arguments
        place = _place(context, builder, stage, array, pointer, index)
        source = builder.bitcast(builder.gep(base, [at]), word.as_pointer())
        target = builder.bitcast(place, word.as_pointer(_SHARED))
        for k in range(parts):
            value = builder.load(builder.gep(source, [integer_of(k)]))
            builder.store(value, builder.gep(target, [integer_of(k)]))
        return context.get_dummy_value()

    return types.void(stage, types.int64, pointer, types.int64), codegen


@intrinsic
def copies_commit(typingctx):
    def codegen(context, builder, signature, arguments):
        _do(builder, "cp.async.commit_group;")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def copies_wait(typingctx, pending):
    known = literal_of(pending)
    if known is None:
        return None

    def codegen(context, builder, signature, arguments):
        _do(builder, f"cp.async.wait_group {known[0]};")
        return context.get_dummy_value()

    return types.void(pending), codegen


@intrinsic
def prefetch(typingctx, pointer, index, bytes_):
    known = literal_of(bytes_)
    if known is None:
        return None

    def codegen(context, builder, signature, arguments):
        source = builder.gep(arguments[0], [arguments[1]])
        _do(builder, f"cp.async.bulk.prefetch.L2.global [$0], {known[0]};", (source, "l"))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, bytes_), codegen


def _words(builder, place, word, count):
    """`count` neighbouring words of shared memory, by one load; its address is so aligned."""
    vector = word if count == 1 else ir.VectorType(word, count)
    bits = {ir.FloatType(): 32, ir.DoubleType(): 64}.get(word) or word.width
    loaded = builder.load(
        builder.bitcast(place, vector.as_pointer(_SHARED)), align=count * bits // 8
    )
    if count == 1:
        return [loaded]
    return [builder.extract_element(loaded, ir.Constant(_WORD, k)) for k in range(count)]


def _vector(context, builder, pointer, place, width):
    """The `width` numbers at a place of a stage, as a kernel computes with them."""
    if is_narrow(pointer) and width == 1:
        numbers = [decoded(builder, pointer, *_words(builder, place, _HALF, 1))]
    elif is_narrow(pointer):
        pairs = _words(builder, place, _WORD, width // 2)
        numbers = [each for word in pairs for each in decoded_pair(builder, pointer, word)]
    else:
        element = loaded_type(pointer)
        parts = 2 if isinstance(element, types.Complex) else 1
        reals = _words(builder, place, KINDS[real_of(element)][2], width * parts)
        numbers = reals
        if parts == 2:
            halves = zip(reals[::2], reals[1::2], strict=True)
            numbers = [complex_of(context, builder, element, *each) for each in halves]
    return [widened(context, builder, pointer, each) for each in numbers]


def _staging(stage, pointer, starts, count, width, *limit):
    """Signature and code of loads from a stage; `limit` is the type of ``valid``, if any."""
    known = literal_of(count, width)
    if known is None:
        return None
    count_, width_ = known
    result = types.UniTuple(pointer.dtype, starts.count * count_ * width_)

    def codegen(context, builder, signature, arguments):
        array, _, starts_, index, step, _, _, *valid = arguments
        nothing = context.get_constant_null(pointer.dtype)
        presents = [present_at(builder, k, *valid) for k in range(count_)]
        values = []
        for row in range(starts.count):
            at = builder.add(builder.extract_value(starts_, row), index)
            for k, present in enumerate(presents):
                at = builder.add(at, step) if k else at
                # Where nothing may be read, the first bytes of the stage are, and are not used.
                own = at if present is None else builder.select(present, at, integer_of(0))
                place = _place(context, builder, stage, array, pointer, own)
                vector = _vector(context, builder, pointer, place, width_)
                if present is not None:
                    vector = [builder.select(present, each, nothing) for each in vector]
                values += vector
        return context.make_tuple(builder, result, values)

    sizes = types.int64, types.int64, count, width
    return result(stage, pointer, starts, *sizes, *limit), codegen


@intrinsic
def staged_tile(typingctx, stage, pointer, starts, index, step, count, width):
    return _staging(stage, pointer, starts, count, width)


@intrinsic
def staged_some(typingctx, stage, pointer, starts, index, step, count, width, valid):
    return _staging(stage, pointer, starts, count, width, types.int64)
