"""What programs for CPUs share."""
