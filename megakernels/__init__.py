"""What we look at: models, references, Pallas kernels, instrumentation hooks."""
