"""The tools that machine code is written with: words, addresses, calls, loops; and its compiler.

LLVM has many types; here everything is a word of 64 bits, except the numbers alpha and beta.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir

from gemv.driver.block import ENTRIES, FRAME, PLACES, UNUSUAL, X_START, Y_START
from gemv.driver.image import TABLE

WORD, DOUBLE, FLOAT, INT = ir.IntType(64), ir.DoubleType(), ir.FloatType(), ir.IntType(32)


class Writer:
    """Writes one function: words in, a word out, and words for addresses too."""

    def __init__(self, module: ir.Module, name: str, arguments: int) -> None:
        self.function = ir.Function(module, ir.FunctionType(WORD, [WORD] * arguments), name)
        self.builder = ir.IRBuilder(self.function.append_basic_block())
        self.arguments = self.function.args
        self.module = module

    def entry(self, name: str) -> Any:
        """A word of the table of addresses: that of a C function, or of an object of Python's."""
        table = self.module.globals[TABLE]
        place = self.builder.gep(table, [self.word(0), self.word(ENTRIES.index(name))])
        return self.builder.load(place)

    def word(self, value: Any) -> Any:
        return ir.Constant(WORD, value) if isinstance(value, int) else value

    def at(self, address: Any, place: Any = 0) -> Any:
        """The address of a word so many words further on."""
        if isinstance(place, int):
            return self.builder.add(address, self.word(8 * place)) if place else address
        return self.builder.add(address, self.builder.shl(place, self.word(3)))

    def load(self, address: Any, place: Any = 0) -> Any:
        where = self.builder.inttoptr(self.at(address, place), WORD.as_pointer())
        return self.builder.load(where)

    def load_bytes(self, address: Any) -> Any:
        """A word from an address that is no multiple of 8."""
        where = self.builder.inttoptr(address, WORD.as_pointer())
        return self.builder.load(where, align=1)

    def load_published(self, address: Any) -> Any:
        """A word that another thread may write meanwhile, with all that it wrote before."""
        where = self.builder.inttoptr(address, WORD.as_pointer())
        return self.builder.load_atomic(where, "acquire", 8)

    def store_published(self, address: Any, value: Any) -> None:
        """A word that another thread may read; it then sees all that was written before."""
        where = self.builder.inttoptr(address, WORD.as_pointer())
        self.builder.store_atomic(self.word(value), where, "release", 8)

    def swap(self, address: Any, expected: Any, new: Any) -> Any:
        """Whether a word was as expected; it is the new one then, and no thread came between."""
        where = self.builder.inttoptr(address, WORD.as_pointer())
        pair = self.builder.cmpxchg(
            where, self.word(expected), self.word(new), "acq_rel", "monotonic"
        )
        return self.builder.extract_value(pair, 1)

    def add(self, address: Any, number: int) -> Any:
        """Add to a word that other threads add to as well; what it was before."""
        where = self.builder.inttoptr(address, WORD.as_pointer())
        return self.builder.atomic_rmw("add", where, self.word(number), "acq_rel")

    def rest(self) -> None:
        """What a thread that watches a word does between two looks, for others of its core."""
        if self.module.triple.startswith("x86_64"):
            name, numbers = "llvm.x86.sse2.pause", []
        elif self.module.triple.startswith("aarch64"):
            name, numbers = "llvm.aarch64.hint", [ir.Constant(INT, 1)]
        else:
            return
        function = self.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(ir.VoidType(), [INT] * len(numbers))
            function = ir.Function(self.module, kind, name)
        self.builder.call(function, numbers)

    def store(self, address: Any, place: Any, value: Any) -> None:
        value = self.word(value)
        where = self.builder.inttoptr(self.at(address, place), value.type.as_pointer())
        self.builder.store(value, where)

    def call(self, function: Any, *arguments: Any, result: Any = WORD) -> Any:
        """Call a C function by its name in the table or by its address; an int comes as a word."""
        kind = ir.FunctionType(result, [WORD] * len(arguments)).as_pointer()
        address = self.entry(function) if isinstance(function, str) else function
        pointer = self.builder.inttoptr(address, kind)
        answer = self.builder.call(pointer, [self.word(each) for each in arguments])
        return self.builder.sext(answer, WORD) if result is INT else answer

    def own(self, function: Writer, *arguments: Any) -> Any:
        """Call a function that was written before."""
        return self.builder.call(function.function, [self.word(each) for each in arguments])

    def same(self, left: Any, right: Any) -> Any:
        return self.builder.icmp_signed("==", left, self.word(right))

    def less(self, left: Any, right: Any) -> Any:
        return self.builder.icmp_signed("<", self.word(left), self.word(right))

    def frame(self) -> Any:
        """Words on the stack."""
        words = self.builder.alloca(ir.ArrayType(WORD, FRAME))
        return self.builder.ptrtoint(words, WORD)

    def repeat(self, count: Any) -> Any:
        """``with repeat(count) as k``: the body for ``0 <= k < count``; there is one time at least.

        What is required in it leaves the function, as everywhere.
        """
        return _Loop(self, count)

    def require(self, condition: Any, clear: bool = False) -> None:
        """Return :data:`UNUSUAL` unless this holds, and forget Python's exception if there is."""
        with self.builder.if_then(self.builder.not_(condition), likely=False):
            if clear:
                self.call("PyErr_Clear", result=ir.VoidType())
            self.builder.ret(self.word(UNUSUAL))

    def give(self, value: Any) -> None:
        self.builder.ret(self.word(value))


