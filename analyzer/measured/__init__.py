"""The measured side: a profiler's trace as the analyzer's timeline and report."""
