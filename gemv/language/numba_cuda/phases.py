"""Columns that begin anywhere: aligned loads around elements, and sums moved to their rows."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

from gemv.core.geometry import LOAD_BYTES
from gemv.language.numba_cuda.formats import stored_bytes
from gemv.language.numba_cuda.loads import STREAM, load
from gemv.language.numba_cuda.registers import integer_of, items_of, literal_of, present_at
from gemv.language.numba_cuda.sums import of_lane_number


@intrinsic
def stream_around(typingctx, pointer, index, step, count, width, valid):
    known = literal_of(count, width)
    if known is None:
        return None
    count_, width_ = known
    result = types.UniTuple(pointer.dtype, count_ * width_)

    def codegen(context, builder, signature, arguments):
        base, at, step, _, _, valid = arguments
        values = []
        for k in range(count_):
            at = builder.add(at, step) if k else at
            address = builder.gep(base, [at])
            whole = builder.and_(_number_of(builder, address), integer_of(-LOAD_BYTES))
            vector, present = builder.inttoptr(whole, address.type), present_at(builder, k, valid)
            values += load(context, builder, pointer, vector, width_, STREAM, present)
        return context.make_tuple(builder, result, values)

    return result(pointer, types.int64, types.int64, count, width, types.int64), codegen


@intrinsic
def sums_from(typingctx, sums, pointer, index, step, count, width):
    """Each bit of a phase takes one step, in which a select per sum moves all of them or none."""
    known = literal_of(count, width)
    if known is None:
        return None
    count_, width_ = known

    def codegen(context, builder, signature, arguments):
        pieces, base, at, step, _, _ = arguments
        pieces = items_of(builder, pieces, sums.count)
        word = ir.IntType(32)
        lane = builder.call(
            ir.InlineAsm(ir.FunctionType(word, []), "mov.u32 $0, %laneid;", "=r"), []
        )
        after = builder.and_(builder.add(lane, ir.Constant(word, 1)), ir.Constant(word, 31))
        values = []
        for k in range(count_):
            at = builder.add(at, step) if k else at
            address = builder.trunc(_number_of(builder, builder.gep(base, [at])), word)
            own = pieces[k * width_ : (k + 1) * width_]
            own = own + [
                of_lane_number(context, builder, sums.dtype, each, after) for each in own[:-1]
            ]
            bit = width_ // 2
            while bit:
                far = builder.and_(address, ir.Constant(word, bit * stored_bytes(pointer)))
                is_far = builder.icmp_unsigned("!=", far, ir.Constant(word, 0))
                own = [builder.select(is_far, own[e + bit], own[e]) for e in range(len(own) - bit)]
                bit //= 2
            values += own
        return context.make_tuple(builder, sums, values)

    return sums(sums, pointer, types.int64, types.int64, count, width), codegen


def _number_of(builder, address):
    return builder.ptrtoint(address, ir.IntType(64))
