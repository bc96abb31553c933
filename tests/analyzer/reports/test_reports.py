"""Every format of the report: limits of the digest, the schema, and text that means harm."""

import json
import re
from pathlib import Path

import jsonschema
import pytest

from analyzer import fold
from analyzer.reports import json as json_report
from analyzer.reports import markdown, plain, text

SCHEMA = Path(__file__).parents[3] / "docs" / "schema" / "report.schema.json"
HOSTILE = "a\x1b[31m\nb\u202eevil | `x` <script>alert(1)</script> **b** \x00" + "w" * 300


def validate(report):
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(json_report.render(report)), schema)


def digest(report, **options):
    shown = text.render(report, **options)
    lines = shown.rstrip("\n").split("\n")
    assert len(lines) <= text.MAX_LINES
    assert max(plain.width(re.sub("\x1b\\[[0-9;]*m", "", line)) for line in lines) <= text.COLUMNS
    return shown


def test_the_digest_names_the_bound_the_fault_and_the_line(late_ring, make_report):
    report = make_report(late_ring)
    shown = digest(report)
    assert "bound by DMA latency" in shown
    assert "k.py:5 0x20-0x21" in shown
    assert "issued late" in shown
    assert "2 of 1,000 instructions not understood; scenario default, 1 assumed values" in shown
    assert "MS101" in shown
    assert "(modelled)" in shown
    assert "\x1b" not in shown
    assert "\x1b[1m" in digest(report, colour=True)


def test_json_has_the_promised_names_and_follows_the_schema(late_ring, make_report):
    report = make_report(late_ring)
    validate(report)
    promised = {
        "capture": {"path", "kind", "kernel", "chip", "cores", "batch"},
        "step": {"time_ps", "provenance", "executed_bundles", "static_bundles"},
        "hbm": {
            "read_bytes", "write_bytes", "peak_bytes_per_s", "utilization", "overlap", "exposed_wait_ps",
            "bubble_ps",
        },
        "ici": {"messages", "sent_bytes", "exposed_wait_ps", "exposed_phases"},
        "vmem": {"used_bytes", "capacity_bytes"},
        "scenario": {"name", "assumed_values"},
        "not_understood": {"instructions", "of"},
    }  # fmt: skip
    for section, names in promised.items():
        assert names <= set(report[section]), section
    assert {"layer", "phase", "time_ps", "share", "read_bytes", "sent_bytes", "provenance"} <= set(
        report["phases"][0]
    )
    assert {"start_ps", "duration_ps", "cause", "source", "bundles"} <= set(report["bubbles"][0])
    expected = {"id", "title", "time_ps", "saving_ps", "confidence", "provenance", "source", "bundles"}
    assert expected <= set(report["findings"][0])


def test_figures_of_the_report_agree_with_each_other(late_ring, make_report):
    report = make_report(late_ring)
    step = report["step"]["time_ps"]
    assert sum(report["step"]["critical_path"].values()) == step
    assert sum(p["time_ps"] for p in report["phases"]) == step
    assert report["hbm"]["in_flight_ps"] + report["hbm"]["bubble_ps"] == step
    assert sum(b["duration_ps"] for b in report["bubbles"]) == report["hbm"]["bubble_ps"]
    assert sum(g["total_ps"] for g in report["bubble_groups"]) == report["hbm"]["bubble_ps"]
    assert report["bubbles_total"] == len(report["bubbles"])
    assert report["hbm"]["read_bytes"] == sum(p["read_bytes"] for p in report["phases"]) == 4 * 8 * 4096


