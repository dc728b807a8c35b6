"""Tiles of A in registers: wide loads, many in flight, and the products with x.

A tile is a flat tuple of numbers whose length is known when the kernel is compiled, so it lives in
registers and nowhere else: every loop over it is unrolled here, while the code is generated, and
no index into it is left at run time. (A local array indexed by a loop variable would lie in local
memory, which is device memory.) Under the simulator a tile is a tuple, and so is the source.
"""

from __future__ import annotations

import operator

from gemv._intrinsics import SIMULATOR
from gemv._shares import shares
from gemv.core.geometry import LOAD_BYTES

if SIMULATOR:
    import numpy as np
    from numba import cuda

    from gemv._simulator import SimulatorError, vector_load, vector_store

    def load_vectors(pointer, index, step, count, width, valid=None):
        return tuple(
            value
            for k in range(count)
            for value in _vector(pointer, index + k * step, width, valid is None or k < valid)
        )

    def _vector(pointer, index, width, present):
        if not present:
            return (pointer.nothing,) * width
        return vector_load(pointer, index, width) if width > 1 else (pointer[index],)

    def load_back(pointer, index, step, count, width):
        return load_vectors(pointer, index, step, count, width)

    def store_vectors(pointer, index, step, values, width):
        for k in range(len(values) // width):
            vector_store(pointer, index + k * step, values[k * width : (k + 1) * width])

    def store(pointer, index, value):
        pointer[index] = value

    def is_aligned(pointer, bytes_):
        return (pointer.address + pointer.origin * pointer.itemsize) % bytes_ == 0

    def elements_past(pointer, index, bytes_):
        address = pointer.address + (pointer.origin + index) * pointer.itemsize
        return address % bytes_ // pointer.itemsize

    def stream_tile(pointer, starts, index, step, count, width, valid=None):
        return tuple(
            value
            for start in starts
            for value in load_vectors(pointer, start + index, step, count, width, valid)
        )

    def row_starts(first, step, last, stride, rows):
        return tuple(min(first + r * step, last) * stride for r in range(rows))

    def gather(pointer, index, step, count, increment, width, valid=None, limit=None):
        numbers = ((k, index + k * step + lane) for k in range(count) for lane in range(width))
        return tuple(
            pointer[at * increment]
            if (valid is None or k < valid) and (limit is None or at < limit)
            else pointer.nothing
            for k, at in numbers
        )

    gather_inside = gather
    load_some, stream_some, gather_some = load_vectors, stream_tile, gather

    def spread(factors, count, width, first, period):
        own = range(0, len(factors), count)
        last = count - 1
        return tuple(
            factors[at + min((first + lane) // period, last)] for at in own for lane in range(width)
        )

    def load_shifted(pointer, index, step, count, width, shift):
        if elements_past(pointer, index, width * pointer.itemsize) != shift:
            raise SimulatorError(f"{pointer.name}[{index}] is not {shift} behind a boundary")
        if shift:  # the second vector of the last two is read whole: an error if it ends outside
            pointer[index - shift + (count - 1) * step + 2 * width - 1]
        return gather(pointer, index, step, count, 1, width)

    def stream_inside(pointer, starts, index, width, limit):
        return tuple(
            pointer[index + start + lane] if 0 <= start + lane < limit else pointer.nothing
            for start in starts
            for lane in range(width)
        )

    def zeros(zero, count):
        return (zero,) * count

    def multiply_add(sums, tile, x, conjugate):
        parts = list(sums)
        rows = len(tile) // len(x)
        width = len(sums) // rows
        for row in range(rows):
            for k, factor in enumerate(x):
                value = tile[row * len(x) + k]
                at = row * width + k % width
                parts[at] = parts[at] + (value.conjugate() if conjugate else value) * factor
        return tuple(parts)

    def axpy_add(sums, tile, x, width, conjugate):
        parts = list(sums)
        for block in range(len(sums) // width):
            for k, factor in enumerate(x):
                for lane in range(width):
                    value = tile[(block * len(x) + k) * width + lane]
                    product = (value.conjugate() if conjugate else value) * factor
                    parts[block * width + lane] = parts[block * width + lane] + product
        return tuple(parts)

    def put_pieces(shared, row, column, values, distance, width):
        for at, value in enumerate(values):
            piece, lane = divmod(at, width)
            shared[row, column + piece * distance + lane] = value

    def butterfly(values, lanes, apart):
        step = lanes // 2
        while step >= apart:
            values = tuple(value + _exchange(value, step) for value in values)
            step //= 2
        return values

    def scatter_sums(values, tid, width, lanes, apart):
        step = lanes // 2
        least = len(values) // shares(len(values), width, lanes, apart)
        while step >= apart:
            sent, kept = values, values
            if len(values) > least:
                half = len(values) // 2
                parts = values[:half], values[half:]
                upper = bool(tid & step)
                sent, kept = parts[not upper], parts[upper]
            exchanged = [_exchange(value, step) for value in sent]
            values = tuple(map(operator.add, kept, exchanged))
            step //= 2
        return values

    def _exchange(value, step):
        if hasattr(value, "exchanged"):
            return value.exchanged(lambda part: cuda.shfl_xor_sync(0xFFFFFFFF, part, step))
        if np.iscomplexobj(value):
            real = cuda.shfl_xor_sync(0xFFFFFFFF, value.real, step)
            imag = cuda.shfl_xor_sync(0xFFFFFFFF, value.imag, step)
            return type(value)(complex(real, imag))
        return cuda.shfl_xor_sync(0xFFFFFFFF, value, step)

    def fold(sums, rows):
        width = len(sums) // rows
        folded = []
        for row in range(rows):
            part = list(sums[row * width : (row + 1) * width])
            while len(part) > 1:
                half = len(part) // 2
                part = [part[k] + part[k + half] for k in range(half)]
            folded.append(part[0])
        return tuple(folded)

else:
    from llvmlite import ir
    from numba.core import types
    from numba.cuda import cgutils
    from numba.cuda.extending import intrinsic

    from gemv._formats import (
        decoded,
        decoded_pair,
        encoded,
        encoded_pair,
        is_narrow,
        load_number,
        loaded_type,
        narrowed,
        store_number,
        stored_bytes,
        widened,
    )
    from gemv._twofold import TwofoldType, added, exchanged, product_added

    _KINDS = {
        types.float32: ("f", "f32", ir.FloatType()),
        types.float64: ("d", "f64", ir.DoubleType()),
        types.uint16: ("h", "u16", ir.IntType(16)),
        types.uint32: ("r", "u32", ir.IntType(32)),
    }

    #: Zero, as PTX writes it for each class of registers.
    _NOTHING = {"f": "0f00000000", "d": "0d0000000000000000", "h": "0", "r": "0"}

    def _literal(*numbers):
        """Their values, or None while Numba has not yet offered them as literals."""
        if all(isinstance(number, types.IntegerLiteral) for number in numbers):
            return tuple(number.literal_value for number in numbers)
        return None

    def _real(element):
        return element.underlying_float if isinstance(element, types.Complex) else element

    #: Data read once passes by L1; x is wanted again by the next row, so it may stay there. What
    #: the kernel itself writes must not come through the read-only path.
    _STREAM = "ld.global.nc.L1::no_allocate.L2::128B"
    #: Narrow loads touch a sector several times: the first one brings it to L1 for the others.
    _AGAIN = "ld.global.nc.L2::128B"
    _KEEP = "ld.global.nc"
    _PLAIN = "ld.global"
    #: y is written once: its lines leave the L2 cache before those that somebody may want again.
    #: Not single numbers of two bytes: with that and this way to store them, they took longer.
    _PASS, _STAY = "st.global.cs", "st.global"

    def _load(context, builder, pointer, address, width, instruction, present=None):
        """`width` neighbouring elements at `address` as values, by as few loads as there are.

        Where the bit `present` is 0 they are zeros, and nothing is loaded.
        """
        most = LOAD_BYTES // stored_bytes(pointer)
        if width > most:  # where y has longer elements than A
            rest = builder.gep(address, [_integer(most)])
            return _load(context, builder, pointer, address, most, instruction, present) + _load(
                context, builder, pointer, rest, width - most, instruction, present
            )
        values = _loaded(context, builder, pointer, address, width, instruction, present)
        return [widened(context, builder, pointer, value) for value in values]

    def _loaded(context, builder, pointer, address, width, instruction, present):
        """What one load gives, before it is made wider."""
        if is_narrow(pointer):
            if width == 1:
                (bits,) = _registers(builder, types.uint16, address, 1, instruction, present)
                return [decoded(builder, pointer, bits)]
            words = _registers(builder, types.uint32, address, width // 2, instruction, present)
            return [each for word in words for each in decoded_pair(builder, pointer, word)]
        element = loaded_type(pointer)
        count = width * (2 if isinstance(element, types.Complex) else 1)
        reals = _registers(builder, _real(element), address, count, instruction, present)
        if count == width:
            return reals
        pairs = zip(reals[::2], reals[1::2], strict=True)
        return [_complex(context, builder, element, real, imag) for real, imag in pairs]

    def _store(context, builder, pointer, address, values):
        """Store neighbours at `address`, the way back of a load."""
        most = LOAD_BYTES // stored_bytes(pointer)
        for first in range(0, len(values), most):
            place = builder.gep(address, [_integer(first)]) if first else address
            kind, parts = _stored(context, builder, pointer, values[first : first + most])
            _pass_on(builder, place, kind, parts)

    def _pass_on(builder, address, kind, parts, offset=0):
        """One store of registers, `offset` bytes behind an address."""
        letter, suffix, llvm = _KINDS[kind]
        names = ", ".join(f"${n + 1}" for n in range(len(parts)))
        many = len(parts) > 1
        text = f"{_PASS}.v{len(parts)}.{suffix} [$0], {{{names}}};"
        way = _STAY if kind == types.uint16 else _PASS
        asm = ir.InlineAsm(
            ir.FunctionType(ir.VoidType(), [address.type] + [llvm] * len(parts)),
            text if many else f"{way}.{suffix} [$0+{offset}], $1;",
            ",".join(["l"] + [letter] * len(parts)) + ",~{memory}", side_effect=True,
        )  # fmt: skip
        builder.call(asm, [address, *parts])

    def _stored(context, builder, pointer, values):
        """What a store instruction takes for `values`: the kind of its registers, and these."""
        values = [narrowed(context, builder, pointer, value) for value in values]
        if is_narrow(pointer):
            if pointer.storage == "bfloat16" and len(values) > 1:
                pairs = zip(values[::2], values[1::2], strict=True)
                return types.uint32, [encoded_pair(builder, *pair) for pair in pairs]
            bits = [encoded(builder, pointer, value) for value in values]
            if len(bits) == 1:
                return types.uint16, bits
            word, sixteen = ir.IntType(32), ir.Constant(ir.IntType(32), 16)
            return types.uint32, [
                builder.or_(builder.zext(low, word), builder.shl(builder.zext(high, word), sixteen))
                for low, high in zip(bits[::2], bits[1::2], strict=True)
            ]
        element = loaded_type(pointer)
        if not isinstance(element, types.Complex):
            return element, values
        numbers = [context.make_complex(builder, element, value) for value in values]
        return _real(element), [part for each in numbers for part in (each.real, each.imag)]

    def _registers(builder, kind, address, count, instruction, present=None):
        """`count` registers by one load instruction, or zeros and none where `present` is 0."""
        letter, suffix, llvm = _KINDS[kind]
        registers = [f"${k}" for k in range(count)]
        many = f".v{count}" if count > 1 else ""
        target = f"{{{', '.join(registers)}}}" if count > 1 else "$0"
        text = f"{instruction}{many}.{suffix} {target}, [${count}];"
        inputs, kinds, output = [address], "l", "="
        if present is not None:
            output = "=&"
            inputs, kinds = [address, builder.zext(present, ir.IntType(32))], "l,r"
            zeros = " ".join(f"mov.{suffix} {each}, {_NOTHING[letter]};" for each in registers)
            text = f"{{ .reg .pred p; setp.ne.u32 p, ${count + 1}, 0; {zeros} @p {text} }}"
        result = llvm if count == 1 else ir.LiteralStructType([llvm] * count)
        function = ir.FunctionType(result, [each.type for each in inputs])
        asm = ir.InlineAsm(function, text, ",".join([f"{output}{letter}"] * count + [kinds]))
        loaded = builder.call(asm, inputs)
        return [loaded] if count == 1 else [builder.extract_value(loaded, k) for k in range(count)]

    def _single(context, builder, pointer, address, present):
        """One element that may be aligned to its real part only; zero where `present` is 0."""
        element = loaded_type(pointer)
        if is_narrow(pointer) or not isinstance(element, types.Complex):
            return _load(context, builder, pointer, address, 1, _KEEP, present)[0]
        real = _real(element)
        start = builder.bitcast(address, _KINDS[real][2].as_pointer())
        parts = [
            _registers(builder, real, builder.gep(start, [_integer(k)]), 1, _KEEP, present)[0]
            for k in range(2)
        ]
        return widened(context, builder, pointer, _complex(context, builder, element, *parts))

    def _complex(context, builder, element, real, imag):
        number = context.make_complex(builder, element)
        number.real, number.imag = real, imag
        return number._getvalue()

    def _integer(value):
        return ir.Constant(ir.IntType(64), value)

    def _present(builder, k, valid=None):
        """Whether number `k` is one of the first `valid`; None, for yes, without such a limit."""
        return None if valid is None else builder.icmp_signed("<", _integer(k), valid)

    def _vectors(context, builder, pointer, base, start, step, shape, instruction, valid=None):
        """Vectors `step` elements apart, (count, width) in `shape`, or only the first `valid`."""
        count, width = shape
        values, at = [], start
        for k in range(count):
            # One step at a time: multiples of a step would be kept in registers, two for each.
            at = builder.add(at, step) if k else at
            address, present = builder.gep(base, [at]), _present(builder, k, valid)
            values += _load(context, builder, pointer, address, width, instruction, present)
        return values

    def _loading(pointer, count, width, instruction, *limit):
        """Signature and code of a function that loads vectors; `limit` is the type of ``valid``."""
        known = _literal(count, width)
        if known is None:
            return None
        result = types.UniTuple(pointer.dtype, known[0] * known[1])

        def codegen(context, builder, signature, arguments):
            base, index, step, _, _, *valid = arguments
            values = _vectors(
                context, builder, pointer, base, index, step, known, instruction, *valid
            )
            return context.make_tuple(builder, result, values)

        return result(pointer, types.int64, types.int64, count, width, *limit), codegen

    @intrinsic
    def load_vectors(typingctx, pointer, index, step, count, width):
        """Load `count` vectors of `width` neighbours, `step` elements apart: a flat tuple.

        All loads are independent, so they are in flight together. `count` and `width` are
        compile-time constants; a vector's address must be a multiple of its size.
        """
        return _loading(pointer, count, width, _KEEP)

    @intrinsic
    def load_some(typingctx, pointer, index, step, count, width, valid):
        """The same for the first `valid` vectors; the others are zeros, and nothing is loaded."""
        return _loading(pointer, count, width, _KEEP, types.int64)

    def _moved(builder, words, shift, apart):
        """The words of two vectors from number ``shift * apart`` on, in one step for each bit."""
        bit = len(words) // 2 // apart // 2
        while bit:
            far = builder.icmp_unsigned("!=", builder.and_(shift, _integer(bit)), _integer(0))
            words = [
                builder.select(far, words[k + bit * apart], words[k])
                for k in range(len(words) - bit * apart)
            ]
            bit //= 2
        return words

    def _halves_moved(builder, words, odd):
        """Words that begin half a word later if `odd`; one less."""
        word = ir.IntType(32)
        usual, later = (ir.Constant(word, which) for which in (0x3210, 0x5432))
        which = builder.select(odd, later, usual)
        permute = ir.FunctionType(word, [word] * 3)
        asm = ir.InlineAsm(permute, "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r")
        pairs = zip(words[:-1], words[1:], strict=True)
        return [builder.call(asm, [*pair, which]) for pair in pairs]

    @intrinsic
    def load_shifted(typingctx, pointer, index, step, count, width, shift):
        """What ``gather`` gives for a unit stride, by vectors whose boundary is `shift` before.

        The vector at a boundary and the next one hold all of a vector that begins `shift` elements
        behind it; `shift` is below `width` and the same for the whole warp. Both are read whole.
        """
        known = _literal(count, width)
        if known is None:
            return None
        count_, width_ = known
        result = types.UniTuple(pointer.dtype, count_ * width_)
        narrow = is_narrow(pointer)
        element = types.uint32 if narrow else loaded_type(pointer)
        real = _real(element)
        parts = 2 if isinstance(element, types.Complex) else 1
        words = width_ // 2 if narrow else width_ * parts

        def codegen(context, builder, signature, arguments):
            base, index, step, _, _, shift = arguments
            at, values = builder.sub(index, shift), []
            shifted = builder.icmp_unsigned("!=", shift, _integer(0))
            odd = builder.trunc(shift, ir.IntType(1))
            for k in range(count_):
                at = builder.add(at, step) if k else at
                first = builder.gep(base, [at])
                loaded = _registers(builder, real, first, words, _KEEP)
                if width_ > 1:
                    second = builder.gep(first, [_integer(width_)])
                    loaded = loaded + _registers(builder, real, second, words, _KEEP, shifted)
                if narrow:
                    loaded = _moved(builder, loaded, builder.lshr(shift, _integer(1)), 1)
                    loaded = _halves_moved(builder, loaded[: words + 1], odd)
                elif width_ > 1:
                    loaded = _moved(builder, loaded, shift, parts)
                loaded = loaded[:words]
                if narrow:
                    numbers = [
                        each for word in loaded for each in decoded_pair(builder, pointer, word)
                    ]
                elif parts == 2:
                    numbers = [
                        _complex(context, builder, element, *pair)
                        for pair in zip(loaded[::2], loaded[1::2], strict=True)
                    ]
                else:
                    numbers = loaded
                values += [widened(context, builder, pointer, each) for each in numbers]
            return context.make_tuple(builder, result, values)

        return result(pointer, types.int64, types.int64, count, width, types.int64), codegen

    @intrinsic
    def load_back(typingctx, pointer, index, step, count, width):
        """What :func:`load_vectors` gives, for memory that the kernel also writes: y."""
        return _loading(pointer, count, width, _PLAIN)

    @intrinsic
    def store_vectors(typingctx, pointer, index, step, values, width):
        """Store vectors of `width` neighbours, `step` elements apart: the way back of a load."""
        known = _literal(width)
        if known is None:
            return None
        width_ = known[0]

        def codegen(context, builder, signature, arguments):
            base, at, step, values_ = arguments[:4]
            items = _items(builder, values_, values.count)
            for k in range(values.count // width_):
                at = builder.add(at, step) if k else at
                vector = items[k * width_ : (k + 1) * width_]
                _store(context, builder, pointer, builder.gep(base, [at]), vector)
            return context.get_dummy_value()

        return types.void(pointer, types.int64, types.int64, values, width), codegen

    @intrinsic
    def store(typingctx, pointer, index, value):
        """``pointer[index] = value`` for memory that the kernel does not read again: y."""

        def codegen(context, builder, signature, arguments):
            base, at, number = arguments
            number = context.cast(builder, number, signature.args[2], pointer.dtype)
            address = builder.gep(base, [at])
            if is_narrow(pointer):  # what _STAY is for, and the compiler knows this store
                store_number(context, builder, pointer, address, number)
            else:  # a complex number is aligned like its real part, so it takes two stores
                kind, parts = _stored(context, builder, pointer, [number])
                for k, part in enumerate(parts):
                    _pass_on(builder, address, kind, [part], k * kind.bitwidth // 8)
            return context.get_dummy_value()

        return types.void(pointer, types.int64, value), codegen

    @intrinsic
    def is_aligned(typingctx, pointer, bytes_):
        """Whether a pointer is a multiple of `bytes_`, a power of two known at compile time."""
        known = _literal(bytes_)
        if known is None:
            return None

        def codegen(context, builder, signature, arguments):
            address = builder.ptrtoint(arguments[0], ir.IntType(64))
            rest = builder.and_(address, _integer(known[0] - 1))
            return builder.icmp_unsigned("==", rest, _integer(0))

        return types.boolean(pointer, bytes_), codegen

    @intrinsic
    def elements_past(typingctx, pointer, index, bytes_):
        """Elements from the last multiple of `bytes_` in memory to ``pointer[index]``.

        `bytes_` is a power of two known at compile time, and an element is aligned to its own size.
        """
        known = _literal(bytes_)
        if known is None:
            return None
        size = stored_bytes(pointer)

        def codegen(context, builder, signature, arguments):
            base, index, _ = arguments
            address = builder.ptrtoint(builder.gep(base, [index]), ir.IntType(64))
            rest = builder.and_(address, _integer(known[0] - 1))
            return builder.lshr(rest, _integer(size.bit_length() - 1))

        return types.int64(pointer, types.int64, bytes_), codegen

    def _streaming(pointer, starts, count, width, *limit):
        known = _literal(count, width)
        if known is None:
            return None
        result = types.UniTuple(pointer.dtype, starts.count * known[0] * known[1])
        instruction = _STREAM if known[1] * stored_bytes(pointer) >= LOAD_BYTES else _AGAIN

        def codegen(context, builder, signature, arguments):
            base, starts_, index, step, _, _, *valid = arguments
            values = []
            for row in range(starts.count):
                start = builder.add(builder.extract_value(starts_, row), index)
                values += _vectors(
                    context, builder, pointer, base, start, step, known, instruction, *valid
                )
            return context.make_tuple(builder, result, values)

        return result(pointer, starts, types.int64, types.int64, count, width, *limit), codegen

    @intrinsic
    def stream_tile(typingctx, pointer, starts, index, step, count, width):
        """Load a tile of A: for each of `starts`, the vectors of ``load_vectors`` from there on.

        The tuple is flat, rows outermost. The loads do not settle in L1: A is read once.
        """
        return _streaming(pointer, starts, count, width)

    @intrinsic
    def stream_some(typingctx, pointer, starts, index, step, count, width, valid):
        """The same for the first `valid` vectors of each row; the others are zeros."""
        return _streaming(pointer, starts, count, width, types.int64)

    @intrinsic
    def stream_inside(typingctx, pointer, starts, index, width, limit):
        """For each of `starts` a vector, element by element: those from 0 on, below `limit`.

        Element l of a vector is ``pointer[index + start + l]`` where ``start + l`` is within these
        bounds, and zero, with nothing loaded, elsewhere: the ends of a line.
        """
        known = _literal(width)
        if known is None:
            return None
        result = types.UniTuple(pointer.dtype, starts.count * known[0])

        def codegen(context, builder, signature, arguments):
            base, starts_, index, _, limit = arguments
            values = []
            for start in _items(builder, starts_, starts.count):
                for lane in range(known[0]):
                    at = builder.add(start, _integer(lane))
                    # A negative number is a large one without its sign.
                    present = builder.icmp_unsigned("<", at, limit)
                    address = builder.gep(base, [builder.add(index, at)])
                    values += _load(context, builder, pointer, address, 1, _AGAIN, present)
            return context.make_tuple(builder, result, values)

        return result(pointer, starts, types.int64, width, types.int64), codegen

    @intrinsic
    def row_starts(typingctx, first, step, last, stride, rows):
        """``min(first + r*step, last) * stride`` for r below `rows`, a compile-time constant.

        A tile that hangs over the edge reads its last row again instead of memory behind it. Only
        the first row is found in 64 bits. How far the others are from it, ``(rows - 1) * step`` at
        most, fits 32, which take a third of the instructions.
        """
        known = _literal(rows)
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
            room = least(builder, builder.sub(last, first), _integer(2**30))
            room, step = builder.trunc(room, short), builder.trunc(step, short)
            for r in range(1, known[0]):
                away = least(builder, builder.mul(ir.Constant(short, r), step), room)
                starts.append(builder.add(starts[0], builder.mul(builder.zext(away, long), stride)))
            return context.make_tuple(builder, result, starts)

        sizes = (types.int64,) * 4
        return result(*sizes, rows), codegen

    def _gathering(pointer, count, width, *bounds):
        """`bounds` are the types of ``valid`` and of ``limit``, as far as there are such."""
        known = _literal(count, width)
        if known is None:
            return None
        count_, width_ = known
        result = types.UniTuple(pointer.dtype, count_ * width_)

        def codegen(context, builder, signature, arguments):
            base, index, step, _, increment, _, *bounds_ = arguments
            valid, limit = bounds_[:1], bounds_[1:]
            values, number = [], index
            start, far = builder.mul(index, increment), builder.mul(step, increment)
            for k in range(count_):
                at = start = builder.add(start, far) if k else start
                present = _present(builder, k, *valid)
                number = builder.add(number, step) if k and limit else number
                for lane in range(width_):
                    at = builder.add(at, increment) if lane else at
                    address = builder.gep(base, [at])
                    inside = present
                    if limit:
                        own = builder.add(number, _integer(lane)) if lane else number
                        inside = builder.and_(present, builder.icmp_signed("<", own, *limit))
                    values.append(
                        _single(context, builder, pointer, address, inside)
                        if valid
                        else load_number(context, builder, pointer, address)
                    )
            return context.make_tuple(builder, result, values)

        sizes = types.int64, types.int64, count, types.int64, width
        return result(pointer, *sizes, *bounds), codegen

    @intrinsic
    def gather(typingctx, pointer, index, step, count, increment, width):
        """`count` groups of `width` elements, `increment` apart, one load each: a flat tuple.

        Element l of group k is ``pointer[(index + k*step + l) * increment]``: what
        :func:`load_vectors` gives, for memory without unit stride or alignment.
        """
        return _gathering(pointer, count, width)

    @intrinsic
    def gather_some(typingctx, pointer, index, step, count, increment, width, valid):
        """The same for the first `valid` groups; the others are zeros, and nothing is loaded."""
        return _gathering(pointer, count, width, types.int64)

    @intrinsic
    def gather_inside(typingctx, pointer, index, step, count, increment, width, valid, limit):
        """The same, and of those only elements whose number, without `increment`, is below `limit`.

        The others are zeros, and nothing is loaded.
        """
        return _gathering(pointer, count, width, types.int64, types.int64)

    @intrinsic
    def spread(typingctx, factors, count, width, first, period):
        """Groups of `count` neighbours, each spread over `width` places, some next to each other.

        Place l of a group has number ``(first + l) // period`` of its neighbours, or the last.
        """
        known = _literal(count, width)
        if known is None:
            return None
        count_, width_ = known
        result = types.UniTuple(factors.dtype, factors.count // count_ * width_)

        def codegen(context, builder, signature, arguments):
            values, _, _, first, period = arguments
            values = _items(builder, values, factors.count)
            kind = ir.IntType(32)
            first, period = builder.trunc(first, kind), builder.trunc(period, kind)
            behind = []  # for each place, whether it is behind 1, 2, ... periods
            for lane in range(width_):
                at, limit, marks = builder.add(first, ir.Constant(kind, lane)), period, []
                for _ in range(1, count_):
                    marks.append(builder.icmp_unsigned(">=", at, limit))
                    limit = builder.add(limit, period)
                behind.append(marks)
            found = []
            for own in range(0, factors.count, count_):
                for marks in behind:
                    value = values[own]
                    for k, mark in enumerate(marks, 1):
                        value = builder.select(mark, values[own + k], value)
                    found.append(value)
            return context.make_tuple(builder, result, found)

        return result(factors, count, width, types.int64, types.int64), codegen

    @intrinsic
    def zeros(typingctx, zero, count):
        """A tuple of `count` zeros, to sum in."""
        known = _literal(count)
        if known is None:
            return None
        result = types.UniTuple(zero, known[0])

        def codegen(context, builder, signature, arguments):
            return context.make_tuple(builder, result, [arguments[0]] * known[0])

        return result(zero, count), codegen

    def _negative(builder, value):
        # NVVM's dialect has no negation; this is how it spells one, exact for zeros too.
        return builder.fsub(ir.Constant(value.type, -0.0), value)

    def _product_added(context, builder, element, total, value, factor, conjugate):
        """``total + op(value)*factor`` by explicit fused operations, four for a complex pair."""
        if isinstance(element, TwofoldType):
            return product_added(context, builder, element, total, value, factor, conjugate)
        if not isinstance(element, types.Complex):
            if value.type != total.type:  # no bit of the product is lost
                return builder.fadd(builder.fpext(builder.fmul(value, factor), total.type), total)
            return builder.fma(value, factor, total)
        number = context.make_complex(builder, element, value)
        factor = context.make_complex(builder, element, factor)
        total = context.make_complex(builder, element, total)
        imag = _negative(builder, number.imag) if conjugate else number.imag
        minus = _negative(builder, imag)
        real = builder.fma(number.real, factor.real, total.real)
        real = builder.fma(minus, factor.imag, real)
        other = builder.fma(number.real, factor.imag, total.imag)
        other = builder.fma(imag, factor.real, other)
        return _complex(context, builder, element, real, other)

    def _items(builder, value, count):
        return [builder.extract_value(value, k) for k in range(count)]

    @intrinsic
    def multiply_add(typingctx, sums, tile, x, conjugate):
        """Add a tile's products with `x` to `sums`: the *dot* side, memory along the sum.

        `tile` is rows of ``len(x)`` numbers, `sums` is rows of ``len(sums) / rows`` partial sums;
        product k of a row goes to partial sum ``k modulo`` that many, so that neighbours in a
        vector never wait for each other.
        """
        if _literal(conjugate) is None:
            return None
        element = sums.dtype
        rows = tile.count // x.count
        width = sums.count // rows

        def codegen(context, builder, signature, arguments):
            parts = _items(builder, arguments[0], sums.count)
            values = _items(builder, arguments[1], tile.count)
            factors = _items(builder, arguments[2], x.count)
            for row in range(rows):
                for k, factor in enumerate(factors):
                    at = row * width + k % width
                    parts[at] = _product_added(
                        context, builder, element, parts[at], values[row * x.count + k], factor,
                        conjugate.literal_value,
                    )  # fmt: skip
            return context.make_tuple(builder, sums, parts)

        return sums(sums, tile, x, conjugate), codegen

    @intrinsic
    def axpy_add(typingctx, sums, tile, x, width, conjugate):
        """Add a tile's products with `x` to `sums`: the *axpy* side, memory along y.

        `sums` is pieces of y of `width` neighbours each; `tile` has for each piece ``len(x)``
        columns of as many neighbours, and column k is multiplied by ``x[k]``.
        """
        known = _literal(width, conjugate)
        if known is None:
            return None
        width_, conjugate_ = known
        element = sums.dtype

        def codegen(context, builder, signature, arguments):
            parts = _items(builder, arguments[0], sums.count)
            values = _items(builder, arguments[1], tile.count)
            factors = _items(builder, arguments[2], x.count)
            for at in range(sums.count):
                piece, lane = divmod(at, width_)
                for k, factor in enumerate(factors):
                    value = values[(piece * x.count + k) * width_ + lane]
                    parts[at] = _product_added(
                        context, builder, element, parts[at], value, factor, conjugate_
                    )
            return context.make_tuple(builder, sums, parts)

        return sums(sums, tile, x, width, conjugate), codegen

    @intrinsic
    def put_pieces(typingctx, shared, row, column, values, distance, width):
        """Store pieces of `width` neighbours, `distance` apart, into a row of a shared array."""
        known = _literal(width)
        if known is None:
            return None
        width_ = known[0]

        def codegen(context, builder, signature, arguments):
            array, row, column, values_, distance = arguments[:5]
            view = context.make_array(shared)(context, builder, array)
            for at, value in enumerate(_items(builder, values_, values.count)):
                piece, lane = divmod(at, width_)
                place = builder.add(column, builder.mul(_integer(piece), distance))
                place = builder.add(place, _integer(lane))
                address = cgutils.get_item_pointer(
                    context, builder, shared, view, [row, place], wraparound=False
                )
                context.pack_value(builder, shared.dtype, value, address)
            return context.get_dummy_value()

        sizes = types.int64, types.int64, values, types.int64
        return types.void(shared, *sizes, width), codegen

    def _add(context, builder, element, left, right):
        if isinstance(element, TwofoldType):
            return added(context, builder, element, left, right)
        if not isinstance(element, types.Complex):
            return builder.fadd(left, right)
        left = context.make_complex(builder, element, left)
        right = context.make_complex(builder, element, right)
        real, imag = builder.fadd(left.real, right.real), builder.fadd(left.imag, right.imag)
        return _complex(context, builder, element, real, imag)

    def _exchanged(context, builder, element, value, step):
        """The value of lane ``lane ^ step``; 32 bits travel at a time."""
        if isinstance(element, TwofoldType):
            return exchanged(
                context, builder, element, value,
                lambda part: _exchanged(context, builder, element.real, part, step),
            )  # fmt: skip
        if isinstance(element, types.Complex):
            number = context.make_complex(builder, element, value)
            real = element.underlying_float
            return _complex(
                context, builder, element,
                _exchanged(context, builder, real, number.real, step),
                _exchanged(context, builder, real, number.imag, step),
            )  # fmt: skip
        word, whole = ir.IntType(32), ir.IntType(element.bitwidth)
        bits = builder.bitcast(value, whole)
        result = ir.Constant(whole, 0)
        for shift in range(0, element.bitwidth, 32):
            half = builder.trunc(builder.lshr(bits, ir.Constant(whole, shift)), word)
            half = builder.zext(_shuffled(builder, half, step), whole)
            result = builder.or_(result, builder.shl(half, ir.Constant(whole, shift)))
        return builder.bitcast(result, value.type)

    def _shuffled(builder, word, step):
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.LiteralStructType([i32, ir.IntType(1)]), [i32] * 5)
        # NVVM's own function, which no optimisation moves into a branch.
        shuffle = cgutils.get_or_insert_function(builder.module, kind, "llvm.nvvm.shfl.sync.i32")
        full_warp, butterfly_mode, last_lane = -1, 3, 31
        numbers = [ir.Constant(i32, n) for n in (full_warp, butterfly_mode, step, last_lane)]
        mask, mode, lanes, clamp = numbers
        return builder.extract_value(builder.call(shuffle, [mask, mode, word, lanes, clamp]), 0)

    @intrinsic
    def butterfly(typingctx, values, lanes, apart):
        """Each of `values` summed over the lanes of a group that are a multiple of `apart` apart.

        Groups are `lanes` neighbouring lanes; both numbers are powers of two up to 32, and every
        lane ends with its sum. All 32 lanes of the warp must come here together.
        """
        known = _literal(lanes, apart)
        if known is None:
            return None
        element = values.dtype

        def codegen(context, builder, signature, arguments):
            parts = _items(builder, arguments[0], values.count)
            step = known[0] // 2
            while step >= known[1]:
                parts = [
                    _add(context, builder, element, part,
                         _exchanged(context, builder, element, part, step))
                    for part in parts
                ]  # fmt: skip
                step //= 2
            return context.make_tuple(builder, values, parts)

        return values(values, lanes, apart), codegen

    @intrinsic
    def scatter_sums(typingctx, values, tid, width, lanes, apart):
        """What `butterfly` gives, bit for bit, but each lane ends with its share of the sums only.

        At each step two lanes divide the sums that they both have a part of: each sends the half
        that the other one keeps, until there are as many shares as :func:`shares` says of pieces of
        `width` sums. A lane of the warp whose number begins with the bits b, one for each time, has
        the b-th share.
        """
        known = _literal(width, lanes, apart)
        if known is None:
            return None
        element, (_, lanes_, apart_) = values.dtype, known
        least = values.count // shares(values.count, *known)
        result = types.UniTuple(element, least)

        def codegen(context, builder, signature, arguments):
            parts, tid = _items(builder, arguments[0], values.count), arguments[1]
            step = lanes_ // 2
            while step >= apart_:
                kept = sent = parts
                if len(parts) > least:
                    bit = builder.and_(tid, _integer(step))
                    upper = builder.icmp_unsigned("!=", bit, _integer(0))
                    half = len(parts) // 2
                    pairs = list(zip(parts[:half], parts[half:], strict=True))
                    kept = [builder.select(upper, high, low) for low, high in pairs]
                    sent = [builder.select(upper, low, high) for low, high in pairs]
                parts = [
                    _add(context, builder, element, mine,
                         _exchanged(context, builder, element, other, step))
                    for mine, other in zip(kept, sent, strict=True)
                ]  # fmt: skip
                step //= 2
            return context.make_tuple(builder, result, parts)

        return result(values, types.int64, width, lanes, apart), codegen

    @intrinsic
    def fold(typingctx, sums, rows):
        """One number for each of `rows` from its partial sums, halving their number pairwise."""
        known = _literal(rows)
        if known is None:
            return None
        element = sums.dtype
        width = sums.count // known[0]
        result = types.UniTuple(element, known[0])

        def codegen(context, builder, signature, arguments):
            values = _items(builder, arguments[0], sums.count)
            folded = []
            for row in range(known[0]):
                part = values[row * width : (row + 1) * width]
                while len(part) > 1:
                    half = len(part) // 2
                    part = [
                        _add(context, builder, element, part[k], part[k + half])
                        for k in range(half)
                    ]
                folded.append(part[0])
            return context.make_tuple(builder, result, folded)

        return result(sums, rows), codegen


__all__ = [
    "axpy_add",
    "butterfly",
    "elements_past",
    "fold",
    "gather",
    "gather_inside",
    "gather_some",
    "is_aligned",
    "load_back",
    "load_shifted",
    "load_some",
    "load_vectors",
    "multiply_add",
    "put_pieces",
    "row_starts",
    "scatter_sums",
    "spread",
    "store",
    "store_vectors",
    "stream_inside",
    "stream_some",
    "stream_tile",
    "zeros",
]
