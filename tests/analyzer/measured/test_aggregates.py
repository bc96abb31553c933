"""Numbers taken from whole columns against the same, worked out event by event, on random traces."""

import math
from collections import defaultdict

import numpy as np
import pytest

from analyzer import metrics, view
from analyzer.capture import open_capture
from analyzer.measured import analyze, detail, operations, spans
from analyzer.measured.kernel import choose_kernel
from analyzer.measured.load import ASYNC, OPS, SCOPES, load
from analyzer.measured.phases import step_times
from analyzer.measured.scopes import _LAYER, TICK_PS
from analyzer.xplane.writer import PlaneWriter, encode_space

CALL = '%mlp.1 = f32[8] custom-call(f32[8] %x), custom_call_target="tpu_custom_call"'
COPY = "%copy.{} = (f32[8]{{0:S(1)}}, f32[8]{{0}}) copy-start(f32[8] %y)"
NAMES = ("gate", "ep_wait_in", "barrier", "layer", "layer 3", "up", "wait")


def trace(tmp_path, seed, *, crossing=True, kernel=True, calls=4, each=30):
    """A file with one core: modules, calls, scopes that nest (and cross, if wanted), operations, copies."""
    chance = np.random.default_rng(seed)
    plane = PlaneWriter(0, "/device:TPU:0")
    module = plane.event_kind("jit_f(1)")
    lengths = chance.integers(500_000, 900_000, calls)
    begins = np.arange(calls) * 1_000_000 + 5_000
    plane.line("XLA Modules", [(module, int(s), int(d), {}) for s, d in zip(begins, lengths, strict=True)])
    ops, scopes, copies = [], [], []
    call = plane.event_kind(CALL, "mlp.1", {"hlo_category": "custom-call"})
    others = [
        plane.event_kind(
            f"%fusion.{i} = f32[8] fusion(f32[8] %y)", f"fusion.{i}", {"hlo_category": f"kind {i % 3}"}
        )
        for i in range(5)
    ]
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        if kernel:
            ops.append((call, begin + 100_000, length - 200_000, {}))
        for at in chance.integers(begin, begin + 100_000, each // 3).tolist():
            ops.append((others[at % 5], at, int(chance.integers(0, 9_000)), {}))
            copies.append((plane.event_kind(COPY.format(at % 3)), at, int(chance.integers(1, 50_000)), {}))
        open_scopes = [(begin + 100_000, begin + length - 100_000)]
        for _ in range(each):
            low, high = open_scopes[int(chance.integers(len(open_scopes)))]
            start = int(chance.integers(low, max(high, low + 1)))
            end = int(chance.integers(start, max(high, start + 1)))
            fits = all(end <= a or start >= b or (a <= start and end <= b) for a, b in open_scopes)
            if not fits and crossing:
                end += int(chance.integers(0, 3)) * 1_250
            if fits or crossing:
                open_scopes.append((start, end))
                value = {"layer": int(chance.integers(9))} if chance.random() < 0.3 else {}
                scopes.append(
                    (plane.event_kind(NAMES[int(chance.integers(len(NAMES)))]), start, end - start, value)
                )
    for name, rows in ((OPS, ops), (SCOPES, scopes), (ASYNC, copies)):
        plane.line(name, sorted(rows, key=lambda row: (row[1], -row[2])))
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(encode_space([plane]))
    return file


def cores_of(file):
    loaded = load(file)
    kernel, _ = choose_kernel(loaded.devices)
    return [spans.core_trace(device, kernel) for device in loaded.devices]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kernel", [True, False])
def test_phases_and_times_are_those_of_the_table(tmp_path, seed, kernel):
    [core] = cores_of(trace(tmp_path, seed, crossing=seed % 2 == 0, kernel=kernel))
    table, _ = spans.build_timeline([core])
    zero = spans.origin([core])
    for i in range(len(core.runs)):
        start = int(core.runs.start_ps[i])
        window = start, start + int(core.runs.duration_ps[i])
        step = int(core.step_of(core.runs.start_ps[i : i + 1])[0])
        shown = view.core_step(table, 0, step, (window[0] - zero, window[1] - zero))
        phases, time = step_times(core, step, window)
        assert time == metrics.core_time(shown)
        assert len(phases) > 5
        wanted = metrics.phases(shown, transfers_visible=False)
        assert [(p.layer, p.phase, p.entries, p.time_ps, p.share, p.busy_ps) for p in phases] == [
            (p.layer, p.phase, p.entries, p.time_ps, p.share, p.busy_ps) for p in wanted
        ]


def scopes_one_by_one(core):
    """Path, layer and end of every scope, with a stack of what is open."""
    events = core.device.lines[SCOPES]
    values = events.numbers.get("layer", np.full(len(events), np.nan))
    stack, found, entered, last = [], [], 0, None
    for i in range(len(events)):
        begin, end, name = int(events.start_ps[i]), int(events.end_ps[i]), events.kinds[events.kind[i]].name
        call = int((core.steps.start_ps <= begin).sum())
        entered, last = (0, call) if call != last else (entered, call)
        while stack and stack[-1][0] <= begin:
            stack.pop()
        while stack and end > stack[-1][0]:
            if end - stack[-1][0] <= TICK_PS:
                end = stack[-1][0]
            else:
                stack.pop()
        _, path, layer = stack[-1] if stack else (0, "", -1)
        layered = _LAYER.match(name)
        if layered:
            layer = entered if layered[1] is None else int(layered[1])
            layer = layer if math.isnan(values[i]) else int(values[i])
            entered += 1
        else:
            path = f"{path}/{name}" if path else name
        stack.append((end, path, layer))
        found.append(stack[-1])
    return found


@pytest.mark.parametrize("seed", range(8))
def test_scopes_are_those_of_a_walk_one_by_one(tmp_path, seed, monkeypatch):
    from analyzer.measured import scopes

    monkeypatch.setattr(scopes, "_AT_ONCE", 7)
    [core] = cores_of(trace(tmp_path, seed, crossing=seed % 2 == 0))
    got = core.scopes
    assert [
        (end, got.paths[path], layer)
        for end, path, layer in zip(got.end_ps.tolist(), got.path.tolist(), got.layer.tolist(), strict=True)
    ] == scopes_one_by_one(core)
    assert bool(got.crossing) == (seed % 2 == 0)


@pytest.mark.parametrize("seed", range(4))
def test_categories_are_those_of_a_count_one_by_one(tmp_path, seed):
    [core] = cores_of(trace(tmp_path, seed, kernel=False))
    ops = core.device.lines[OPS]
    inside = defaultdict(list)
    for i in range(len(ops)):
        start, end = int(ops.start_ps[i]), int(ops.end_ps[i])
        kind = ops.kinds[ops.kind[i]]
        if any(s <= start < s + d for s, d in zip(core.steps.start_ps, core.steps.duration_ps, strict=True)):
            inside[kind.facts["hlo_category"]].append((start, end))
    windows = analyze._steps_windows(core)
    assert {c.name: (c.count, c.time_ps) for c in operations.by_category(core.device, windows)} == {
        name: (len(rows), len(set().union(*(range(*row) for row in rows)))) for name, rows in inside.items()
    }


@pytest.mark.parametrize("seed", range(6))
def test_less_detail_keeps_what_nests_and_what_is_long(seed):
    chance = np.random.default_rng(seed)
    spans_ = [(0, 100_000)]
    while len(spans_) < 300:
        low, high = spans_[int(chance.integers(len(spans_)))]
        start = int(chance.integers(low, high))
        end = int(chance.integers(start + 1, high + 1))
        if all(end <= a or start >= b or (a <= start and end <= b) for a, b in spans_):
            spans_.append((start, end))
    spans_.sort(key=lambda s: (s[0], -s[1]))
    start, end = (np.array([s[i] for s in spans_], dtype=np.int64) for i in (0, 1))
    most = 40
    group = detail.neighbours(start, end, most)
    assert 4 < group[-1] + 1 <= most + 2
    assert set(np.diff(group).tolist()) <= {0, 1}
    first, begins, ends = detail.extents(start, end, group)
    got = list(zip(begins.tolist(), ends.tolist(), strict=True))
    assert all(b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d) for a, b in got for c, d in got)
    assert set(sorted(spans_, key=lambda s: s[0] - s[1])[: most // 4 - 1]) <= set(got)
    assert {time for one in got for time in one} <= {time for one in spans_ for time in one}
    assert np.diff(first, append=len(start)).sum() == len(start)


def test_a_step_of_too_many_events_is_drawn_with_less_and_counted_in_full(tmp_path, monkeypatch):
    file = trace(tmp_path, 3, calls=1, each=200)
    whole = analyze.measure(file, open_capture(file))
    monkeypatch.setattr(analyze, "SPANS_KEPT", 90)
    monkeypatch.setattr(analyze, "steps_kept", lambda traces, step: spans.steps_kept(traces, step, 90))
    monkeypatch.setattr(
        analyze, "build_timeline", lambda traces, step: spans.build_timeline(traces, step, 90)
    )
    less = analyze.measure(file, open_capture(file))
    assert len(less.timeline) < 120 < len(whole.timeline)
    for what in ("scopes", "operations"):
        assert any(name.endswith(f" {what}") for name in less.timeline["name"])
    assert any("short neighbours of its" in note for note in less.report["notes"])
    numbers = [{k: v for k, v in one.report.items() if k != "notes"} for one in (whole, less)]
    assert numbers[0] == numbers[1]


def test_without_steps_and_modules_all_of_the_time_is_one_run(tmp_path):
    plane = PlaneWriter(0, "/device:TPU:0")
    kind = plane.event_kind("%copy.1 = f32[8] copy(f32[8] %y)", "copy.1", {})
    plane.line(OPS, [(kind, start, 400, {}) for start in range(5_000, 25_000, 1_000)])
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(encode_space([plane]))
    report = analyze.measure(file, open_capture(file)).report
    assert report["step"]["time_ps"] == 19_400
    assert [(c["name"], c["count"], c["time_ps"]) for c in report["trace"]["operations"]] == [
        ("copy", 20, 8_000)
    ]
    assert report["trace"]["runs"]["count"] == 1
    assert any("no steps and no modules" in note for note in report["notes"])
