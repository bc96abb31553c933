"""Perfetto's own protobuf trace format, written without its library.

A TracePacket per track (TrackDescriptor) and per begin, end and counter value (TrackEvent). Perfetto counts
in nanoseconds, so times are rounded to them; a slice keeps its exact times as annotations.
"""

import struct
from collections.abc import Iterator

from analyzer.export_tracks import Counter, Slices
from analyzer.xplane.writer import block, number, varint

_SEQUENCE = 1
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4


def render(tracks: list[Slices], counters: list[Counter]) -> bytes:
    """The trace."""
    return b"".join(block(1, packet) for packet in _packets(tracks, counters))


def _packets(tracks: list[Slices], counters: list[Counter]) -> Iterator[bytes]:
    yield number(10, _SEQUENCE) + number(13, 1)  # sequence starts: nothing is interned, no state to keep
    for core in dict.fromkeys(t.core for t in tracks):
        process = number(1, core + 1) + block(6, f"core {core}")
        yield _packet(block(60, number(1, _process(core)) + block(3, process)))
    for index, track in enumerate(tracks):
        identity = 1000 + index
        descriptor = number(1, identity) + block(2, track.name) + number(5, _process(track.core))
        yield _packet(block(60, descriptor))
        yield from _slices(track, identity)
    for index, counter in enumerate(counters):
        identity = 1000 + len(tracks) + index
        descriptor = number(1, identity) + block(2, counter.name) + number(5, _process(counter.core))
        yield _packet(block(60, descriptor + block(8, b"")))
        for time, value in zip(counter.time_ps.tolist(), counter.value.tolist(), strict=True):
            event = number(9, _COUNTER) + number(11, identity)
            event += varint(44 << 3 | 1) + struct.pack("<d", value)
            yield _packet(number(8, _nanoseconds(time)) + block(11, event))


def _slices(track: Slices, identity: int) -> Iterator[bytes]:
    """Begins and ends in the order in which they nest, also after rounding."""
    open_ends: list[int] = []
    rows = zip(track.start_ps.tolist(), track.duration_ps.tolist(), track.titles, track.facts, strict=True)
    for start, duration, title, facts in rows:
        while open_ends and open_ends[-1] <= start:
            yield _end(open_ends.pop(), identity)
        event = number(9, _BEGIN if duration else _INSTANT) + number(11, identity) + block(23, title)
        exact = {**facts, "start_ps": start, "duration_ps": duration}
        event += b"".join(block(4, _annotation(name, value)) for name, value in exact.items())
        yield _packet(number(8, _nanoseconds(start)) + block(11, event))
        if duration:
            open_ends.append(start + duration)
    while open_ends:
        yield _end(open_ends.pop(), identity)


def _end(time: int, identity: int) -> bytes:
    return _packet(number(8, _nanoseconds(time)) + block(11, number(9, _END) + number(11, identity)))


def _annotation(name: str, value: int | str) -> bytes:
    return block(10, name) + (number(4, value) if isinstance(value, int) else block(6, value))


def _packet(body: bytes) -> bytes:
    return body + number(10, _SEQUENCE)


def _process(core: int) -> int:
    return core + 1


def _nanoseconds(time_ps: int) -> int:
    return max(0, round(time_ps / 1000))
