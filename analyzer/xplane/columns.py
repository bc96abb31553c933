"""Events in columns: a run of XEvent messages decoded all at once with numpy.

Every event is a short message of a few fields, so field k of all events is decoded in one sweep. That is
several times faster than a protobuf object per event, and memory is bounded by the size of a chunk.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from analyzer.xplane.wire import BYTES, VARINT, Buffer, WireError, fields

EVENTS_PER_CHUNK = 1 << 16
_WINDOW = 8 << 20
_EVENT_TAG = (4 << 3) | BYTES
# Field numbers of XStat's value.
DOUBLE, UINT64, INT64, STRING, RAW_BYTES, REFERENCE = 2, 3, 4, 5, 6, 7


@dataclass(frozen=True, slots=True, eq=False)
class StatColumns:
    """Stats of a chunk of events, in the order of the events; S stats.

    Attributes:
        event: int64[S], index of the event in its chunk.
        name: int64[S], id of the stat's metadata.
        kind: uint8[S], DOUBLE ... REFERENCE; 0 for a stat without a value.
        value: int64[S]: the integer, the bits of the double, or the position of text in `data`.
        length: int64[S], length of text and bytes.
    """

    event: np.ndarray
    name: np.ndarray
    kind: np.ndarray
    value: np.ndarray
    length: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class EventColumns:
    """A chunk of events of one line; E events.

    Attributes:
        metadata: int64[E], id of the event's metadata.
        offset_ps: int64[E], start within the line.
        duration_ps: int64[E].
        occurrences: int64[E], number of events that an aggregated one stands for, else 0.
        stats: their stats.
        data: the bytes that positions of text refer to.
    """

    metadata: np.ndarray
    offset_ps: np.ndarray
    duration_ps: np.ndarray
    occurrences: np.ndarray
    stats: StatColumns
    data: bytes

    def __len__(self) -> int:
        """Number of events."""
        return len(self.metadata)


def event_chunks(data: Buffer, start: int, end: int) -> Iterator[EventColumns]:
    """The events of the XLine message data[start:end], in order, some 65,000 at a time.

    Raises:
        WireError: the message is damaged; what came before it has been given.
    """
    position = start
    while position < end:
        size = _WINDOW
        while True:
            window = bytes(data[position : min(end, position + size)])
            last = position + len(window) == end
            starts, ends, used = _events_of(window, last)
            if used or last:
                break
            size *= 4  # one field is longer than the window
        _release(data, position, position + len(window))
        if len(starts):
            yield decode_events(window, starts, ends)
        position += used


def skim(data: Buffer, start: int, end: int) -> tuple[int, list[tuple[int, int, int, int]]]:
    """Number of events of the XLine message data[start:end], and its other fields as `wire.fields` has them.

    Raises:
        WireError: the message is damaged.
    """
    events, others, position = 0, [], start
    while position < end:
        # Fields are stepped over in a copy: bytes are faster to index than a mapped file.
        window = bytes(data[position : min(end, position + _WINDOW)])
        _release(data, position, position + len(window))
        at, size = 0, len(window)
        while at < size - 1:
            if window[at] == _EVENT_TAG and window[at + 1] < 0x80:
                following = at + 2 + window[at + 1]
                if following > size:
                    break
                events += 1
            else:
                try:
                    number, kind, value, following = next(fields(window, at, size))
                except WireError:
                    break
                if number == 4 and kind == BYTES:
                    events += 1
                else:
                    base = 0 if kind == VARINT else position
                    others.append((number, kind, value + base, following + position))
            at = following
        if at == 0:  # a field longer than the window, or damage
            number, kind, value, following = next(fields(data, position, end))
            if number == 4 and kind == BYTES:
                events += 1
            else:
                others.append((number, kind, value, following))
            at = following - position
        position += at
    return events, others


def _release(data: Buffer, start: int, end: int) -> None:
    """Give back the pages of a mapped file that have been copied: else a whole trace counts as our memory."""
    mapped = data.obj if isinstance(data, memoryview) else None
    if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):
        first = start - start % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, min(end, len(mapped)) - first)


def _events_of(window: bytes, last: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Starts and ends of the events in a window that begins at a field, and the bytes that were used up.

    A field that the window cuts is left for the next one, unless the window is the last.
    """
    starts: list[int] = []
    long_ends: dict[int, int] = {}  # by the index of the event
    append = starts.append
    position, end = 0, len(window)
    for _ in range(EVENTS_PER_CHUNK):
        if position >= end:
            break
        # The common case, an event shorter than 128 bytes, is what the time goes into.
        if window[position] == _EVENT_TAG and position + 1 < end and window[position + 1] < 0x80:
            following = position + 2 + window[position + 1]
            if following <= end:
                append(position + 2)
                position = following
                continue
        try:
            number, kind, value, following = next(fields(window, position, end))
        except WireError:
            if last:
                raise
            break
        if number == 4 and kind == BYTES:
            long_ends[len(starts)] = following
            append(value)
        position = following
    first = np.array(starts, dtype=np.int64)
    behind = first + np.frombuffer(window, dtype=np.uint8)[first - 1] if starts else first
    for index, following in long_ends.items():
        behind[index] = following
    return first, behind, position


