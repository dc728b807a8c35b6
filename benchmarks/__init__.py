"""asv suites: device bandwidth of every kernel, and what a call costs on the host."""
