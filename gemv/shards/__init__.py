"""One matrix on several GPUs of one process: where it is cut, and products with all parts."""
