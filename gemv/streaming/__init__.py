"""A matrix in host memory, cut into panels that fit on the GPU, and the product with it."""
