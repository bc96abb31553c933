"""Reports: pure functions from an analysis to text, JSON or HTML."""