@pytest.mark.parametrize("render", [text.render, markdown.render])
def test_names_that_mean_harm_stay_on_their_line(build, make_report, render):
    copy = build.read(700, 900, 10, issued=500, free_ps=1, name=HOSTILE, source=f"{HOSTILE}:7")
    build.mxu(0, 500)
    build.wait(500, 900, copy, source=f"{HOSTILE}:8")
    build.region(0, 900, HOSTILE, 1)
    build.mxu(900, 1000, source="\u4e16\u754c" * 40 + ".py:3")
    capture = make_report.capture(HOSTILE, kernel=HOSTILE, batch=HOSTILE)
    report = make_report(build, capture=capture)
    report["notes"].append(HOSTILE)
    shown = render(report)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", shown)
    if render is text.render:
        digest(report)
    else:
        assert "<script>" not in re.sub(r"`+[^`]*`+", "", shown)


def test_unknown_is_said_and_never_zero(build, make_report):
    build.mxu(0, 1000)
    facts = fold.Facts(transfers_visible=False)
    report = make_report(build, facts, make_report.capture(cores=None, batch=None, kernel=None))
    validate(report)
    assert report["hbm"]["read_bytes"] is report["hbm"]["utilization"] is report["hbm"]["bubble_ps"] is None
    assert report["ici"]["messages"] is report["vmem"]["used_bytes"] is None
    assert report["not_understood"]["of"] is None
    shown = digest(report)
    assert "read unknown" in shown
    assert "utilization unknown" in shown
    assert "unknown of unknown instructions not understood" in shown
    assert "none marked in this program" in shown
    markdown.render(report)


def test_an_empty_timeline_still_gives_a_report(build, make_report):
    report = make_report(build)
    validate(report)
    assert report["step"]["bound_by"] == "unknown"
    digest(report)
    markdown.render(report)


def test_many_phases_bubbles_findings_and_notes_still_fit(build, make_report):
    now = 0
    for index in range(40):
        copy = build.read(
            now + 900, now + 1000, 10, issued=now + 100, free_ps=now, source=f"k.py:{50 * index}"
        )
        build.wait(now + 100, now + 1000, copy, source=f"k.py:{100 + index}")
        build.region(now, now + 1000 + index, f"phase {index}", index)
        now += 1000 + index
    report = make_report(build)
    report["notes"] += [f"note {i}" for i in range(20)]
    assert len(digest(report).split("\n")) == text.MAX_LINES + 1
    assert len(report["findings"]) > text.FINDINGS
    assert "more notes" in digest(report)


def test_several_cores_report_the_one_that_ends_last(build, make_report):
    for core, end in ((0, 500), (1, 900), (2, 900)):
        build.read(0, 100, 10 * (core + 1), core=core)
        build.mxu(0, end, core=core)
    report = make_report(build)
    validate(report)
    assert report["reported"] == {"core": 1, "step": 0, "cores_in_timeline": 3}
    assert report["hbm"]["read_bytes"] == 20
    assert [one["read_bytes"] for one in report["hbm"]["per_core"]] == [10, 20, 30]


def test_several_steps_report_the_median(build, make_report):
    for step, length in enumerate((300, 100, 200, 900)):
        build.mxu(10_000 * step, 10_000 * step + length, step=step)
    report = make_report(build)
    assert report["step"]["time_ps"] == 200
    assert any("4 steps" in note for note in report["notes"])


def test_fit_counts_columns_and_keeps_the_chosen_end():
    assert plain.fit("abcdef", 5) == "ab..."
    assert plain.fit("abcdef", 5, keep_end=True) == "...ef"
    assert plain.width(plain.fit("\u4e16" * 10, 9)) <= 9
    assert plain.width(plain.pad("\u4e16", 5)) == 5
    assert plain.fit("abc", 2) == ".."


def test_place_and_layers_in_words():
    assert plain.place("/a/b/c/k.py:7", [16, 17]) == "c/k.py:7 0x10-0x11"
    assert plain.place(None, [3, 3]) == "0x3"
    assert plain.place(None, None) == "place unknown"
    assert plain.layers([None, 2, 0, 1]) == "layers 0-2"
    assert plain.layers([None]) == ""
    assert plain.layers([5, 9]) == "2 layers 5-9"
