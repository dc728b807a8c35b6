"""The machine code of the last step, written as LLVM's intermediate representation.

Nothing in it depends on the process: it finds the driver's and Python's functions through a table
of addresses that lies beside it and is filled in when it is loaded, so that it can be kept on disk.
"""

from __future__ import annotations

from llvmlite import ir

from gemv.driver import deputy_ir, handler_ir
from gemv.driver.block import (
    ALIGNMENTS,
    ATTRIBUTES,
    BLOCK,
    CODES,
    CONFIG,
    COUNT,
    CURRENT_STREAM,
    DESCRIBE,
    ENTRIES,
    FUNCTION,
    HEAD,
    MAX_PARAMETERS,
    OPERAND_WORDS,
    OPERANDS,
    PARAMETERS,
    PLACES,
    REAL,
    SPANS,
    STEP,
    UNUSUAL,
    VALUES,
    WITH_OLD_Y,
)
from gemv.driver.image import TABLE, TABLE_AT
from gemv.driver.machine_writer import (
    DOUBLE,
    FLOAT,
    INT,
    WORD,
    Writer,
    addresses,
    new_module,
    words,
)


def write_real(module: ir.Module) -> Writer:
    """``real(block, place, object)``: put a number where the kernel finds it, as it wants it."""
    f = Writer(module, "real", 3)
    block, place, obj = f.arguments
    b = f.builder
    value = f.call("PyFloat_AsDouble", obj, result=DOUBLE)
    with b.if_then(b.fcmp_ordered("==", value, ir.Constant(DOUBLE, -1.0)), likely=False):
        f.require(f.same(f.call("PyErr_Occurred"), 0), clear=True)
    with b.if_else(f.same(f.load(block, REAL), 8)) as (double, single):
        with double:
            f.store(place, 0, value)
        with single:
            short = b.fptrunc(value, FLOAT)
            f.store(place, 0, short)
            # The long way has a word to say about a number that becomes infinite.
            back, infinity = b.fpext(short, DOUBLE), float("inf")
            changed = b.fcmp_unordered("!=", back, value)
            for limit in (infinity, -infinity):
                b_limit = b.fcmp_ordered("==", back, ir.Constant(DOUBLE, limit))
                f.require(b.not_(b.and_(changed, b_limit)))
    f.give(0)
    return f


def write_launch(module: ir.Module) -> Writer:
    """``launch_block(block, values, stream)``: launch with the values on the stack; the status.

    The interpreter's lock is neither needed nor touched.
    """
    f = Writer(module, "launch_block", 3)
    block, values, stream = f.arguments
    b = f.builder
    pointers, config = f.at(values, VALUES), f.at(values, VALUES + MAX_PARAMETERS)
    status = b.alloca(WORD)
    b.store(f.word(0), status)
    with f.repeat(f.load(block, COUNT)) as number:
        here = f.at(block, b.add(b.mul(number, f.word(STEP)), f.word(HEAD)))
        with f.repeat(f.load(here, PARAMETERS)) as k:
            code = f.load(f.at(here, k), CODES)
            dynamic = f.less(code, 16)
            f.store(f.at(pointers, k), 0, b.select(dynamic, f.at(values, code), code))
        for k in range(4):
            f.store(config, k, f.load(here, CONFIG + k))
        f.store(config, 4, stream)
        f.store(config, 5, f.load(here, ATTRIBUTES))
        f.store(config, 6, f.load(here, ATTRIBUTES + 1))
        # The second of two is not worth a try where the first one failed.
        with b.if_then(f.same(b.load(status), 0)):
            function = f.load(here, FUNCTION)
            b.store(f.call("launch", config, function, pointers, 0, result=INT), status)
    f.give(b.load(status))
    return f


