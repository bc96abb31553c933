"""Where a comment ends, however deep comments nest in it."""

import re

# Runs of openings or closings with plain text between them: deep nests are a handful of matches.
_RUNS = re.compile(rb"(?:/\*[^*/]*+)++|(?:\*/[^*/]*+)++")


def comment_end(text: str, position: int) -> int:
    """Offset after the comment that opens at `position`; -1 where it is never closed."""
    closing = text.find("*/", position + 2)
    if closing < 0:
        return -1
    if text.find("/*", position + 2, closing) < 0:
        return closing + 2
    data = text[position:].encode("utf-8", "surrogatepass")
    end = comment_end_bytes(data, 0, len(data))
    return position + len(data[:end].decode("utf-8", "surrogatepass")) if end >= 0 else -1


def comment_end_bytes(data: bytes, position: int, limit: int) -> int:
    """The same in bytes, not looking beyond offset `limit`."""
    depth = 0
    for run in _RUNS.finditer(data, position, limit):
        start, end = run.span()
        if data.startswith(b"/*", start):
            depth += data.count(b"/*", start, end)
            continue
        closings = data.count(b"*/", start, end)
        if closings >= depth:
            return _nth_closing(data, (start, end), depth, closings)
        depth -= closings
    return -1


def _nth_closing(data: bytes, span: tuple[int, int], wanted: int, closings: int) -> int:
    """Offset after the `wanted`-th of the `closings` closings in a span, sought from the nearer side."""
    start, end = span
    if wanted <= closings // 2:
        for _ in range(wanted):
            start = data.index(b"*/", start) + 2
        return start
    for _ in range(closings - wanted + 1):
        end = data.rindex(b"*/", start, end)
    return end + 2
