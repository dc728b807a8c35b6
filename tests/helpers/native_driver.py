"""Stand-ins for the driver in machine code: they need no lock of the interpreter's, like it.

What a launch does is in words that tests read and write while it lasts.
"""

from __future__ import annotations

import ctypes

import numpy as np
from llvmlite import binding, ir

from gemv.driver import block as driver_block
from gemv.driver import machine

_WORD, _INT = ir.IntType(64), ir.IntType(32)

#: Words: how many launches there were; the thread of the last one, its stream, and the context that
#: was current; launches wait while HELD is not 0; what they answer; the context of each thread that
#: asks, and what making one current answers; what asking for a capture answers, and whether there
#: is one.
(
    LAUNCHES, THREAD, STREAM, CURRENT, HELD, STATUS, CONTEXT, REFUSED, ASKED, CAPTURING,
) = range(0, 80, 8)  # fmt: skip
WORDS = np.zeros(80, np.int64)


def _place(b, number):
    address = ir.Constant(_WORD, WORDS.ctypes.data + 8 * number)
    return b.inttoptr(address, _WORD.as_pointer())


def _function(module, name, arguments):
    function = ir.Function(module, ir.FunctionType(_INT, [_WORD] * arguments), name)
    return function, ir.IRBuilder(function.append_basic_block())


def _module():
    module = ir.Module("native_driver")
    current = ir.GlobalVariable(module, _WORD, "current", 0)
    current.initializer, current.linkage = ir.Constant(_WORD, 0), "internal"
    own = ctypes.cast(ctypes.CDLL(None).pthread_self, ctypes.c_void_p).value

    function, b = _function(module, "launch", 4)
    config, _, parameters, _ = function.args
    held = function.append_basic_block()
    b.branch(held)
    b.position_at_end(held)
    free = function.append_basic_block()
    waits = b.icmp_signed("!=", b.load_atomic(_place(b, HELD), "acquire", 8), ir.Constant(_WORD, 0))
    b.cbranch(waits, held, free)
    b.position_at_end(free)
    kind = ir.FunctionType(_WORD, []).as_pointer()
    thread = b.call(b.inttoptr(ir.Constant(_WORD, own), kind), [])
    b.store(thread, _place(b, THREAD))
    # The stream is the fifth word of a configuration.
    stream = b.load(b.inttoptr(b.add(config, ir.Constant(_WORD, 32)), _WORD.as_pointer()))
    b.store(stream, _place(b, STREAM))
    b.store(b.load(current), _place(b, CURRENT))
    # The kernel: add 1 to the word at the address that is its first parameter.
    first = b.load(b.inttoptr(parameters, _WORD.as_pointer()))
    target = b.load(b.inttoptr(first, _WORD.as_pointer()))
    one = ir.Constant(_WORD, 1)
    b.atomic_rmw("add", b.inttoptr(target, _WORD.as_pointer()), one, "acq_rel")
    b.atomic_rmw("add", _place(b, LAUNCHES), one, "acq_rel")
    b.ret(b.trunc(b.load(_place(b, STATUS)), _INT))

    function, b = _function(module, "context", 1)
    b.store(b.load(_place(b, CONTEXT)), b.inttoptr(function.args[0], _WORD.as_pointer()))
    b.ret(_INT(0))

    function, b = _function(module, "set_context", 1)
    b.store(function.args[0], current)
    b.ret(b.trunc(b.load(_place(b, REFUSED)), _INT))

    function, b = _function(module, "is_capturing", 2)
    capturing = b.trunc(b.load(_place(b, CAPTURING)), _INT)
    b.store(capturing, b.inttoptr(function.args[1], _INT.as_pointer()))
    b.ret(b.trunc(b.load(_place(b, ASKED)), _INT))
    return module


def keep(*objects):
    """Have them for as long as the process: threads that need no lock outlive the interpreter."""
    for each in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def made():
    """The machine code of a call with these stand-ins, and what has to live as long."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    parsed = binding.parse_assembly(str(_module()))
    parsed.verify()
    target = binding.Target.from_default_triple().create_target_machine(opt=2)
    engine = binding.create_mcjit_compiler(parsed, target)
    engine.finalize_object()
    at = {
        name: engine.get_function_address(name)
        for name in ("launch", "context", "set_context", "is_capturing")
    }
    driver = machine.Driver(
        at["launch"], 0, 0, at["is_capturing"], 0, at["context"], at["set_context"]
    )
    keep(engine, WORDS)
    return machine.machine.__wrapped__(driver), engine


def block(launches: int = 1):
    """A call of kernels, each of which adds 1 to the word at the address that is passed as `a`."""
    kernel = driver_block.Function(1, (1, 1, 1), (32, 1, 1), ("a",))
    return driver_block.Block([kernel] * launches, 4, 1, {}, 0, 0)
