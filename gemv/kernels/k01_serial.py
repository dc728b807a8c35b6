"""One thread walks the whole matrix: the definition of gemv, and the yardstick for all the rest.

Idea
    Write the operation down exactly as BLAS defines it, two loops and a sum, and let a single
    thread of the GPU run it. Nothing is parallel, so nothing can go wrong: this is the kernel to
    read when another one gives an unexpected number.

Picture
    ::

        column     0  1  2  3 ...          one block of one thread, T
        row 0      T> T> T> T>  ...   y0
        row 1      T> T> T> T>  ...   y1   a GPU has tens of thousands of threads to offer,
        ...                                and here all but one of them stay at home

Bytes
    (m*n + m*n + len(y) * (1 + [beta != 0])) * itemsize as the program asks for them: x is read
    again for every row, and only the caches keep that from reaching memory.

Wins
    Never, except as a reference: the sum runs from the first column to the last, like a textbook's.

Loses
    Everywhere. One thread has a load or two in flight, and waits for each; a memory wants
    thousands of them (the first rung with wide loads works out how many).

Sums
    Left to right over the columns. Same bits on every run.

Source
    The update in the documentation of reference BLAS ``dgemv``; "Matrix-vector product", a CUDA
    exercise of EPCC, whose template starts from this serial version.
"""

from gemv.core.geometry import Geometry, Launch
from gemv.kernels.kernel import Kernel


def build(spec):
    from gemv.language import update

    zero, op = spec.zero, spec.op

    def serial(rows, cols, alpha, a, row_stride, col_stride, x, incx, beta, y, incy):
        if alpha == 0:
            cols = 0  # BLAS: alpha = 0 reads neither A nor x
        for i in range(rows):
            total = zero
            for j in range(cols):
                total += op(a[i * row_stride + j * col_stride]) * x[j * incx]
            update(alpha, total, beta, y, i * incy)

    return (serial,)


def geometry(problem, device, knobs):
    return Geometry((Launch((1, 1, 1), (1, 1, 1)),))


KERNEL = Kernel(
    name="serial",
    rung=1,
    build=build,
    geometry=geometry,
    tile=lambda knobs: (1, 1),
    teaching=True,
    doc=__doc__,
)
