"""Blocks of one cluster: their barrier, and loads from each other's shared memory."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic

from gemv.language.numba_cuda.arrivals import made_of, real_kinds
from gemv.language.numba_cuda.registers import literal_of

_WORD = ir.IntType(32)


@intrinsic
def cluster_rank(typingctx):
    """``%cluster_ctarank``."""

    def codegen(context, builder, signature, arguments):
        asm = ir.InlineAsm(ir.FunctionType(_WORD, []), "mov.u32 $0, %cluster_ctarank;", "=r")
        return builder.zext(builder.call(asm, []), ir.IntType(64))

    return types.int64(), codegen


def _barrier(builder, instruction):
    """Half of a barrier. "memory" keeps loads and stores on their side of it."""
    nothing = ir.FunctionType(ir.VoidType(), [])
    builder.call(ir.InlineAsm(nothing, f"{instruction};", "~{memory}", side_effect=True), [])


@intrinsic
def cluster_arrive(typingctx):
    """Not the ``.aligned`` form, which all lanes of a warp must reach together."""

    def codegen(context, builder, signature, arguments):
        _barrier(builder, "barrier.cluster.arrive.release")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def cluster_wait(typingctx):
    def codegen(context, builder, signature, arguments):
        _barrier(builder, "barrier.cluster.wait.acquire")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def cluster_load(typingctx, shared, rank, row, column, step, count):
    """``mapa`` once, then ``ld.shared::cluster`` for each real number of each element."""
    known = literal_of(count)
    if known is None:
        return None
    many = known[0]
    result = types.UniTuple(shared.dtype, many)

    def codegen(context, builder, signature, arguments):
        array, rank, row, column, step, _ = arguments
        view = context.make_array(shared)(context, builder, array)
        own = cgutils.get_item_pointer(
            context, builder, shared, view, [row, column], wraparound=False
        )
        in_shared = own.type.pointee.as_pointer(3)
        address = builder.ptrtoint(builder.addrspacecast(own, in_shared), _WORD)
        mapped = ir.InlineAsm(
            ir.FunctionType(_WORD, [_WORD, _WORD]), "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r"
        )
        first = builder.call(mapped, [address, builder.trunc(rank, _WORD)])
        kind = context.get_value_type(shared.dtype)
        kinds = real_kinds(kind)
        size = ir.Constant(_WORD, context.get_abi_sizeof(context.get_data_type(shared.dtype)))
        apart = builder.mul(builder.trunc(step, _WORD), size)
        numbers = []
        for k in range(many):
            at = builder.add(first, builder.mul(apart, ir.Constant(_WORD, k)))
            reals = [_load(builder, at, place, real) for place, real in enumerate(kinds)]
            numbers.append(made_of(builder, kind, iter(reals)))
        return context.make_tuple(builder, result, numbers)

    integer = types.int64
    return result(shared, integer, integer, integer, integer, count), codegen


def _load(builder, address, place, real):
    """Number `place` of those of type `real` at an address of the cluster's shared memory."""
    letter, bits = ("f", 32) if isinstance(real, ir.FloatType) else ("d", 64)
    asm = ir.InlineAsm(
        ir.FunctionType(real, [_WORD]),
        f"ld.shared::cluster.f{bits} $0, [$1+{place * bits // 8}];",
        f"={letter},r,~{{memory}}",
        side_effect=True,  # it stays between the barriers
    )
    return builder.call(asm, [address])
