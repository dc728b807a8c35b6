"""What a process survives: forks, faults, a full GPU, Ctrl-C, and its end amid its work."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from helpers import processes

import gemv

TOP = Path(gemv.__file__).parents[1]
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")


#: After so many seconds a process says where its threads are, and ends.
PATIENCE = 60 if gemv.backend() == "cuda" else 240


def python(code, quiet=True, **variables):
    """Run `code` in a process of its own, on the backend of this one; what it printed.

    `variables` are changes to its environment.
    """
    path = os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")])
    watch = f"import faulthandler; faulthandler.dump_traceback_later({PATIENCE}, exit=True)\n"
    done = processes.run(
        [sys.executable, "-c", watch + code],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert not quiet or not done.stderr, done.stderr
    return done.stdout


# Processes ---------------------------------------------------------------------------------------


@FORKS
def test_fork_after_the_import_alone():
    """Importing touches no GPU, so a child has all of it."""
    out = python(
        """
import os, sys
import gemv
gemv.gemv, gemv.plan
if os.fork() == 0:
    print(gemv.backend(), gemv.dgemv(2.0, [[1.0, 2.0]], [3.0, 4.0]), flush=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
""",
        quiet=False,
    )  # Python warns of forks of processes with threads
    assert out == f"{gemv.backend()} [22.]\n"


@FORKS
def test_fork_while_another_thread_is_in_a_call():
    """Its child, which has not got that thread, does not wait for it: on the host neither."""
    out = python(
        """
import os, signal, sys, threading
import gemv
from gemv.calls import plan, remembered
from gemv.engines import backend
held, locks = threading.Event(), [backend._lock, remembered._lock, plan._lock]
def in_a_call():
    for lock in locks:
        lock.acquire()
    held.set()
    threading.Event().wait()
threading.Thread(target=in_a_call, daemon=True).start()
held.wait()
if os.fork() == 0:
    signal.alarm(60)
    print(gemv.dgemv(2.0, [[1.0, 2.0]], [3.0, 4.0]), flush=True)
    gemv.use_backend(None)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
""",
        quiet=False,
    )
    assert out == "[22.]\n"


@FORKS
@pytest.mark.gpu
def test_fork_after_a_call_is_refused_in_words():
    """By every kind of call, and without harm to the parent."""
    out = python(
        """
import os, sys
import numpy as np
from numba import cuda
import gemv
a, x, y = (cuda.to_device(np.ones(s)) for s in ((3, 4), 4, 3))
call = lambda: gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
plan = gemv.plan(a, x, y)
calls = [call, call, plan, lambda: gemv.gemv(1.0, np.eye(2), [1.0, 2.0])]
try:
    import torch
    ta, tx, ty = (torch.ones(s, device="cuda") for s in ((3, 4), 4, 3))
    calls += 2 * [lambda: gemv.gemv(1.0, ta, tx, 0.0, ty, overwrite_y=1), gemv.plan(ta, tx, ty)]
except ImportError:
    pass
for each in calls:
    each()
cuda.synchronize()
if os.fork() == 0:
    status = 0
    for each in calls:
        try:
            each()
            status = 1
        except gemv.BackendError as error:
            status |= 0 if "does not survive a fork" in str(error) else 2
    os._exit(status)
status = os.waitstatus_to_exitcode(os.wait()[1])
for each in calls:
    each()
cuda.synchronize()
print(status, y.copy_to_host().tolist())
""",
        quiet=False,
    )
    assert out == "0 [4.0, 4.0, 4.0]\n"


def test_spawn_after_a_call(tmp_path):
    (tmp_path / "child.py").write_text(
        "import numpy as np\nimport gemv\n\n"
        "def product(k):\n"
        "    return gemv.backend(), gemv.dgemv(k, np.eye(2), [1.0, 2.0]).tolist()\n"
    )
    out = python(
        f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import multiprocessing
from child import product
if __name__ == "__main__":
    here = product(1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print([here, *pool.map(product, [2, 3])])
"""
    )
    name = gemv.backend()
    assert out == f"{[(name, [float(k), 2.0 * k]) for k in (1, 2, 3)]}\n"


