"""What explain and precompile say of batches, beside what the calls then launch."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from helpers.arrays import LIBRARIES

import gemv
from gemv.kernels.vectors import b06_several_long_rows
from gemv.selection import batches

needs_kernels = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to launch kernels"
)


def ones(*shape, dtype="f"):
    return np.ones(shape, dtype)


#: Calls as ``(routine, arguments, keywords)``, in the order of gemv's arguments.
CALLS = {
    "small items": ("gemv", (2.0, ones(3, 4, 5), ones(3, 5)), {}),
    "larger items": ("gemv", (1, ones(2, 70, 3), ones(3)), {}),
    "several rows": ("matvec", (1, ones(40, 36), ones(3, 36)), {}),
    "integers that all items share": (
        "matvec", (1, np.broadcast_to(np.ones((40, 36), int), (3, 40, 36)), ones(3, 36)), {},
    ),
    "columns down": ("matvec", (1, ones(2, 33, 40).swapaxes(1, 2), ones(2, 33)[:, ::-1]), {}),
    "a vector": ("matvec", (1, ones(5, 6), ones(6)), {}),
    "conjugates": ("vecmat", (1, ones(2, 5, 6, dtype="F"), ones(2, 5, dtype="F")), {}),
    "factors": ("gemv", (ones(2), ones(2, 5, 6), ones(6), ones(2), ones(2, 5)), {}),
    "steps": ("gemv", (1, ones(2, 5, 6), ones(2, 13)), {"incx": -2, "offx": 1, "kernel": "serial"}),
    "two dimensions": ("matvec", (1, ones(2, 1, 70, 3), ones(2, 2, 3)), {}),
}  # fmt: skip


def call(routine, arguments, keywords):
    alpha, a, x, *rest = arguments
    if routine == "gemv":
        return gemv.gemv(alpha, a, x, *rest, **keywords)
    return gemv.matvec(a, x) if routine == "matvec" else gemv.vecmat(x, a)


@needs_kernels
@pytest.mark.parametrize(
    ("place", "name"),
    [("host", name) for name in CALLS]
    # Device arrays are never converted.
    + [("device", name) for name in CALLS if not name.startswith("integers")],
)
def test_explain_tells_what_a_batch_launches(name, place):
    routine, arguments, keywords = CALLS[name]
    if place == "device":
        library = LIBRARIES["numba"]()
        arguments = tuple(
            library.array(np.ascontiguousarray(each)) if isinstance(each, np.ndarray) else each
            for each in arguments
        )
    with gemv.trace() as calls:
        told = gemv.explain(*arguments, **keywords, routine=routine)
        gemv.precompile(*arguments, **keywords, routine=routine)
        assert not calls
        call(routine, arguments, keywords)
    assert isinstance(told, gemv.BatchExplanation)
    assert {each.kernel for each in calls} == {told.kernel} and told.backend == calls[0].backend
    assert told.launches == tuple(launch for each in calls for launch in each.geometry.launches)
    assert (told.knobs, told.sizes) == (calls[0].knobs, calls[0].geometry.sizes)
    assert told.coefficients == calls[0].coefficients
    assert len(told.parts) == len(calls) and sum(told.parts) == told.items
    for part in (told.kernel, told.reason, told.routine, f"for {told.items} item"):
        assert part in str(told)
    assert pickle.loads(pickle.dumps(told)) == told


@needs_kernels
def test_explain_counts_reads_of_a_matrix_that_is_shared():
    def told(a, x, **keywords):
        return gemv.explain(1, a, x, routine="matvec", **keywords)

    for n, kernel in ((36, "several_short_rows"), (300, "several_rows")):
        several = told(ones(40, n), ones(11, n))
        assert several.kernel == kernel
        assert several.reads_of_a == -(-11 // several.knobs["COUNT"]) == 2
    assert told(ones(40, 36), ones(8, 36)).reads_of_a == 1
    assert told(ones(3, 40, 36), ones(3, 36)).reads_of_a == 1
    assert told(ones(3, 1, 40, 36), ones(3, 5, 36)).reads_of_a == 5
    assert told(ones(3, 1, 40, 36), ones(5, 36)).reads_of_a == 5
    other = told(ones(40, 36), ones(5, 36), kernel="serial")
    assert (other.kernel, other.reads_of_a, other.rung) == ("serial", 5, 1)


@needs_kernels
def test_explain_tells_the_shared_memory_that_a_launch_asks_for(monkeypatch):
    """As for many long rows, where x of all vectors stays there."""
    monkeypatch.setattr(b06_several_long_rows, "MANY_LANES", 1)
    limits = b06_several_long_rows.LIMITS
    monkeypatch.setitem(limits, 8, limits[8]._replace(columns=1))
    a, x = ones(40, 512, dtype=np.float16), ones(8, 512, dtype=np.float16)
    told = gemv.explain(1, a, x, routine="matvec")
    assert told.kernel == "several_long_rows" and told.reads_of_a == 1
    (launch,) = told.launches
    assert 48 << 10 < launch.shared <= 227 << 10
    assert f"threads and {launch.shared} bytes of shared memory (" in str(told)
    assert "shared memory" not in str(gemv.explain(1, ones(40, 36), ones(8, 36), routine="matvec"))


@needs_kernels
def test_the_depth_is_that_of_the_order_of_sums_of_an_item():
    """Several vectors have a kernel of their own, with the sums of the one for a single vector."""
    for n in (36, 300):
        several = gemv.explain(1, ones(40, n), ones(3, n), routine="matvec")
        single = gemv.explain(1, ones(40, n), ones(n))
        assert (several.kernel, single.kernel) == ("several_rows", "vector_rows")
        assert several.depth == single.depth < n - 1
    assert gemv.explain(1, ones(3, 4, 32), ones(3, 32)).depth == 9  # 4 sums of 8, then pairwise


@needs_kernels
def test_explain_counts_bytes_once_that_items_share():
    def moved(*arguments, **keywords):
        return gemv.explain(*arguments, **keywords).bytes_moved

    assert moved(1, ones(7, 3, 5), ones(7, 5)) == 7 * (15 + 5 + 3) * 4
    assert moved(1, ones(7, 3, 5), ones(5)) == (7 * 15 + 5 + 7 * 3) * 4
    assert moved(1, ones(3, 5), ones(7, 5), routine="matvec") == (15 + 7 * 5 + 7 * 3) * 4
    assert moved(1, ones(7, 3, 5), ones(5), 1, ones(7, 3)) == (7 * 15 + 5 + 7 * 6) * 4
    alpha = np.ones(7)
    assert moved(alpha, ones(7, 3, 5, dtype="e"), ones(5, dtype="e")) == (
        (7 * 15 + 5 + 7 * 3) * 2 + 7 * 4
    )


@needs_kernels
def test_explain_names_the_loads_that_all_items_allow():
    """Matrices of 36 float32, of 34 and of 33 begin at multiples of 16, of 8 and of 4 bytes."""
    library = LIBRARIES["numba"]()
    for n, wanted in ((36, 16), (34, 8), (33, 4)):
        a, x = library.array(ones(3, 70, n)), library.array(np.ones((3, n), "f"))
        assert gemv.explain(1, a, x).load_bytes == wanted
    # The copies of these lie side by side on the device, however far apart they are here.
    assert gemv.explain(1, ones(3, 70, 39)[:, :, :36], ones(3, 36)).load_bytes == 16


@needs_kernels
def test_explain_tells_parts(monkeypatch):
    monkeypatch.setattr(batches, "MOST_ITEMS", 3)
    told = gemv.explain(1, ones(7, 70, 3), ones(7, 3))
    assert told.parts == (3, 3, 1) and "3 launches of up to 3" in str(told)
    told = gemv.explain(1, ones(6, 70, 3), ones(6, 3))
    assert told.parts == (3, 3) and "2 launches of 3" in str(told)
    assert "one launch" in str(gemv.explain(1, ones(3, 70, 3), ones(3)))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((1, ones(0, 3, 4), ones(4)), "there are no items"),
        ((0, ones(2, 3, 4), ones(4), 1, ones(2, 3)), "alpha is 0 and beta is 1"),
    ],
)
def test_explain_tells_that_nothing_is_computed(arguments, reason):
    told = gemv.explain(*arguments)
    assert (told.kernel, told.launches, told.parts, told.bytes_moved) == (None, (), (), 0)
    assert told.reason == reason and str(told).endswith(f"{reason}.")
    gemv.precompile(*arguments)


def test_explain_tells_of_the_host():
    gemv.use_backend("host")
    try:
        told = gemv.explain(1, ones(2, 3, 4), ones(4), routine="matvec")
    finally:
        gemv.use_backend(None)
    assert (told.backend, told.kernel, told.items, told.parts) == ("host", "sgemv", 2, ())
    assert "item by item, 2 in all" in str(told)


@pytest.mark.parametrize("function", [gemv.explain, gemv.precompile])
def test_arguments_of_batches_are_checked(function):
    with pytest.raises(ValueError, match="matvec: x has 3 elements in its last dimension"):
        function(1, ones(2, 3, 4), ones(3), routine="matvec")
    with pytest.raises(ValueError, match="vecmat: trans is an argument of gemv"):
        function(1, ones(2, 3, 4), ones(3), trans=1, routine="vecmat")
    with pytest.raises(ValueError, match="routine must be one of 'gemv', 'matvec', 'vecmat'"):
        function(1, ones(2, 3, 4), ones(3), routine="bmm")
    with pytest.raises(ValueError, match="peer is for a matrix of two dimensions"):
        function(1, ones(2, 3, 4), ones(4), peer=True)
    with pytest.raises(ValueError, match="known kernels: serial"):
        function(1, ones(2, 3, 4), ones(4), kernel="none such")
