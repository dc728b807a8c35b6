"""The CUDA driver from Python: streams, memory, copies, graphs, launches in machine code.

Calls of SciPy's BLAS on NumPy's arrays are made in machine code here as well.
"""