# The end of a process ----------------------------------------------------------------------------


def test_the_interpreter_ends_while_threads_call():
    """Daemon threads are in the middle of a call, on the GPU with launches under way."""
    out = python("""
import threading, time
import numpy as np
from numba import cuda
import gemv
size = 2000 if gemv.backend() == "cuda" else 6
a, x = cuda.to_device(np.ones((size, size))), cuda.to_device(np.ones(size))
started = threading.Barrier(4)
def work():
    y = cuda.to_device(np.zeros(size))
    gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
    started.wait()
    while True:
        gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
        gemv.gemv(1.0, a, x, kernel="last_block")
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
started.wait()
time.sleep(0.2)
print("over", flush=True)
""")
    assert out == "over\n"


@pytest.mark.gpu
def test_the_interpreter_ends_with_launches_pending():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    out = python("""
import torch
import gemv
a, x = torch.ones(8000, 8000, device="cuda"), torch.ones(8000, device="cuda")
y = torch.zeros(8000, device="cuda")
gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
streams = [torch.cuda.Stream() for _ in range(4)]
plan = gemv.plan(a, x, y)
for stream in streams:
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**9)
        for _ in range(50):
            plan(2.0)
            gemv.gemv(1.0, a, x, kernel="last_block")
            gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, stream=streams[0])
print(any(stream.query() for stream in streams), flush=True)
""")
    assert out == "False\n"


