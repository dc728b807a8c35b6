"""Vectors in host memory beside a matrix of any library: whose arrays they are, on which stream."""

from types import SimpleNamespace

import numpy as np
import pytest

import gemv
from gemv.arrays import libraries
from gemv.calls.host_vectors import HostVectors
from gemv.engines import backend

CAPTURED = 74
DEFAULT, CURRENT = 0, {0: 70, 3: 73, 4: CAPTURED}
#: The streams that are being captured, and the sizes of the vectors that were made.
captured, made = [], []


class Library:
    """A library of arrays, which are pairs of it and of the memory that they share."""

    def __init__(self, shares=True, streams=True):
        self.shares, self.streams = shares, streams

    def read(self, array):
        return SimpleNamespace(stream=array[2] if len(array) > 2 else None)

    def stream_getter(self):
        return CURRENT.__getitem__ if self.streams else None

    def shared(self, array, device):
        _, memory = array
        return (self, memory, device) if self.shares else array


NUMBA = Library(streams=False)


@pytest.fixture
def copies(monkeypatch):
    """What is copied, with the stream, beside a GPU that does nothing."""
    done = []
    made.clear()
    captured[:] = [CAPTURED]
    vectors = SimpleNamespace(
        x=(NUMBA, "x"), y=(NUMBA, "y"),
        put=lambda x, y, stream: done.append(("put", x, y, stream)),
        get=lambda stream: done.append(("get", stream)) or "new y",
    )  # fmt: skip
    engine = SimpleNamespace(
        vectors=lambda cols, rows, dtype: made.append((cols, rows)) or vectors,
        default_stream=lambda: DEFAULT,
        capture_of=lambda stream: "a graph" if stream in captured else None,
    )
    monkeypatch.setattr(backend, "engine", lambda: engine)
    monkeypatch.setattr(libraries, "device_library", lambda array: array[0])
    return done


def product(vectors, done):
    assert vectors.product("x of host", None, lambda stream: done.append(("launch", stream))) == (
        "new y"
    )
    return done


def test_a_matrix_of_numbas_has_the_vectors_themselves(copies):
    vectors = HostVectors((NUMBA, "a"), None, 5, 6, np.float64)
    assert (vectors.x, vectors.y) == ((NUMBA, "x"), (NUMBA, "y"))
    assert product(vectors, copies) == [
        ("put", "x of host", None, DEFAULT), ("launch", None), ("get", DEFAULT)
    ]  # fmt: skip


@pytest.mark.parametrize("device", [0, 3])
def test_a_library_computes_with_its_own_arrays_on_its_current_stream(copies, device):
    library = Library()
    vectors = HostVectors((library, "a"), device, 5, 6, np.float64)
    assert (vectors.x, vectors.y) == ((library, "x", device), (library, "y", device))
    stream = CURRENT[device]
    assert product(vectors, copies) == [
        ("put", "x of host", None, stream), ("launch", None), ("get", stream)
    ]  # fmt: skip


@pytest.mark.parametrize("lacks", ["shares", "streams"])
def test_other_libraries_compute_on_the_stream_of_the_copies(copies, lacks):
    """JAX's arrays share no memory with others, and say nothing of a stream."""
    vectors = HostVectors((Library(**{lacks: False}), "a"), 3, 5, 6, np.float64)
    assert (vectors.x, vectors.y) == ((NUMBA, "x"), (NUMBA, "y"))
    assert product(vectors, copies) == [
        ("put", "x of host", None, DEFAULT), ("launch", DEFAULT), ("get", DEFAULT)
    ]  # fmt: skip


def test_a_matrix_of_numbas_that_names_a_stream(copies):
    """That stream may not be ordered with the one of the copies."""
    vectors = HostVectors((NUMBA, "a", 9), None, 5, 6, np.float64)
    assert (vectors.x, vectors.y) == ((NUMBA, "x"), (NUMBA, "y"))
    assert product(vectors, copies) == [
        ("put", "x of host", None, DEFAULT), ("launch", DEFAULT), ("get", DEFAULT)
    ]  # fmt: skip


@pytest.mark.parametrize("library", [Library(), Library(streams=False), NUMBA])
def test_nothing_is_copied_on_a_stream_that_is_being_captured(copies, library):
    """It would go into the graph, and the wait for the result would break the capture."""
    captured.clear()
    vectors = HostVectors((library, "a"), 4, 5, 6, np.float64)
    stream = CAPTURED if library.streams else DEFAULT
    captured.append(stream)
    with pytest.raises(ValueError, match=f"stream {stream:#x} is being captured"):
        product(vectors, copies)
    assert copies == [] and len(made) == 1
    with pytest.raises(ValueError, match=f"stream {stream:#x} is being captured"):
        HostVectors((library, "a"), 4, 5, 6, np.float64)
    assert len(made) == 1, "an allocation would break the capture as well"