def write_matches(module: ir.Module) -> Writer:
    """``matches(describe, tensor, expected, alignment, scratch)``: its address, or UNUSUAL.

    An alignment of -1 stands for any. The places are those of DLPack's tensor: data, device, rank
    and dtype, lengths, strides and an offset in bytes.
    """
    f = Writer(module, "matches", 5)
    describe, tensor, expected, alignment, scratch = f.arguments
    b = f.builder
    # The exporter's exception is dropped: the long way finds a better text.
    f.require(f.same(f.call(describe, tensor, scratch, result=INT), 0), clear=True)
    f.require(f.same(f.load(scratch, 1), f.load(expected, 0)))
    f.require(f.same(f.load(scratch, 2), f.load(expected, 1)))
    lengths, strides = f.load(scratch, 3), f.load(scratch, 4)
    with f.repeat(b.and_(f.load(scratch, 2), f.word(0xFFFFFFFF))) as axis:
        place = f.at(f.at(expected, axis), axis)
        f.require(f.same(f.load(f.at(lengths, axis)), f.load(place, 2)))
        f.require(f.same(f.load(f.at(strides, axis)), f.load(place, 3)))
    address = b.add(f.load(scratch), f.load(scratch, 5))
    f.require(f.less(f.word(0), address))  # a tensor whose memory was freed has address 0
    aligned = f.same(b.and_(address, f.word(15)), alignment)
    f.require(b.or_(aligned, f.same(alignment, -1)))
    f.give(address)
    return f


def write_describe(module: ir.Module) -> Writer:
    """``describe(self, (describe, tensor, target), count)``: what matches compares later."""
    f = Writer(module, "describe", 3)
    arguments = f.arguments[1]
    b = f.builder
    function, tensor = words(f, arguments, 0), f.load(arguments, 1)
    target = words(f, arguments, 2)
    scratch = f.frame()
    result = b.alloca(WORD)
    b.store(f.word(UNUSUAL), result)
    failed = f.call(function, tensor, scratch, result=INT)
    with b.if_else(f.same(failed, 0)) as (described, not_described):
        with described:
            rank = b.and_(f.load(scratch, 2), f.word(0xFFFFFFFF))
            few = b.and_(f.less(rank, 3), f.less(f.word(0), rank))
            with b.if_then(few):
                f.store(target, 0, f.load(scratch, 1))
                f.store(target, 1, f.load(scratch, 2))
                lengths, strides = f.load(scratch, 3), f.load(scratch, 4)
                with f.repeat(rank) as axis:
                    place = f.at(f.at(target, axis), axis)
                    f.store(place, 2, f.load(f.at(lengths, axis)))
                    f.store(place, 3, f.load(f.at(strides, axis)))
                b.store(b.add(f.load(scratch), f.load(scratch, 5)), result)
        with not_described:
            f.call("PyErr_Clear", result=ir.VoidType())
    f.give(f.call("PyLong_FromLongLong", b.load(result)))
    return f


def _write_enqueue(module: ir.Module, name: str, real: Writer, submit: Writer) -> Writer:
    """The launch of a block at addresses, with two numbers or the four parts of complex ones."""
    parts = 2 if name.endswith("complex") else 1
    f = Writer(module, f"{name}words", 2)
    arguments, count = f.arguments
    b = f.builder
    values = f.frame()
    block, stream, a, x, y = (words(f, arguments, place) for place in range(5))
    addresses(f, block, values, a, x, y)
    for number, first in enumerate((PLACES["alpha"], PLACES["beta"])):
        for part in range(parts):
            obj = f.load(arguments, 5 + parts * number + part)
            f.require(f.same(f.own(real, block, f.at(values, first + part), obj), 0))
    extra = 5 + 2 * parts
    with b.if_then(f.less(f.word(extra), count)):
        f.store(values, PLACES["scratch"], words(f, arguments, extra))
        f.store(values, PLACES["counters"], words(f, arguments, extra + 1))
    f.give(f.own(submit, block, values, stream))
    return _wrap(module, name, f)


