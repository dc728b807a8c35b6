"""Small kernels for integers and addresses."""

from __future__ import annotations

from helpers.words.registry import OUT, THREADS, small


@small("is_aligned elements_past", "sdhb")
def addresses(spec, W):
    from gemv.language import cuda, elements_past, is_aligned, moved, natural

    number = spec.number

    def made(a, y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        y[place * OUT] = number(elements_past(a, place, 16))
        y[place * OUT + 1] = number(elements_past(moved(a, place), place % 5, 8))
        y[place * OUT + 2] = number(7)
        if is_aligned(moved(a, place), 16):
            y[place * OUT + 2] = number(9)

    return made


@small("short natural quotient rounded_down row_starts rolled device inlined", "sd")
def integers(spec, W):
    """Numbers on both sides of zero, and past 32 bits; a float32 has 24 of their bits."""
    from gemv.language import (
        cuda,
        device,
        inlined,
        natural,
        quotient,
        rolled,
        rounded_down,
        row_starts,
        short,
    )

    number = spec.number

    @device
    def low(value):
        return number(value % 65536)

    @inlined
    def high(value):
        return number(value // 65536)

    def made(y):
        place = natural(cuda.blockIdx.x) * THREADS + natural(cuda.threadIdx.x)
        at = place * OUT
        k = 0
        value = (place - 100) * 1234567
        while k < 2:
            y[at] = low(quotient(value, 8))
            y[at + 1] = high(quotient(value, 8))
            y[at + 2] = low(quotient(value, 12))
            y[at + 3] = low(rounded_down(value, 16))
            y[at + 4] = low(rounded_down(value, 6))
            y[at + 5] = high(rounded_down(value, 6))
            y[at + 6] = low(natural(place * 1234567))
            y[at + 7] = low(short(place * 7654321))
            y[at + 8] = high(short(place * 7654321))
            starts = row_starts(value, 3 + place % 5, place % 40 - 20, 70001, 3)
            y[at + 9] = low(starts[0])
            y[at + 10] = high(starts[0])
            y[at + 11] = low(starts[1])
            y[at + 12] = low(starts[2])
            starts = row_starts(place % 40 - 20, 3 + place % 5, value, 70001, 3)
            y[at + 13] = low(starts[0])
            y[at + 14] = low(starts[1])
            y[at + 15] = low(starts[2])
            at += 16
            value = place * (1 << 33) - 77
            k += 1
            rolled()

    return made
