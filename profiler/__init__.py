"""Makes captures: compile ahead of time (no TPU), record (on a TPU), interpret (CPU)."""
