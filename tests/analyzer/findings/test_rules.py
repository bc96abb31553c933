"""The rules on hand-made timelines, and what every rule and finding must carry."""

import dataclasses
from pathlib import Path

import pytest

from analyzer import bubbles, critical, findings, metrics, view, waits
from analyzer.findings import base, catalogue
from analyzer.findings.ms101_copy_issued_late import clusters

ROOT = Path(__file__).parents[3]


def context(build, core=0, **more):
    one = view.core_step(build.frame(), core)
    return base.Context(
        core=one,
        hbm=metrics.hbm(one, 1e12),
        ici=metrics.ici(one),
        time=metrics.core_time(one),
        phases=metrics.phases(one),
        bubbles=bubbles.find_bubbles(one),
        waits=waits.exposed_waits(one),
        **more,
    )


def look(given):
    """All findings; a rule that fails fails the test."""
    ranked, failures = findings.look(given)
    assert failures == []
    return ranked


def found(build, identifier, **more):
    given = context(build, **more)
    rule = next(r for r in findings.rules() if r.identifier == identifier)
    return list(rule.look(given, rule))


def check(finding):
    """What no finding may lack."""
    assert finding.evidence
    assert finding.provenance in ("measured", "modelled", "counted", "assumed")
    assert finding.confidence in (base.HIGH, base.MEDIUM, base.LOW)
    assert finding.advice
    assert finding.verify
    assert finding.doubt
    assert finding.saving_ps is not None or finding.saving_basis.startswith("not estimated")
    assert finding.time_ps is None or finding.time_ps >= 0


def test_every_rule_is_complete_and_its_page_is_up_to_date():
    identifiers = [rule.identifier for rule in findings.rules()]
    assert identifiers == sorted(set(identifiers))
    assert "MS101" in identifiers
    for rule in findings.rules():
        for text in (
            rule.title,
            rule.family,
            rule.sees,
            rule.costs,
            rule.example,
            rule.advice,
            rule.verify,
            rule.doubt,
        ):
            assert text.strip(), rule.identifier
        assert len(rule.title) <= 47, rule.title
    assert (ROOT / "docs" / "findings.md").read_text() == catalogue.page()


def test_links_of_the_catalogue_lead_to_its_headings():
    page = catalogue.page()
    for rule in findings.rules():
        assert f"(#{catalogue.anchor(rule)})" in page
        assert f"### {catalogue.heading(rule)}\n" in page


def test_empty_input_finds_nothing(build):
    assert look(context(build)) == []


def test_late_ring_ranks_the_late_copies_first(late_ring):
    ranked = look(context(late_ring))
    for finding in ranked:
        check(finding)
    assert [f.rule for f in ranked][:2] == ["MS101", "MS201"]
    late = ranked[0]
    assert (late.source, late.bundles, late.confidence) == ("k.py:5", (32, 33), base.HIGH)
    assert late.layers == (0, 1, 2, 3)
    assert 0 < late.saving_ps <= late.time_ps
    assert late.saving_basis == base.REPLAYED
    assert [f.saving_ps for f in ranked if f.saving_ps is not None] == sorted(
        (f.saving_ps for f in ranked if f.saving_ps is not None), reverse=True
    )


def test_late_copies_of_data_that_was_not_computed_are_not_blamed(build):
    """A copy out of VMEM, or inside it, cannot start before its source is computed."""
    for track in ("write", "read"):
        del build.rows[:]
        copy = getattr(build, track)(600, 700, 1, source="k.py:1")
        build.rows[-1] |= {"issued_ps": 500, "free_ps": 0}
        build.mxu(0, 500)
        build.wait(500, 700, copy)
        build.mxu(700, 800)
        assert bool(found(build, "MS101")) is (track == "read")


def test_nearby_lines_are_one_piece_of_code():
    sources = ["k.py:40", "k.py:10", "other.py:12", "k.py:20", "0x30", ""]
    assert clusters(sources) == [[""], ["0x30"], ["k.py:10", "k.py:20"], ["k.py:40"], ["other.py:12"]]


