"""Products of the soak: what is multiplied, in which ways, and the bits that it must have.

A product has two copies of A at two addresses, and two sets of x, alpha and beta. Its results are
those of calls that were made alone, and are held against a reference in wider precision.
"""

from __future__ import annotations

import numpy as np

import gemv
from gemv.core.dtypes import DTYPES
from gemv.measure.reference import error_in_bounds, reference

#: alpha and beta of the two sets.
FACTORS = ((1.0, 0.0), (-2.5, 0.5))


class Case:
    """Operands on the device, and the bits of their results.

    Attributes
    ----------
    name : str
    y0 : array
        What y is before a call, of the shape and dtype of a result.
    expected : list of array
        The results on the host, for each set.
    capturable : bool
        Whether a call may be captured into a graph; where it may not, its plan may.
    """

    name: str
    y0: np.ndarray
    expected: np.ndarray
    capturable = True

    def call(self, copy, number, y, **named):
        """``y := alpha*op(A)*x + beta*y``, with a copy of A and the set of that number."""
        raise NotImplementedError

    def new(self, copy, **named):
        """``op(A)*x`` with the x of the first set, as a new array."""
        raise NotImplementedError

    def plan(self, copy, number, y):
        """A function that does what :meth:`call` does, for these arrays."""
        raise NotImplementedError

    def _checked(self, arrays, products):
        """The results without load; `products` are op(A) and the two x of each item."""
        found = []
        for number, (alpha, beta) in enumerate(FACTORS):
            y = arrays.array(self.y0)
            self.call(0, number, y)
            arrays.synchronize()
            got = arrays.host(y)
            results, before = self._items(got), self._items(self.y0)
            for (op_a, xs), own, own_y in zip(products, results, before, strict=True):
                exact, magnitude = reference(alpha, op_a, xs[number], beta, own_y)
                error = error_in_bounds(own, exact, magnitude, op_a.shape[1], alpha)
                if not error <= 1:
                    raise ArithmeticError(f"{self.name}: error is {error} bounds, without any load")
            found.append(got)
        self.expected = np.array(found)

    def _items(self, y):
        """The results of the single products in y."""
        return [y]


def random(rng, dtype, *shape):
    values = rng.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


class Product(Case):
    """``gemv.gemv`` with a matrix, or with `items` matrices or vectors: a batch.

    With `items` and `is_shared`, all items have one matrix: several vectors.
    """

    def __init__(
        self, arrays, prefix, m, n, trans, order, kernel, accumulate="plain", items=0,
        is_shared=False,
    ):  # fmt: skip
        dtype = DTYPES[prefix]
        many = f" {items} {'vectors' if is_shared else 'matrices'}" if items else ""
        chosen = f"{order} {kernel or 'selected'} {accumulate}"
        self.name = f"{prefix}gemv {m} x {n}{many} {'NTC'[trans]} {chosen}"
        self.options = {"trans": trans, "kernel": kernel, "accumulate": accumulate}
        rng = np.random.default_rng([m, n, trans, ord(prefix)])
        leading = (items,) if items else ()
        a_leading = (1,) if is_shared else leading
        a = np.asarray(random(rng, dtype, *a_leading, m, n), order=order)
        rows, cols = (n, m) if trans else (m, n)
        xs = [random(rng, dtype, *leading, cols) for _ in FACTORS]
        self.y0 = random(rng, dtype, *leading, rows)
        # All are kept, so no two are at one address; both copies begin at a multiple of 256 bytes.
        self.a = [arrays.array(a) for _ in range(2)]
        self.x = [arrays.array(x) for x in xs]
        op_a = a.swapaxes(-1, -2) if trans else a
        op_a = op_a.conj() if trans == 2 else op_a
        if items:
            op_a = np.broadcast_to(op_a, (items, rows, cols))
            products = [(op_a[k], [x[k] for x in xs]) for k in range(items)]
        else:
            products = [(op_a, xs)]
        self._checked(arrays, products)

    def _items(self, y):
        return [y] if y.ndim == 1 else list(y)

    def call(self, copy, number, y, **named):
        alpha, beta = FACTORS[number]
        gemv.gemv(
            alpha, self.a[copy], self.x[number], beta, y, overwrite_y=1, **self.options, **named
        )

    def new(self, copy, **named):
        return gemv.gemv(1.0, self.a[copy], self.x[0], **self.options, **named)

    def plan(self, copy, number, y):
        plan = gemv.plan(self.a[copy], self.x[number], y, **self.options)
        return lambda **named: plan(*FACTORS[number], **named)


class List(Case):
    """``gemv.gemv_batched`` and ``gemv.Batch.plan`` with matrices of different sizes."""

    capturable = False

    def __init__(self, arrays, prefix, shapes, trans):
        dtype = DTYPES[prefix]
        self.name = f"{prefix} list of {len(shapes)} {'NTC'[trans]}"
        self.arrays, self.trans = arrays, trans
        rng = np.random.default_rng([len(shapes), trans, ord(prefix)])
        a = [random(rng, dtype, m, n) for m, n in shapes]
        sides = [(n, m) if trans else (m, n) for m, n in shapes]
        ends = np.cumsum([(0, 0), *sides], axis=0)
        self.rows, self.cols = (
            [slice(*pair) for pair in zip(own[:-1].tolist(), own[1:].tolist(), strict=True)]
            for own in ends.T
        )
        xs = [random(rng, dtype, int(ends[-1, 1])) for _ in FACTORS]
        self.y0 = random(rng, dtype, int(ends[-1, 0]))
        self.a = [[arrays.array(each) for each in a] for _ in range(2)]
        self.batches = [gemv.Batch(own, trans) for own in self.a]
        whole = [arrays.array(x) for x in xs]
        self.x = [[x[part] for part in self.cols] for x in whole]
        op_a = [each.T if trans else each for each in a]
        op_a = [each.conj() if trans == 2 else each for each in op_a]
        self._checked(
            arrays,
            [(own, [x[part] for x in xs]) for own, part in zip(op_a, self.cols, strict=True)],
        )

    def _items(self, y):
        return [y[part] for part in self.rows]

    def call(self, copy, number, y, **named):
        alpha, beta = FACTORS[number]
        gemv.gemv_batched(
            alpha, self.a[copy], self.x[number], beta, self._items(y), self.trans, overwrite_y=1,
            **named,
        )  # fmt: skip

    def new(self, copy, **named):
        made = gemv.gemv_batched(1.0, self.a[copy], self.x[0], trans=self.trans, **named)
        return self.arrays.joined(made, named.get("stream"))

    def plan(self, copy, number, y):
        return self.batches[copy].plan(self.x[number], self._items(y), *FACTORS[number])
