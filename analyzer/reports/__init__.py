"""Reports: pure functions from a report (the JSON contract) to text, JSON or Markdown."""

# Formats that need more than the analyzer: format -> "module:function", which takes a capture's path and its
# Analysis and gives text. The front door fills this, so that the analyzer imports no package above it.
OUTSIDE_FORMATS: dict[str, str] = {}
