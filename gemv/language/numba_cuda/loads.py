"""Loads of tiles of A and vectors of x, many in flight at a time, and stores of vectors of y."""

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
    new_of,
    old_of,
    stored_bytes,
    widened,
)
from gemv.language.numba_cuda.registers import (
    KINDS,
    WHOLE_LINES,
    complex_of,
    integer_of,
    items_of,
    literal_of,
    present_at,
    real_of,
    registers_of,
)

#: Loads of A by 16 bytes: they do not settle in the L1 cache, because A is read once.
STREAM = f"ld.global.nc.L1::no_allocate{WHOLE_LINES}"
#: Shorter loads of A: several of them read the same sector, so the first one brings it to L1.
_AGAIN = f"ld.global.nc{WHOLE_LINES}"
#: Loads of x: the next row wants it again, so it may stay in L1.
KEEP = "ld.global.nc"
#: Loads of memory that the kernel writes, which must not come through the read-only path.
_PLAIN = "ld.global"


def load(context, builder, pointer, address, width, instruction, present=None):
    """Load `width` neighbouring elements at `address`, by as few loads as possible.

    Where the bit `present` is 0 they are zeros, and nothing is loaded.
    """
    most = LOAD_BYTES // stored_bytes(pointer)
    if width > most:  # the width is that of A, and elements of y may be longer
        rest = builder.gep(address, [integer_of(most)])
        return load(context, builder, pointer, address, most, instruction, present) + load(
            context, builder, pointer, rest, width - most, instruction, present
        )
    values = _loaded(context, builder, pointer, address, width, instruction, present)
    return [widened(context, builder, pointer, value) for value in values]


