"""Made-up traces with a known answer: nesting, layers, choice of the kernel, joins, damage."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest

from analyzer.analysis import analyze
from analyzer.capture import open_capture
from analyzer.cli import render
from analyzer.errors import MegascopeError
from analyzer.measured.analyze import measure
from analyzer.measured.join import bases_of
from analyzer.measured.kernel import choose_kernel, shapes
from analyzer.measured.load import events, load
from analyzer.measured.scopes import is_wait
from analyzer.xplane.writer import PlaneWriter, block, encode_space, number

US = 1_000_000
CALL = '%{0} = f32[8,128]{{1,0}} custom-call(f32[8,128]{{1,0}} %x), custom_call_target="tpu_custom_call"'


def device(core=0, scopes=(), calls=((10 * US, 100 * US),), kernel="mlp.1", more=()):
    """A TPU plane; scopes are (name, start, duration[, stats])."""
    plane = PlaneWriter(core, f"/device:TPU:{core}")
    plane.fact("device_type_string", "TPU v6 Lite")
    plane.fact("peak_hbm_bw_gigabytes_per_second", 1000.0)
    module = plane.event_kind("jit_mlp(1)")
    plane.line("XLA Modules", [(module, s - US, d + 2 * US, {}) for s, d in calls])
    call = plane.event_kind(CALL.format(kernel), kernel, {"hlo_category": "custom-call"})
    ops = [(call, s, d, {}) for s, d in calls]
    ops += [
        (plane.event_kind(text, text.split()[0].lstrip("%"), facts), s, d, {}) for text, s, d, facts in more
    ]
    plane.line("XLA Ops", sorted(ops, key=lambda e: e[1]))
    plane.line(
        "XLA TraceMe",
        [(plane.event_kind(name), s, d, stats[0] if stats else {}) for name, s, d, *stats in scopes],
    )
    return plane


def write(tmp_path, *planes) -> Path:
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(encode_space(planes))
    return file


def report_of(file):
    return measure(file, open_capture(file)).report


def test_nested_scopes_count_once(tmp_path):
    scopes = [
        ("outer", 20 * US, 60 * US),
        ("inner", 30 * US, 20 * US),
        ("inner", 60 * US, 10 * US),
        ("tail", 90 * US, 10 * US),
    ]
    stages = {s["phase"]: s for s in report_of(write(tmp_path, device(scopes=scopes)))["trace"]["stages"]}
    assert stages["outer"]["time_ps"] == 60 * US
    assert stages["outer"]["own_ps"] == 30 * US
    assert stages["outer/inner"]["time_ps"] == 30 * US
    assert stages["outer/inner"]["entries"] == 2
    assert stages[""]["time_ps"] == 30 * US
    assert sum(s["own_ps"] for s in stages.values()) == 100 * US


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ([("layer", {"layer": 4}), ("layer", {"layer": 7})], [4, 7]),
        ([("layer(4)", {}), ("layer: 7", {})], [4, 7]),
        ([("layer#layer=4#", {}), ("layer_7", {})], [4, 7]),
        ([("layer", {}), ("layer", {})], [0, 1]),
    ],
)
def test_layers_from_values_else_counted_and_said(tmp_path, marks, said):
    scopes = []
    for i, (name, stats) in enumerate(marks):
        start = (20 + 40 * i) * US
        scopes += [(name, start, 30 * US, stats), ("gate", start + US, 10 * US, {})]
    report = report_of(write(tmp_path, device(scopes=scopes)))
    assert [(s["layer"], s["phase"]) for s in report["trace"]["stages"] if s["phase"]] == [
        (said[0], "gate"),
        (said[1], "gate"),
    ]
    assert any("order of entry" in n for n in report["notes"]) == (marks[0] == ("layer", {}))


def test_layers_are_numbered_anew_in_every_call(tmp_path):
    calls = [(10 * US, 100 * US), (200 * US, 100 * US)]
    scopes = [("layer", start + i * 20 * US, 10 * US) for start, _ in calls for i in range(3)]
    report = report_of(write(tmp_path, device(scopes=scopes, calls=calls)))
    stages = report["trace"]["stages"]
    assert [(s["layer"], s["entries"]) for s in stages if s["layer"] is not None] == [(0, 1), (1, 1), (2, 1)]
    assert report["trace"]["runs"]["listed"][0]["start_to_start_ps"] == 190 * US


def test_scopes_that_cross_are_said_not_summed_twice(tmp_path):
    scopes = [("a", 20 * US, 40 * US), ("b", 40 * US, 40 * US)]
    report = report_of(write(tmp_path, device(scopes=scopes)))
    assert sum(s["own_ps"] for s in report["trace"]["stages"]) == 100 * US
    assert any("overlap others" in note for note in report["notes"])


def test_kernel_with_most_time_is_taken_and_said(tmp_path):
    short = (CALL.format("small.2"), 200 * US, 5 * US, {})
    file = write(tmp_path, device(more=[short]))
    kernel, notes = choose_kernel(load(file).devices)
    assert kernel.name == "mlp.1"
    assert "small.2" in notes[0]


def test_operations_around_the_kernel(tmp_path):
    more = [
        ("%fusion.1 = f32[8] fusion(f32[8] %y)", 9 * US, US, {"hlo_category": "loop fusion", "flops": 10}),
        ("%copy.1 = f32[8] copy(f32[8] %y)", 110 * US, US, {}),
    ]
    report = report_of(write(tmp_path, device(more=more)))
    found = {o["name"]: o for o in report["trace"]["operations"]}
    assert found["loop fusion"]["flops"] == 10
    assert found["loop fusion"]["bytes"] is None
    assert found["copy"]["time_ps"] == US
    assert report["hbm"]["read_bytes"] is None
    assert "bytes unknown" in render(report, "text")


def test_slowest_core_is_reported(tmp_path):
    planes = [device(0), device(1, calls=[(10 * US, 120 * US)]), device(2)]
    report = report_of(write(tmp_path, *planes))
    assert report["reported"]["core"] == 1
    assert report["capture"]["cores"] == 3


def test_without_scopes_nothing_is_claimed(tmp_path):
    report = report_of(write(tmp_path, device()))
    assert report["phases"] == []
    assert report["step"]["bound_by"] == "unknown"
    assert any("no named scopes" in note for note in report["notes"])
    assert report["hbm"]["exposed_wait_ps"] is None


def test_bytes_from_stages_and_the_program_in_the_trace(tmp_path):
    scopes = [
        ("ep_initialize_0", 10 * US, US),
        ("ep_copy_in", 20 * US, US),
        ("ep_wait_in", 30 * US, 50 * US),
        ("ep_copy_in", 82 * US, US),
        ("ep_copy_out", 90 * US, US),
    ]
    texts = [
        f"BoundsCheck {i} [deref of %s1] for %{i} = dma.{way} [thread:$0] /*size_in_granules=*/{granules}, x"
        for i, (way, granules) in enumerate([("hbm_to_vmem", 100), ("hbm_to_vmem", 100), ("vmem_to_hbm", 50)])
    ]
    llo = block(1, "mlp.1") + block(2, number(6, 321)) + b"".join(block(9, t) for t in texts)

    def trace(llo):
        metadata = PlaneWriter(9, "/host:metadata")
        metadata.event_kind("jit_mlp(3)::mlp.1", "", {"llo_proto": llo})
        return report_of(write(tmp_path, device(scopes=scopes), metadata))

    report = trace(llo)
    assert (report["hbm"]["read_bytes"], report["hbm"]["write_bytes"]) == (3 * 3200, 1600)
    assert report["step"]["static_bundles"] == 321
    assert report["hbm"]["exposed_wait_ps"] == 50 * US
    assert report["step"]["bound_by"] == "dma waits"
    # One copy more than there are stages: then nothing is claimed.
    report = trace(llo + block(9, texts[0].replace("BoundsCheck 0", "BoundsCheck 7")))
    assert report["hbm"]["read_bytes"] is None
    assert any("4 copies in the program do not match 3 stages" in note for note in report["notes"])


def test_impossible_durations_are_cut():
    found = events([5_000, 6_000, 7_000], [500, 500, 7_400], [0, 0, 0], [], limit=8_000)
    assert found.duration_ps.tolist() == [500, 500, 400]
    assert found.mended.tolist() == [2]
    untouched = events(
        [10, 20], [1_000, 5], [0, 0], [], limit=900
    )  # no end of anything: long, not impossible
    assert untouched.duration_ps.tolist() == [1_000, 5]
    assert events([10], [11], [0], []).mended.tolist() == []


def test_address_bases():
    assert bases_of((494, 503, 520), [0, 59, 68, 85, 99]) == [435]
    assert bases_of((494, 503), [0, 8]) == []
    assert bases_of((10, 20), [0, 10, 20]) == [0, 10]


def test_shapes_of_an_operation():
    text = "%k = (f32[8,128]{1,0:T(8,128)}, u32[]) custom-call(bf16[4]{0:S(1)} %a, pred[3] %b), x=[9]"
    results, operands = shapes(text)
    assert [(s.dtype, s.bytes, s.hbm) for s in results] == [("f32", 4096, True), ("u32", 4, True)]
    assert [(s.dtype, s.bytes, s.hbm) for s in operands] == [("bf16", 8, False), ("pred", 3, True)]


def test_names_of_waits():
    assert all(
        is_wait(n) for n in ("ep_wait_in", "wait", "barrier-cores", "moe.wait_recv", "dependency-wait")
    )
    assert not any(is_wait(n) for n in ("await_nothing_x", "gate_up", "weights"))


def test_trace_json_gives_the_same_stages(tmp_path):
    scopes = [("outer", 20 * US, 60 * US), ("inner", 30 * US, 20 * US)]
    wanted = report_of(write(tmp_path, device(scopes=scopes)))["trace"]["stages"]
    rows = [("XLA Ops", CALL.format("mlp.1"), 10, 100), ("XLA TraceMe", "outer", 20, 60)]
    rows.append(("XLA TraceMe", "inner", 30, 20))
    named = [{"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:TPU:0"}}]
    for tid, line in enumerate(("XLA Ops", "XLA TraceMe")):
        named.append({"ph": "M", "pid": 3, "tid": tid, "name": "thread_name", "args": {"name": line}})
    for line, name, start, duration in rows:
        event = {"ph": "X", "pid": 3, "tid": int(line != "XLA Ops"), "ts": start, "dur": duration}
        named.append(event | {"name": name.split(" ")[0].lstrip("%"), "args": {"long_name": name}})
    file = tmp_path / "host.trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": named}).encode()))
    report = analyze(file, use_cache=False).report
    assert report["trace"]["stages"] == wanted
    assert any("trace.json" in note for note in report["notes"])


def test_damage_never_crashes(tmp_path):
    scopes = [("layer", 20 * US, 60 * US, {"layer": 3}), ("ep_wait_in", 30 * US, 20 * US)]
    sound = bytearray(encode_space([device(scopes=scopes), device(1)]))
    chance = random.Random(7)
    reported, messages = 0, []
    for _ in range(300):
        data = bytearray(sound)
        for _ in range(chance.randrange(1, 4)):
            what, at = chance.randrange(4), chance.randrange(len(data))
            if what == 0:
                data[at] = chance.randrange(256)
            elif what == 1:
                del data[at : at + chance.randrange(1, 9)]
            elif what == 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            else:
                data[at] ^= 0x80
        file = tmp_path / "host.xplane.pb"
        file.write_bytes(data)
        try:
            render(report_of(file), "text")
            reported += 1
        except MegascopeError as error:
            messages.append(str(error))
    assert reported > 20
    assert len(messages) > 20
    assert not any("\n" in message for message in messages)


def test_random_scopes_add_up(tmp_path):
    chance = np.random.default_rng(3)
    for _ in range(20):
        scopes = [
            (f"s{chance.integers(4)}", int(s), int(d))
            for s, d in zip(chance.integers(0, 120 * US, 40), chance.integers(0, 50 * US, 40), strict=True)
        ]
        stages = report_of(write(tmp_path, device(scopes=sorted(scopes, key=lambda x: (x[1], -x[2])))))
        assert sum(s["own_share"] for s in stages["trace"]["stages"]) == pytest.approx(1)
        assert all(s["own_share"] <= s["share"] + 1e-12 <= 1 + 2e-12 for s in stages["trace"]["stages"])


def test_long_traces_keep_the_steps_around_the_reported_one(tmp_path):
    from analyzer.measured.spans import build_timeline, core_trace

    calls = [(10 * US + i * 100 * US, 50 * US) for i in range(9)]
    scopes = [("gate", start + k * 5 * US, 4 * US) for start, _ in calls for k in range(10)]
    loaded = load(write(tmp_path, device(scopes=scopes, calls=calls)))
    kernel, _ = choose_kernel(loaded.devices)
    traces = [core_trace(one, kernel) for one in loaded.devices]
    whole, kept = build_timeline(traces, 4)
    assert (len(whole), kept) == (90, None)
    part, kept = build_timeline(traces, 4, limit=35)  # a step is 11 events: ten scopes and the call
    assert kept == (4, 6)
    assert set(part["step"]) == {4, 5, 6}
    same = whole[whole["step"].isin([4, 5, 6])]
    assert part["start_ps"].tolist() == same["start_ps"].tolist()
    assert build_timeline(traces, 8, limit=1)[1] == (8, 8)
