"""Votes of a warp, as instructions."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic

#: The vote that is true if the condition of any lane is.
_ANY = 1


def _vote(condition):
    """``vote.sync.any``: the machine keeps its result in a register that the lanes share."""
    if not isinstance(condition, types.Boolean):
        return None

    def codegen(context, builder, signature, arguments):
        word, bit = ir.IntType(32), ir.IntType(1)
        kind = ir.FunctionType(ir.LiteralStructType([word, bit]), [word, word, bit])
        vote = cgutils.get_or_insert_function(builder.module, kind, "llvm.nvvm.vote.sync")
        full_warp, any_ = ir.Constant(word, -1), ir.Constant(word, _ANY)
        return builder.extract_value(builder.call(vote, [full_warp, any_, arguments[0]]), 1)

    return types.boolean(condition), codegen


@intrinsic
def of_warp(typingctx, condition):
    return _vote(condition)


@intrinsic
def any_of_warp(typingctx, condition):
    return _vote(condition)
