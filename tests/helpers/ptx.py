"""Runs PTX on the host, thread by thread, so that tests see what the code for a GPU computes.

Each kernel becomes a Python generator, one for each thread. It covers the instructions that kernels
of this package are compiled to; an unknown one is an error that names it. Registers are integers,
the bits that they would have. A load or store must lie within one buffer and be aligned to its own
size. Floating-point instructions round as a GPU does, but for a fused multiply-add of float32 whose
sum takes more than 53 bits. All memory is written at once, so orders of writes are not what this is
for: the simulator plays with those.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import struct
from collections import deque
from fractions import Fraction

#: Address of the first buffer, and the distance of buffers; all addresses below are shared memory.
_APART = 1 << 32
#: Bytes of addresses that the shared memory of a block has.
_WINDOW = 1 << 20
#: Turns of all threads after which something waits for ever.
_ENDLESS = 3_000_000


class PtxError(Exception):
    """What would be undefined on a GPU, or is not known here."""


# Numbers ----------------------------------------------------------------------------------------

#: Integers of so many bytes, as the module ``struct`` names them.
_INTEGERS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_of_half, _of_single, _of_double = (struct.Struct(f"<{form}").pack for form in "efd")
_to_single, _to_double = (struct.Struct(f"<{form}").unpack for form in "fd")
_of_bits = {width: struct.Struct(f"<{_INTEGERS[width // 8]}").pack for width in (32, 64)}
_to_bits = {width: struct.Struct(f"<{_INTEGERS[width // 8]}").unpack for width in (16, 32, 64)}


def f32(bits, pack=_of_bits[32], unpack=_to_single):
    return unpack(pack(bits & 0xFFFFFFFF))[0]


def f64(bits, pack=_of_bits[64], unpack=_to_double):
    return unpack(pack(bits))[0]


def b16(value, pack=_of_half, unpack=_to_bits[16]):
    try:
        return unpack(pack(value))[0]
    except OverflowError:
        return unpack(pack(math.copysign(math.inf, value)))[0]


def b32(value, pack=_of_single, unpack=_to_bits[32]):
    try:
        return unpack(pack(value))[0]
    except OverflowError:
        return unpack(pack(math.copysign(math.inf, value)))[0]


def b64(value, pack=_of_double, unpack=_to_bits[64]):
    return unpack(pack(value))[0]


def towards_zero(value):
    """The bits of a float64 as a float32, cut off."""
    bits = b32(value)
    return bits - 1 if math.isfinite(value) and abs(f32(bits)) > abs(value) else bits


def bfloat16(bits):
    """The upper half of a float32, rounded to nearest even."""
    if math.isnan(f32(bits)):
        return 0x7FFF
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def fma(a, b, c):
    exact = a * b
    if abs(exact) < 2.0**50 and exact == int(exact) and a == int(a) and b == int(b):
        return exact + c
    if math.isfinite(exact) and math.isfinite(c):
        total = Fraction(a) * Fraction(b) + Fraction(c)
        return float(total) if total else exact + c  # which knows the sign of a zero
    return exact + c


def _signed(text, width):
    """An expression for a number whose first bit is its sign."""
    return f"(({text} & {(1 << width) - 1} ^ {1 << width - 1}) - {1 << width - 1})"


def permuted(a, b, which):
    """``prmt.b32``."""
    both = (b & 0xFFFFFFFF) << 32 | a & 0xFFFFFFFF
    return sum((both >> 8 * (which >> 4 * k & 7) & 0xFF) << 8 * k for k in range(4))


def whole_warp(last, mask):
    """An error where not all lanes of a warp are asked for."""
    if not last or mask & 0xFFFFFFFF != 0xFFFFFFFF:
        raise PtxError(f"a shuffle or a vote of a part of a warp: {mask:#x}")


def divided(a, b):
    """The quotient towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# From text to Python ----------------------------------------------------------------------------

_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
            "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}  # fmt: skip
_PLAIN = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}


@functools.cache
def _width(kind):
    return 1 if kind == "pred" else int(re.sub(r"\D", "", kind))


