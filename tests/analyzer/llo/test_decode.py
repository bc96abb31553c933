"""Single instructions in every form that was seen, and the way back to text."""

import pytest
from llo_helpers import sample_files

from analyzer.llo.decode import decode_text
from analyzer.llo.printer import normalise, print_bundle, print_instruction
from analyzer.llo.program import Address, Memory, Predicate, Register, Text
from analyzer.llo.reader import read_program


def s(value: int, physical: int) -> Register:
    return Register("s", value, physical)


def p(value: int, physical: int) -> Register:
    return Register("p", value, physical)


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("%s1_s2 = smov 4294967295", (4294967295,)),
        ("%v1_v2 = vmov 1e-06", (1e-06,)),
        ("%v1_v2 = vmov -inf", (float("-inf"),)),
        ("%v1_v2 = vmov 0.0|0.0", (Text("0.0|0.0"),)),
        ("%s1_s2 = smov [#allocation8 + $0x40]", (Address(8, 0x40),)),
        ("%s1_s2 = sor.u32 [#allocation4], %s51_s8", (Address(4), s(51, 8))),
        ("%s1_s2 = sld [smem:[#allocation9_spill]]", (Memory("smem", (Address(9, 0, True),)),)),
        ("%s1_s2 = sld [smem:[#allocation9 + %s5_s6]]", (Memory("smem", (Address(9), s(5, 6))),)),
        ("%s1_s2 = sld [smem:[%s3_s4 + %s5_s6]]", (Memory("smem", (s(3, 4), s(5, 6))),)),
        (
            "%v1_v2 = vld [vmem:[%s3_s4 + $0x70] ss:$8 sps:$4 sm:$0xff]",
            (Memory("vmem", (s(3, 4), 0x70), "ss:$8 sps:$4 sm:$0xff"),),
        ),
        (
            "%1 = vst.sshfl [vmem:[%s3_s4] sm:$0x1 pattern:$0x73625140] /*vst_source=*/%v5_v6",
            (Memory("vmem", (s(3, 4),), "sm:$0x1 pattern:$0x73625140"), Register("v", 5, 6)),
        ),
        (
            "%1 = vxpose.xlu0.b32.end [2/8] (narrow) /*vx=*/%v5_v6, /*width=*/32",
            (Text("[2/8] (narrow)"), Register("v", 5, 6), 32),
        ),
        ("%s591_s7 = spop %590", (Register("h", 590),)),
        ("%1 = vmatmul.mubr.bf16.gmra.mrb[28].mxu0 %v2187_v63", (Register("v", 2187, 63),)),
        ("%v481_v0 = vlaneseq.b32", ()),
    ],
)
def test_operands(text, operands):
    found = decode_text(text)
    assert found.operands == operands
    assert found.understood


@pytest.mark.parametrize(
    ("text", "guard", "position"),
    [
        ("%s1_s2 = sadd.s32 (!%p3_p4), 84, %s5_s6", Predicate(p(3, 4), True), 0),
        (
            "%1 = dma.vmem_to_hbm [thread:$0]  (%p3_p4), /*vmem=*/%s5_s6, /*size_in_granules=*/8",
            Predicate(p(3, 4)),
            0,
        ),
        ("%1 = sst [smem:[#allocation51]] (%p3_p4), %s5_s6", Predicate(p(3, 4)), 1),
        (
            "%1 = vst [vmem:[#allocation9] sm:$0xff] (!%p3_p4), /*vst_source=*/%v5_v6",
            Predicate(p(3, 4), True),
            1,
        ),
        ("%s1_s2 = sld [smem:[#allocation2_spill]] (%p3_p4)", Predicate(p(3, 4)), 1),
        ("%v1_v2 = vld [vmem:[#allocation2] sm:$0xff] (%p3_p4)", Predicate(p(3, 4)), 1),
        ("%1 = shalt.err (!%p3_p4)", Predicate(p(3, 4), True), 0),
        ("%s1_s2 = int_to_ptr.vmem [resolvable:$true] (%p3_p4), %s5_s6", Predicate(p(3, 4)), 0),
        ("%590 = vpush (%p3_p4), %v72_v61", Predicate(p(3, 4)), 0),
    ],
)
def test_predicates_in_every_printed_place(text, guard, position):
    found = decode_text(text)
    assert found.predicate == guard
    assert found.guard_position == position
    assert all(not isinstance(o, Text) for o in found.operands)