class _Loop:
    def __init__(self, writer: Writer, count: Any) -> None:
        self.writer, self.count = writer, count

    def __enter__(self) -> Any:
        builder = self.writer.builder
        before = builder.block
        self.body = self.writer.function.append_basic_block()
        builder.branch(self.body)
        builder.position_at_end(self.body)
        self.k = builder.phi(WORD)
        self.k.add_incoming(self.writer.word(0), before)
        return self.k

    def __exit__(self, *error: object) -> None:
        builder = self.writer.builder
        following = builder.add(self.k, self.writer.word(1))
        self.k.add_incoming(following, builder.block)
        after = self.writer.function.append_basic_block()
        builder.cbranch(self.writer.less(following, self.count), self.body, after)
        builder.position_at_end(after)


def words(f: Writer, arguments: Any, place: int) -> Any:
    """An argument that is an int of Python's."""
    return f.call("PyLong_AsUnsignedLongLongMask", f.load(arguments, place))


def addresses(f: Writer, block: Any, values: Any, a: Any, x: Any, y: Any) -> None:
    f.store(values, PLACES["a"], a)
    f.store(values, PLACES["x"], f.builder.add(x, f.load(block, X_START)))
    f.store(values, PLACES["y"], f.builder.add(y, f.load(block, Y_START)))


def new_module() -> ir.Module:
    """A module without functions, for this kind of machine."""
    module = ir.Module("gemv")
    module.triple = target().triple
    return module


@functools.cache
def target() -> binding.Target:
    """The kind of machine that this process runs on."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple()


def _parsed(module: ir.Module) -> binding.ModuleRef:
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    return parsed


def object_file(module: ir.Module) -> bytes:
    """The functions as an object file, for any processor of this kind and at any address."""
    machine = target().create_target_machine(opt=2, reloc="pic", codemodel="small")
    return bytes(machine.emit_object(_parsed(module)))


def in_place(module: ir.Module) -> tuple[Any, Callable[[str], int]]:
    """The functions in the memory of this process: what holds them, and the address of a name."""
    machine = target().create_target_machine(opt=2)
    engine = binding.create_mcjit_compiler(_parsed(module), machine)
    engine.finalize_object()
    return engine, engine.get_function_address