def test_buffer_not_free_and_not_late(build):
    now = 0
    for _ in range(10):
        copy = build.read(now + 700, now + 800, 10, issued=now, free_ps=now, source="k.py:5")
        build.wait(now, now + 800, copy)
        build.mxu(now + 800, now + 1000)
        now += 1000
    assert found(build, "MS101") == []
    (finding,) = found(build, "MS102", vmem_used=10, vmem_capacity=110)
    check(finding)
    assert finding.count == 9
    assert finding.time_ps == 9 * 700
    assert "100 B of VMEM are unused" in finding.evidence


def test_urgent_copy_behind_a_prefetch(build):
    now = 0
    for _ in range(10):
        big = build.read(now + 100, now + 600, 500, issued=now, source="k.py:1", name="next layer")
        small = build.read(now + 600, now + 610, 10, issued=now + 5, source="k.py:2", name="bias")
        build.vector(now, now + 10)
        build.wait(now + 10, now + 610, small, source="k.py:3")
        build.mxu(now + 610, now + 900)
        build.wait(now + 900, now + 900, big)
        now += 900
    (finding,) = found(build, "MS103")
    check(finding)
    assert finding.source == "k.py:2"
    assert finding.time_ps == 10 * 500
    # With the small copy first, the big one is in turn late for its own wait: 285 of the 490 are gained.
    assert finding.saving_ps == pytest.approx(10 * 285, rel=0.02)
    assert "next layer" in finding.evidence[1]


def test_order_of_need_is_no_inversion(build):
    first = build.read(100, 600, 500, issued=0, source="k.py:1")
    second = build.read(600, 610, 10, issued=5, source="k.py:2")
    build.vector(0, 10)
    build.wait(10, 600, first)
    build.wait(600, 610, second)
    build.mxu(610, 900)
    assert found(build, "MS103") == []


def test_store_waited_for_at_once(build):
    now = 0
    for _ in range(5):
        build.mxu(now, now + 100)
        copy = build.write(now + 150, now + 200, 10, source="k.py:4")
        build.rows[-1]["issued_ps"] = now + 100
        build.wait(now + 100, now + 200, copy, source="k.py:5")
        now += 200
    build.mxu(now, now + 1000)
    (finding,) = found(build, "MS104")
    check(finding)
    assert (finding.source, finding.count, finding.saving_ps) == ("k.py:5", 5, 500)


def test_barriers_are_told_from_collectives(build):
    build.mxu(0, 100)
    build.wait(100, 300, None, source="k.py:1", kind="collective")
    build.wait(300, 400, build.receive(300, 400, 0), source="k.py:2")
    build.wait(400, 900, build.receive(300, 900, 64), source="k.py:3")
    build.mxu(900, 1000)
    barriers = found(build, "MS202")
    assert [(f.source, f.saving_ps) for f in barriers] == [("k.py:1", 200), ("k.py:2", 100)]
    (collective,) = found(build, "MS201")
    assert (collective.source, collective.saving_ps) == ("k.py:3", 500)
    for finding in (*barriers, collective):
        check(finding)


def test_a_collective_hidden_by_bandwidth_is_not_advised(build):
    copies = [build.read(100 + 100 * i, 200 + 100 * i, 100, issued=0) for i in range(10)]
    build.vector(0, 50)
    build.wait(50, 300, build.receive(60, 300, 8), source="k.py:3")
    build.wait(300, 1100, copies[-1])
    build.mxu(1100, 1110)
    assert found(build, "MS201") == []


def test_ramp_and_drain(build):
    build.mxu(0, 500)
    copy = build.read(600, 700, 10, issued=500, source="k.py:1")
    build.wait(500, 700, copy)
    build.mxu(700, 1000, source="k.py:9")
    ramp, drain = found(build, "MS111")
    check(ramp)
    check(drain)
    assert (ramp.saving_ps, ramp.source) == (500, "k.py:1")
    assert (drain.saving_ps, drain.time_ps, drain.source) == (None, 300, "k.py:9")


