"""LSMR over the ranks of an MPI job, where each rank keeps some rows of A on its GPU.

mpiexec -n 4 python docs/examples/mpi.py
"""

import numpy as np
from mpi4py import MPI
from scipy.sparse.linalg import LinearOperator, lsmr

import gemv

comm = MPI.COMM_WORLD
rows, cols = 1000, 60
first, last = (rows * k // comm.size for k in (comm.rank, comm.rank + 1))
mine = np.random.default_rng(comm.rank).standard_normal((last - first, cols))
b = np.ones(rows)

with gemv.Matrix(mine) as shard:

    def product(x):
        return np.concatenate(comm.allgather(shard @ x))

    def adjoint(y):
        # Added in the order of the ranks. MPI promises no order for allreduce, and ranks whose
        # vectors differ by one bit could stop at different iterations and wait for each other.
        return sum(comm.allgather(shard.H @ y[first:last]))

    a = LinearOperator((rows, cols), product, adjoint, dtype=mine.dtype)
    x, reason, iterations, *_ = lsmr(a, b, atol=1e-12, btol=1e-12)
    gradient = np.linalg.norm(adjoint(b - product(x)))

if comm.rank == 0:
    print(f"{comm.size} ranks, {iterations} iterations, |A.H @ (b - A @ x)| = {gradient:.1e}")