def test_a_capture_that_waits_for_the_stream_is_told_of_a_matrix(copies, monkeypatch):
    def ask(stream):
        raise RuntimeError(f"a stream is being captured that waits for {stream}")

    engine = backend.engine()
    vectors = HostVectors((NUMBA, "a"), None, 5, 6, np.float64)
    monkeypatch.setattr(engine, "capture_of", ask)
    for refused in (
        lambda: HostVectors((NUMBA, "a"), None, 5, 6, np.float64), lambda: product(vectors, copies)
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="^Matrix: a stream is being captured that waits"):
            refused()
    assert copies == [] and len(made) == 1


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_copies_are_done_when_a_launch_fails(copies, error):
    """The next product may be on another stream, where nothing waits for them."""
    vectors = HostVectors((Library(), "a"), 3, 5, 6, np.float64)

    def launch(stream):
        raise error("the first error")

    with pytest.raises(error, match="the first error"):
        vectors.product("x of host", "y of host", launch)
    stream = CURRENT[3]
    assert copies == [("put", "x of host", "y of host", stream), ("get", stream)]


def test_the_host_works_while_the_gpu_computes(copies):
    vectors = HostVectors((Library(), "a"), 3, 5, 6, np.float64)
    work = lambda: copies.append("work")  # noqa: E731
    vectors.product("x of host", None, lambda stream: copies.append("launch"), work)
    stream = CURRENT[3]
    assert copies == [("put", "x of host", None, stream), "launch", "work", ("get", stream)]
    copies.clear()
    with pytest.raises(KeyboardInterrupt):
        vectors.product("x of host", None, lambda stream: None, interrupted)
    assert copies == [("put", "x of host", None, stream), ("get", stream)]


def interrupted():
    raise KeyboardInterrupt


def arrays_of(name):
    """A function that puts an array on the GPU, and a context with another current stream."""
    library = pytest.importorskip(name)
    if name == "cupy":
        return library.asarray, lambda: library.cuda.Stream(non_blocking=True)
    return (
        lambda array: library.from_numpy(array).cuda(),
        lambda: library.cuda.stream(library.cuda.Stream()),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupy", "torch"])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_products_by_a_matrix_of_a_library(name, dtype):
    """On its current stream, by plans that look at no array; also behind work that is pending."""
    put, other_stream = arrays_of(name)
    rng = np.random.default_rng(0)
    host = rng.standard_normal((700, 900)).astype(dtype)
    x, xs = (rng.standard_normal(s).astype(dtype) for s in ((900,), (900, 3)))
    with gemv.Matrix(host) as ours:
        expected, several, back = ours @ x, ours @ xs, ours.rmatvec(expected_x := ours @ x)
    a = put(np.zeros_like(host))
    with gemv.Matrix(a) as matrix:
        matrix @ x, matrix @ xs, matrix.rmatvec(expected_x)
        for key in (0, 2 if dtype == "c16" else 1):
            assert matrix._bound[key][1]._launch is not None
        for _ in range(20):
            with other_stream():
                a[...] = 0
                a[...] = put(host)
                assert (matrix @ x).tobytes() == expected.tobytes()
                a[...] = 0
                a[...] = put(host)
                assert (matrix @ xs).tobytes() == several.tobytes()
                assert matrix.rmatvec(expected_x).tobytes() == back.tobytes()


@pytest.mark.gpu
def test_a_first_product_on_a_captured_stream_breaks_no_capture():
    torch = pytest.importorskip("torch")
    a, count = torch.ones(5, 4, device="cuda"), torch.zeros(3, device="cuda")
    count += 1
    matrix, graph = gemv.Matrix(a), torch.cuda.CUDAGraph()
    for x in (np.ones(4, "f"), np.ones((4, 3), "f")):
        with torch.cuda.graph(graph):
            count += 1
            with pytest.raises(ValueError, match="^Matrix: stream 0x.* is being captured"):
                matrix @ x
        count.zero_()
        graph.replay()
        assert count.tolist() == [1, 1, 1]
        graph.reset()
    assert (matrix @ np.ones(4, "f")).tolist() == [4] * 5


@pytest.mark.gpu
def test_a_matrix_of_numbas_on_a_stream_that_is_ordered_with_no_other():
    torch, cuda = pytest.importorskip("torch"), pytest.importorskip("numba.cuda")
    side = torch.cuda.Stream()  # a non-blocking one
    a = cuda.to_device(np.eye(64, dtype="f"), stream=cuda.external_stream(side.cuda_stream))
    side.synchronize()
    matrix = gemv.Matrix(a)
    for value in range(1, 5):
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
        assert (matrix @ np.full(64, value, "f")).tolist() == [value] * 64
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
        assert (matrix @ np.full((64, 3), value, "f") == value).all()
