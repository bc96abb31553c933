"""Parts of a report."""

import copy

import pytest

from analyzer.errors import DataAbsentError, UsageError
from analyzer.reports import markdown, text
from analyzer.reports.select import Selection, refuse_unknown, select


@pytest.fixture
def report(late_ring, make_report):
    return make_report(late_ring)


def test_everything_is_the_report_itself(report):
    assert select(report, Selection()) is report


def test_by_rule_phase_and_layer(report):
    before = copy.deepcopy(report)
    part = select(report, Selection(rules=("MS1xx",), phases=("mlp",), layers=(1, 2)))
    assert report == before
    assert {f["id"][:3] for f in part["findings"]} == {"MS1"}
    assert [(p["layer"], p["phase"]) for p in part["phases"]] == [(1, "mlp"), (2, "mlp")]
    assert part["bubbles"]
    assert {(b["layer"], b["phase"]) for b in part["bubbles"]} == {(1, "mlp"), (2, "mlp")}
    assert part["selected"]["phases"] == {"total": 8, "matching": 2, "returned": 2}
    assert "a part of the report: rules MS1xx; phases mlp; layers 1, 2" in part["notes"]
    text.render(part)
    markdown.render(part)


def test_totals_are_of_the_part_or_labelled(report):
    part = select(report, Selection(layers=(1,)))
    assert part["bubbles_total"] == len(part["bubbles"]) < report["bubbles_total"]
    assert part["selected"]["totals_of"] == "step"
    [group] = [g for g in part["bubble_groups"] if g["count"] > 1]
    assert len(group["layers"]) > 1
    said = text.render(part)
    assert "kinds: cause, place; totals of the whole step" in said
    assert "(savings overlap; totals of the whole step)" in said
    assert any("of the whole step: of every layer" in note for note in part["notes"])
    listed = select(report | {"bubbles_total": 1000}, Selection(layers=(1,)))
    assert listed["bubbles_total"] is None
    assert "totals of" not in text.render(select(report, Selection(rules=("MS1xx",))))


def test_what_exists_nowhere_is_refused(report):
    refuse_unknown(report, Selection(rules=("MS1xx",), phases=("mlp",), layers=(1,)))
    with pytest.raises(UsageError, match=r"--rule XS: no such rule. Rules: MS101"):
        refuse_unknown(report, Selection(rules=("XS",)))
    with pytest.raises(DataAbsentError, match=r"--phase nosuch: .*Phases: .*mlp"):
        refuse_unknown(report, Selection(phases=("nosuch",)))
    with pytest.raises(DataAbsentError, match=r"--layer 99: .*Layers: 0 to"):
        refuse_unknown(report, Selection(layers=(99,)))


def test_a_list_cut_to_nothing_does_not_read_as_nothing_there(report):
    said = text.render(select(report, Selection(limit=0)))
    assert "phases  none of" in said
    assert "HBM bubbles: none of" in said
    assert "findings: none of" in said
    assert "none marked" not in said
    assert "entries from 0, at most 0" in said


def test_nested_phases_belong_to_the_outer_one(build, make_report):
    build.region(0, 100, "attention")
    build.region(10, 20, "attention/qkv")
    build.region(100, 200, "attention2")
    build.mxu(0, 200)
    part = select(make_report(build), Selection(phases=("attention",)))
    assert [p["phase"] for p in part["phases"]] == ["attention", "attention/qkv"]


def test_pages_cover_everything_once(report):
    pages = [select(report, Selection(limit=3, offset=offset)) for offset in range(0, 12, 3)]
    assert [p for page in pages for p in page["phases"]] == report["phases"]
    assert pages[-1]["selected"]["phases"] == {"total": 8, "matching": 8, "returned": 0}
    assert select(report, Selection(limit=0))["findings"] == []
