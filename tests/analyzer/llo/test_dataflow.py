"""What is said of scalars, copies, loops and allocations without executing the program."""

from pathlib import Path

import pytest
from llo_helpers import GOLDENS, SHARED, listing

from analyzer.llo.allocations import allocations
from analyzer.llo.dma import dma_sites
from analyzer.llo.program import Register
from analyzer.llo.reader import parse_program, read_program

HERE = Path("/nonexistent/1796000000000000000-k.1-04-final_bundles.txt")


def parse(*lines, chip="v6e"):
    return parse_program(listing(*lines), HERE, chip)


def value(program, number):
    return program.scalars.bits(Register("s", number, 0))


def test_constants_through_copies_spills_and_arithmetic():
    program = parse(
        "{ %s1_s0 = smov 8  ;;  %9 = sst [smem:[#allocation3_spill]] %s1_s0 }",
        "{ %s2_s1 = sld [smem:[#allocation3_spill]] }",
        "{ %s3_s1 = sshll.u32 %s2_s1, 4  ;;  %s4_s2 = sadd.s32 4294967295, %s2_s1 }",
        "{ %s5_s3 = smul.u32 3, %s4_s2  ;;  %s6_s4 = ssub.s32 0, %s2_s1 }",
    )
    assert [value(program, n).value for n in (2, 3, 4, 5, 6)] == [8, 128, 7, 21, 2**32 - 8]


def test_slots_with_two_values_and_unknown_inputs_give_nothing():
    program = parse(
        "{ %9 = sst [smem:[#allocation3_spill]] 1  ;;  %8 = sst [smem:[#allocation3_spill]] 2 }",
        "{ %s2_s1 = sld [smem:[#allocation3_spill]]  ;;  %s3_s2 = sld [smem:[#allocation4]] }",
        "{ %s4_s3 = sadd.s32 1, %s3_s2 }",
    )
    assert value(program, 2).value is None
    assert (value(program, 2).zeros >> 2) == 0x3FFFFFFF  # both are below 4
    assert value(program, 4).value is None


def test_known_bits_of_device_words():
    program = parse(
        "{ %s1_s0 = sld [smem:[#allocation0]] }",
        "{ %s2_s1 = sshll.u32 %s1_s0, 26 }",
        "{ %s3_s2 = sadd.s32 134217728, %s2_s1  ;;  %s4_s3 = sor.u32 16384, %s2_s1 }",
    )
    assert value(program, 3).zeros & 0x4000
    assert value(program, 4).ones & 0x4000


def test_a_value_that_depends_on_itself_ends():
    program = parse(
        "LB|{ %s1_s0 = sphi %s2_s0, %s2_s0  ;;  %s2_s0 = sadd.s32 1, %s1_s0 } /* Start region 1 */"
    )
    assert value(program, 1).value is None


COPY = (
    "{ %9 = dma.general (%p1_p0), /*src=*/%s1_s0, /*size_in_granules=*/%s2_s1, /*dst=*/%s3_s2, "
    "/*dst_syncflagno=*/[#allocation5], /*src_syncflagno=*/[#allocation6], "
    "/*stridedescaddr=*/[#allocation7], /*overrides=*/%s4_s3, /*dst_syncflagno_1=*/0 }"
)
OPERAND = "%s1_s0 = inlined_call_operand.hbm [shape: bf16[64,128], index: 3, kind: input, shape index: {}]"


@pytest.mark.parametrize(
    ("overrides", "remote"), [("134217728", False), ("134234112", True), ("%s8_s8", None)]
)
@pytest.mark.parametrize("described", [False, True])
def test_general_copy(overrides, remote, described):
    program = parse(
        f"{{ {OPERAND}  ;;  %s2_s1 = smov 512  ;;  %s4_s3 = smov {overrides} }}",
        "{ %s5_s4 = sshll.u32 %s6_s5, 4  ;;  %s3_s2 = int_to_ptr.vmem [resolvable:$true] %s5_s4 }",
        "{ %10 = sst [smem:[#allocation7 + $0x1]] 64 }" if described else "{}",
        COPY,
    )
    (site,) = dma_sites(program)
    assert (site.bytes, site.source_operand, site.direction) == (512 * 32, 3, "hbm->vmem")
    assert (site.remote, site.strided) == (remote, described)


def test_direct_copies_name_their_ends():
    program = parse(
        f"{{ {OPERAND} }}",
        "{ %9 = dma.vmem_to_hbm [thread:$0]  /*vmem=*/%s7_s6, /*size_in_granules=*/64, /*hbm=*/%s1_s0, "
        "/*dst_syncflagno=*/[#allocation5], /*src_stride=*/%s4_s3, /*dst_stride=*/%s4_s3 }",
    )
    (site,) = dma_sites(program)
    assert (site.direction, site.target_operand, site.source_operand) == ("vmem->hbm", 3, None)
    assert (site.bytes, site.strided, site.remote) == (2048, True, False)


