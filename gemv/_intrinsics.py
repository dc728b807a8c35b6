"""Device functions that Numba does not offer on a bare pointer, each with its simulator twin.

Kernels of this package take flat arguments: pointers, sizes, strides and scalars. What they need
beyond ``pointer[index]`` is here and nowhere else: atomics on a pointer and fences. Under the
simulator the same names are bound to plain Python, so a kernel is one source in both worlds and
never asks where it runs.
"""

from __future__ import annotations

from numba import cuda
from numba.cuda.core import config

SIMULATOR = bool(config.ENABLE_CUDASIM)

if SIMULATOR:
    from gemv._simulator import atomic_add, atomic_inc, vector_load

    def device(function):
        """Mark a device function; the simulator calls plain Python."""
        return function

else:
    from llvmlite import ir
    from numba.core import types
    from numba.cuda.extending import intrinsic

    #: PTX register class and suffix of the types that move in one instruction.
    _PTX = {
        types.float32: ("f", "f32", ir.FloatType()),
        types.float64: ("d", "f64", ir.DoubleType()),
        types.uint32: ("r", "u32", ir.IntType(32)),
    }

    def device(function):
        """Mark a device function, compiled into each kernel that calls it."""
        return cuda.jit(device=True)(function)

    def _element(builder, pointer, index):
        return builder.gep(pointer, [index])

    def _atomic(builder, operation, element_type, address, value):
        """One ``atom.global`` instruction; relaxed order, so fences stay the caller's business."""
        letter, suffix, llvm = _PTX[element_type]
        function = ir.FunctionType(llvm, [address.type, llvm])
        # "memory" keeps the compiler from moving other loads and stores across it.
        text = f"atom.global.{operation}.{suffix} $0, [$1], $2;"
        asm = ir.InlineAsm(function, text, f"={letter},l,{letter},~{{memory}}", side_effect=True)
        return builder.call(asm, [address, value])

    @intrinsic
    def atomic_add(typingctx, pointer, index, value):
        """Add to ``pointer[index]`` atomically; a complex value moves as two reals."""
        element = pointer.dtype
        signature = types.void(pointer, types.int64, element)

        def codegen(context, builder, signature, arguments):
            address = _element(builder, arguments[0], arguments[1])
            if isinstance(element, types.Complex):
                number = context.make_complex(builder, element, arguments[2])
                real = element.underlying_float
                first = builder.bitcast(address, _PTX[real][2].as_pointer())
                one = ir.Constant(ir.IntType(32), 1)
                _atomic(builder, "add", real, first, number.real)
                _atomic(builder, "add", real, builder.gep(first, [one]), number.imag)
            else:
                _atomic(builder, "add", element, address, arguments[2])
            return context.get_dummy_value()

        return signature, codegen

    @intrinsic
    def atomic_inc(typingctx, pointer, index, limit):
        """Old value of ``pointer[index]``, which becomes old + 1, or 0 once old reached `limit`."""
        signature = types.uint32(pointer, types.int64, types.uint32)

        def codegen(context, builder, signature, arguments):
            address = _element(builder, arguments[0], arguments[1])
            return _atomic(builder, "inc", types.uint32, address, arguments[2])

        return signature, codegen

    @intrinsic
    def vector_load(typingctx, pointer, index, count):
        """Load `count` neighbouring elements, ``pointer[index:index + count]``, in one instruction.

        The address must be a multiple of the load's width (8 or 16 bytes). The load goes through
        the read-only path and does not settle in L1, as suits data that is read once.
        """
        if not isinstance(count, types.IntegerLiteral):
            return None  # Numba asks again with the literal
        element = pointer.dtype
        lanes = count.literal_value
        signature = types.UniTuple(element, lanes)(pointer, types.int64, count)

        def codegen(context, builder, signature, arguments):
            letter, suffix, llvm = _PTX[element]
            address = _element(builder, arguments[0], arguments[1])
            result = ir.LiteralStructType([llvm] * lanes)
            function = ir.FunctionType(result, [address.type])
            registers = ", ".join(f"${i}" for i in range(lanes))
            load = f"ld.global.nc.L1::no_allocate.L2::128B.v{lanes}.{suffix}"
            text = f"{load} {{{registers}}}, [${lanes}];"
            asm = ir.InlineAsm(function, text, ",".join([f"={letter}"] * lanes) + ",l")
            loaded = builder.call(asm, [address])
            values = [builder.extract_value(loaded, i) for i in range(lanes)]
            return context.make_tuple(builder, signature.return_type, values)

        return signature, codegen


__all__ = ["SIMULATOR", "atomic_add", "atomic_inc", "device", "vector_load"]
