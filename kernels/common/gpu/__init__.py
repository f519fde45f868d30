"""What Triton kernels share."""
