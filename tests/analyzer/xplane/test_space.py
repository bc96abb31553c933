"""The xplane reader against jax's own, against a plain decoder, and against damage."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.xplane import columns
from analyzer.xplane.space import Space, Value, parse_space, read_space
from analyzer.xplane.wire import WireError, fields, signed, varint

SHARED = Path(__file__).parents[3] / "../shared/data"
REAL = [
    "v6e-matmul/plugins/profile/run1/host0.xplane.pb",
    "v6e-hostoffload/plugins/profile/run1/host0.xplane.pb",
    "bad-inputs/amd_mi300.xplane.pb",
]
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def number(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def put(field: int, value: int | bytes | float) -> bytes:
    if isinstance(value, float):
        return number(field << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return number(field << 3) + number(value)
    return number(field << 3 | 2) + number(len(value)) + value


def stat(name: int, value: Value, kind: int) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    assert raw is not None
    return put(1, name) + put(kind, raw)


def event(metadata: int, offset: int, duration: int, stats: list[bytes]) -> bytes:
    return put(1, metadata) + put(2, offset) + put(3, duration) + b"".join(put(4, s) for s in stats)


def line(events: list[bytes], timestamp: int = 5, name: bytes = b"XLA Ops") -> bytes:
    return put(1, -7) + put(2, name) + put(3, timestamp) + b"".join(put(4, e) for e in events)


STAT_NAMES = {1: "run_id", 2: "% util", 3: "long_name", 4: "blob", 5: "count", 6: "a reference"}


def space(lines: list[bytes], more: bytes = b"") -> bytes:
    plane = put(1, 2) + put(2, b"/device:TPU:0") + b"".join(put(3, x) for x in lines)
    plane += put(4, put(1, 9) + put(2, put(1, 9) + put(2, b"op.9") + put(5, stat(5, 77, 3)))) + put(
        6, stat(2, 1.5, 2)
    )
    plane += b"".join(
        put(5, put(1, i) + put(2, put(1, i) + put(2, n.encode()))) for i, n in STAT_NAMES.items()
    )
    return put(1, plane) + put(2, b"an error") + put(4, b"host7") + more


def parse(data: bytes) -> Space:
    return parse_space(memoryview(data), Path("x.xplane.pb"))


stats = st.one_of(
    st.tuples(st.just(1), INT64, st.just(columns.INT64)),
    st.tuples(st.just(2), st.floats(allow_nan=False), st.just(columns.DOUBLE)),
    st.tuples(st.just(3), st.text(max_size=200), st.just(columns.STRING)),
    st.tuples(st.just(4), st.binary(max_size=5), st.just(columns.RAW_BYTES)),
    st.tuples(st.just(5), st.integers(0, (1 << 64) - 1), st.just(columns.UINT64)),
)
events = st.lists(
    st.tuples(st.integers(0, 1 << 40), INT64, INT64, st.lists(stats, max_size=4, unique_by=lambda s: s[0])),
    max_size=30,
)


@given(events, st.integers(-(1 << 40), 1 << 40))
def test_what_was_written_is_read(
    wanted: list[tuple[int, int, int, list[tuple[int, Value, int]]]], timestamp: int
) -> None:
    encoded = [event(m, o, d, [stat(*s) for s in found]) for m, o, d, found in wanted]
    plane = parse(space([line(encoded, timestamp)])).planes[0]
    (only,) = plane.lines
    assert (only.name, only.identifier, only.timestamp_ns) == ("XLA Ops", -7, timestamp)
    assert only.event_count == len(wanted)
    found = [
        (int(c.metadata[i]), int(c.start_ps[i]), int(c.duration_ps[i]), c.stats(i))
        for c in only.chunks()
        for i in range(len(c))
    ]
    with np.errstate(over="ignore"):
        starts = [int(np.int64(o) + np.int64(timestamp * 1000)) for _, o, _, _ in wanted]
    assert found == [
        (m, start, d, {STAT_NAMES[n]: v for n, v, _ in s})
        for (m, _, d, s), start in zip(wanted, starts, strict=True)
    ]


def test_directory() -> None:
    read = parse(space([line([])]))
    assert (read.errors, read.warnings, read.hostnames) == (["an error"], [], ["host7"])
    plane = read.plane("/device:TPU:0")
    assert plane is not None
    assert plane.stats == {"% util": 1.5}
    assert plane.events[9].name == "op.9"
    assert plane.events[9].stats == {"count": 77}
    assert plane.line("XLA Ops") is plane.lines[0]
    assert (plane.line("Steps"), read.plane("/host:CPU")) == (None, None)


def test_columns_of_one_stat_keep_absent_apart_from_zero() -> None:
    rows = [[stat(1, 0, 4), stat(2, 0.0, 2)], [], [stat(2, 3.5, 2), stat(3, "x", 5)], [stat(3, 6, 7)]]
    (chunk,) = (
        parse(space([line([event(1, i, 1, r) for i, r in enumerate(rows)])])).planes[0].lines[0].chunks()
    )
    np.testing.assert_array_equal(chunk.numbers("% util"), [0.0, np.nan, 3.5, np.nan])
    np.testing.assert_array_equal(chunk.integers("run_id"), [0, -1, -1, -1])
    assert chunk.texts("long_name") == [None, None, "x", "a reference"]
    assert np.isnan(chunk.numbers("no such stat")).all()


@pytest.mark.parametrize("window", [64, 200, 1 << 20])
def test_chunks_and_windows_join_without_a_seam(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(columns, "_WINDOW", window)
    monkeypatch.setattr(columns, "EVENTS_PER_CHUNK", 7)
    encoded = [event(1, i, 2 * i, [stat(1, i, 4), stat(3, "x" * (i * 37 % 400), 5)]) for i in range(100)]
    only = parse(space([line(encoded) + put(11, b"shown") + put(9, 44)])).planes[0].lines[0]
    assert (only.name, only.duration_ps, only.event_count) == ("shown", 44, 100)
    chunks = list(only.chunks())
    assert np.concatenate([c.integers("run_id") for c in chunks]).tolist() == list(range(100))
    assert [t for c in chunks for t in c.texts("long_name")] == ["x" * (i * 37 % 400) for i in range(100)]


@settings(max_examples=300)
@given(st.data())
def test_damage_is_reported_and_never_crashes(data: st.DataObject) -> None:
    encoded = [event(9, i, 3, [stat(1, i, 4), stat(2, 0.5, 2), stat(3, "name", 5)]) for i in range(6)]
    raw = bytearray(space([line(encoded), line([])]))
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(raw) - 1))
        what = data.draw(st.sampled_from(["flip", "cut", "insert", "drop"]))
        if what == "flip":
            raw[where] = data.draw(st.integers(0, 255))
        elif what == "cut":
            raw = raw[: where + 1]
        elif what == "insert":
            raw[where:where] = data.draw(st.binary(min_size=1, max_size=12))
        elif len(raw) > 1:
            del raw[where]
    try:
        for plane in parse(bytes(raw)).planes:
            for each in plane.lines:
                for chunk in each.chunks():
                    chunk.numbers("% util")
                    chunk.texts("long_name")
                    for i in range(len(chunk)):
                        chunk.stats(i)
    except WireError:
        pass


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse(data)
        list(fields(data, 0, len(data)))
    except WireError:
        pass


@given(INT64)
def test_varint(value: int) -> None:
    data = number(value)
    assert varint(data, 0, len(data)) == (value & ((1 << 64) - 1), len(data))
    assert signed(varint(data, 0, len(data))[0]) == value
    with pytest.raises(WireError):
        varint(data, 0, len(data) - 1)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the project")
@pytest.mark.parametrize("name", REAL)
def test_same_as_jax_reads(name: str) -> None:
    """Every event and every event stat of real captures, in a process that may load jax."""
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, str(SHARED / name)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 3000


COMPARE = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from analyzer.xplane.space import read_space
from jax.profiler import ProfileData
ours, theirs = read_space(Path(sys.argv[1])), list(ProfileData.from_file(sys.argv[1]).planes)
assert [p.name for p in ours.planes] == [p.name for p in theirs]
count = 0
for a, b in zip(ours.planes, theirs):
    assert [x.name for x in a.lines] == [y.name for y in b.lines]
    assert {k for k, _ in b.stats} == set(a.stats)
    for x, y in zip(a.lines, b.lines):
        expected = iter(y.events)
        for c in x.chunks():
            for i in range(len(c)):
                e, metadata = next(expected), a.events.get(int(c.metadata[i]))
                assert e.name in (metadata.name, metadata.display_name)
                assert abs(e.start_ns * 1000 - int(c.start_ps[i])) < 1500
                assert abs(e.duration_ns * 1000 - int(c.duration_ps[i])) < 1500
                stats = dict(e.stats)
                assert c.stats(i).items() <= stats.items(), (c.stats(i), stats)
                count += 1
        assert next(expected, None) is None
        assert x.event_count == sum(len(c) for c in x.chunks())
print(count)
"""


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the project")
def test_facts_that_live_in_event_metadata() -> None:
    plane = read_space(SHARED / REAL[1]).plane("/device:TPU:0")
    assert plane is not None
    assert any("hlo_category" in e.stats for e in plane.events.values())
    assert any("flops" in e.stats and "bytes_accessed" in e.stats for e in plane.events.values())
