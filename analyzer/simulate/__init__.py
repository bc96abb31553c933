"""Executes the scalar program of a kernel and models the engines around it."""
