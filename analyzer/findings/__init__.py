"""One file per finding rule."""
