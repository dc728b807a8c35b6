"""Products and solvers of a matrix in chunks, which Dask's workers hold."""
