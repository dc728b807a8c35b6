"""The machine code that XLA calls for a product: a call that was made before needs no Python.

A handler of XLA's gets the address of a frame, laid down in ``xla/ffi/api/c_api.h``. If a frame is
like one of :mod:`gemv.driver.known_frames`, its kernel is launched on XLA's stream, in a thread of
XLA's that does not hold the interpreter's lock. Any other goes to the handler in Python, which
remembers it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from gemv.driver.block import PLACES, UNUSUAL
from gemv.driver.known_frames import (
    ANY,
    BLOCK,
    CHAINS,
    COMPARED,
    DEVICE,
    FIRST_VALUE,
    HEADS,
    LENGTH,
    NEXT,
    PYTHON,
    STREAM,
    TEXT,
    TICKETS,
    TRACES,
    VALUES,
)
from gemv.driver.machine_writer import INT, WORD, Writer, addresses, words
from gemv.driver.tickets import ALPHA, LINE, TAKEN

#: The stage in which a product is computed.
_EXECUTE = 3
#: Words of a frame: an extension, XLA's functions, its context and the stage; how many arguments,
#: results and attributes there are, and where.
_EXTENSION, _API, _CONTEXT, _STAGE = 1, 2, 3, 4
_ARGUMENTS, _RESULTS, _ATTRIBUTES = (7, 9), (12, 14), (17, 20)
#: Words of a buffer.
_DTYPE, _DATA, _RANK, _DIMS = 2, 3, 4, 5
#: How many arguments there are: A and x; alpha, where it lies in memory; beta and the old y. With a
#: ticket in place of the numbers there are A, x and the ticket; the old y.
_PLAIN, _SCALED, _BLENDED = 2, 3, 5
_TICKET, _TICKET_AND_Y = 3, 4
#: How the text of a batch begins: one word.
OF_BATCHES = b'["batch"'
#: XLA's number of the dtype of tickets, which no number has: int32.
TICKET_DTYPE = 4
#: The place of XLA's function that tells the stream, and its argument: size, extension, context,
#: stream.
_STREAM_GET, _ASKED_WORDS = 10, 4
_HALF = 0xFFFFFFFF


def write_handler(module: ir.Module, launch: Writer) -> None:
    """``handler(frame)``: 0 or an error of XLA's; and ``publish(place, address)``, by Python.

    ``launch(block, values, stream)`` is the launch of a block, without the interpreter's lock.
    """
    again = _write_again(module, _write_fits(module), _write_line(module), launch)
    f = Writer(module, "handler", 1)
    (frame,) = f.arguments
    with f.builder.if_then(f.same(f.own(again, frame), 0)):
        f.give(0)
    f.give(f.call(f.load(f.entry("frames"), PYTHON), frame))


def _write_fits(module: ir.Module) -> Writer:
    """``fits(entry, key, text, stream)``: 0 if an entry is that of these words and this text.

    And of this stream, if it is that of one.
    """
    f = Writer(module, "fits", 4)
    entry, key, text, stream = f.arguments
    b, found = f.builder, f.frame()
    with f.repeat(f.word(COMPARED)) as k:
        f.require(f.same(f.load(f.at(entry, k), DEVICE), f.load(f.at(key, k))))
    own, length = f.load(entry, TEXT), f.load(entry, LENGTH)
    # Whole words, and then the last eight bytes once more.
    with f.repeat(b.lshr(length, f.word(3))) as k:
        f.require(f.same(f.load_bytes(f.at(own, k)), f.load_bytes(f.at(text, k))))
    last = b.sub(length, f.word(8))
    f.require(f.same(f.load_bytes(b.add(own, last)), f.load_bytes(b.add(text, last))))
    only = f.load(entry, STREAM)
    with b.if_then(b.not_(f.same(only, ANY))):
        # In a capture Python takes other memory, and to ask for the stream's number would end it.
        f.store(found, 0, 0)
        f.require(f.same(f.call("is_capturing", stream, found, result=INT), 0))
        f.require(f.same(f.load(found), 0))
        # Another one may have its handle by now.
        f.require(f.same(f.call("stream_id", stream, found, result=INT), 0))
        f.require(f.same(f.load(found), only))
    f.give(0)
    return f


def _write_line(module: ir.Module) -> Writer:
    """``line_of_ticket(address)``: where its line is, or 0."""
    f = Writer(module, "line_of_ticket", 1)
    (address,) = f.arguments
    b = f.builder
    found = b.alloca(WORD)
    b.store(f.word(0), found)
    table = f.load(f.entry("frames"), TICKETS)
    with f.repeat(f.load(table)) as k:
        line = f.at(table, b.mul(b.add(k, f.word(1)), f.word(LINE)))
        with b.if_then(f.same(f.load(line), address)):
            b.store(line, found)
    f.give(b.load(found))
    return f


def _write_again(module: ir.Module, fits: Writer, line_of: Writer, launch: Writer) -> Writer:
    """``again(frame)``: 0 if its product was launched."""
    f = Writer(module, "again", 1)
    (frame,) = f.arguments
    b = f.builder
    values, scratch, line_at = f.frame(), f.frame(), b.alloca(WORD)
    b.store(f.word(0), line_at)
    key, asked = scratch, f.at(scratch, COMPARED)
    state = f.entry("frames")
    f.require(f.same(f.load(frame, _EXTENSION), 0))
    f.require(f.same(b.and_(f.load(frame, _STAGE), f.word(_HALF)), _EXECUTE))
    f.require(f.same(f.load(f.load(state, TRACES)), 0))  # a trace is written in Python
    for (count, _), expected in ((_RESULTS, 1), (_ATTRIBUTES, 1)):
        f.require(f.same(f.load(frame, count), expected))
    given = f.load(frame, _ARGUMENTS[0])
    three, blended, ticket_and_y = (
        f.same(given, count) for count in (_SCALED, _BLENDED, _TICKET_AND_Y)
    )
    f.require(b.or_(f.same(given, _PLAIN), b.or_(three, b.or_(ticket_and_y, blended))))
    arguments, results = f.load(frame, _ARGUMENTS[1]), f.load(frame, _RESULTS[1])
    a, x, y = f.load(arguments), f.load(arguments, 1), f.load(results)
    with b.if_then(b.or_(three, ticket_and_y)):
        third = f.load(arguments, 2)
        is_ticket = f.same(b.and_(f.load(third, _DTYPE), f.word(_HALF)), TICKET_DTYPE)
        f.require(b.or_(three, is_ticket))
        with b.if_then(is_ticket):
            line = f.own(line_of, f.load(third, _DATA))
            f.require(b.not_(f.same(line, 0)))
            b.store(line, line_at)
    line = b.load(line_at)
    ticketed = b.not_(f.same(line, 0))
    scaled = b.and_(three, b.not_(ticketed))
    a_rank = f.load(a, _RANK)
    span = f.load(f.load(frame, _ATTRIBUTES[1]))
    text, length = f.load(span), f.load(span, 1)
    # With a ticket the text has all lengths, and so has that of a batch.
    alone = b.and_(f.same(a_rank, 2), f.same(f.load(x, _RANK), 1))
    with b.if_then(b.not_(b.or_(ticketed, alone))):
        f.require(f.less(f.word(len(OF_BATCHES) - 1), length))
        f.require(f.same(f.load_bytes(text), int.from_bytes(OF_BATCHES, "little")))
    a_at, x_at, y_at = (f.load(buffer, _DATA) for buffer in (a, x, y))
    aligned = [b.and_(at, f.word(15)) for at in (a_at, x_at, y_at)]
    dims = f.load(a, _DIMS)
    last = f.at(dims, b.sub(a_rank, f.word(2)))
    rows, cols = f.load(last), f.load(last, 1)
    f.store(key, 0, 0)
    f.require(f.same(f.call("current_device", key, result=INT), 0))
    a_dtype, y_dtype = (b.and_(f.load(each, _DTYPE), f.word(_HALF)) for each in (a, y))
    y_aligned = b.shl(aligned[2], f.word(16))
    x_aligned = b.shl(aligned[1], f.word(8))
    for place, value in enumerate(
        (
            rows, cols, b.or_(a_dtype, b.shl(y_dtype, f.word(32))),
            b.or_(aligned[0], b.or_(x_aligned, y_aligned)), length,
        ),
        1,
    ):  # fmt: skip
        f.store(key, place, value)
    chain = b.xor(b.xor(rows, b.shl(cols, f.word(3))), aligned[0])
    chain = b.and_(chain, f.word(HEADS - 1))
    for place, value in enumerate((f.word(8 * _ASKED_WORDS), 0, f.load(frame, _CONTEXT), 0)):
        f.store(asked, place, value)
    ask = f.load(f.load(frame, _API), _STREAM_GET)
    f.require(f.same(f.call(ask, asked), 0))
    stream = f.load(asked, 3)
    entry = _found(f, fits, f.at(f.at(state, chain), CHAINS), (key, text, stream))
    block = f.load(entry, BLOCK)
    for place in range(FIRST_VALUE, PLACES["counters"] + 1):
        f.store(values, place, f.load(entry, VALUES + place - FIRST_VALUE))
    # The options tell how many arguments there are, so the entry is one of as many.
    with b.if_then(b.or_(scaled, blended)):
        f.store(values, PLACES["alpha_pointer"], f.load(f.load(arguments, 2), _DATA))
    with b.if_then(blended):
        f.store(values, PLACES["beta_pointer"], f.load(f.load(arguments, 3), _DATA))
        f.require(f.same(f.load(f.load(arguments, 4), _DATA), y_at))  # y is blended in place
    with b.if_then(ticketed):
        for place in range(PLACES["beta"] + 2 - PLACES["alpha"]):
            f.store(values, PLACES["alpha"] + place, f.load(line, ALPHA + place))
    with b.if_then(ticket_and_y):
        f.require(f.same(f.load(f.load(arguments, 3), _DATA), y_at))
    addresses(f, block, values, a_at, x_at, y_at)
    status = f.own(launch, block, values, stream)
    with b.if_then(b.and_(ticketed, f.same(status, 0))):
        f.store_published(f.at(line, TAKEN), 0)  # after a failure Python reads the line again
    f.give(status)
    return f


def _found(f: Writer, fits: Writer, head: Any, wanted: tuple[Any, Any, Any]) -> Any:
    """The entry of a chain that fits; leaves the function if there is none."""
    b = f.builder
    first = f.load_published(head)
    before, walk = b.block, f.function.append_basic_block()
    b.branch(walk)
    b.position_at_end(walk)
    entry = b.phi(WORD)
    entry.add_incoming(first, before)
    with b.if_then(f.same(entry, 0)):
        b.ret(f.word(UNUSUAL))
    matched = f.same(f.own(fits, entry, *wanted), 0)
    following = f.load(entry, NEXT)
    entry.add_incoming(following, b.block)
    found = f.function.append_basic_block()
    b.cbranch(matched, found, walk)
    b.position_at_end(found)
    return entry


def write_publish(module: ir.Module) -> Writer:
    """``publish(place, address)``: what was written before is seen by whoever sees the address."""
    f = Writer(module, "publish_words", 2)
    arguments, _ = f.arguments
    place, address = words(f, arguments, 0), words(f, arguments, 1)
    f.store_published(place, address)
    f.give(0)
    return f