def statements(text):
    """The statements of a function: (label, None), ("{", None), or (None, text)."""
    text = re.sub(r"//.*", "", text)
    at = 0
    while at < len(text):
        head = re.compile(r"\s*(?:([{}])|(\$?\w+):(?!:))?").match(text, at)
        at = head.end()
        if head[1]:
            yield head[1], None
        elif head[2]:
            yield "label", head[2]
        else:
            end = text.find(";", at)
            if end < 0:
                return
            statement = " ".join(text[at:end].split())
            at = end + 1
            if statement:
                yield "", statement


class Program:
    """A kernel's PTX as a Python function."""

    def __init__(self, ptx: str) -> None:
        entry = ptx.index(".entry")
        body = ptx.index("\n{", entry)
        declared = ptx[entry : ptx.index(")", entry)]
        self.parameters = re.findall(r"\.param \.(\w+)\s+(?:\.ptr.*?\s)?(\w+)", declared)
        self.shared: dict[str, int] = {}
        end = 0
        shared = r"\.shared \.align (\d+) \.b8 (\w+)\[(\d+)\]"
        for align, name, size in re.findall(shared, ptx):
            end = -(-end // int(align)) * int(align)
            self.shared[name] = end
            end += int(size)
        self.shared_bytes = end
        # Arrays without a length are all of the dynamic shared memory, which begins behind.
        dynamic = r"\.extern \.shared \.align \d+ \.b8 (\w+)\[\];"
        self.shared |= dict.fromkeys(re.findall(dynamic, ptx), -(-end // 16) * 16)
        cluster = re.search(r"\.reqnctapercluster 1, (\d+), 1", ptx)
        self.cluster = int(cluster[1]) if cluster else 1
        self._blocks: list[list[str]] = [[]]
        self._labels: dict[str, int] = {}
        self._scopes = itertools.count()
        self._translate(ptx[body + 2 :])
        self.run = self._made()

    def _translate(self, body: str) -> None:
        scopes: list[int] = []
        for what, text in statements(body):
            if what == "{":
                scopes.append(next(self._scopes))
            elif what == "}":
                if not scopes:
                    return
                scopes.pop()
            elif what == "label":
                self._labels[self._label(text, scopes)] = len(self._blocks)
                self._blocks.append([])
            elif not text.startswith("."):
                self._statement(text, scopes)

    @staticmethod
    def _label(name: str, scopes: list[int]) -> str:
        return name if name.startswith("$") else f"{name} {scopes[-1]}"

    def _statement(self, text: str, scopes: list[int]) -> None:
        predicate = ""
        if text.startswith("@"):
            guard, text = text.split(" ", 1)
            name = self._value(guard.lstrip("@!"), 1)
            predicate = f"not {name}" if "!" in guard else name
        operation, _, rest = text.partition(" ")
        arguments = [a.strip() for a in re.findall(r"\s*(?:\{[^}]*\}|\[[^\]]*\]|[^,]+)", rest)]
        arguments = [a for a in arguments if a]
        lines = self._blocks[-1]
        parts = operation.split(".")
        if parts[0] == "bra":
            target = self._label(arguments[0], scopes)
            lines += ([f"if {predicate}:"] if predicate else []) + [
                f"{' ' if predicate else ''}pc = <{target}>; continue"
            ]
            if predicate:
                self._blocks.append([])
            return
        made = ["return"] if parts[0] in ("ret", "exit") else self._instruction(parts, arguments)
        if predicate:
            lines.append(f"if {predicate}:")
            made = [f" {line}" for line in made] or [" pass"]
        lines += made

    def _value(self, text: str, width: int) -> str:
        """An operand as an expression."""
        text = text.strip()
        if match := re.fullmatch(r"0[fFdD]([0-9A-Fa-f]+)", text):
            return str(int(match[1], 16))
        if re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)U?", text):
            return str(int(text.rstrip("U"), 0) & (1 << width) - 1)
        if text in self.shared:
            return f"(own + {self.shared[text]})"
        return "v_" + re.sub(r"\W", "_", text)

    def _address(self, text: str) -> str:
        base, _, offset = text.strip("[] ").partition("+")
        distance = int(offset, 0) if offset else 0
        return f"({self._value(base, 64)} + {distance} & {(1 << 64) - 1})"

    def _instruction(self, parts: list[str], arguments: list[str]) -> list[str]:
        name, kind = parts[0], parts[-1]
        method = getattr(self, f"_on_{name}", None)
        if method is not None:
            return method(parts, arguments)
        if name == "griddepcontrol":
            return ["memory.early += 1"] if kind == "launch_dependents" else []
        if name in ("fence", "membar", "pragma"):
            return []
        target, *inputs = arguments
        width = _width(kind)
        values = [self._value(each, width) for each in inputs]
        result = self._arithmetic(name, parts, kind, width, values)
        if result is None:
            raise PtxError(f"unknown instruction: {'.'.join(parts)} {', '.join(arguments)}")
        return [f"{self._value(target, width)} = {result}"]

    def _arithmetic(self, name, parts, kind, width, v):
        mask = (1 << width) - 1
        if kind == "pred" and name in _PLAIN | {"not": ""}:
            return f"not {v[0]}" if name == "not" else f"{v[0]} {_PLAIN[name]} {v[1]}"
        if kind in ("f32", "f64"):
            f, b = kind, f"b{width}"
            v = [f"{f}({each})" for each in v]
            if name in ("add", "sub", "mul"):
                return f"{b}({v[0]} {_PLAIN[name]} {v[1]})"
            return {
                # a float64 has room for all bits of a product of two float32
                "fma": lambda: (
                    f"b32({v[0]} * {v[1]} + {v[2]})" if f == "f32" else f"b64(fma({', '.join(v)}))"
                ),
                "neg": lambda: f"{b}(-{v[0]})", "abs": lambda: f"{b}(abs({v[0]}))",
                "mov": lambda: v[0][len(f) + 1 : -1],
            }.get(name, lambda: None)()  # fmt: skip
        s = [_signed(each, width) for each in v] if kind[0] == "s" else v
        if name in ("mul", "mad") and "wide" in parts:
            more = f" + {v[2]}" if name == "mad" else ""
            return f"({s[0]} * {s[1]}{more}) & {(1 << 2 * width) - 1}"
        if name == "mul" and "hi" in parts:
            return f"({s[0]} * {s[1]}) >> {width} & {mask}"
        if name in _PLAIN:
            return f"({v[0]} {_PLAIN[name]} {v[1]}) & {mask}"
        return {
            "mad": lambda: f"({v[0]} * {v[1]} + {v[2]}) & {mask}",
            "not": lambda: f"~{v[0]} & {mask}", "neg": lambda: f"-{v[0]} & {mask}",
            "abs": lambda: f"abs({s[0]})", "mov": lambda: v[0],
            "min": lambda: f"min({s[0]}, {s[1]}) & {mask}",
            "max": lambda: f"max({s[0]}, {s[1]}) & {mask}",
            "div": lambda: f"divided({s[0]}, {s[1]}) & {mask}",
            "rem": lambda: f"({s[0]} - divided({s[0]}, {s[1]}) * {s[1]}) & {mask}",
            "shl": lambda: f"{v[0]} << min({v[1]} & 0xFFFFFFFF, {width}) & {mask}",
            "shr": lambda: f"({s[0]} >> min({v[1]} & 0xFFFFFFFF, {width})) & {mask}",
            "prmt": lambda: f"permuted({', '.join(v)})",
            "bfe": lambda: f"{v[0]} >> {v[1]} & (1 << {v[2]}) - 1",
            "bfi": lambda: (
                f"({v[1]} & ~(((1 << {v[3]}) - 1) << {v[2]})"
                f" | ({v[0]} & (1 << {v[3]}) - 1) << {v[2]}) & {mask}"
            ),
        }.get(name, lambda: None)()  # fmt: skip

    # Instructions of their own forms -------------------------------------------------------------

    def _on_mov(self, parts, arguments):
        width = _width(parts[-1])
        target, source = arguments
        for text, other in ((target, source), (source, target)):
            if text.startswith("{"):
                names = [self._value(each, width) for each in text.strip("{}").split(",")]
                part = width // len(names)
                if text is source:
                    joined = " | ".join(f"{n} << {k * part}" for k, n in enumerate(names))
                    return [f"{self._value(other, width)} = {joined}"]
                whole = self._value(other, width)
                return [f"{n} = {whole} >> {k * part} & {(1 << part) - 1}"
                        for k, n in enumerate(names)]  # fmt: skip
        return [f"{self._value(target, width)} = {self._value(source, width)}"]

    def _on_cvta(self, parts, arguments):
        return [f"{self._value(arguments[0], 64)} = {self._value(arguments[1], 64)}"]

    def _on_cvt(self, parts, arguments):
        to, of = parts[-2:]
        target, *inputs = (self._value(each, 64 if of[-2:] == "64" else 32) for each in arguments)
        if to == "bf16x2":
            return [f"{target} = bfloat16({inputs[0]}) << 16 | bfloat16({inputs[1]})"]
        (value,) = inputs
        reads = {"f16": f"unpack('<e', pack('<H', {value}))[0]", "f32": f"f32({value})",
                 "f64": f"f64({value})"}.get(of)  # fmt: skip
        if reads is None:
            reads = _signed(value, _width(of)) if of[0] == "s" else (
                f"({value} & {(1 << _width(of)) - 1})")  # fmt: skip
        if to[0] != "f":
            if of[0] == "f":
                raise PtxError(f"unknown conversion: {'.'.join(parts)}")
            return [f"{target} = {reads} & {(1 << _width(to)) - 1}"]
        if "rz" in parts:
            return [f"{target} = towards_zero({reads})"]
        return [f"{target} = b{to[1:]}({reads})"]

    def _on_setp(self, parts, arguments):
        kind, how = parts[-1], parts[1]
        combine = next((each for each in parts[2:-1] if each in ("and", "or", "xor")), None)
        target, a, b, *other = arguments
        width = _width(kind)
        a, b = self._value(a, width), self._value(b, width)
        if kind[0] == "f":
            a, b = f"{kind}({a})", f"{kind}({b})"
            unordered = f"({a} != {a} or {b} != {b})"
            if how in ("nan", "num"):
                test = unordered if how == "nan" else f"not {unordered}"
            elif how.endswith("u") and how != "u":
                test = f"({a} {_COMPARE[how[:-1]]} {b} or {unordered})"
            else:
                test = f"({a} {_COMPARE[how]} {b} and not {unordered})"
        else:
            if kind[0] == "s":
                a, b = _signed(a, width), _signed(b, width)
            else:
                a, b = f"({a} & {(1 << width) - 1})", f"({b} & {(1 << width) - 1})"
            test = f"{a} {_COMPARE[how]} {b}"
        if combine:
            test = f"({test}) {_PLAIN[combine]} {self._value(other[0], 1)}"
        return [f"{self._value(target, 1)} = {test}"]

    def _on_selp(self, parts, arguments):
        width = _width(parts[-1])
        target, a, b = (self._value(each, width) for each in arguments[:3])
        return [f"{target} = {a} if {self._value(arguments[3], 1)} else {b}"]

    def _vector(self, parts, text):
        nbytes = _width(parts[-1]) // 8
        return [self._value(each, 64) for each in text.strip("{}").split(",")], nbytes

    def _on_ld(self, parts, arguments):
        targets, nbytes = self._vector(parts, arguments[0])
        if parts[1] == "param":
            return [f"{targets[0]} = parameters['{arguments[1].strip('[]')}']"]
        address, count = self._address(arguments[1]), len(targets)
        lines = ["yield None"] if "relaxed" in parts else []
        lines.append(f"loaded = memory.load({address}, {nbytes}, {count})")
        return lines + [f"{name} = loaded[{k}]" for k, name in enumerate(targets)]

    def _on_st(self, parts, arguments):
        values, nbytes = self._vector(parts, arguments[1])
        address = self._address(arguments[0])
        lines = [f"memory.store({address}, {nbytes}, ({', '.join(values)},))"]
        if "async" in parts:
            lines.append(f"memory.arrived({self._address(arguments[2])}, {nbytes * len(values)})")
        return lines

    def _on_cp(self, parts, arguments):
        """Copies of 16 bytes: their places hold NaN until the thread has waited for them.

        A fourth argument says how many bytes the source has, all or none; zeros fill up the rest.
        """
        if "commit_group" in parts:
            return ["copies.append([])"]
        if "wait_group" in parts:
            each = "for place, brought in copies.pop(0)"
            return [f"while len(copies) > {arguments[0]} + 1:",
                    f" {each}: memory.store(place, 16, brought)"]  # fmt: skip
        if "prefetch" in parts:  # reads what it asks for, so that bounds are checked
            return [f"memory.load({self._address(arguments[0])}, 16, {int(arguments[1]) // 16})"]
        if arguments[2] != "16":
            raise PtxError(f"unknown copy: {'.'.join(parts)} {', '.join(arguments)}")
        to, source = self._address(arguments[0]), self._address(arguments[1])
        present = self._value(arguments[3], 32) if len(arguments) > 3 else 16
        return [f"brought = memory.load({source}, 16, 1) if {present} == 16 else (0,)",
                f"copies[-1].append(({to}, brought))",
                f"memory.store({to}, 16, (-1,))"]  # fmt: skip

    def _on_atom(self, parts, arguments):
        nbytes = _width(parts[-1]) // 8
        address, value = self._address(arguments[1]), self._value(arguments[2], 32)
        lines = ["yield None", f"old, = memory.load({address}, {nbytes}, 1)"]
        if "inc" in parts:
            new = f"old + 1 if old < {value} else 0"
        else:
            form = parts[-1]
            new = f"b{form[1:]}({form}(old) + {form}({value}))"
        lines += [f"memory.store({address}, {nbytes}, ({new},))"]
        return [*lines, f"{self._value(arguments[0], 32)} = old"]

    def _on_bar(self, parts, arguments):
        return ["yield 'block'"]

    def _on_barrier(self, parts, arguments):
        return [f"yield '{'.'.join(parts[1:3])}'"]

    def _on_shfl(self, parts, arguments):
        """From the lane of a number, or from the one whose number differs in some bits."""
        lane = {"bfly": "lane ^ {}", "idx": "{} & 31"}.get(parts[2])
        if lane is None:
            raise PtxError(f"unknown shuffle: {'.'.join(parts)}")
        target = self._value(arguments[0].split("|")[0], 32)
        value, step, clamp, mask = (self._value(each, 32) for each in arguments[1:])
        return [f"whole_warp({clamp} == 31, {mask})",
                f"brought = yield ({self._site()}, {value})",
                f"{target} = brought[{lane.format(step)}]"]  # fmt: skip

    def _on_vote(self, parts, arguments):
        if parts[2] not in ("any", "all"):
            raise PtxError(f"unknown vote: {'.'.join(parts)}")
        target, value = (self._value(each, 1) for each in arguments[:2])
        return [f"whole_warp(True, {self._value(arguments[2], 32)})",
                f"brought = yield ({self._site()}, {value})",
                f"{target} = {parts[2]}(brought.values())"]  # fmt: skip

    def _site(self):
        """A number for the place of an instruction to which all lanes of a warp come together."""
        return f"{len(self._blocks)}.{len(self._blocks[-1])}"

    def _on_mapa(self, parts, arguments):
        target, address, rank = (self._value(each, 32) for each in arguments)
        return [f"{target} = {address} + ({rank} - v__cluster_ctarank) * {_WINDOW}"]

    def _on_mbarrier(self, parts, arguments):
        if parts[1] == "init":
            return [f"memory.counters[{self._address(arguments[0])}] = [1, 0]"]
        if parts[1] == "arrive":
            return [f"memory.expected({self._address(arguments[1])}, "
                    f"{self._value(arguments[2], 32)})"]  # fmt: skip
        target = self._value(arguments[0], 1)
        return [f"{target} = memory.counters[{self._address(arguments[1])}] == [0, 0]",
                f"if not {target}: yield None"]  # fmt: skip

    def _made(self):
        lines = ["def thread(parameters, memory, own, v__tid_x, v__tid_y, v__ntid_x, v__ntid_y,",
                 "  v__ctaid_x, v__ctaid_y, v__ctaid_z, v__nctaid_x, v__nctaid_y, v__nctaid_z,",
                 "  v__cluster_ctarank, v__dynamic_smem_size):", " pc, copies = 0, [[]]",
                 " lane = v__laneid = (v__tid_y * v__ntid_x + v__tid_x) % 32",
                 " while True:"]  # fmt: skip
        lines += self._found("  ", 0, len(self._blocks)) + [" yield"]
        source = re.sub(r"(?<=pc = )<([^<>]*)>", lambda at: str(self._labels[at[1]]),
                        "\n".join(lines))  # fmt: skip
        scope = {**globals(), "unpack": struct.unpack, "pack": struct.pack}
        exec(compile(source, "a kernel", "exec"), scope)
        return scope["thread"]

    def _found(self, indent: str, first: int, end: int) -> list[str]:
        """Lines that run the block of a number, which is one of these, or ends behind the last."""
        if end - first > 1:
            middle = (first + end) // 2
            return [
                f"{indent}if pc < {middle}:", *self._found(f"{indent} ", first, middle),
                f"{indent}else:", *self._found(f"{indent} ", middle, end),
            ]  # fmt: skip
        lines = [*self._blocks[first], f"pc = {end}"]
        if end == len(self._blocks):
            lines.insert(0, f"if pc == {end}: return")
        return [f"{indent}{line}" for line in lines]


# Running it -------------------------------------------------------------------------------------


@functools.cache
def _numbers(nbytes: int, count: int) -> struct.Struct:
    """How integers lie one behind the other."""
    return struct.Struct(f"<{count}{_INTEGERS[nbytes]}")


class Memory:
    """Buffers in global memory, one behind the other, and the shared memory of all blocks."""

    def __init__(self, buffers, blocks: int, shared_bytes: int) -> None:
        self.buffers = [bytearray(each.tobytes()) for each in buffers]
        # All ones: a NaN for whoever reads too early.
        self._shared = [bytearray(b"\xff" * shared_bytes) for _ in range(blocks)]
        self.counters: dict[int, list[int]] = {}
        #: Threads that have let the next kernel start.
        self.early = 0

    @staticmethod
    def address(number: int) -> int:
        return (number + 1) * _APART

    def _place(self, address: int, nbytes: int, action: str):
        if address < _APART:
            window, at = divmod(address, _WINDOW)
            known, index = self._shared, window - 1
        else:
            known, at = self.buffers, address % _APART
            index = address // _APART - 1
        if not 0 <= index < len(known) or at + nbytes > len(known[index]):
            raise PtxError(f"{action} of {nbytes} bytes at {address:#x}, where there is no memory")
        if address % nbytes:
            raise PtxError(f"{action} of {nbytes} bytes at {address:#x}, which is not aligned")
        return known[index], at

    def load(self, address: int, nbytes: int, count: int) -> tuple[int, ...]:
        buffer, at = self._place(address, nbytes * count, "load")
        if nbytes == 16:
            return tuple(
                int.from_bytes(buffer[at + k : at + k + 16], "little")
                for k in range(0, 16 * count, 16)
            )
        return _numbers(nbytes, count).unpack_from(buffer, at)

    def store(self, address: int, nbytes: int, values) -> None:
        buffer, at = self._place(address, nbytes * len(values), "store")
        mask = (1 << 8 * nbytes) - 1
        if nbytes == 16:
            data = b"".join((each & mask).to_bytes(16, "little") for each in values)
            buffer[at : at + len(data)] = data
        else:
            numbers = _numbers(nbytes, len(values))
            numbers.pack_into(buffer, at, *[each & mask for each in values])

    def expected(self, counter: int, nbytes: int) -> None:
        self.counters[counter][0] -= 1
        self.counters[counter][1] += nbytes

    def arrived(self, counter: int, nbytes: int) -> None:
        if counter not in self.counters:
            raise PtxError("bytes arrive at a counter that is not ready")
        self.counters[counter][1] -= nbytes


def launch(program: Program, grid, block, parameters, buffers, shared=0):
    """Run a grid; the buffers afterwards, as bytes.

    `parameters` are integers, floats, complex numbers, or ``("buffer", number, offset)``, and
    `shared` is the dynamic shared memory of a block in bytes.
    """
    memory = memory_after(program, grid, block, parameters, buffers, shared)
    return [bytes(each) for each in memory.buffers]


def memory_after(program: Program, grid, block, parameters, buffers, shared=0) -> Memory:
    """The same; all that the grid leaves."""
    (across, down, deep), threads = (*grid, *[1] * (3 - len(grid))), block[0] * block[1]
    count = across * down * deep
    memory = Memory(buffers, count, -(-program.shared_bytes // 16) * 16 + shared)
    values = {}
    flat = []
    for each in parameters:
        flat += [each.real, each.imag] if isinstance(each, complex) else [each]
    for (kind, name), each in zip(program.parameters, flat, strict=True):
        if isinstance(each, tuple):
            values[name] = memory.address(each[1]) + each[2]
        elif kind[0] == "f":
            values[name] = (b32 if kind == "f32" else b64)(float(each))
        else:
            values[name] = int(each) & (1 << _width(kind)) - 1
    runnable: deque = deque()
    live = {number: threads for number in range(count)}
    waiting: dict = {}
    arrived: dict = {}
    for number in range(count):
        x, y, z = number % across, number // across % down, number // across // down
        # Blocks of a cluster are neighbours along y, and windows of shared memory follow the rank.
        window = (z * across + x) * down + y
        for tid in range(threads):
            generator = program.run(
                values, memory, (window + 1) * _WINDOW, tid % block[0], tid // block[0], block[0],
                block[1], x, y, z, across, down, deep, y % program.cluster,
                shared,
            )  # fmt: skip
            runnable.append((generator, (number, tid // 32), tid % 32, None, (window, y)))

    def release(key, results=None):
        for k, (generator, warp, lane, _, place) in enumerate(waiting.pop(key)):
            runnable.append((generator, warp, lane, results and results[k], place))

    turns = 0
    while runnable:
        turns += 1
        if turns > _ENDLESS:
            raise PtxError("threads wait for ever")
        thread = runnable.popleft()
        generator, warp, lane, result, (window, _) = thread
        try:
            event = generator.send(result)
        except StopIteration:
            live[warp[0]] -= 1
            key = ("block", warp[0])
            if len(waiting.get(key, ())) == live[warp[0]] > 0:
                release(key)
            continue
        if event is None:
            runnable.append((*thread[:3], None, thread[4]))
        elif event == "block":
            key = ("block", warp[0])
            waiting.setdefault(key, []).append(thread)
            if len(waiting[key]) == live[warp[0]]:
                release(key)
        elif event == "cluster.arrive":
            cluster = window // program.cluster
            arrived[cluster] = arrived.get(cluster, 0) + 1
            runnable.append((*thread[:3], None, thread[4]))
            if arrived[cluster] == threads * program.cluster and ("cluster", cluster) in waiting:
                release(("cluster", cluster))
        elif event == "cluster.wait":
            cluster = window // program.cluster
            waiting.setdefault(("cluster", cluster), []).append(thread)
            if arrived.get(cluster) == threads * program.cluster:
                release(("cluster", cluster))
        else:
            key = ("warp", warp)
            group = waiting.setdefault(key, [])
            group.append((*thread[:3], event, thread[4]))
            if len(group) == 32:
                if len({site for *_, (site, _), _ in group}) > 1:
                    raise PtxError("lanes of a warp meet at different places")
                brought = {lane: value for _, _, lane, (_, value), _ in group}
                release(key, [brought] * 32)
    if waiting:
        raise PtxError(f"threads wait for others that have ended: {sorted(map(str, waiting))}")
    return memory