def _loaded(context, builder, pointer, address, width, instruction, present):
    """The elements of one load, before :func:`~gemv.language.numba_cuda.formats.widened`."""
    if is_narrow(pointer):
        if width == 1:
            (bits,) = registers_of(builder, types.uint16, address, 1, instruction, present)
            return [decoded(builder, pointer, bits)]
        words = registers_of(builder, types.uint32, address, width // 2, instruction, present)
        return [each for word in words for each in decoded_pair(builder, pointer, word)]
    element = loaded_type(pointer)
    count = width * (2 if isinstance(element, types.Complex) else 1)
    reals = registers_of(builder, real_of(element), address, count, instruction, present)
    if count == width:
        return reals
    pairs = zip(reals[::2], reals[1::2], strict=True)
    return [complex_of(context, builder, element, real, imag) for real, imag in pairs]


def vectors_of(context, builder, pointer, base, start, step, shape, instruction, valid=None):
    """Load ``shape = (count, width)``: `count` vectors, `step` elements apart, as a flat list.

    If `valid` is given, vectors from that number on are zeros, and nothing is loaded for them.
    """
    count, width = shape
    values, at = [], start
    for k in range(count):
        # One step at a time: multiples of the step would take two registers each.
        at = builder.add(at, step) if k else at
        address, present = builder.gep(base, [at]), present_at(builder, k, valid)
        values += load(context, builder, pointer, address, width, instruction, present)
    return values


def _loading(pointer, count, width, instruction, *limit):
    """Signature and code of a load of vectors; `limit` is the type of ``valid``, if any."""
    known = literal_of(count, width)
    if known is None:
        return None
    result = types.UniTuple(pointer.dtype, known[0] * known[1])

    def codegen(context, builder, signature, arguments):
        _, index, step, _, _, *valid = arguments
        own, base = old_of(builder, pointer, arguments[0])
        values = vectors_of(context, builder, own, base, index, step, known, instruction, *valid)
        return context.make_tuple(builder, result, values)

    return result(pointer, types.int64, types.int64, count, width, *limit), codegen


def single_of(context, builder, pointer, address, present, instruction=KEEP):
    """One element at `address`; zero where the bit `present` is 0.

    A complex element may be aligned to its real part only, so it takes two loads.
    """
    element = loaded_type(pointer)
    if is_narrow(pointer) or not isinstance(element, types.Complex):
        return load(context, builder, pointer, address, 1, instruction, present)[0]
    real = real_of(element)
    start = builder.bitcast(address, KINDS[real][2].as_pointer())
    parts = [
        registers_of(builder, real, builder.gep(start, [integer_of(k)]), 1, instruction, present)[0]
        for k in range(2)
    ]
    return widened(context, builder, pointer, complex_of(context, builder, element, *parts))


@intrinsic
def load_vectors(typingctx, pointer, index, step, count, width):
    return _loading(pointer, count, width, KEEP)


@intrinsic
def load_some(typingctx, pointer, index, step, count, width, valid):
    return _loading(pointer, count, width, KEEP, types.int64)


def _moved(builder, words, shift, apart):
    """The words of two vectors from number ``shift * apart`` on.

    Each bit of `shift` takes one step, in which a select per word moves all words or none.
    """
    bit = len(words) // 2 // apart // 2
    while bit:
        far = builder.icmp_unsigned("!=", builder.and_(shift, integer_of(bit)), integer_of(0))
        words = [
            builder.select(far, words[k + bit * apart], words[k])
            for k in range(len(words) - bit * apart)
        ]
        bit //= 2
    return words


def halves_moved(builder, words, odd):
    """`words` from half a word later on if the bit `odd` is set; the result has one word less."""
    word = ir.IntType(32)
    usual, later = (ir.Constant(word, which) for which in (0x3210, 0x5432))
    which = builder.select(odd, later, usual)
    permute = ir.FunctionType(word, [word] * 3)
    asm = ir.InlineAsm(permute, "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r")
    pairs = zip(words[:-1], words[1:], strict=True)
    return [builder.call(asm, [*pair, which]) for pair in pairs]


@intrinsic
def load_shifted(typingctx, pointer, index, step, count, width, shift):
    known = literal_of(count, width)
    if known is None:
        return None
    count_, width_ = known
    result = types.UniTuple(pointer.dtype, count_ * width_)
    narrow = is_narrow(pointer)
    element = types.uint32 if narrow else loaded_type(pointer)
    real = real_of(element)
    parts = 2 if isinstance(element, types.Complex) else 1
    words = width_ // 2 if narrow else width_ * parts

    def codegen(context, builder, signature, arguments):
        base, index, step, _, _, shift = arguments
        at, values = builder.sub(index, shift), []
        shifted = builder.icmp_unsigned("!=", shift, integer_of(0))
        odd = builder.trunc(shift, ir.IntType(1))
        for k in range(count_):
            at = builder.add(at, step) if k else at
            first = builder.gep(base, [at])
            loaded = registers_of(builder, real, first, words, KEEP)
            if width_ > 1:
                second = builder.gep(first, [integer_of(width_)])
                loaded = loaded + registers_of(builder, real, second, words, KEEP, shifted)
            if narrow:
                loaded = _moved(builder, loaded, builder.lshr(shift, integer_of(1)), 1)
                loaded = halves_moved(builder, loaded[: words + 1], odd)
            elif width_ > 1:
                loaded = _moved(builder, loaded, shift, parts)
            loaded = loaded[:words]
            if narrow:
                numbers = [each for word in loaded for each in decoded_pair(builder, pointer, word)]
            elif parts == 2:
                numbers = [
                    complex_of(context, builder, element, *pair)
                    for pair in zip(loaded[::2], loaded[1::2], strict=True)
                ]
            else:
                numbers = loaded
            values += [widened(context, builder, pointer, each) for each in numbers]
        return context.make_tuple(builder, result, values)

    return result(pointer, types.int64, types.int64, count, width, types.int64), codegen


@intrinsic
def load_back(typingctx, pointer, index, step, count, width):
    """``ld.global``: the read-only path must not be used for memory that is written."""
    return _loading(pointer, count, width, _PLAIN)


@intrinsic
def load_old(typingctx, pointer, index, present):
    """``ld.global``, as :func:`load_back`."""

    def codegen(context, builder, signature, arguments):
        _, index, present = arguments
        own, base = old_of(builder, pointer, arguments[0])
        address = builder.gep(base, [index])
        return single_of(context, builder, own, address, present, _PLAIN)

    return pointer.dtype(pointer, types.int64, types.boolean), codegen


@intrinsic
def is_aligned(typingctx, pointer, bytes_):
    known = literal_of(bytes_)
    if known is None:
        return None

    def codegen(context, builder, signature, arguments):
        (_, new), (_, old) = (of(builder, pointer, arguments[0]) for of in (new_of, old_of))
        address = builder.ptrtoint(new, ir.IntType(64))
        if old is not new:
            address = builder.or_(address, builder.ptrtoint(old, ir.IntType(64)))
        rest = builder.and_(address, integer_of(known[0] - 1))
        return builder.icmp_unsigned("==", rest, integer_of(0))

    return types.boolean(pointer, bytes_), codegen


@intrinsic
def elements_past(typingctx, pointer, index, bytes_):
    known = literal_of(bytes_)
    if known is None:
        return None
    size = stored_bytes(pointer)

    def codegen(context, builder, signature, arguments):
        base, index, _ = arguments
        address = builder.ptrtoint(builder.gep(base, [index]), ir.IntType(64))
        rest = builder.and_(address, integer_of(known[0] - 1))
        return builder.lshr(rest, integer_of(size.bit_length() - 1))

    return types.int64(pointer, types.int64, bytes_), codegen


def _streaming(pointer, starts, count, width, *limit, again=_AGAIN):
    """Signature and code of the loads of a tile; `limit` is the type of ``valid``, if any.

    Loads of less than 16 bytes are of the kind `again`.
    """
    known = literal_of(count, width)
    if known is None:
        return None
    result = types.UniTuple(pointer.dtype, starts.count * known[0] * known[1])
    instruction = STREAM if known[1] * stored_bytes(pointer) >= LOAD_BYTES else again

    def codegen(context, builder, signature, arguments):
        base, starts_, index, step, _, _, *valid = arguments
        values = []
        for row in range(starts.count):
            start = builder.add(builder.extract_value(starts_, row), index)
            values += vectors_of(
                context, builder, pointer, base, start, step, known, instruction, *valid
            )
        return context.make_tuple(builder, result, values)

    return result(pointer, starts, types.int64, types.int64, count, width, *limit), codegen


@intrinsic
def stream_tile(typingctx, pointer, starts, index, step, count, width):
    return _streaming(pointer, starts, count, width)


@intrinsic
def stream_some(typingctx, pointer, starts, index, step, count, width, valid):
    return _streaming(pointer, starts, count, width, types.int64)


@intrinsic
def pass_tile(typingctx, pointer, starts, index, step, count, width):
    return _streaming(pointer, starts, count, width, again=STREAM)


@intrinsic
def pass_some(typingctx, pointer, starts, index, step, count, width, valid):
    return _streaming(pointer, starts, count, width, types.int64, again=STREAM)


@intrinsic
def stream_inside(typingctx, pointer, starts, index, width, limit):
    known = literal_of(width)
    if known is None:
        return None
    result = types.UniTuple(pointer.dtype, starts.count * known[0])

    def codegen(context, builder, signature, arguments):
        base, starts_, index, _, limit = arguments
        values = []
        for start in items_of(builder, starts_, starts.count):
            for lane in range(known[0]):
                at = builder.add(start, integer_of(lane))
                # One comparison for both bounds: a negative number is large as an unsigned one.
                present = builder.icmp_unsigned("<", at, limit)
                address = builder.gep(base, [builder.add(index, at)])
                values += load(context, builder, pointer, address, 1, _AGAIN, present)
        return context.make_tuple(builder, result, values)

    return result(pointer, starts, types.int64, width, types.int64), codegen


@intrinsic
def row_starts(typingctx, first, step, last, stride, rows):
    """Only the first start is computed in 64 bits.

    The distance of a row from the first fits 32 bits, which takes a third of the instructions.
    """
    known = literal_of(rows)
    if known is None:
        return None
    result = types.UniTuple(types.int64, known[0])
    short, long = ir.IntType(32), ir.IntType(64)

    def least(builder, left, right):
        return builder.select(builder.icmp_signed("<", left, right), left, right)

    def codegen(context, builder, signature, arguments):
        first, step, last, stride = arguments[:4]
        first = least(builder, first, last)
        starts = [builder.mul(first, stride)]
        room = least(builder, builder.sub(last, first), integer_of(2**30))
        room, step = builder.trunc(room, short), builder.trunc(step, short)
        for r in range(1, known[0]):
            away = least(builder, builder.mul(ir.Constant(short, r), step), room)
            starts.append(builder.add(starts[0], builder.mul(builder.zext(away, long), stride)))
        return context.make_tuple(builder, result, starts)

    sizes = (types.int64,) * 4
    return result(*sizes, rows), codegen
