"""Reads profiler captures (xplane.pb, trace.json.gz) without TensorFlow, JAX or a protobuf library."""
