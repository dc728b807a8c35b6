"""Runs a kernel on the CPU, one CUDA thread at a time, so that races show up without a GPU.

Every CUDA thread is a greenlet: a function that can be left and resumed. A thread runs alone until
it reaches a switch point (a barrier, a warp operation, an atomic, a fence, a post, or its end);
then the scheduler resumes another one, in the order that the :class:`Schedule` asks for. A kernel
whose result depends on that order has a race, so tests run each kernel under several schedules.

The memory model is weak on purpose:

* A plain store to global memory (through a :class:`Pointer`) is at first seen by its own thread
  only. ``syncwarp`` shows it to the warp; a block barrier or ``threadfence_block`` to the block;
  ``threadfence`` to every block, together with what the thread had been shown by a barrier
  before. What was never fenced reaches memory at the end of the grid, so a protocol between
  blocks that lacks a fence reads old values every time, not just once in a while.
* Atomics on global memory work on memory itself, and carry along what their own thread, warp or
  block still held back for that one element.
* A sum that ``post`` stores is in memory at once; a thread in ``take`` lets others run until the
  sum is there.
* Stores to shared memory are seen at once: a missing barrier shows under one order or another.
  Shared and local arrays start as NaN or as a bit pattern that is no sensible integer, and they
  refuse indices out of range, negative ones too.

Barriers and warp operations that can't complete end the launch with a :class:`SimulatorError`.

The files, from the bottom up:

* ``thread``: a CUDA thread as a greenlet, and its warp.
* ``memory``: pointers, shared and local arrays.
* ``warp`` and ``atomics``: barriers, shuffles and votes; atomics, fences and posted sums.
* ``scheduler``: blocks, grids and ``launch``.
* ``cuda_names``: ``cuda.threadIdx``, ``cuda.shfl_xor_sync`` and the like. Importing this package
  adds them to Numba's simulator module, which lacks them; each looks up the thread that is running
  right now. Kernels that Numba's own simulator launches don't see them and work as before.
* ``intrinsics``, ``vectors`` and ``functions``: the device functions of ``gemv.language``.

What is not simulated: time, true concurrency (two threads never run between two switch points of
each other), caches, a post of which only some words have arrived, fused multiply-add (see
``fma``), a thread that spins on plain loads (it never reaches a switch point, so it can't be
stopped), and mixed views: a plain store to memory that another argument sees with another data type
is refused.
"""

from __future__ import annotations

from numba.cuda.core import config

if not config.ENABLE_CUDASIM:
    raise RuntimeError(
        "gemv.language.simulator needs Numba's CUDA simulator: "
        "set NUMBA_ENABLE_CUDASIM=1 before numba is imported"
    )

from gemv.language.simulator.cuda_names import install

install()
