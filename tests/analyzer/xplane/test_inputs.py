"""Finding traces, and what is said of files that are none."""

import gzip
import json
import os
from pathlib import Path

import pytest

from analyzer.errors import InputError
from analyzer.xplane.inputs import open_file, open_trace
from analyzer.xplane.trace_json import EVENT_LIMIT, TraceSummary, read_events

SHARED = Path(__file__).parents[3] / "../shared/data"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the project")


def plane(name: bytes, line: bytes = b"") -> bytes:
    inner = b"\x12" + bytes([len(name)]) + name + (b"\x1a" + bytes([len(line)]) + line if line else b"")
    return b"\x0a" + bytes([len(inner)]) + inner


SOUND = plane(b"/device:TPU:0", b"\x12\x03Ops") + plane(b"/host:CPU")


@needs_data
@pytest.mark.parametrize(
    ("name", "cause", "cure"),
    [
        ("empty", "is empty: the profiler failed to write it (it does past 2 GB)", "Record again"),
        ("lfs_pointer", "is a Git LFS pointer", "git lfs pull"),
        (
            "truncated",
            "is truncated: 38,595 bytes of its plane /device:TPU:3 are missing",
            "copy the original",
        ),
        ("utf8_mangled", "mangled by being handled as text", "as binary"),
        ("amd_mi300", "holds no TPU plane: it is a trace of /device:GPU:0 (AMD)", "use xprof"),
    ],
)
def test_bad_inputs(name: str, cause: str, cure: str) -> None:
    path = SHARED / "bad-inputs" / f"{name}.xplane.pb"
    with pytest.raises(InputError) as caught:
        open_trace(path)
    assert cause in str(caught.value)
    assert cure in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"\x1f\x8b\x08", "compressed with gzip"),
        (b'{"traceEvents": []}', "is text"),
        (b"\xff\xff\xff", "no xplane protobuf, or a damaged one"),
        (plane(b"/host:CPU"), "no TPU plane, only /host:CPU: the device's events were not recorded"),
        (b"\x22\x04host", "holds no planes"),
        (SOUND[:-4], "is truncated: 4 bytes of its plane (unnamed) are missing"),
        (SOUND[:26], "is truncated: 11 bytes"),
        (SOUND[:22], "is truncated: 2 bytes of its plane /device:TPU:0 are missing"),
    ],
)
def test_other_bad_files(tmp_path: Path, data: bytes, cause: str) -> None:
    path = tmp_path / "h.xplane.pb"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"h\.xplane\.pb") as caught:
        open_file(path)
    assert cause in str(caught.value)


def test_one_bad_host_of_four_leaves_three(tmp_path: Path) -> None:
    run = tmp_path / "plugins" / "profile" / "2026_11_30_10_00_00"
    run.mkdir(parents=True)
    for host in range(4):
        (run / f"host{host}.xplane.pb").write_bytes(SOUND if host != 2 else b"")
    trace = open_trace(tmp_path)
    assert [s.path.name for s in trace.spaces] == ["host0.xplane.pb", "host1.xplane.pb", "host3.xplane.pb"]
    assert trace.notes[:2] == ["read run plugins/profile/2026_11_30_10_00_00", "3 of 4 hosts read"]
    assert trace.notes[2].startswith("left out host2.xplane.pb: is empty")
    for host in (0, 1, 3):
        (run / f"host{host}.xplane.pb").write_bytes(b"")
    with pytest.raises(InputError, match=r"none of its 4 traces can be read .*host0.*is empty"):
        open_trace(tmp_path)


def test_newest_run(tmp_path: Path) -> None:
    for name, age in (("2026_11_30_10_00_00", 5), ("2026_11_30_11_00_00", 9), ("2026_11_29_23_00_00", 1)):
        run = tmp_path / "plugins" / "profile" / name
        run.mkdir(parents=True)
        (run / "h.xplane.pb").write_bytes(SOUND)
        os.utime(run / "h.xplane.pb", (1_700_000_000 - age, 1_700_000_000 - age))
    trace = open_trace(tmp_path)
    assert trace.run.name == "2026_11_30_11_00_00"
    assert trace.notes == ["read run plugins/profile/2026_11_30_11_00_00, the newest of 3 runs"]
    assert open_trace(trace.run).notes == []
    (trace.run.parent / "final").mkdir()
    (trace.run.parent / "final" / "h.xplane.pb").write_bytes(SOUND)
    assert open_trace(tmp_path).run.name == "final", "names that are no times: the newest file decides"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no \.xplane\.pb"):
        open_trace(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        open_trace(tmp_path / "nowhere")


class TestTraceJson:
    def events(self, count: int) -> dict[str, object]:
        names = {"ph": "M", "pid": 3, "tid": 1, "name": "thread_name", "args": {"name": "XLA Ops"}}
        found = [
            {"ph": "X", "pid": 3, "tid": 1, "name": f"op, ]{i}", "ts": i, "dur": 1.5} for i in range(count)
        ]
        return {"displayTimeUnit": "ns", "traceEvents": [names, *found, {}]}

    @pytest.mark.parametrize("packed", [True, False])
    def test_read(self, tmp_path: Path, packed: bool) -> None:
        path = tmp_path / "h.trace.json.gz"
        text = json.dumps(self.events(30_000)).encode()
        path.write_bytes(gzip.compress(text, 1) if packed else text)
        summary = TraceSummary()
        found = list(read_events(path, summary))
        assert [e["ts"] for e in found] == list(range(30_000))
        assert found[7]["name"] == "op, ]7"
        assert summary == TraceSummary(30_000, {(3, 1): "XLA Ops"})

    def test_cut_at_a_million_is_said(self, tmp_path: Path) -> None:
        path = tmp_path / "h.trace.json"
        one = '{"ph":"X","pid":1,"tid":1,"name":"a","ts":1,"dur":1},'
        path.write_text('{"traceEvents":[' + one * EVENT_LIMIT + "{}]}")
        summary = TraceSummary()
        assert sum(1 for _ in read_events(path, summary)) == EVENT_LIMIT
        (note,) = summary.notes
        assert "1,000,000 events: the profiler stops writing" in note

    @pytest.mark.parametrize("packed", [True, False])
    def test_a_cut_file_gives_what_it_has(self, tmp_path: Path, packed: bool) -> None:
        path = tmp_path / "h.trace.json.gz"
        text = json.dumps(self.events(30_000)).encode()
        data = gzip.compress(text, 1) if packed else text
        path.write_bytes(data[: len(data) // 2])
        summary = TraceSummary()
        count = sum(1 for _ in read_events(path, summary))
        assert 1000 < count < 30_000
        assert not summary.complete
        assert any("cut off" in n for n in summary.notes)

    def test_not_a_trace(self, tmp_path: Path) -> None:
        path = tmp_path / "h.trace.json"
        path.write_text('{"a": 1}')
        with pytest.raises(InputError, match="no traceEvents"):
            list(read_events(path, TraceSummary()))
