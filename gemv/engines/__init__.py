"""The backends: they launch kernels, and keep compiled code, memory and workspaces for that."""
