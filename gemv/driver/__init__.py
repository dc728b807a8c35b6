"""The CUDA driver from Python: streams, memory, copies, graphs, launches in machine code."""
