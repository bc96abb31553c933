"""Static facts by loop, phase and source line, plain and weighted by executions."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent / "llo"))

from llo_helpers import GOLDENS, listing

from analyzer.facts import Answer, ProgramFacts
from analyzer.llo.reader import parse_program, read_program

HERE = Path("/nonexistent/1796000000000000000-k.1-04-final_bundles.txt")
LINES = (
    '{ %s1_s0 = smov 4 /* loc("k.py":1:1) */ }',
    "{ %2 = vtrace 3087007744 }",
    'LB|{ %v1_v0 = vld [vmem:[#allocation9_spill] sm:$0xff] /* loc("k.py":2:1) */  ;;  '
    '%v2_v1 = vcvt.s32.f32 %v1_v0 /* loc("k.py":3:1) */ } /* Start region 7 */',
    '{ %3 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s1_s0, /*size_in_granules=*/64, /*vmem=*/%s2_s1, '
    '/*dst_syncflagno=*/[#allocation5] /* loc("k.py":2:1) */ }',
    "{ %9 = sbr.rel (!%p4_p0) target = $region7 }",
    "{}", "{}", "{}", "{} /* End region 7 */",
    "{ %5 = shalt.err (!%p1_p0) /* BoundsCheck 3 */  ;;  %4 = vtrace 3355443200 }",
    "{ %6 = vst [vmem:[#allocation9_spill] sm:$0xff] /*vst_source=*/%v2_v1  ;;  "
    "%7 = sst [smem:[#allocation8_spill]] 1 }",
)  # fmt: skip


@pytest.fixture
def program():
    return parse_program(listing(*LINES), HERE, "v6e")


def test_whole_program(program):
    facts = ProgramFacts(program).whole()
    assert (facts.bundles, facts.empty, facts.code_bytes) == (11, 4, 11 * 64)
    assert facts.counts == {
        "spills": 2,
        "fills": 1,
        "dma_starts": 1,
        "semaphore_operations": 0,
        "bounds_checks": 1,
        "conversions": 1,
        "relayouts": 0,
        "matrix_pushes": 0,
        "not_understood": 0,
        "scalar_only_bundles": 5,
    }
    assert (facts.spill_bytes, facts.fill_bytes) == (4096 + 4, 4096)
    assert facts.longest_scalar_stretch == (0, 2)
    assert facts.executed_bundles is None
    assert facts.to_json()["executed_counts"] is None
    assert facts.has("relayouts") is Answer.NO
    assert facts.has("spills") is Answer.YES


def test_loops_and_phases_weighted(program):
    executed = np.array([1, 1, *[10] * 7, 1, 1])
    facts = ProgramFacts(program, executed)
    (loop,) = facts.per_loop()
    assert (loop.key, loop.bundles, loop.executed_bundles) == ("loop 0x2..0x8", 7, 70)
    assert loop.executed_counts["fills"] == 10
    assert loop.executed_dma_bytes_at_most == 10 * 64 * 32
    assert (loop.executed_empty, loop.executed_slots["VLOAD"]) == (40, 10)
    phases = {f.key: f for f in facts.per_phase()}
    assert sum(f.bundles for f in phases.values()) == program.bundle_count
    assert sum(f.executed_bundles for f in phases.values()) == facts.whole().executed_bundles == 74


def test_source_lines(program):
    lines = {f.key: f for f in ProgramFacts(program).per_source()}
    assert {key: f.bundles for key, f in lines.items()} == {"k.py:1": 1, "k.py:2": 2, "k.py:3": 1}
    assert len(lines["k.py:2"].dma) == 1


def test_missing_knowledge_makes_answers_unknown():
    program = parse_program(listing("{ %v1_v0 = vmystery.f32 %v2_v1 }"), HERE, "v6e")
    facts = ProgramFacts(program).whole()
    assert facts.not_understood == 1
    assert facts.has("spills") is Answer.UNKNOWN
    assert facts.to_json()["exact"] is False


def test_golden_facts_agree_with_its_own_parts():
    program = read_program(next((GOLDENS / "tpu7x").glob("*call.1-*-final_bundles.txt")))
    facts = ProgramFacts(program, np.ones(program.bundle_count, np.int64))
    whole = facts.whole()
    phases = list(facts.per_phase())
    for name, count in whole.counts.items():
        assert sum(f.counts[name] for f in phases) == count
        assert whole.executed_counts[name] == count
    assert whole.slots == whole.executed_slots
    assert {site.direction for site in whole.dma} >= {"hbm->vmem", "vmem->hbm"}
    assert all(site.bytes is not None for site in whole.dma)
