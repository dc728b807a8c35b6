"""Blocks of one cluster: their barrier, and sums that they send to each other's shared memory.

The barrier of a cluster could also order the sums: that is what its ``.release`` and ``.acquire``
are for. But a release waits as a fence for the whole GPU does, which is what clusters are to save.
So sums are sent by ``st.async``. Such a store adds the number of its bytes to a counter beside the
sums once they are there, an ``mbarrier``, and whoever waits for that sees the sums. Neither end
needs a fence. The barrier of the cluster only says that all counters are ready, and everybody has
come to it long before anybody has a sum.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic

from gemv.language.numba_cuda.arrivals import reals_of
from gemv.language.numba_cuda.registers import items_of, literal_of

_WORD = ir.IntType(32)


def _do(builder, text, *inputs):
    """Instructions without a result; "memory" keeps the compiler's loads and stores in place."""
    function = ir.FunctionType(ir.VoidType(), [each.type for each, _ in inputs])
    letters = ",".join([*(letter for _, letter in inputs), "~{memory}"])
    asm = ir.InlineAsm(function, text, letters, side_effect=True)
    builder.call(asm, [each for each, _ in inputs])


def _word(value):
    return ir.Constant(_WORD, value)


def _address(context, builder, kind, array, *index):
    """Address of an element of an array within the shared memory of this block."""
    view = context.make_array(kind)(context, builder, array)
    own = cgutils.get_item_pointer(context, builder, kind, view, index, wraparound=False)
    in_shared = own.type.pointee.as_pointer(3)
    return builder.ptrtoint(builder.addrspacecast(own, in_shared), _WORD)


def _first(context, builder, kind, array):
    zero = ir.Constant(ir.IntType(64), 0)
    return _address(context, builder, kind, array, *[zero] * kind.ndim)


def _in_block(builder, address, rank):
    """The same address in the shared memory of block `rank` of the cluster."""
    asm = ir.InlineAsm(
        ir.FunctionType(_WORD, [_WORD, _WORD]), "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r"
    )
    return builder.call(asm, [address, rank])


def _bytes_of(context, element):
    return context.get_abi_sizeof(context.get_data_type(element))


@intrinsic
def cluster_rank(typingctx):
    """``%cluster_ctarank``."""

    def codegen(context, builder, signature, arguments):
        asm = ir.InlineAsm(ir.FunctionType(_WORD, []), "mov.u32 $0, %cluster_ctarank;", "=r")
        return builder.zext(builder.call(asm, []), ir.IntType(64))

    return types.int64(), codegen


@intrinsic
def cluster_arrive(typingctx):
    """Not the ``.aligned`` form, which all lanes of a warp must reach together."""

    def codegen(context, builder, signature, arguments):
        _do(builder, "barrier.cluster.arrive.relaxed;")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def cluster_wait(typingctx):
    def codegen(context, builder, signature, arguments):
        _do(builder, "barrier.cluster.wait;")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def cluster_expect(typingctx, box, shared, count):
    """The counter is complete when this thread has arrived, which it does, and all bytes have."""

    def codegen(context, builder, signature, arguments):
        at = _first(context, builder, box, arguments[0])
        count = builder.trunc(arguments[2], _WORD)
        expected = builder.mul(count, _word(_bytes_of(context, shared.dtype)))
        text = (
            "mbarrier.init.shared::cta.b64 [$0], 1; fence.mbarrier_init.release.cluster;"
            " mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
        )
        _do(builder, text, (at, "r"), (expected, "r"))
        return context.get_dummy_value()

    return types.void(box, shared, types.int64), codegen


@intrinsic
def cluster_post(typingctx, box, shared, slot, row, values, distance, width, each, limit):
    known = literal_of(width, each)
    if known is None:
        return None
    width_, each_ = known
    integer = types.int64

    def codegen(context, builder, signature, arguments):
        box_, array, slot, row, values_, distance, _, _, limit = arguments
        counter = _first(context, builder, box, box_)
        for k, value in enumerate(items_of(builder, values_, values.count)):
            piece, lane = (ir.Constant(ir.IntType(64), n) for n in divmod(k, width_))
            r = builder.add(builder.add(row, lane), builder.mul(piece, distance))
            sent = builder.zext(builder.icmp_signed("<", r, limit), _WORD)
            r = builder.trunc(r, _WORD)
            rank, place = builder.udiv(r, _word(each_)), builder.urem(r, _word(each_))
            own = _address(
                context, builder, shared, array, builder.zext(place, ir.IntType(64)), slot
            )
            target = _in_block(builder, own, rank)
            theirs = _in_block(builder, counter, rank)
            for at, real in enumerate(reals_of(builder, value)):
                _send(builder, target, at, real, theirs, sent)
        return context.get_dummy_value()

    sizes = integer, integer, values, integer
    return types.void(box, shared, *sizes, width, each, integer), codegen


def _send(builder, target, at, real, counter, sent):
    """Store real number `at` of a sum at `target` and count it, if `sent` is not 0."""
    letter, bits = ("f", 32) if isinstance(real.type, ir.FloatType) else ("d", 64)
    store = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f{bits}"
    text = f"{{ .reg .pred p; setp.ne.u32 p, $3, 0; @p {store} [$0+{at * bits // 8}], $1, [$2]; }}"
    _do(builder, text, (target, "r"), (real, letter), (counter, "r"), (sent, "r"))


@intrinsic
def cluster_take(typingctx, box):
    """The counter's first phase, number 0, is the only one."""

    def codegen(context, builder, signature, arguments):
        at = _first(context, builder, box, arguments[0])
        text = (
            "{ .reg .pred p; ask:"
            " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [$0], 0;"
            " @!p bra ask; }"
        )
        _do(builder, text, (at, "r"))
        return context.get_dummy_value()

    return types.void(box), codegen