def test_mxu_bound_phase_is_a_fact_and_not_a_promise(build):
    build.region(0, 1000, "matmul", 0)
    build.mxu(0, 900)
    build.vector(900, 1000)
    (finding,) = found(build, "MS301")
    check(finding)
    assert finding.saving_ps is None
    assert "450" in finding.saving_basis or "0.45" in finding.saving_basis


def test_uneven_cores(build):
    build.mxu(0, 1000)
    build.mxu(0, 600, core=1)
    build.wait(600, 1000, build.receive(900, 1000, 8, core=1), core=1)
    frame = build.frame()
    (finding,) = found(build, "MS601", others=[view.core_step(frame, 1)])
    check(finding)
    assert finding.time_ps == 200
    assert found(build, "MS601") == []


def test_recompiles_are_counted_and_rank_last(build, late_ring):
    ranked = look(context(late_ring, facts={"identical_recompiles": ["1", "2"]}))
    check(ranked[-1])
    assert ranked[-1].rule == "MS602"
    assert (ranked[-1].provenance, ranked[-1].count) == ("counted", 2)


def test_a_rule_that_fails_costs_its_findings_only(late_ring, monkeypatch):
    def broken(*_):
        raise ValueError("oops")

    rule = next(r for r in findings.rules() if r.identifier == "MS201")
    failing = [dataclasses.replace(rule, look=broken) if r is rule else r for r in findings.rules()]
    monkeypatch.setattr(findings, "rules", lambda: failing)
    ranked, notes = findings.look(context(late_ring))
    assert ranked[0].rule == "MS101"
    assert notes == ["rule MS201 failed and found nothing: ValueError: oops"]
    monkeypatch.setenv("MEGASCOPE_DEBUG", "1")
    with pytest.raises(ValueError, match="oops"):
        findings.look(context(late_ring))


def test_ranking_is_by_gain_and_not_by_time(build):
    """Three planted faults; the order must be that of what removing each one gains."""
    now = 0
    for _ in range(20):
        late = build.read(now + 300, now + 400, 10, issued=now + 10, free_ps=now - 500, source="k.py:10")
        build.vector(now, now + 10)
        build.wait(now + 10, now + 400, late, source="k.py:11")
        build.mxu(now + 400, now + 500)
        build.wait(now + 500, now + 700, build.receive(now + 450, now + 700, 64), source="k.py:200")
        stored = build.write(now + 720, now + 750, 10, source="k.py:300")
        build.rows[-1]["issued_ps"] = now + 700
        build.wait(now + 700, now + 750, stored, source="k.py:301")
        now += 750
    build.mxu(now, now + 500)
    ranked = look(context(build))
    assert [f.rule for f in ranked[:3]] == ["MS101", "MS201", "MS104"]
    assert ranked[0].saving_ps > ranked[1].saving_ps > ranked[2].saving_ps > 0


def test_critical_path_and_findings_agree_on_the_late_ring(late_ring):
    core = view.core_step(late_ring.frame(), 0)
    parts = critical.totals(core, critical.critical_path(core))
    late = look(context(late_ring))[0]
    assert late.saving_ps >= parts[critical.DMA_LATENCY]


@pytest.mark.parametrize(("off", "fires"), [(900, True), (999_999, False), (None, False), ("x", False)])
def test_probe_effect_from_the_manifest(build, off, fires):
    build.mxu(0, 1_000_000)
    counts = {"regions": {"time_ps": 1_000_000, "bundles": 20}, "off": {"time_ps": off, "bundles": 10}}
    facts = {"probe_level": "regions", "probe_effect": {"counts": counts}}
    got = found(build, "MS603", facts=facts)
    assert bool(got) is fires
    for finding in got:
        check(finding)
        assert finding.saving_ps == 1_000_000 - off
    assert found(build, "MS603", facts={"probe_effect": 3, "probe_level": "regions"}) == []
