"""Sums that one block leaves for another in words that are their own flags.

With a flag beside the sum, the writer needs a fence between the two and the reader another one:
three trips to the L2 cache in a row, with the counter that serves as the flag. Here a word of 32 or
64 bits says by itself whether it has arrived. Memory for such words is all ones while it is empty.
Read as a number, all ones are a NaN, which :func:`post` never stores: it stores another NaN
instead. :func:`take` loads until no word is all ones, then stores ones, so the next launch finds
empty memory again.

A block must not take before it is sure that the blocks that post are running: if it waited for one
that had not begun, it could keep that one from beginning. So kernels draw a number when they begin,
and the block that draws the last number takes.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

#: Accesses that go to the L2 cache, which all blocks share. The words of one instruction may arrive
#: at different times, so :func:`take` looks at each of them.
_STORE, _LOAD = "st.relaxed.gpu.global", "ld.relaxed.gpu.global"


def _kinds(kind):
    """The LLVM types of the real numbers that a number of type `kind` is made of."""
    if isinstance(kind, (ir.FloatType, ir.DoubleType)):
        return [kind]
    return [each for part in kind.elements for each in _kinds(part)]


def reals_of(builder, value):
    """The real numbers that `value` is made of, in the order of :func:`_kinds`."""
    if isinstance(value.type, (ir.FloatType, ir.DoubleType)):
        return [value]
    parts = (builder.extract_value(value, k) for k in range(len(value.type.elements)))
    return [each for part in parts for each in reals_of(builder, part)]


def _number(builder, kind, reals):
    """A number of type `kind`, put together from an iterator over its real numbers."""
    if isinstance(kind, (ir.FloatType, ir.DoubleType)):
        return next(reals)
    value = ir.Constant(kind, ir.Undefined)
    for k, part in enumerate(kind.elements):
        value = builder.insert_value(value, _number(builder, part, reals), k)
    return value


def _word(real):
    """The integer type with the bits of `real`, and its PTX register class and suffix."""
    bits = 32 if isinstance(real, ir.FloatType) else 64
    return ir.IntType(bits), "r" if bits == 32 else "l", f"b{bits}"


def _pairs(words):
    """`words` in pairs, because one instruction moves two neighbours."""
    return [words[k : k + 2] for k in range(0, len(words), 2)]


def _access(instruction, suffix, words):
    """`instruction` for a vector of `words` words; no vector if it is one."""
    return f"{instruction}{f'.v{words}' if words > 1 else ''}.{suffix}"


def _names(first, count):
    """`count` operands of inline PTX from number `first` on, in braces if there are several."""
    names = ", ".join(f"${first + k}" for k in range(count))
    return f"{{{names}}}" if count > 1 else names


def _store(builder, address, words, real, times=0, step=None):
    """Store the bits of one number, `words`, at `address`, two in an instruction.

    With a `step`, they go `times` so many bytes behind the address.
    """
    word, letter, suffix = _word(real)
    for place, some in enumerate(_pairs(words)):
        offset = place * 2 * word.width // 8
        store = _access(_STORE, suffix, len(some))
        arguments, constraints = [address, *some], ["l"] + [letter] * len(some)
        text = f"{store} [$0+{offset}], {_names(1, len(some))};"
        if times:
            far = _far(0, len(arguments), times)
            text = f"{{ {far} {store} [at+{offset}], {_names(1, len(some))}; }}"
            arguments.append(step)
            constraints.append("l")
        asm = ir.InlineAsm(
            ir.FunctionType(ir.VoidType(), [each.type for each in arguments]),
            text,
            ",".join(constraints) + ",~{memory}",
            side_effect=True,
        )
        builder.call(asm, arguments)


def _far(address, step, times):
    """PTX that makes ``at``, `times` the operand `step` behind the operand `address`.

    Many numbers would take two registers each for addresses that are computed once.
    """
    return f".reg .b64 at; mad.lo.s64 at, ${step}, {times}, ${address};"


def _load(builder, address, kinds, present, times=0, step=None):
    """The bits of the number at `address`, as words; zeros, and no load, where `present` is 0.

    `kinds` are the types of the real numbers that it is made of; `times` and `step` are those of
    :func:`_store`.
    """
    word, letter, suffix = _word(kinds[0])
    words = []
    for place, some in enumerate(_pairs(kinds)):
        count, offset = len(some), place * 2 * word.width // 8
        zeros = " ".join(f"mov.{suffix} ${k}, 0;" for k in range(count))
        arguments, constraints = [address, present], ["l", "r"]
        far, at = "", f"${count}"
        if times:
            far, at = f"{_far(count, count + 2, times)} ", "at"
            arguments.append(step)
            constraints.append("l")
        load = f"{_access(_LOAD, suffix, count)} {_names(0, count)}, [{at}+{offset}];"
        asm = ir.InlineAsm(
            ir.FunctionType(
                word if count == 1 else ir.LiteralStructType([word] * count),
                [each.type for each in arguments],
            ),
            f"{{ .reg .pred p; setp.ne.u32 p, ${count + 1}, 0; {zeros} {far}@p {load} }}",
            ",".join([f"=&{letter}"] * count + constraints + ["~{memory}"]),
            side_effect=True,
        )
        loaded = builder.call(asm, arguments)
        if count == 1:
            words.append(loaded)
        else:
            words += [builder.extract_value(loaded, k) for k in range(count)]
    return words


@intrinsic
def post(typingctx, pointer, index, value):
    """A number whose bits are all ones is a NaN; another NaN is stored in its place."""

    def codegen(context, builder, signature, arguments):
        base, at, number = arguments
        words = []
        for real in reals_of(builder, number):
            word, _, _ = _word(real.type)
            bits = builder.bitcast(real, word)
            nothing = builder.icmp_unsigned("==", bits, ir.Constant(word, -1))
            other = ir.Constant(
                word, 2 ** (word.width - 1) - 1
            )  # all ones but the sign: also a NaN
            words.append(builder.select(nothing, other, bits))
        _store(builder, builder.gep(base, [at]), words, real.type)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, pointer.dtype), codegen


def _taken(builder, context, kind, many, places):
    """The numbers of type `kind` at `places`, as a tuple of type `many`, once all are there.

    A place is an address, whether a number is there, and what :func:`_store` takes more. All words
    are loaded again until none is all ones; then ones are stored in their places.
    """
    kinds = _kinds(kind)
    word, _, _ = _word(kinds[0])
    ones = ir.Constant(word, -1)
    ask, done = (builder.append_basic_block(name) for name in ("ask", "taken"))
    builder.branch(ask)
    builder.position_at_end(ask)
    sums = [
        _load(builder, address, kinds, builder.zext(present, ir.IntType(32)), *far)
        for address, present, *far in places
    ]
    missing = ir.Constant(ir.IntType(1), 0)
    for each in (each for words in sums for each in words):
        missing = builder.or_(missing, builder.icmp_unsigned("==", each, ones))
    builder.cbranch(missing, ask, done)
    builder.position_at_end(done)
    for address, present, *far in places:
        with builder.if_then(present):
            _store(builder, address, [ones] * len(kinds), kinds[0], *far)
    numbers = []
    for words in sums:
        reals = (builder.bitcast(each, kinds[0]) for each in words)
        numbers.append(_number(builder, kind, reals))
    return context.make_tuple(builder, many, numbers)


def _is_below(builder, number, limit):
    return builder.icmp_signed("<", ir.Constant(ir.IntType(64), number), limit)


@intrinsic
def take(typingctx, zero, pointer, index, step, count, valid):
    if not isinstance(count, types.IntegerLiteral):
        return None
    many = count.literal_value
    result = types.UniTuple(pointer.dtype, many)

    def codegen(context, builder, signature, arguments):
        _, base, at, step, _, valid = arguments
        places = []
        for k in range(many):
            at = builder.add(at, step) if k else at
            places.append((builder.gep(base, [at]), _is_below(builder, k, valid)))
        return _taken(builder, context, context.get_value_type(pointer.dtype), result, places)

    integer = types.int64
    return result(pointer.dtype, pointer, integer, integer, count, integer), codegen


@intrinsic
def take_rows(typingctx, zero, pointer, index, step, count, valid, apart, rows, present):
    """As :func:`take`: a row is asked for again as long as any word of any row is missing."""
    if not all(isinstance(each, types.IntegerLiteral) for each in (count, rows)):
        return None
    many, lines = count.literal_value, rows.literal_value
    result = types.UniTuple(pointer.dtype, many * lines)

    def codegen(context, builder, signature, arguments):
        _, base, at, step, _, valid, apart, _, present = arguments
        kind = context.get_value_type(pointer.dtype)
        size = context.get_abi_sizeof(kind)
        far = builder.mul(step, ir.Constant(step.type, size))
        places = []
        for line in range(lines):
            at = builder.add(at, apart) if line else at
            address, is_there = builder.gep(base, [at]), _is_below(builder, line, present)
            for k in range(many):
                both = builder.and_(is_there, _is_below(builder, k, valid))
                places.append((address, both, k, far))
        return _taken(builder, context, kind, result, places)

    integer = types.int64
    arguments = pointer.dtype, pointer, integer, integer, count, integer, integer, rows, integer
    return result(*arguments), codegen


@intrinsic
def peek(typingctx, pointer, index):
    """One relaxed load, past the L1 cache."""

    def codegen(context, builder, signature, arguments):
        base, at = arguments
        word = ir.IntType(32)
        address = builder.gep(base, [at])
        function = ir.FunctionType(word, [address.type])
        text = f"{_LOAD}.b32 $0, [$1];"
        asm = ir.InlineAsm(function, text, "=r,l,~{memory}", side_effect=True)
        return builder.call(asm, [address])

    return types.uint32(pointer, types.int64), codegen
