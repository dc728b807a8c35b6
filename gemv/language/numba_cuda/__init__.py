"""Device functions as Numba compiles them for a GPU, and the compiler itself."""