def _write_enqueue_tensors(
    module: ir.Module, real: Writer, submit: Writer, matches: Writer
) -> Writer:
    """The launch of an expectation's block on three tensors, if they are as expected.

    With a fourth one, the old y, it is the block that reads it.
    """
    f = Writer(module, "enqueue_tensors_words", 2)
    arguments, count = f.arguments
    b = f.builder
    values = f.frame()
    scratch = f.at(values, VALUES)
    expected = words(f, arguments, 0)
    block_at = b.alloca(WORD)
    b.store(f.load(expected, BLOCK), block_at)
    found = []
    for place in range(3):
        a_tensor = f.own(
            matches, f.load(expected, DESCRIBE), f.load(arguments, 1 + place),
            f.at(expected, OPERANDS + OPERAND_WORDS * place),
            f.load(expected, ALIGNMENTS + place), scratch,
        )  # fmt: skip
        f.require(f.less(f.word(-1), a_tensor))
        found.append(a_tensor)
    a, x, y = found
    spans = [f.load(expected, SPANS + k) for k in range(6)]
    low, high = b.add(y, spans[0]), b.add(y, spans[1])
    for other, first, last in ((x, *spans[2:4]), (a, *spans[4:6])):
        overlap = b.and_(f.less(low, b.add(other, last)), f.less(b.add(other, first), high))
        f.require(b.not_(overlap))
    with b.if_then(f.less(f.word(7), count)):
        of_y = f.at(expected, OPERANDS + OPERAND_WORDS * 2)
        old = f.own(
            matches, f.load(expected, DESCRIBE), f.load(arguments, 7), of_y, f.word(-1), scratch
        )
        f.require(f.less(f.word(-1), old))
        # It may lie anywhere, as long as each element is aligned. The rank takes 32 bits and the
        # kind of number 8, and then comes how many bits an element has.
        itemsize = b.and_(b.lshr(f.load(of_y, 1), f.word(32 + 8 + 3)), f.word(0x1F))
        f.require(f.same(b.and_(old, b.sub(itemsize, f.word(1))), 0))
        f.store(values, PLACES["old"], old)
        b.store(f.load(expected, WITH_OLD_Y), block_at)
        f.require(b.not_(f.same(b.load(block_at), 0)))
    block = b.load(block_at)
    addresses(f, block, values, a, x, y)
    for place, number in ((5, "alpha"), (6, "beta")):
        at = f.at(values, PLACES[number])
        f.require(f.same(f.own(real, block, at, f.load(arguments, place)), 0))
    handle = b.alloca(WORD)
    stream = f.load(arguments, 4)
    with b.if_else(f.same(stream, f.entry("None"))) as (current, named):
        with current:
            device = f.load(expected, OPERANDS)
            kind, index = b.and_(device, f.word(0xFFFFFFFF)), b.lshr(device, f.word(32))
            ask = f.load(expected, CURRENT_STREAM)
            f.require(f.same(f.call(ask, kind, index, scratch, result=INT), 0), clear=True)
            b.store(f.load(scratch), handle)
        with named:
            b.store(words(f, arguments, 4), handle)
    f.give(f.own(submit, block, values, b.load(handle)))
    return _wrap(module, "enqueue_tensors", f)


def _wrap(module: ir.Module, name: str, words: Writer) -> Writer:
    """The function that the interpreter calls: arguments in an array, an int object back."""
    f = Writer(module, name, 3)
    _, arguments, count = f.arguments
    f.give(f.call("PyLong_FromLongLong", f.own(words, arguments, count)))
    return f


def _write_allocate(module: ir.Module) -> None:
    f = Writer(module, "allocate_words", 2)
    arguments, _ = f.arguments
    pool, stream, nbytes = (words(f, arguments, place) for place in range(3))
    address = f.frame()
    f.store(address, 0, 0)
    f.call("allocate", address, nbytes, pool, stream, result=INT)
    f.give(f.load(address))
    _wrap(module, "allocate", f)


def _write_give_back(module: ir.Module) -> None:
    f = Writer(module, "give_back_words", 2)
    arguments, _ = f.arguments
    b = f.builder
    address, stream, device = (words(f, arguments, place) for place in range(3))
    answer = f.frame()
    # Only to ask does no harm, whatever is being captured.
    f.require(f.same(f.call("is_capturing", stream, answer, result=INT), 0))
    f.require(f.same(f.call("current_device", answer, result=INT), 0))
    current = b.and_(f.load(answer), f.word(0xFFFFFFFF))
    f.require(f.same(current, device))
    f.give(f.call("free", address, stream, result=INT))
    _wrap(module, "give_back", f)


def module() -> ir.Module:
    """All functions of the last step."""
    module = new_module()
    table = ir.GlobalVariable(module, ir.ArrayType(WORD, len(ENTRIES)), TABLE)
    table.initializer = ir.Constant(table.value_type, [0] * len(ENTRIES))
    table.linkage = "internal"  # so that code finds it by its distance
    where = Writer(module, TABLE_AT, 0)
    where.give(where.builder.ptrtoint(table, WORD))
    real, launch = write_real(module), write_launch(module)
    submit = deputy_ir.write_submit(module, launch)
    matches = write_matches(module)
    _write_enqueue(module, "enqueue", real, submit)
    _write_enqueue(module, "enqueue_complex", real, submit)
    _write_enqueue_tensors(module, real, submit, matches)
    write_describe(module)
    _write_allocate(module)
    _write_give_back(module)
    handler_ir.write_handler(module, launch)
    _wrap(module, "publish", handler_ir.write_publish(module))
    return module