# Ctrl-C ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(__import__("signal"), "setitimer"), reason="no interval timer")
@pytest.mark.skipif(gemv.backend() == "host", reason="neither a GPU nor the simulator")
@pytest.mark.parametrize("engine", ["simulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_keyboard_interrupt_at_any_moment(engine):
    """Hits calls wherever they are, streamed ones too; every call that follows is right.

    In a finalizer it is printed and passed over, so it comes again until a call has ended by it.
    """
    # Seconds in which the longest of the calls ends, or nearly.
    rounds, longest = (500, 3e-3) if engine == "cuda" else (25, 0.15)
    out = python(
        f"""
import signal, sys
import numpy as np
from numba import cuda
import gemv
rng = np.random.default_rng(0)
assert gemv.backend() == {engine!r}
size, long = (40, 2000) if gemv.backend() == "cuda" else (5, 400)
a, x = (rng.integers(-4, 5, s).astype(float) for s in ((size, 3 * size), 3 * size))
wide, longer = (rng.integers(-4, 5, s).astype(float) for s in ((size, long), long))
exact = (a @ x).tolist()
streams = []
for way, kernel, order in (("rows", "block_per_row", "C"), ("columns", "last_block", "F")):
    b = np.asarray(wide, order=order)
    limit = b.nbytes // 2 + 8 * (size + long) + 3000
    how = dict(kernel=kernel, device_memory_limit=limit)
    assert f"panels of {{way}}" in gemv.explain(1.0, b, longer, **how).transfer
    streams.append(lambda b=b, how=how: gemv.gemv(1.0, b, longer, **how))
da, dx, dy = cuda.to_device(a), cuda.to_device(x), cuda.to_device(np.zeros(size))
kinds = [
    lambda: gemv.gemv(1.0, da, dx, 0.0, dy, overwrite_y=1),
    lambda: gemv.gemv(1.0, da, dx, 0.0, dy, overwrite_y=1, kernel="last_block"),
    lambda: gemv.gemv(1.0, a, x),
    *streams,
]
exacts = [exact] * 3 + [(wide @ longer).tolist()] * 2
for kind in kinds:
    kind()
signal.signal(signal.SIGALRM, signal.default_int_handler)
hits = 0
for number in range({rounds}):
    kind = kinds[number % 5]
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + {longest} * rng.random() ** 3, 0.05)
        while True:
            kind()
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        hits += 1
    for each, exact in zip(kinds, exacts):
        y = each()
        assert (y if type(y) is np.ndarray else y.copy_to_host()).tolist() == exact, number
print(hits)
""",
        quiet=False,
        NUMBA_ENABLE_CUDASIM="1" if engine == "simulator" else "0",
    )
    assert out == f"{rounds}\n"


# The GPU fails -----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ, reason="takes all GPU memory; make soak runs it alone"
)
def test_a_full_gpu_is_reported_and_survived():
    """Host arrays, a y that is made, scratch memory: each fails in words, and works afterwards."""
    out = python("""
import numpy as np
from cuda.bindings import driver
from numba import cuda
import gemv
from gemv.driver.streams import check
a, x = np.ones((3000, 3000)), np.ones(3000)
y = np.full(3000, 7.0)
da, dx, dy = cuda.to_device(a[:40]), cuda.to_device(x), cuda.to_device(np.zeros(40))
streams = [cuda.stream() for _ in range(4)]
gemv.gemv(1.0, a[:40], x)  # of panels nothing is there yet
gemv.precompile(1.0, a, x, 1.0, y, overwrite_y=1)
gemv.gemv(1.0, da, dx, 0.0, dy, overwrite_y=1, kernel="last_block")
cuda.synchronize()
taken = []
def fill():
    size = 1 << 40
    while size >= 4096:
        status, pointer = driver.cuMemAlloc(size)
        if int(status) == 0:
            taken.append(pointer)
        else:
            size //= 2
fill()
try:
    cuda.device_array(1 << 30)  # Numba gives back what it had kept
except Exception:
    fill()
calls = [
    lambda: gemv.gemv(1.0, a, x, 1.0, y, overwrite_y=1),
    # 256 bytes may be left from before, 1 MiB of scratch memory for a new stream may not
    lambda: gemv.gemv(1.0, da, dx, 0.0, dy, overwrite_y=1, kernel="last_block", stream=streams[0]),
]
for call in calls:
    try:
        call()
    except MemoryError as error:
        print(isinstance(error, RuntimeError), "free" in str(error))
print(set(y.tolist()))
for pointer in taken:
    check(driver.cuMemFree(pointer))
for call in calls:
    call()
cuda.synchronize()
print(set(y.tolist()), set(dy.copy_to_host().tolist()))
""")
    assert out.splitlines() == ["False True", "True True", "{7.0}", "{3007.0} {3000.0}"]


@pytest.mark.gpu
def test_a_launch_that_faults_is_reported_and_so_is_every_later_call():
    out = python("""
import numpy as np
from numba import cuda
from numba.cuda.cudadrv.devicearray import DeviceNDArray
import gemv
a, x, y = (cuda.to_device(np.ones(s)) for s in ((64, 64), 64, 64))
plan = gemv.plan(a, x, y)
calls = [
    lambda: gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1),
    plan,
    lambda: gemv.gemv(1.0, np.ones((2, 2)), np.ones(2)),
    lambda: gemv.gemv(1.0, a, x),
    lambda: gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, kernel="last_block"),
    lambda: gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1, kernel="tile2d"),
]
for call in calls[:-1]:
    call()
class Nowhere:
    __cuda_array_interface__ = {
        "shape": (64, 64), "typestr": "<f8", "data": (0x7, False), "version": 3, "strides": None,
    }
Nowhere.__cuda_array_interface__["data"] = (1 << 44, False)
gemv.gemv(1.0, Nowhere(), x, 0.0, y, overwrite_y=1)
try:
    cuda.synchronize()
except Exception as error:
    print("fault" if "ILLEGAL_ADDRESS" in str(error) else error)
for call in calls + calls:
    try:
        call()
        print("no error")
    except RuntimeError as error:
        words = "start Python again" in str(error) and "compute-sanitizer" in str(error)
        print(words or f"{type(error)}: {error}")
import os
os._exit(0)
""")
    assert out.split("\n")[:-1] == ["fault"] + ["True"] * 12
