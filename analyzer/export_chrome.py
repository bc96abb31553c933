"""Chrome's JSON trace format, gzip-packed where the name says so: opens in Perfetto and chrome://tracing."""

import gzip
import json
from collections.abc import Iterator

from analyzer.export_tracks import Counter, Slices


def render(tracks: list[Slices], counters: list[Counter], *, packed: bool) -> bytes:
    """The trace; times in microseconds with the picoseconds as decimals."""
    events = ",\n".join(
        json.dumps(event, ensure_ascii=True, allow_nan=False) for event in _events(tracks, counters)
    )
    text = f'{{"displayTimeUnit": "ns", "traceEvents": [\n{events}\n]}}\n'.encode()
    return gzip.compress(text, mtime=0) if packed else text


def _events(tracks: list[Slices], counters: list[Counter]) -> Iterator[dict[str, object]]:
    for core in dict.fromkeys(t.core for t in tracks):
        yield {"ph": "M", "pid": core, "name": "process_name", "args": {"name": f"core {core}"}}
        yield {"ph": "M", "pid": core, "name": "process_sort_index", "args": {"sort_index": core}}
    for thread, track in enumerate(tracks, 1):
        place = {"pid": track.core, "tid": thread}
        yield {"ph": "M", **place, "name": "thread_name", "args": {"name": track.name}}
        yield {"ph": "M", **place, "name": "thread_sort_index", "args": {"sort_index": thread}}
        times = track.start_ps.tolist(), track.duration_ps.tolist()
        for start, duration, title, facts in zip(*times, track.titles, track.facts, strict=True):
            span = {"ts": start / 1e6, "dur": duration / 1e6}
            yield {"ph": "X", **place, **span, "name": title, "args": facts}
    for counter in counters:
        for time, value in zip(counter.time_ps.tolist(), counter.value.tolist(), strict=True):
            yield {
                "ph": "C",
                "pid": counter.core,
                "name": counter.name,
                "ts": time / 1e6,
                "args": {"value": value},
            }
