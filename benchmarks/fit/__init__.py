"""Time many kernels and constants on cells drawn evenly, and fit a model of their times."""
