"""Machine code that is linked once and mapped in every process."""

from __future__ import annotations

import ctypes
import sys

import pytest
from helpers import processes

from gemv.driver import block, image, machine

pytestmark = pytest.mark.skipif(
    not image.is_possible(), reason="images are for Linux on x86-64; elsewhere LLVM compiles"
)
LAUNCHED: list[int] = []


@ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
def launch(config, function, parameters, extra):
    LAUNCHED.append(function)
    return 0


DRIVER = machine.Driver(ctypes.cast(launch, ctypes.c_void_p).value, 0, 0, 0, 0)
BLOCK = block.Block([block.Function(11, (1, 1, 1), (32, 1, 1), ("a", "alpha"))], 4, 1, {}, 0, 0)


def made(compiled):
    """The bytes of the image, compiled here."""
    return compiled()


def launches(functions):
    LAUNCHED.clear()
    status = functions.enqueue(BLOCK.address, 1, 2, 3, 4, 1.0, 0.0)
    return status == 0 and LAUNCHED == [11]


def test_an_image_of_another_process_runs_without_llvm():
    """The table holds the addresses of this process, not of the one that compiled."""
    code = (
        "import sys\nfrom gemv.driver import machine\nimages = []\n"
        "def kept(compiled):\n    images.append(compiled())\n    return images[0]\n"
        "machine.machine(machine.Driver(1, 2, 3, 4, 5), kept)\n"
        "sys.stdout.buffer.write(images[0])"
    )
    done = processes.run([sys.executable, "-c", code], capture_output=True, check=True)

    def of_the_other(compiled):
        return done.stdout

    assert launches(machine.machine(DRIVER, of_the_other))
    loads = (
        "import sys\nfrom gemv.driver import machine\ndata = sys.stdin.buffer.read()\n"
        "machine.machine(machine.Driver(1, 2, 3, 4, 5), lambda compiled: data)\n"
        "print(*({'llvmlite', 'numba'} & set(sys.modules)))"
    )
    done = processes.run(
        [sys.executable, "-c", loads], input=done.stdout, capture_output=True, check=True
    )
    assert done.stdout.split() == []


def test_the_bytes_of_an_image_are_the_image():
    packed = []

    def kept(compiled):
        packed.append(compiled())
        return packed[0]

    machine.machine(DRIVER, kept)
    unpacked = image.Image.unpack(packed[0])
    assert unpacked.pack() == packed[0]
    assert set(machine.Machine._fields) | {image.TABLE, image.TABLE_AT} <= set(unpacked.symbols)
    table = unpacked.symbols[image.TABLE]
    assert not any(unpacked.code[table : table + 8 * len(block.ENTRIES)]), "no address is kept"


@pytest.mark.parametrize(
    "step, error",
    [("make_executable", OSError(1, "not here")), ("mapped", ValueError("relocation 41"))],
)
def test_where_there_can_be_no_image_llvm_compiles_in_place(monkeypatch, step, error):
    """Memory may not be executable, or another LLVM relocates in another way."""

    def refuse(*arguments):
        raise error

    monkeypatch.setattr(image, step, refuse)
    machine.machine.cache_clear()
    try:
        assert launches(machine.machine(DRIVER, lambda compiled: compiled()))
    finally:
        machine.machine.cache_clear()


@pytest.mark.parametrize("change", ["an unknown relocation", "a symbol from outside"])
def test_what_cannot_be_linked_is_refused(change):
    from llvmlite import binding, ir

    from gemv.driver import machine_writer

    word = ir.IntType(64)
    module = ir.Module("other")
    outside = ir.Function(module, ir.FunctionType(word, []), "outside")
    function = ir.Function(module, ir.FunctionType(word, []), "inside")
    builder = ir.IRBuilder(function.append_basic_block())
    if change == "a symbol from outside":
        builder.ret(builder.call(outside, []))
    else:
        place = ir.GlobalVariable(module, word, "elsewhere")  # through a table of the linker's
        builder.ret(builder.load(place))
    target = machine_writer.target().create_target_machine(reloc="pic", codemodel="small")
    file = bytes(target.emit_object(binding.parse_assembly(str(module))))
    with pytest.raises(ValueError, match="relocation .* cannot be done here"):
        image.link(file)
