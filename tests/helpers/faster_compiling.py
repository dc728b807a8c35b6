"""Shorter ways through Numba's compiler, for the processes of tests that compile many kernels."""

from __future__ import annotations

import functools
import operator

from numba.core.types.functions import BaseFunction
from numba.cuda.core import analysis, ir, ir_utils, postproc, transforms
from numba.cuda.core.targetconfig import TargetConfig


def compile_faster() -> None:
    """Take all of them. Call this once, before anything is compiled."""
    _compare_flags()
    _remember_signatures()
    _find_lives_by_bits()
    _list_variables_by_type()
    _look_at_lives_when_asked()


def _compare_flags() -> None:
    """Give Numba's flags the equality that they have, without a call for each of their options.

    They are in the key by which an overload is looked up, for each operation of a kernel.
    """

    def values(flags):
        kind = type(flags)
        if kind not in defaults:
            defaults[kind] = {name: option.default for name, option in kind.options.items()}
        return defaults[kind] | flags._values

    defaults: dict = {}
    TargetConfig.values = values
    # Numba sorts what `values` returns, which is the names alone.
    TargetConfig.__hash__ = lambda flags: hash(type(flags))


def _remember_signatures() -> None:
    """Find the signature of an operation on certain types once.

    Numba tries all declarations of an addition for each addition of a kernel; that was 28 % of the
    time of a compilation. A function's type has the same declarations as long as it lives.
    """
    find = BaseFunction.get_call_type

    def get_call_type(function, context, args, kws):
        known = vars(function).setdefault("known_signatures", {})
        asked = (context, tuple(args), tuple(kws.items()))
        if asked not in known:
            known[asked] = find(function, context, args, kws)
        return known[asked]

    BaseFunction.get_call_type = get_call_type


def _find_lives_by_bits() -> None:
    """Find which variables are alive where a block begins, with a bit for each of them.

    Numba has a set for each block, goes through all blocks until no set grows, and does so after
    most of its passes; that was 12 % of the time of a compilation. Sets that only grow end up the
    same in whatever order they do.
    """

    def compute_live_map(cfg, blocks, uses, definitions):
        names = list(set().union(*uses.values(), *definitions.values()))
        bit = {name: 1 << at for at, name in enumerate(names)}

        def bits(sets):
            return {at: functools.reduce(operator.or_, map(bit.get, sets[at]), 0) for at in sets}

        used, defined = bits(uses), bits(definitions)
        before = {at: [each for each, _ in cfg.predecessors(at)] for at in blocks}
        after = {at: [each for each, _ in cfg.successors(at)] for at in blocks}
        # what some way to the end of a block has defined or used
        reached = {at: used[at] | defined[at] for at in blocks}
        _spread(reached, after, lambda at, bits: bits)
        alive = dict(used)
        _spread(alive, before, lambda at, bits: bits & reached[at] & ~defined[at])
        return {at: {names[k] for k in _ones(alive[at])} for at in blocks}

    analysis.compute_live_map = compute_live_map


def _spread(bits, neighbours, passed):
    """Hand the bits of each block on to its neighbours, as ``passed(neighbour, bits)``."""
    waiting = list(bits)
    while waiting:
        own = waiting.pop()
        for each in neighbours[own]:
            new = bits[each] | passed(each, bits[own])
            if new != bits[each]:
                bits[each] = new
                waiting.append(each)


def _ones(bits):
    """The places of a number's ones."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _list_variables_by_type() -> None:
    """Tell variables, instructions and lists of them apart by a table of types.

    Numba asks for each value in turn which of four kinds it is an instance of, and lists those of a
    statement by a visit that may also replace them; that was 8 %.
    """

    def kind_of(kind):
        for name, types in (
            ("variable", ir.var_types), ("instruction", ir.inst_types),
            ("list", (list, tuple)), ("dict", dict),
        ):  # fmt: skip
            if issubclass(kind, types):
                return name
        return ""

    def listed(instruction, value):
        kind = kinds.get(type(value))
        if kind is None:
            kind = kinds[type(value)] = kind_of(type(value))
        if not kind:
            return []
        if kind == "variable":
            return [value]
        if kind == "instruction":
            return value.list_vars()
        found = []
        for each in value if kind == "list" else value.values():
            if kinds.get(type(each)) != "":
                found += listed(instruction, each)
        return found

    kinds: dict = {}
    ir.Inst._rec_list_vars = listed
    visited = ir_utils.compat_list_vars_stmt
    ir_utils.compat_list_vars_stmt = lambda statement: (
        visited(statement) if isinstance(statement, ir.del_types) else statement.list_vars()
    )


def _look_at_lives_when_asked() -> None:
    """Find where variables live only if somebody asks for it.

    Numba does so behind each of its passes, and generators alone need what it finds there.
    """
    run_whole = postproc.PostProcessor.run

    def run(processor, emit_dels=False, extend_lifetimes=False):
        function = processor.func_ir
        if emit_dels or function.is_generator:
            run_whole(processor, emit_dels, extend_lifetimes)
            return
        function.blocks = transforms.canonicalize_cfg(function.blocks)
        function.variable_lifetime = postproc.VariableLifetime(function.blocks)
        function.generator_info = None

    postproc.PostProcessor.run = run
