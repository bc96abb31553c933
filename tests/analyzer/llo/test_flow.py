"""Branches, delay slots, blocks and loops, on small programs whose flow is known."""

from pathlib import Path

import numpy as np
import pytest
from llo_helpers import GOLDENS, listing, sample_files

from analyzer.llo.reader import parse_program, read_program

HERE = Path("/nonexistent/1796000000000000000-k.1-04-final_bundles.txt")
NOP = "{ %s1_s1 = smov 1 }"
BACK = "{ %9 = sbr.rel (!%p2_p0) target = $region7 }"


def parse(chip, *lines):
    return parse_program(listing(*lines), HERE, chip)


def loop(*slots, after=(NOP,)):
    """A loop over bundles 1.. whose latch is followed by `slots`, then by `after`."""
    return (NOP, "LB|" + NOP + " /* Start region 7 */", BACK, *slots, *after)


@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
def test_older_chips_have_four_slots_that_are_all_printed(chip):
    program = parse(chip, *loop("{}", "{}", "{}", "{} /* End region 7 */"))
    branch = program.branches[2]
    assert (branch.target, branch.delay_slots) == (1, 4)
    assert [(x.start, x.end, x.depth, x.latch) for x in program.loops] == [(1, 6, 1, 2)]


TPU7X = [
    # (slots and what follows, expected number of printed slots)
    (["{}"], ["PF|" + NOP], 1),
    ([NOP, "{}"], [NOP + " /* Start region 8 */"], 2),
    ([NOP, NOP, "{}"], [NOP] * 5, 3),
    ([NOP] * 5 + [NOP + " /* End region 7 */"], [NOP], 6),
    ([NOP] * 6, [NOP] * 3, 6),
    (["{}", NOP, NOP, NOP, NOP, NOP + " /* End region 7 */"], [NOP], 6),
    (["{}"] * 5 + ["{} /* End region 7 */"], [NOP], 6),
    ([NOP, "{}", NOP, NOP, NOP, "{} /* End region 7 */"], ["PF|" + NOP], 6),
    (["{}"], [NOP + " /* Start region 8 */", NOP, NOP, NOP, NOP + " /* End region 8 */"], 1),
    (["{}", "{ %3 = vtrace 1 } /* End region 6 */"], [NOP + " /* Start region 8 */"] + [NOP] * 4, 1),
    (["{}"], ["{ %8 = sbr.rel (!%p3_p1) target = $region0 }"] + [NOP] * 3 + [NOP + " /* End region 7 */"], 1),
]


@pytest.mark.parametrize(("slots", "after", "expected"), TPU7X)
def test_tpu7x_collapses_trailing_empty_slots(slots, after, expected):
    program = parse("tpu7x", *loop(*slots, after=after))
    assert program.branches[2].delay_slots == expected
    assert program.loops[0].end == 2 + expected


def test_an_unguarded_use_of_a_guarded_value_is_behind_the_branch():
    guarded = "{ %s5_s3 = smov (!%p2_p0), 4  ;;  %9 = sbr.rel (%p2_p0) target = $region7 }"
    use = "{ %6 = sst [smem:[#allocation1]] %s5_s3 }"
    free = "{ %6 = sst [smem:[#allocation1]] %s1_s1 }"
    target = "PF|" + NOP + " /* Start/End empty region 7 */"
    tail = [NOP, NOP, NOP, NOP + " /* End region 3 */", NOP, target]
    program = parse("tpu7x", NOP, guarded, "{}", use, *tail)
    assert program.branches[1].delay_slots == 1
    program = parse("tpu7x", NOP, guarded, "{}", free, *tail)
    assert program.branches[1].delay_slots == 6


def test_a_branch_skips_something():
    """What is skipped by chance ends where six slots would: these bundles are not slots."""
    branch = "{ %9 = sbr.rel (%p2_p0) target = $region7 }"
    body = [
        "{ %10 = vsyncadd [#allocation1], 4294967265 }",
        "{ %11 = vwait.ge [#allocation1], 0 } /* End region 3 */",
    ]
    target = "PF|" + NOP + " /* Start/End empty region 7 */"
    program = parse("tpu7x", branch, NOP, NOP, NOP, "{}", *body, target)
    assert program.branches[0].delay_slots == 4
    assert program.branches[0].target == 7


def test_target_may_be_a_region_that_starts_and_ends_at_once():
    program = parse("v6e", BACK, NOP, NOP, NOP, NOP, "PF|{} /* Start/End empty region 7 */")
    assert program.branches[0].target == 5
    assert [(b.start, b.end) for b in program.blocks] == [(0, 5), (5, 6)]


def test_branch_to_an_unlisted_region_goes_to_the_exit_bundle():
    program = parse("tpu7x", BACK, "{}", NOP, "PF|{} /* exit bundle: %k.1 = custom-call() */")
    assert program.branches[0].target == 3
    assert program.dangling == []


def test_branch_to_nowhere_is_reported_not_guessed():
    program = parse("tpu7x", BACK, "{}", NOP, "{} /* exit bundle: %k.1 = custom-call() */")
    assert program.branches == {}
    assert [b.target_region for b in program.dangling] == [7]


def test_nested_loops_know_their_depth():
    program = parse(
        "v6e",
        "LB|" + NOP + " /* Start region 7 */",
        "LB|" + NOP + " /* Start region 8 */",
        "{ %8 = sbr.rel (!%p3_p1) target = $region8 }",
        *["{}"] * 4,
        BACK,
        *["{}"] * 4,
        NOP,
    )
    assert [(x.start, x.end, x.depth) for x in program.loops] == [(0, 11, 1), (1, 6, 2)]


def test_generation_is_read_off_the_instructions():
    new = "{ %v1_v0 = vpop.f32.mrb[3].mxu0 }"
    middle = "{ %1 = vmatprep.subr.bf16.mxu0 %v2_v1 }"
    old = "{ %1 = vmatpush.msra.mxu2 %v2_v1 }"
    assert [parse(None, line).generation for line in (new, middle, old, NOP)] == [7, 6, 5, None]
    assert [parse(chip, NOP).delay_slots for chip in ("tpu7x:2x2x1", "v6e", "v5p")] == [6, 4, 4]


def test_unknown_generation_is_settled_by_the_region_marks():
    six = loop(*[NOP] * 5, NOP + " /* End region 7 */")
    four = loop("{}", "{}", "{}", "{} /* End region 7 */")
    collapsed = loop("{}", after=["PF|" + NOP])
    assert [parse(None, *lines).delay_slots for lines in (six, four, collapsed)] == [6, 4, 6]


def test_generation_of_a_small_program_comes_from_its_folder():
    tlp = next((GOLDENS / "tpu7x").glob("*TLP-*-final_bundles.txt"))
    assert read_program(tlp).generation == 7
    assert read_program(next((GOLDENS / "v5p").glob("*call.1-*-final_bundles.txt"))).generation == 5


@pytest.mark.parametrize("file", sample_files(), ids=lambda f: f.name[:60])
def test_flow_of_real_programs_hangs_together(file):
    program = read_program(file)
    covered = np.zeros(program.bundle_count, int)
    for block in program.blocks:
        covered[block.start : block.end] += 1
    assert (covered == 1).all()
    starts = {block.start for block in program.blocks}
    for branch in program.branches.values():
        assert branch.target in starts
        assert branch.bundle + branch.delay_slots < program.bundle_count
        assert all(branch.bundle + k not in program.labels for k in range(1, branch.delay_slots + 1))
    for item in program.loops:
        assert item.start <= item.latch <= item.end < program.bundle_count
