"""Qwen3.8-27B: one decode step of a 64-layer hybrid model as a single Pallas call."""
