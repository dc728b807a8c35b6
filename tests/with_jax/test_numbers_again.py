"""The drop-in on JAX's arrays with an alpha and a y: what XLA computes from the second call on."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

from gemv.calls import jax_numbers, remembered, short_jax  # noqa: E402
from gemv.core.dtypes import DTYPES  # noqa: E402
from gemv.engines import host  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gpu")


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "bfloat16", "wide"])
@pytest.mark.parametrize("trans", [0, "T", 2])
def test_the_drop_in_with_numbers_and_a_y(short_way, dtype, trans):
    """As SciPy's BLAS computes it, which rounds as the host's part of ``gemv.gemv`` does."""
    routine, dtype = ("gemv, wide", "float32") if dtype == "wide" else ("gemv", dtype)
    rng = np.random.default_rng(8)
    a, x, y = (rng.standard_normal(size) for size in ((5, 7), 7, 5))
    if trans:
        x, y = y, x
    turn = 1 + 2j if dtype == "complex64" else 1
    a, x, y = (jnp.asarray(turn * each).astype(dtype) for each in (a, x, y))
    accumulate = "wide" if "wide" in routine else "plain"
    code, factors = {0: 0, "T": 1, 2: 2}[trans], "f" if dtype == "bfloat16" else a.dtype
    for given in (None, y):
        short_way(routine, None, a, x, None, given, trans=trans).expect(None, y)
    numbers = [2.5, -3, np.float32(0.1), np.float64(0.7), 1, 2.5]
    numbers += [0.5 - 2j] if turn != 1 else [jnp.asarray(1.5, factors)]
    operands = [np.asarray(each) for each in (a, x, y)]
    if dtype == "bfloat16":
        operands = [each.view(DTYPES["b"]) for each in operands]
    for alpha in numbers:
        for beta, given in ((0, None), (0, y), (0.5, y), (1, y), (numbers[-1], y)):
            for overwrite in (0, 1):
                found = short_way(
                    routine, alpha, a, x, beta, given, trans=trans, overwrite_y=overwrite
                )
                first, second = (np.asarray(each).astype(factors)[()] for each in (alpha, beta))
                expected = host.compute(
                    "gemv", code, first, *operands[:2], second,
                    None if given is None else operands[2], accumulate, operands[0].dtype,
                )  # fmt: skip
                assert found.dtype == a.dtype
                assert np.asarray(found).tobytes() == expected.tobytes()
    assert np.asarray(y).tobytes() == operands[2].tobytes()


def test_a_nan_in_a_y_that_is_not_read(operands, short_way):
    a, x, y = operands
    short_way("gemv", 1, a, x, 1, y).expect(None, y)
    found = short_way("gemv", 2.0, a, x, 0, y * jnp.nan)
    np.testing.assert_allclose(found, 2 * (a @ x), rtol=1e-4, atol=1e-5)


def test_other_numbers_are_not_compiled_anew(operands, short_way):
    a, x, y = operands
    for given in (None, y):
        short_way("gemv", 1, a, x, 0, given).expect(None, y)
    expected = [[alpha * (a @ x) + beta * y for beta in (0, 2)] for alpha in range(2, 99)]
    for alpha in (0.5, 0.5):  # XLA compiles once for each place of a number
        short_way("gemv", alpha, a, x)
    for alpha, beta in ((1.5, 2.5), (0.5, 0.5), (0.5, 3.5), (0.5, 0.5)):
        short_way("gemv", alpha, a, x, beta, y)
    with jax.log_compiles(True), pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("logging.Logger.log", lambda *arguments: said.append(arguments))
        found = [
            [short_way("gemv", float(alpha), a, x), short_way("gemv", alpha, a, x, 2.0, y)]
            for alpha in range(2, 99)
        ]
        assert not said
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_arrays_that_are_no_number_of_the_kernel_are_looked_at(operands, short_way, monkeypatch):
    """With an alpha that lies elsewhere XLA would compute there, and another dtype it refuses."""
    a, x, y = operands
    for given in (None, y):
        short_way("gemv", 1, a, x, 0, given).expect(None, y)
    right = jnp.float32(2)
    elsewhere = jax.device_put(right, jax.devices()[1])
    for _ in range(2):
        assert jnp.array_equal(short_way("gemv", right, a, x), short_way("gemv", 2.0, a, x))
    passed = []
    for known in short_jax._known.values():
        monkeypatch.setattr(known, "_blended", lambda *operands: passed.append(operands))
    for wrong in (jnp.float64(2), jnp.ones(1, "f"), jnp.int32(2), np.ones((), "f"), "2", elsewhere):
        for _ in range(2):
            assert short_way("gemv", wrong, a, x) is remembered.UNUSUAL
            assert short_way("gemv", right, a, x, wrong, y) is remembered.UNUSUAL
    assert not passed


def test_a_number_that_becomes_infinite(operands, short_way):
    a, x, y = operands
    short_way("gemv", 1, a, x).expect(None, y)
    for _ in range(3):
        assert not np.isfinite(short_way("gemv", 1e300, a, x)).any()


def test_numbers_of_32_bits_are_not_read_as_64(short_way):
    """Those that lie on the GPU; the ones that come by a ticket have the dtype that is wanted."""
    a, x, y = jnp.ones((4, 3)), jnp.ones(3), jnp.ones(4)
    beta = jnp.float64(0.5)
    for given in (None, y):
        short_way("gemv", 1, a, x, 0, given).expect(None, a[:, 0])
    with jax.enable_x64(False):
        for _ in range(3):
            assert short_way("gemv", 2.5, a, x, beta, y) is remembered.UNUSUAL
            found = short_way("gemv", 2.1, a, x)
            assert found is remembered.UNUSUAL or np.array_equal(found, [3 * 2.1] * 4)
    assert short_way("gemv", 2.5, a, x, beta, y).tolist() == [8.0] * 4


def test_a_part_of_a_longer_y_is_looked_at(operands, short_way):
    a, x, y = operands
    longer = jnp.concatenate([y, y])
    short_way("gemv", 1, a, x, 1, longer).expect(None, y)
    assert short_way("gemv", 1, a, x, 1, longer).expect is not None, "nothing was kept"


def test_xla_has_the_result_where_the_old_y_was(operands):
    """The kernel blends in place, so XLA copies y to where the result will be."""
    a, x, y = operands
    number = jnp.float32(2)
    text = jax_numbers.compiled(0, "plain").lower(a, x, number, number, y).as_text()
    assert "output_operand_alias" in text and "operand_index = 4" in text
