"""Shorter ways through Numba's compiler, for the processes of tests that compile many kernels."""

from __future__ import annotations

import collections
import functools
import operator
from types import SimpleNamespace

from numba import types
from numba.core.types.functions import BaseFunction
from numba.cuda import lowering
from numba.cuda.core import (
    analysis,
    base,
    errors,
    ir,
    ir_utils,
    postproc,
    ssa,
    transforms,
    typed_passes,
    typeinfer,
    untyped_passes,
)
from numba.cuda.core.targetconfig import TargetConfig


def compile_faster() -> None:
    """Take all of them. Call this once, before anything is compiled."""
    _compare_flags()
    _remember_signatures()
    _find_lives_by_bits()
    _list_variables_by_type()
    _look_at_lives_when_asked()
    _count_assignments()
    _look_into_each_scope_once()
    _rewrite_lists_and_strings_alone()
    _refresh_what_has_grown()
    _remember_sizes_and_parameters()
    _add_context_to_errors_alone()
    ssa._logger = SimpleNamespace(debug=lambda *text: None)  # which nobody reads


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
        for name, of_it in (
            ("variable", ir.var_types), ("instruction", ir.inst_types),
            ("list", (list, tuple)), ("dict", dict),
        ):  # fmt: skip
            if issubclass(kind, of_it):
                return name
        return ""

    def listed(instruction, value):
        found = []
        for each in value.values() if isinstance(value, dict) else value:
            kind = kinds.get(type(each))
            if kind is None:
                kind = kinds[type(each)] = kind_of(type(each))
            if kind == "variable":
                found.append(each)
            elif kind == "instruction":
                found += each.list_vars()
            elif kind:
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


def _count_assignments() -> None:
    """Find the variables that are assigned once by one look at each block.

    Numba goes through all of a block for each of its variables; that was 3 %.
    """

    def find(lower):
        lower._singly_assigned_vars, lower._blk_local_varmap = set(), {}
        if lower.func_ir.func_id.is_generator:
            return
        uses, definitions = analysis.compute_use_defs(lower.func_ir.blocks)
        used = set().union(*uses.values())
        blocks = collections.Counter(name for each in definitions.values() for name in each)
        assigned = collections.Counter(
            statement.target.name
            for block in lower.blocks.values()
            for statement in block.find_insts(ir.assign_types)
        )
        elsewhere = lowering.must_use_alloca(lower.func_ir.blocks)
        lower._singly_assigned_vars = {
            name
            for name in blocks
            if blocks[name] == assigned[name] == 1 and name not in used and name not in elsewhere
        }

    lowering.Lower._find_singly_assigned_variable = find


def _look_into_each_scope_once() -> None:
    """Define the variables of a function in each scope, and not in that of each block; 1 %."""

    def fixup_var_define_in_scope(blocks):
        variables = {
            each.name: each
            for block in blocks.values()
            for statement in block.body
            for each in statement.list_vars()
        }
        for scope in {id(block.scope): block.scope for block in blocks.values()}.values():
            for name in variables.keys() - scope.localvars._con.keys():
                scope.localvars.define(name, variables[name])

    for module in (ir_utils, untyped_passes):
        module.fixup_var_define_in_scope = fixup_var_define_in_scope


def _rewrite_lists_and_strings_alone() -> None:
    """Leave out the rewriting behind the types where there is nothing to rewrite.

    It looks for arrays that are made of lists, and for indices that are strings; that was 5 %.
    """
    run_whole = typed_passes.NopythonRewrites.run_pass
    rewritten = (types.List, types.UnicodeType, types.StringLiteral)

    def run_pass(rewrites, state):
        if any(isinstance(each, rewritten) for each in state.typemap.values()):
            return run_whole(rewrites, state)
        return True

    typed_passes.NopythonRewrites.run_pass = run_pass


def _refresh_what_has_grown() -> None:
    """Look for new declarations only if some list of declarations has become longer; 4 %."""
    refresh_whole = base.BaseContext.refresh

    def declared(context):
        """How many there are in each list of all registries."""
        return [
            len(getattr(registry, name))
            for each in (context, context.typing_context)
            for registry, loader in each._registries.items()
            for name in loader.registry_items
        ]

    def refresh(context):
        if known.get(context) != declared(context):
            refresh_whole(context)
            known[context] = declared(context)

    known: dict = {}
    base.BaseContext.refresh = refresh


def _remember_sizes_and_parameters() -> None:
    """Ask for the size of a type once, and for the parameters of a function; 3 %.

    LLVM parses a module of its own for the size. A type with a name may be another one elsewhere.
    """
    size_of = base.BaseContext.get_abi_sizeof

    def get_abi_sizeof(context, kind):
        text = str(kind)
        if "%" in text:
            return size_of(context, kind)
        if text not in sizes:
            sizes[text] = size_of(context, kind)
        return sizes[text]

    sizes: dict = {}
    base.BaseContext.get_abi_sizeof = get_abi_sizeof
    base._has_loc = functools.cache(base._has_loc)


def _add_context_to_errors_alone() -> None:
    """Enter a context without a generator: it stands around each operation of a kernel; 2 %."""

    class Context:
        __slots__ = ("text", "more", "named")

        def __init__(self, text, *more, **named):
            self.text, self.more, self.named = text, more, named

        def __enter__(self):
            where = self.named.get("loc")
            if where is not None and not where.filename.startswith(errors._numba_path):
                errors.loc_info.update(self.named)

        def __exit__(self, kind, error, traceback):
            if isinstance(error, errors.NumbaError):
                error.add_context(errors._format_msg(self.text, self.more, self.named))

    for module in (errors, lowering, typeinfer):
        module.new_error_context = Context
