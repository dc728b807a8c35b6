"""Arrays of NumPy, Numba, CuPy, PyTorch, JAX and DLPack, read as operands and made as results."""