def test_select_keeps_its_old_value():
    found = decode_text("%s38305_s10 = smov (!%p21047_p0, %s1490_s10), %s27983_s8")
    assert found.predicate == Predicate(p(21047, 0), True)
    assert found.otherwise == s(1490, 10)
    assert found.operands == (s(27983, 8),)
    constant = decode_text("%s1_s2 = smov (!%p3_p4, 5), [#allocation7]")
    assert (constant.otherwise, constant.operands) == (5, (Address(7),))


def test_branches_in_both_spellings():
    new = decode_text('%688 = sbr.rel (!%p686_p13) /* loc("/k.py":89:4 to :35) */ target = $region970')
    assert (new.target_region, new.predicate, new.operands) == (970, Predicate(p(686, 13), True), ())
    old = decode_text("%59 = sbr.rel (%p198_p0) target bundleno = 160 (0xa0), region = 30")
    assert (old.target_region, old.target_bundle, old.operands) == (30, 160, ())


def test_names_attributes_and_comments():
    found = decode_text(
        "%9 = dma.hbm_to_vmem [thread:$1]  /*hbm=*/%s1_s2, /*size_in_granules=*/64, /*vmem=*/%s3_s4, "
        '/*dst_syncflagno=*/[#allocation1 + $0x2], /*src_stride=*/%s5_s6 /* hbm-to-vmem :: loc("k.py":7:1) */'
    )
    assert found.names == ("hbm", "size_in_granules", "vmem", "dst_syncflagno", "src_stride")
    assert found.attributes == ("thread:$1",)
    assert found.comments == ("hbm-to-vmem",)
    assert [str(span) for span in found.sources] == ["k.py:7"]


def test_trailing_allocation_of_an_address_is_a_hint_not_an_operand():
    found = decode_text("%s43_s20 = scalar_lea.smem %s33_s15, 2 [#allocation5]")
    assert found.operands == (s(33, 15), 2)
    assert found.attributes == ("into:#allocation5",)
    first = decode_text("%s43_s20 = scalar_lea.smem [#allocation5], %s33_s15")
    assert first.operands == (Address(5), s(33, 15))


def test_store_of_an_address_keeps_it_as_operand():
    found = decode_text("%1 = sst [smem:[%s33_s15]] [#allocation5]")
    assert found.operands == (Memory("smem", (s(33, 15),)), Address(5))


def test_comments_inside_comments():
    found = decode_text(
        "%1 = shalt.err (!%p3_p4) /* check for %11 = dma [thread:$0]  /*hbm=*/%s0 \nhlo: k */"
    )
    assert found.comments == ("check for %11 = dma [thread:$0]  /*hbm=*/%s0 \nhlo: k",)
    assert found.operands == ()


@pytest.mark.parametrize("file", sample_files(), ids=lambda f: f.name[:60])
def test_printing_back_gives_the_normalised_text(file):
    program = read_program(file)
    for index in range(len(program.instruction_opcode)):
        instruction = program.instruction(index)
        assert print_instruction(instruction) == normalise(instruction.text)


@pytest.mark.parametrize("file", sample_files()[:6], ids=lambda f: f.name[:60])
def test_printed_bundles_carry_address_label_and_regions(file):
    program = read_program(file)
    for bundle in range(program.bundle_count):
        line = print_bundle(program, bundle)
        address = hex(bundle) if bundle else "0"
        assert line.startswith(f"{address} " if bundle in program.labels else f"{address}:")
        for instruction in program.bundle(bundle):
            assert normalise(instruction.text) in line
        for kind, region in program.trailer(bundle).events:
            assert f"{kind} region {region}" in line


def test_there_are_samples():
    assert len(sample_files()) >= 4
