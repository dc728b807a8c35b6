"""Values of command-line options read from text: sizes, shapes, dtypes, scalars, names."""

from __future__ import annotations

import argparse

#: The name of each letter's dtype: the prefixes of BLAS, then those of the narrow dtypes.
DTYPE_OF_PREFIX = {
    "s": "float32", "d": "float64", "c": "complex64", "z": "complex128", "h": "float16",
    "b": "bfloat16",
}  # fmt: skip
_SHORT = {"s": "f32", "d": "f64", "c": "c64", "z": "c128", "h": "f16", "b": "bf16"}
#: What ``--dtype`` accepts, and the letter that it stands for.
DTYPE_NAMES = {
    name: letter
    for letter, long in DTYPE_OF_PREFIX.items()
    for name in (letter, _SHORT[letter], long)
}
#: What ``--trans`` and ``--op`` accept, and SciPy's number for it.
TRANS = {"N": 0, "T": 1, "C": 2, "0": 0, "1": 1, "2": 2}


def scalar(text: str) -> float | complex:
    """``--alpha`` and ``--beta``: a real number, or a complex one where it says so."""
    try:
        value = complex(text.replace(" ", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number (1.5 and 1+2j are)") from None
    # a plain "2" must not make the whole product complex; "2+0j" does so on purpose
    return value if "j" in text.lower() else value.real


def dtype_letter(text: str, letters: str = "sdczhb") -> str:
    """The letter of a dtype, one of `letters`."""
    letter = DTYPE_NAMES.get(text.lower())
    if letter is None or letter not in letters:
        known = ", ".join(name for name, each in DTYPE_NAMES.items() if each in letters)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {known}")
    return letter


def blas_prefix(text: str) -> str:
    """The letter of a dtype that BLAS has."""
    return dtype_letter(text, "sdcz")


def dtype_letters(text: str) -> list[str]:
    """The letters of dtypes with commas between them."""
    return [dtype_letter(name) for name in names(text)]


def trans(text: str) -> int:
    """SciPy's number of an op."""
    try:
        return TRANS[text.upper()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is none of N, T, C") from None


def byte_count(text: str) -> int:
    """A number of bytes, perhaps with a decimal unit."""
    units = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    try:
        value = int(float(number) * units[unit]) if unit else int(number)
    except (ValueError, KeyError, OverflowError):
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of bytes (1000000000, 500M and 1.5G are)"
        )
    return value


def size(text: str) -> int:
    """A whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return value


def seconds(text: str) -> float:
    """A time in seconds: a number of more than 0, which may be infinite."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds (60 and 2.5 are)")
    return value


def names(text: str) -> list[str]:
    """Words with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def shapes(text: str) -> list[tuple[int, int]]:
    """Shapes such as 1000x2000 with commas between them."""
    shapes = []
    for name in names(text):
        sizes = name.lower().split("x")
        if len(sizes) != 2:
            raise argparse.ArgumentTypeError(f"{name!r} is no shape (1000x2000 is)")
        shapes.append((size(sizes[0]), size(sizes[1])))
    return shapes
