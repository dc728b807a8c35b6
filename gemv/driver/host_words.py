"""What the machine code of a call on NumPy's arrays reads: arguments, objects, numbers, arrays."""

from __future__ import annotations

#: The positional arguments of a call, in order: those of a short way.
ARGUMENTS = (
    "routine", "alpha", "a", "x", "beta", "y", "offx", "incx", "offy", "incy", "trans",
    "overwrite_y", "kernel", "stream", "coefficients",
)  # fmt: skip
#: Those that have to be the object of the default.
FIXED = {"offx": 0, "incx": 1, "offy": 0, "incy": 1}
ABSENT = ("kernel", "stream", "coefficients")
#: Values of `trans`, three times N, T, C.
TRANS = (0, 1, 2, "N", "T", "C", "n", "t", "c")
#: The most rows and columns that SciPy's BLAS takes, and the largest distance of its columns.
MAX_SIDE = 2**31 - 1
#: From here on integers are rounded as float64.
EXACT = 2**53
#: Letters of BLAS's routines, in the order of the words below.
LETTERS = "sdcz"

#: C functions of Python and NumPy that the code calls.
PYTHON = (
    "PyFloat_AsDouble", "PyComplex_RealAsDouble", "PyComplex_ImagAsDouble", "PyErr_Occurred",
    "PyErr_Clear", "PyObject_Vectorcall", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef",
)  # fmt: skip
#: Their places in NumPy's table of C functions, which is the same in each version.
NUMPY = {"PyArray_NewCopy": 85, "PyArray_Zeros": 183}
#: The numbers that the code reads: addresses of functions, of the count of open traces and of
#: BLAS's routines, and up to how many bytes of A the host computes.
WORDS = (*PYTHON, *NUMPY, "traces", "most", *(f"{letter}gemv" for letter in LETTERS))
#: The objects that it compares with. They live as long as it does.
OBJECTS = (
    "words", "further", "None", "ndarray", "float", "int", "float64", "complex", "complex128",
    "gemv", *(f"trans {value}" for value in TRANS), "False", "True",
    *(f"dtype {letter}" for letter in LETTERS), *(f"name {letter}" for letter in LETTERS),
)  # fmt: skip

#: Bytes of an object before what its type keeps in it.
HEAD = object.__basicsize__
#: Words of an array behind that: where its data is, how many dimensions (in 32 bits), where lengths
#: and strides are, the array whose memory it is, the dtype, flags (in 32 bits).
DATA, RANK, LENGTHS, STRIDES, BASE, DTYPE, FLAGS = range(7)
CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400
