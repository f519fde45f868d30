"""The commands of `blockstride`, one a module, each with `add_arguments` and `run`."""
