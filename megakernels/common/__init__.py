"""Mechanisms shared by the megakernels, each small, named, and tested against its own reference."""