def counted(step, bound, relation="ge", first=0, negated="!"):
    return parse(
        f"{{ %s1_s1 = smov {first} }}",
        "LB|{ %s2_s2 = sphi %s1_s1, %s3_s2 } /* Start region 7 */",
        f"{{ %s3_s2 = sadd.s32 {step}, %s2_s2 }}",
        f"{{ %p4_p0 = scmp.{relation}.s32.totalorder %s3_s2, {bound} }}",
        f"{{ %9 = sbr.rel ({negated}%p4_p0) target = $region7 }}",
        *["{}"] * 4,
        "{ %8 = vtrace 1 }",
    )


@pytest.mark.parametrize(
    ("program", "trips"),
    [
        (counted(1, 16), 16),
        (counted(3, 16), 6),
        (counted(1, 0), 1),
        (counted(4294967295, 0, "le", first=5), 5),
        (counted(1, 16, "lt", negated=""), 16),
        (counted(2, 7, "eq"), None),  # never equal
    ],
)
def test_trip_counts(program, trips):
    assert program.trip_counts == {1: trips}


def test_trip_count_is_unknown_where_data_decide_it():
    program = parse(
        "{ %s5_s3 = sld [smem:[#allocation0]]  ;;  %s1_s1 = smov 0 }",
        "LB|{ %s2_s2 = sphi %s1_s1, %s3_s2 } /* Start region 7 */",
        "{ %s3_s2 = sadd.s32 1, %s2_s2 }",
        "{ %p4_p0 = scmp.ge.s32.totalorder %s3_s2, %s5_s3 }",
        "{ %9 = sbr.rel (!%p4_p0) target = $region7 }",
        *["{}"] * 4,
    )
    assert program.trip_counts == {1: None}


def test_trip_count_is_unknown_where_another_branch_leaves_the_loop():
    program = parse(
        "{ %s1_s1 = smov 0 }",
        "LB|{ %s2_s2 = sphi %s1_s1, %s3_s2 } /* Start region 7 */",
        "{ %8 = sbr.rel (%p6_p1) target = $region8 }",
        *["{}"] * 4,
        "{ %s3_s2 = sadd.s32 1, %s2_s2 }",
        "{ %p4_p0 = scmp.ge.s32.totalorder %s3_s2, 16 }",
        "{ %9 = sbr.rel (!%p4_p0) target = $region7 }",
        *["{}"] * 4,
        "PF|{} /* Start/End empty region 8 */",
    )
    assert program.trip_counts == {1: None}


def test_real_loops():
    golden = read_program(next((GOLDENS / "tpu7x").glob("*call.1-*-final_bundles.txt")))
    assert 64 in golden.trip_counts.values()
    if not SHARED.is_dir():
        pytest.skip("../shared/data is absent: the public matmul is not read")
    matmul = read_program(next((SHARED / "v6e-matmul/dump").glob("*-124-final_bundles.txt")))
    assert list(matmul.trip_counts.values()) == [16]  # grid 4 x 2 x 2


def test_allocations_know_space_span_and_reach():
    program = parse(
        "{ %v1_v0 = vld [vmem:[#allocation4 + $0x8] sm:$0xff]  ;;  %2 = vsyncpa [#allocation6], 0 }",
        "{ %s3_s0 = sld [smem:[#allocation2_spill]]  ;;  %4 = dma.done.wait [#allocation6 + $0x1], 8 }",
        "{ %5 = vst [vmem:[#allocation4] sm:$0xff] /*vst_source=*/%v1_v0 }",
    )
    found = {a.number: a for a in allocations(program)}
    assert (found[4].space, found[4].first_bundle, found[4].last_bundle, found[4].reach_bytes) == (
        "vmem",
        0,
        2,
        4608,
    )
    assert (found[6].space, found[6].uses, found[6].reach_bytes) == ("sflag", 2, 8)
    assert (found[2].space, found[2].spill, found[2].size_bytes) == ("smem", True, None)


def test_sizes_come_from_an_unbundled_pass_beside_the_bundles(tmp_path: Path):
    file = tmp_path / "1796000000000000000-k.1-05-final_bundles.txt"
    file.write_bytes(listing("{ %v1_v0 = vld [vmem:[#allocation4] sm:$0xff] }"))
    (tmp_path / "1796000000000000000-k.1-02-post-scalar-select-transform.txt").write_text(
        "$region0: #{k.1}\n  #allocation4 [shape = 'f32[8,256]{1,0:T(8,128)}', space=vmem, size = 0x2000, "
        "scoped, tag = 'ring']\n"
    )
    (found,) = allocations(read_program(file))
    assert (found.size_bytes, found.shape, found.tag) == (8192, "f32[8,256]{1,0:T(8,128)}", "ring")
