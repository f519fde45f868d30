"""The kernels for CPUs: torch where BLAS does the work, compiled loops elsewhere."""
