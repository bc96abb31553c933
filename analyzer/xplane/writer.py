"""Writes xplane files: the encoder that goes with the reader, without a protobuf library.

Only what a file needs so that xprof, jax and our reader open it: planes with facts, lines, events, and stats
of events and of their metadata. Whole numbers are written as integers: xprof reads flops and bytes in no
other form.
"""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from analyzer.xplane.columns import DOUBLE, INT64, RAW_BYTES, STRING, UINT64

Value = int | float | str | bytes


def varint(value: int) -> bytes:
    """A whole number in the wire format; negative ones as two's complement of 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    """A field that holds a whole number."""
    return varint(field << 3) + varint(value)


def block(field: int, value: bytes | str) -> bytes:
    """A field that holds text, bytes or a message."""
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


class PlaneWriter:
    """Builds one plane: kinds of events and stats get their ids as they come.

    Args:
        identifier: id of the plane.
        name: its name (`/device:TPU:0`).
    """

    def __init__(self, identifier: int, name: str) -> None:
        self._head = number(1, identifier) + block(2, name)
        self._stats: dict[str, int] = {}
        self._events: dict[tuple[str, str, tuple[tuple[str, Value], ...]], int] = {}
        self._lines: list[bytes] = []
        self._facts = b""

    def fact(self, name: str, value: Value) -> None:
        """A stat of the plane itself."""
        self._facts += block(6, self._stat(name, value))

    def event_kind(self, name: str, display: str = "", facts: Mapping[str, Value] | None = None) -> int:
        """The id of a kind of events; equal kinds share one."""
        key = (name, display, tuple((facts or {}).items()))
        return self._events.setdefault(key, len(self._events) + 1)

    def line(
        self,
        name: str,
        events: Iterable[tuple[int, int, int, Mapping[str, Value]]],
        timestamp_ns: int = 0,
    ) -> None:
        """A line: its events are (kind, offset_ps, duration_ps, stats)."""
        parts = [number(1, len(self._lines) + 1), block(2, name), number(3, timestamp_ns)]
        for kind, offset, duration, stats in events:
            body = number(1, kind) + number(2, offset) + number(3, duration)
            for stat, value in stats.items():
                body += block(4, self._stat(stat, value))
            parts.append(block(4, body))
        self._lines.append(b"".join(parts))

    def encode(self) -> bytes:
        """The plane as a message."""
        out = [self._head, *(block(3, line) for line in self._lines)]
        for (name, display, facts), identifier in self._events.items():
            body = number(1, identifier) + block(2, name)
            if display:
                body += block(4, display)
            for stat, value in facts:
                body += block(5, self._stat(stat, value))
            out.append(block(4, number(1, identifier) + block(2, body)))
        for name, identifier in self._stats.items():
            out.append(block(5, number(1, identifier) + block(2, number(1, identifier) + block(2, name))))
        return b"".join([*out, self._facts])

    def _stat(self, name: str, value: Value) -> bytes:
        head = number(1, self._stats.setdefault(name, len(self._stats) + 1))
        if isinstance(value, float):
            return head + varint(DOUBLE << 3 | 1) + struct.pack("<d", value)
        if isinstance(value, int):
            return head + (number(UINT64, value) if value >= 1 << 63 else number(INT64, value))
        return head + block(STRING if isinstance(value, str) else RAW_BYTES, value)


def encode_space(planes: Iterable[PlaneWriter], hostname: str = "") -> bytes:
    """An xplane file."""
    body = b"".join(block(1, plane.encode()) for plane in planes)
    return body + (block(4, hostname) if hostname else b"")


def run_folder(logdir: Path, run: str) -> Path:
    """Where xprof looks for a run in a log folder."""
    return logdir / "plugins" / "profile" / run
