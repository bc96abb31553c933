"""An xplane file: planes, lines, metadata; events are read line by line, in chunks.

The file is mapped, not loaded: opening reads only the directory (names, metadata), and memory stays bounded
whatever the number of events.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.xplane import columns, wire
from analyzer.xplane.columns import DOUBLE, INT64, RAW_BYTES, REFERENCE, STRING, UINT64

Value = int | float | str | bytes | None


@dataclass(frozen=True, slots=True)
class EventMetadata:
    """What all events of one kind share.

    Attributes:
        identifier: The id that events carry.
        name: The name (`%mlp.1 = ...`, `bundle.134217728`).
        display_name: A shorter one, or "".
        stats: Facts by name; device facts such as flops and hlo_category often live here.
    """

    identifier: int
    name: str
    display_name: str
    stats: dict[str, Value]


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some consecutive events of a line, in columns; E events.

    Attributes:
        start_ps: int64[E], since the time of the line: `line.timestamp_ns * 1000 + offset`.
        duration_ps: int64[E].
        metadata: int64[E], keys of `plane.events`.
        occurrences: int64[E], for aggregated events, else 0.
    """

    start_ps: np.ndarray
    duration_ps: np.ndarray
    metadata: np.ndarray
    occurrences: np.ndarray
    _columns: columns.EventColumns
    _plane: "Plane"

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start_ps)

    def numbers(self, name: str) -> np.ndarray:
        """float64[E]: a numeric stat of each event; NaN where an event does not have it (never 0)."""
        out = np.full(len(self), np.nan)
        stats, mask = self._columns.stats, self._named(name)
        whole = mask & ((stats.kind == INT64) | (stats.kind == UINT64))
        out[stats.event[whole]] = stats.value[whole]
        real = mask & (stats.kind == DOUBLE)
        out[stats.event[real]] = np.ascontiguousarray(stats.value[real]).view(np.float64)
        return out

    def integers(self, name: str, absent: int = -1) -> np.ndarray:
        """int64[E]: a whole-number stat of each event, exact; `absent` where an event does not have it."""
        out = np.full(len(self), absent, dtype=np.int64)
        stats = self._columns.stats
        mask = self._named(name) & ((stats.kind == INT64) | (stats.kind == UINT64))
        out[stats.event[mask]] = stats.value[mask]
        return out

    def texts(self, name: str) -> list[str | None]:
        """A text stat of each event; None where an event does not have it."""
        out: list[str | None] = [None] * len(self)
        stats, names = self._columns.stats, self._plane.stat_names
        mask = self._named(name) & np.isin(stats.kind, (STRING, RAW_BYTES, REFERENCE))
        for i in np.flatnonzero(mask).tolist():
            value, length = int(stats.value[i]), int(stats.length[i])
            out[int(stats.event[i])] = (
                names.get(value)
                if stats.kind[i] == REFERENCE
                else wire.text(self._columns.data, value, value + length)
            )
        return out

    def stats(self, event: int) -> dict[str, Value]:
        """All stats of one event, by name."""
        stats = self._columns.stats
        first, last = np.searchsorted(stats.event, (event, event + 1))
        return {
            self._plane.stat_name(int(stats.name[i])): self._value(i) for i in range(int(first), int(last))
        }

    def _value(self, i: int) -> Value:
        stats = self._columns.stats
        kind, value, length = int(stats.kind[i]), int(stats.value[i]), int(stats.length[i])
        if kind == DOUBLE:
            return float(np.array([value], dtype=np.int64).view(np.float64)[0])
        if kind == UINT64:
            return value & 0xFFFFFFFFFFFFFFFF
        if kind == INT64:
            return value
        if kind == REFERENCE:
            return self._plane.stat_names.get(value)
        raw = self._columns.data[value : value + length]
        return raw.decode("utf-8", errors="replace") if kind == STRING else raw if kind else None

    def _named(self, name: str) -> np.ndarray:
        mask = np.zeros(len(self._columns.stats.name), dtype=bool)
        for identifier, known in self._plane.stat_names.items():
            if known == name:
                mask |= self._columns.stats.name == identifier
        return mask


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A line of a plane (`XLA Ops`, `_counters_`).

    Attributes:
        name: Display name where there is one, else the name.
        identifier: The line's id, signed.
        timestamp_ns: Time that events count from.
        duration_ps: As stored; often 0.
        event_count: Number of events.
    """

    name: str
    identifier: int
    timestamp_ns: int
    duration_ps: int
    event_count: int
    _plane: "Plane"
    _start: int
    _end: int

    def chunks(self) -> Iterator[Chunk]:
        """The events in order, some 65,000 at a time.

        Raises:
            WireError: the line is damaged; the events before that have been given.
        """
        for found in columns.event_chunks(self._plane.data, self._start, self._end):
            start = found.offset_ps + self.timestamp_ns * 1000
            yield Chunk(start, found.duration_ps, found.metadata, found.occurrences, found, self._plane)


@dataclass(slots=True, eq=False)
class Plane:
    """A plane (`/device:TPU:0`).

    Attributes:
        name: Its name.
        identifier: Its id.
        stats: Facts of the plane by name, peaks among them.
        events: Event metadata by id.
        stat_names: Names of stats by id.
        lines: Its lines in the order of the file.
    """

    name: str
    identifier: int
    data: memoryview
    stats: dict[str, Value] = field(default_factory=dict)
    events: dict[int, EventMetadata] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    def stat_name(self, identifier: int) -> str:
        """The name of a stat; `stat <id>` where the file does not name it."""
        return self.stat_names.get(identifier, f"stat {identifier}")

    def line(self, name: str) -> Line | None:
        """The first line of that name."""
        return next((line for line in self.lines if line.name == name), None)


@dataclass(slots=True, eq=False)
class Space:
    """One xplane file.

    Attributes:
        path: The file.
        planes: Its planes in order.
        errors, warnings, hostnames: What the profiler wrote beside them.
    """

    path: Path
    planes: list[Plane]
    errors: list[str]
    warnings: list[str]
    hostnames: list[str]

    def plane(self, name: str) -> Plane | None:
        """The first plane of that name."""
        return next((plane for plane in self.planes if plane.name == name), None)


def read_space(path: Path) -> Space:
    """Map an xplane file and read its directory.

    Raises:
        OSError: it cannot be opened.
        WireError: it is not an XSpace message, or it is damaged.
    """
    return parse_space(map_file(path), path)


def map_file(path: Path) -> memoryview:
    """The bytes of a file without loading them."""
    with path.open("rb") as stream:
        if not stream.seek(0, 2):
            return memoryview(b"")
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def parse_space(data: memoryview, path: Path) -> Space:
    """The same for bytes in memory."""
    space = Space(path, [], [], [], [])
    texts = {2: space.errors, 3: space.warnings, 4: space.hostnames}
    for number, kind, value, following in wire.fields(data, 0, len(data)):
        if number == 1 and kind == wire.BYTES:
            space.planes.append(_plane(data, value, following))
        elif number in texts and kind == wire.BYTES:
            texts[number].append(wire.text(data, value, following))
    return space


def _plane(data: memoryview, start: int, end: int) -> Plane:
    plane = Plane("", 0, data)
    stats, events, lines = [], [], []
    for number, kind, value, following in wire.fields(data, start, end):
        if number == 1 and kind == wire.VARINT:
            plane.identifier = wire.signed(value)
        elif kind != wire.BYTES:
            continue
        elif number == 2:
            plane.name = wire.text(data, value, following)
        elif number == 3:
            lines.append((value, following))
        elif number == 4:
            events.append((value, following))
        elif number == 5:
            identifier, name = _stat_metadata(data, value, following)
            plane.stat_names[identifier] = name
        elif number == 6:
            stats.append((value, following))
    plane.stats = dict(_stat(data, *span, plane) for span in stats)
    for span in events:
        metadata = _event_metadata(data, *span, plane)
        plane.events[metadata.identifier] = metadata
    plane.lines = [_line(data, *span, plane) for span in lines]
    return plane


def _map_entry(data: memoryview, start: int, end: int) -> tuple[int, int, int]:
    """Key of a map entry, and where its value lies."""
    key, first, last = 0, end, end
    for number, kind, value, following in wire.fields(data, start, end):
        if number == 1 and kind == wire.VARINT:
            key = wire.signed(value)
        elif number == 2 and kind == wire.BYTES:
            first, last = value, following
    return key, first, last


def _stat_metadata(data: memoryview, start: int, end: int) -> tuple[int, str]:
    key, first, last = _map_entry(data, start, end)
    name = ""
    for number, kind, value, following in wire.fields(data, first, last):
        if number == 2 and kind == wire.BYTES:
            name = wire.text(data, value, following)
    return key, name


def _event_metadata(data: memoryview, start: int, end: int, plane: Plane) -> EventMetadata:
    key, first, last = _map_entry(data, start, end)
    names = {2: "", 4: ""}
    stats: dict[str, Value] = {}
    for number, kind, value, following in wire.fields(data, first, last):
        if number in names and kind == wire.BYTES:
            names[number] = wire.text(data, value, following)
        elif number == 5 and kind == wire.BYTES:
            name, stat = _stat(data, value, following, plane)
            stats[name] = stat
    return EventMetadata(key, names[2], names[4], stats)


def _stat(data: memoryview, start: int, end: int, plane: Plane) -> tuple[str, Value]:
    name = ""
    result: Value = None
    for number, kind, value, following in wire.fields(data, start, end):
        if number == 1 and kind == wire.VARINT:
            name = plane.stat_name(wire.signed(value))
        elif number == DOUBLE and kind == wire.FIXED64:
            result = wire.double(data, value)
        elif kind == wire.VARINT and number in (UINT64, INT64, REFERENCE):
            result = _integer(number, value, plane)
        elif number == STRING and kind == wire.BYTES:
            result = wire.text(data, value, following)
        elif number == RAW_BYTES and kind == wire.BYTES:
            result = bytes(data[value:following])
    return name, result


def _integer(number: int, value: int, plane: Plane) -> Any:
    if number == REFERENCE:
        return plane.stat_names.get(wire.signed(value))
    return wire.signed(value) if number == INT64 else value


def _line(data: memoryview, start: int, end: int, plane: Plane) -> Line:
    """The head of a line; its events are skipped by their lengths."""
    numbers = {1: 0, 3: 0, 9: 0}
    names = {2: "", 11: ""}
    count, others = columns.skim(data, start, end)
    for number, kind, value, following in others:
        if number in numbers and kind == wire.VARINT:
            numbers[number] = wire.signed(value)
        elif number in names and kind == wire.BYTES:
            names[number] = wire.text(data, value, following)
    return Line(names[11] or names[2], numbers[1], numbers[3], numbers[9], count, plane, start, end)
