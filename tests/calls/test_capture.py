"""CUDA graphs: what may be captured, what is refused before it breaks a capture, and replays."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from helpers.arrays import LIBRARIES

import gemv

pytestmark = pytest.mark.gpu

#: Kernels of one launch without scratch memory, of one with counters, of one whose blocks post
#: their sums, and of two launches.
KERNELS = ["warp_per_row", "last_block", "phased_rows", "coalesced"]


@pytest.fixture
def torch():
    return LIBRARIES["torch"]().torch


def operands(torch, m=200, n=5000):
    return (
        torch.rand(m, n, device="cuda"),
        torch.rand(n, device="cuda"),
        torch.zeros(m, device="cuda"),
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("planned", [False, True], ids=["call", "plan"])
def test_torch_captures_and_replays_with_new_contents(torch, kernel, planned):
    a, x, y = operands(torch)
    gemv.precompile(2.0, a, x, 0.0, y, overwrite_y=1, kernel=kernel)
    plan = gemv.plan(a, x, y, kernel=kernel) if planned else None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if plan is not None:
            plan(2.0, 0.0)
        else:
            gemv.gemv(2.0, a, x, 0.0, y, overwrite_y=1, kernel=kernel)
        z = y * 2
    for k in range(3):
        a.copy_(torch.rand_like(a))
        x.fill_(k + 1)
        graph.replay()
        torch.testing.assert_close(z, 4 * (a @ x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kernel", ["phased_rows", "vector_columns"])
def test_sums_of_splits_of_all_sizes_in_one_capture(torch, kernel):
    """Memory for posts grows inside the capture, and is as it was before each replay."""
    products = []
    for dtype, (m, n) in (
        (torch.float32, (30, 20_000)), (torch.complex128, (40, 30_000)),
        (torch.float32, (700, 30_000)), (torch.float64, (3, 90_000)),
    ):  # fmt: skip
        a = torch.rand(n, m, device="cuda", dtype=dtype).t()
        a = a if kernel == "vector_columns" else a.contiguous()
        x = torch.rand(n, device="cuda", dtype=dtype)
        with gemv.trace() as calls:
            gemv.gemv(1.0, a, x, kernel=kernel)
        assert calls[0].geometry.posts and calls[0].geometry.sizes["splits"] > 1
        products.append((a, x))
    graphs = []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = [gemv.gemv(1.0, a, x, kernel=kernel) for a, x in products]
        graphs.append((graph, results))
    streams = [torch.cuda.Stream() for _ in graphs]
    for k in range(1, 6):
        for _, x in products:
            x.fill_(k)
        torch.cuda.synchronize()
        for _ in range(3):  # the two run at once
            for stream, (graph, _) in zip(streams, graphs, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        for _, results in graphs:
            for (a, x), y in zip(products, results, strict=True):
                torch.testing.assert_close(y, a @ x, rtol=1e-4, atol=1e-3)


def test_torch_makes_y_in_a_capture(torch):
    a, x, _ = operands(torch)
    gemv.gemv(1.0, a, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [gemv.gemv(2.0, a, x), gemv.gemv(3.0, a, x, 1.0, x[:200])]
    x.fill_(2)
    graph.replay()
    torch.testing.assert_close(results[0], 2 * (a @ x), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(results[1], 3 * (a @ x) + x[:200], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_cupy_captures_and_replays(kernel):
    cupy = LIBRARIES["cupy"]().cupy
    a, x, y = cupy.random.rand(200, 5000, dtype="f"), cupy.ones(5000, "f"), cupy.zeros(200, "f")
    gemv.precompile(2.0, a, x, 0.0, y, overwrite_y=1, kernel=kernel)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        gemv.gemv(2.0, a, x, 0.0, y, overwrite_y=1, kernel=kernel)
        graph = stream.end_capture()
    for k in range(3):
        with stream:
            x.fill(k + 1)
            graph.launch(stream)
        stream.synchronize()
        cupy.testing.assert_allclose(y, 2 * (k + 1) * a.sum(1), rtol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_numba_arrays_are_captured_on_a_named_stream(kernel):
    from cuda.bindings import driver
    from numba import cuda

    from gemv.driver.libcuda import check

    a = np.random.default_rng(0).random((200, 5000), dtype="f")
    device = [cuda.to_device(each) for each in (a, np.ones(5000, "f"), np.zeros(200, "f"))]
    gemv.precompile(2.0, *device[:2], 0.0, device[2], overwrite_y=1, kernel=kernel)
    stream = cuda.stream()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    check(driver.cuStreamBeginCapture(stream.handle, mode))
    try:
        # Else Numba frees whatever arrays Python collects now, which breaks a capture.
        with cuda.defer_cleanup():
            gemv.gemv(2.0, *device[:2], 0.0, device[2], overwrite_y=1, kernel=kernel, stream=stream)
            with pytest.raises(RuntimeError, match="overwrite_y=1"):
                gemv.gemv(2.0, *device[:2], kernel=kernel, stream=stream)
    finally:
        graph = check(driver.cuStreamEndCapture(stream.handle))
    executable = check(driver.cuGraphInstantiate(graph, 0))
    for k in range(3):
        device[1].copy_to_device(np.full(5000, k + 1, "f"))
        check(driver.cuGraphLaunch(executable, stream.handle))
        stream.synchronize()
        np.testing.assert_allclose(device[2].copy_to_host(), 2 * (k + 1) * a.sum(1), rtol=1e-4)
    check(driver.cuGraphExecDestroy(executable))
    check(driver.cuGraphDestroy(graph))


def test_a_kernel_that_is_not_compiled_is_refused(torch):
    a, x, y = (each.double() for each in operands(torch, 64, 64))
    kernel = "tile2d"
    engine = gemv.engines.backend.engine()
    loaded = engine.functions.loaded
    engine.functions.loaded = {k: v for k, v in loaded.items() if k[0] != kernel}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.add_(1)
        with pytest.raises(RuntimeError, match=r"'tile2d' is not compiled yet.*gemv\.precompile"):
            gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, kernel=kernel)
    graph.replay()  # the capture is intact
    torch.cuda.synchronize()
    gemv.precompile(1.0, a, x, 0.0, y, overwrite_y=1, kernel=kernel)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, kernel=kernel)
    graph.replay()
    torch.testing.assert_close(y, a @ x)


def test_a_producer_outside_of_the_capture_is_refused(torch):
    cupy = LIBRARIES["cupy"]().cupy
    a, x, y = operands(torch)
    late = cupy.ones(5000, "f")
    stream = cupy.cuda.Stream(non_blocking=True)
    gemv.gemv(1.0, a, late, 0.0, y, overwrite_y=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with stream, pytest.raises(ValueError, match="neither captured nor joined"):
            gemv.gemv(1.0, a, late, 0.0, y, overwrite_y=1)
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
    graph.replay()
    torch.testing.assert_close(y, a @ x, rtol=1e-4, atol=1e-3)
    # The other way round: a call outside must not be drawn into somebody's capture.
    with stream:
        stream.begin_capture()
        late.fill(2)
        with pytest.raises(ValueError, match=r"of x is being captured"):
            gemv.gemv(1.0, a, late, 0.0, y, overwrite_y=1)
        stream.end_capture()


def test_a_joined_stream_is_captured(torch):
    a, x, y = operands(torch)
    gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, stream=side)
        torch.cuda.current_stream().wait_stream(side)
    x.fill_(1)
    graph.replay()
    torch.testing.assert_close(y, a.sum(1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_graphs_of_one_plan_overlap_with_each_other_and_with_calls(torch, kernel):
    """Scratch memory and counters that were shared would mix their sums."""
    a, x, _ = operands(torch, 500, 20000)
    targets = [torch.zeros(500, device="cuda") for _ in range(3)]
    plan = gemv.plan(a, x, targets[0], kernel=kernel)
    plan(1.0, 0.0)
    exact = targets[0].clone()
    doubled = gemv.gemv(2.0, a, x, kernel=kernel)
    graphs = []
    for target in targets[:2]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                plan(1.0, 0.0, y=target)
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(20):
        torch.cuda.synchronize()
        for target in targets:
            target.fill_(float("nan"))
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        for _ in range(20):
            gemv.gemv(2.0, a, x, 0.0, targets[2], overwrite_y=1, kernel=kernel)
        torch.cuda.synchronize()
        assert torch.equal(targets[0], exact) and torch.equal(targets[1], exact)
        assert torch.equal(targets[2], doubled)


def test_counters_come_back_when_graphs_go(torch):
    import time

    a, x, y = operands(torch)
    workspaces = gemv.engines.backend.engine().workspaces
    gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, kernel="last_block")

    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, kernel="last_block")
        graph.replay()
        torch.cuda.synchronize()
        return graph

    kept = capture()
    before = len(workspaces.captured)
    for _ in range(5):
        capture()
    gc.collect()
    torch.cuda.synchronize()
    deadline = time.monotonic() + 10
    while len(workspaces.captured) > before and time.monotonic() < deadline:
        time.sleep(0.05)
        workspaces.release_captured()
    assert len(workspaces.captured) <= before
    y.zero_()
    kept.replay()
    torch.testing.assert_close(y, a @ x, rtol=1e-4, atol=1e-3)


def test_jax_arrays_cannot_be_captured(torch):
    jax = LIBRARIES["jax"]()
    a, x = jax.array(np.eye(3, dtype="f")), jax.array(np.ones(3, "f"))
    gemv.gemv(1.0, a, x)
    stream = torch.cuda.Stream()
    y = torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        with pytest.raises((TypeError, RuntimeError), match="captured"):
            gemv.gemv(1.0, a, x, stream=stream)
        y.add_(1)
    graph.replay()
    torch.cuda.synchronize()


@pytest.mark.parametrize("kernel", [None, *KERNELS])
@pytest.mark.parametrize("trans", ["N", "T"])
def test_a_chain_that_starts_early_computes_the_same(torch, kernel, trans):
    """Each product reads what the one before wrote, and overwrites what that one read."""
    size = 300
    a = torch.linalg.qr(torch.randn(size, size, device="cuda"))[0].contiguous()
    if kernel == "phased_rows" and trans == "T":  # which wants memory along the rows of op(A)
        a = a.T.contiguous().T
    v = [torch.randn(size, device="cuda") for _ in range(2)]
    start = v[0].clone()
    plans = [gemv.plan(a, v[k], v[1 - k], kernel=kernel, trans=trans) for k in (0, 1)]
    for plan in plans:
        plan(1.0, 0.0)

    def chain(wait):
        v[0].copy_(start)
        v[1].fill_(float("nan"))
        for k in range(100):
            plans[k % 2](1.0, 0.0)
            if wait:
                torch.cuda.synchronize()
        return v[0].clone()

    exact = chain(True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for k in range(100):
            plans[k % 2](1.0, 0.0)
    for _ in range(20):
        assert torch.equal(chain(False), exact)
        v[0].copy_(start)
        v[1].fill_(float("nan"))
        graph.replay()
        assert torch.equal(v[0], exact)


def test_a_copy_of_x_that_waits_is_refused(torch):
    a, x, y = operands(torch, 64, 64)
    kernel = "where_x_lives"
    call = (1.0, a, x, 0.0, y)
    options = {"overwrite_y": 1, "kernel": kernel, "incx": -1}
    gemv.gemv(*call, **options)
    exact = y.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.add_(1)
        with pytest.raises(RuntimeError, match="waits for a copy of x"):
            gemv.gemv(*call, **options)
    graph.replay()
    assert torch.equal(y, exact + 1)


@pytest.mark.parametrize("planned", [False, True], ids=["call", "plan"])
@pytest.mark.parametrize(
    "shapes",
    [((5000, 8, 8), (5000, 8)), ((300, 200), (11, 200)), ((7, 100, 300), (300,))],
    ids=["small", "vectors", "larger"],
)
def test_batches_are_captured_and_replayed(torch, shapes, planned):
    a, x = (torch.rand(shape, device="cuda") for shape in shapes)
    y = torch.zeros((*torch.broadcast_shapes(a.shape[:-2], x.shape[:-1]), a.shape[-2]),
                    device="cuda")  # fmt: skip
    if planned:
        plan = gemv.plan(a, x, y, routine="matvec")
    else:
        gemv.precompile(2.0, a, x, 0.0, y, routine="matvec")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if planned:
            plan(2.0, 0.0)
        else:
            gemv.matvec(a, x, y, alpha=2.0)
        z = y * 2
    for k in range(3):
        a.copy_(torch.rand_like(a))
        x.fill_(k + 1)
        graph.replay()
        exact = 4 * (a @ x[..., None])[..., 0]
        torch.testing.assert_close(z, exact, rtol=1e-4, atol=1e-3)


def test_parts_of_a_captured_batch(torch, monkeypatch):
    from gemv.selection import batches

    monkeypatch.setattr(batches, "MOST_ITEMS", 3)
    a, x = torch.rand(7, 100, 300, device="cuda"), torch.rand(7, 300, device="cuda")
    y = torch.zeros(7, 100, device="cuda")
    plan = gemv.plan(a, x, y)
    with gemv.trace() as calls:
        plan()
    assert len(calls) == 3
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(2.0)
    x.fill_(1)
    graph.replay()
    torch.testing.assert_close(y, 2 * a.sum(-1), rtol=1e-4, atol=1e-3)
