"""Reads captures: bundles, traces, machine model, simulator, timeline, findings, reports. No JAX."""