def decode_events(data: bytes, starts: np.ndarray, ends: np.ndarray) -> EventColumns:
    """Decode the XEvent messages data[starts[i]:ends[i]].

    Raises:
        WireError: one of them is damaged.
    """
    count = len(starts)
    columns = {number: np.zeros(count, dtype=np.int64) for number in (1, 2, 3, 5)}
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for rows, number, kind, value, following in _sweeps(data, starts, ends):
        for wanted, column in columns.items():
            mask = (number == wanted) & (kind == 0)
            column[rows[mask]] = value[mask]
        mask = (number == 4) & (kind == BYTES)
        if mask.any():
            found.append((rows[mask], value[mask], following[mask]))
    return EventColumns(columns[1], columns[2], columns[3], columns[5], _stats(data, found), data)


def _stats(data: bytes, found: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> StatColumns:
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return StatColumns(none, none, none.astype(np.uint8), none, none)
    event, starts, ends = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(starts, kind="stable")  # in the order of the bytes, which is that of the events
    event, starts, ends = event[order], starts[order], ends[order]
    count = len(event)
    name, value, length = (np.zeros(count, dtype=np.int64) for _ in range(3))
    value_kind = np.zeros(count, dtype=np.uint8)
    bits = np.frombuffer(data, dtype=np.uint8)
    for rows, number, kind, field_value, following in _sweeps(data, starts, ends):
        mask = (number == 1) & (kind == 0)
        name[rows[mask]] = field_value[mask]
        mask = (number == DOUBLE) & (kind == 1)
        if mask.any():
            eight = bits[field_value[mask][:, None] + np.arange(8)]
            value[rows[mask]] = np.ascontiguousarray(eight).view("<i8")[:, 0]
            value_kind[rows[mask]] = DOUBLE
        for wanted in (UINT64, INT64, REFERENCE):
            mask = (number == wanted) & (kind == 0)
            value[rows[mask]] = field_value[mask]
            value_kind[rows[mask]] = wanted
        for wanted in (STRING, RAW_BYTES):
            mask = (number == wanted) & (kind == BYTES)
            value[rows[mask]] = field_value[mask]
            length[rows[mask]] = following[mask] - field_value[mask]
            value_kind[rows[mask]] = wanted
    return StatColumns(event, name, value_kind, value, length)


def _sweeps(
    data: bytes, starts: np.ndarray, ends: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Field k of all messages at once, k = 0, 1, ...: (rows, numbers, wire types, values, positions behind).

    As `wire.fields`, values of the types with bytes are positions.
    """
    bits = np.frombuffer(data + bytes(16), dtype=np.uint8)  # so that a number at the end can be read past
    rows = np.flatnonzero(starts < ends)
    position, limit = starts[rows], ends[rows]
    while len(rows):
        tag, after = _varints(bits, position)
        number, kind = tag >> 3, (tag & 7).astype(np.uint8)
        value, following = after.copy(), after.copy()
        mask = kind == 0
        value[mask], following[mask] = _varints(bits, after[mask])
        mask = kind == BYTES
        length, value[mask] = _varints(bits, after[mask])
        following[mask] = value[mask] + length
        following[kind == 1] += 8
        following[kind == 5] += 4
        wrong = (number <= 0) | ((kind != 0) & (kind != 1) & (kind != 2) & (kind != 5))
        wrong |= (following > limit) | (following <= position)
        if wrong.any():
            raise WireError("an event is damaged", int(position[np.argmax(wrong)]))
        yield rows, number, kind, value, following
        left = following < limit
        rows, position, limit = rows[left], following[left], limit[left]


def _varints(bits: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The varints at the positions, as int64 bits, and the positions behind them."""
    position = np.minimum(position, len(bits) - 11)
    byte = bits[position].astype(np.int64)
    value, following = byte & 0x7F, position + 1
    more = np.flatnonzero(byte >= 0x80)
    shift = 7
    while len(more):
        if shift > 63:
            raise WireError("a number is longer than 64 bits", int(position[more[0]]))
        at = following[more]
        byte = bits[at].astype(np.int64)
        value[more] |= (byte & 0x7F) << shift
        following[more] = at + 1
        more = more[byte >= 0x80]
        shift += 7
    return value, following


__all__ = [
    "DOUBLE", "INT64", "RAW_BYTES", "REFERENCE", "STRING", "UINT64",
    "EventColumns", "StatColumns", "decode_events", "event_chunks", "skim",
]  # fmt: skip
