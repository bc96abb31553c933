"""The files that libtpu writes beside the bundles."""

from pathlib import Path

import pytest
from llo_helpers import CHIPS, GOLDENS, read_program_of

from analyzer.errors import InputError
from analyzer.llo.critical_path import read_critical_path
from analyzer.llo.hlo import read_hlo
from analyzer.llo.markers import parse_marker_names
from analyzer.llo.schedule import read_schedule_analysis
from analyzer.llo.static_gaps import read_static_gaps
from analyzer.llo.vmem import read_vmem_report

TPU7X = GOLDENS / "tpu7x"


def golden(pattern: str, chip: str = "tpu7x") -> Path:
    return next((GOLDENS / chip).glob(pattern))


@pytest.mark.parametrize("chip", CHIPS)
def test_schedule_analysis(chip):
    found = read_schedule_analysis(golden("*call.1-*schedule-analysis*", chip))
    assert found.total == found.empty + found.non_empty
    assert found.total == read_program_of(GOLDENS / chip, "call.1").bundle_count
    assert found.by_opcode["custom-call"][1] == 1
    assert sum(found.by_hlo.values()) == pytest.approx(found.non_empty)


def test_critical_path():
    blocks = read_critical_path(golden("*call.1-*critical-path*"))
    assert len(blocks) > 3
    assert {block.hlo for block in blocks} == {"call.1"}
    for block in blocks:
        lengths = [cycles for cycles, _ in block.chain]
        assert lengths == sorted(lengths, reverse=True)
        assert block.length == (lengths[0] if lengths else 0)


def test_static_gaps(tmp_path: Path):
    assert read_static_gaps(golden("*call.1-*static_gap*")) == []
    file = tmp_path / "gaps.txt"
    file.write_text(
        "Static Gap Analysis\nTop 10 Largest VLOAD->MXU Offsets (grouped by MXU):\n"
        "MXU instruction at PC 288: %1136 = vmatmul.mubr.bf16.gmra.mrb[28].mxu0 %v2187_v63\n"
        "  Feeding vloads (2):\n    - VLOAD at PC 187: %v2187_v63 = vld [vmem:[%s1_s0] sm:$0xff]\n"
        "    - VLOAD at PC 200: %v9_v6 = vld [vmem:[%s1_s0] sm:$0xff]\n"
        "  Instructions on paths from VLOADs to MXU (in program order):\n\t%v2187_v63 = vld\n\n"
        "Top 10 MXU Instructions with Most Feeding VLOADs:\n"
    )
    (gap,) = read_static_gaps(file)
    assert (gap.bundle, len(gap.loads), gap.largest) == (288, 2, 101)


def test_vmem_report():
    report = read_vmem_report(golden("*vmem_report.html"))
    assert report.capacity_bytes == 64 << 20
    blocks = [block for block in report.blocks if block.hlo == "call.1"]
    tags = {a.tag.split(" for ")[0] for block in blocks for a in block.allocations}
    assert tags == {"scratch operand", "output window allocation"}
    assert report.used_bytes("call.1") == sum(block.size_bytes for block in blocks) > 0
    assert report.used_bytes("no such") is None


def test_hlo_names_the_kernel_its_shapes_and_operands():
    hlo = read_hlo(golden("*TLP-hlo.txt"))
    (kernel,) = hlo.kernels()
    assert (kernel.name, kernel.opcode, kernel.shape) == ("call.1", "custom-call", "f32[64,256]")
    assert len(kernel.operands) == 2
    assert kernel.op_name.endswith("pallas_call")
    assert hlo.instructions[kernel.operands[1]].shape == "f32[512,512]"
    assert hlo.loops_around("call.1") == []


def test_xla_loops_around_a_kernel(tmp_path: Path):
    file = tmp_path / "TLP-hlo.txt"
    file.write_text(
        "HloModule jit_f, is_scheduled=true\n\n"
        "%body (arg: (s32[], f32[8])) -> (s32[], f32[8]) {\n"
        "  %arg = (s32[]{:T(128)}, f32[8]{0}) parameter(0)\n"
        '  %k.1 = f32[8]{0:T(128)} custom-call(%arg), custom_call_target="tpu_custom_call"\n'
        "  ROOT %t = (s32[], f32[8]) tuple(%arg, %k.1)\n}\n\n"
        "%cond (arg.1: (s32[], f32[8])) -> pred[] {\n"
        "  %arg.1 = (s32[], f32[8]) parameter(0)\n  %c = s32[]{:T(128)} constant(5)\n"
        "  ROOT %lt = pred[] compare(%arg.1, %c), direction=LT\n}\n\n"
        "ENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8] parameter(0)\n"
        "  %w = (s32[], f32[8]) while(%p), condition=%cond, body=%body, "
        'backend_config={"known_trip_count":{"n":"5"}}\n'
        "  ROOT %r = f32[8] get-tuple-element(%w), index=1\n}\n"
    )
    hlo = read_hlo(file)
    (loop,) = hlo.loops_around("k.1")
    assert (loop.name, loop.trip_count, loop.bound) == ("w", 5, 5)
    assert [k.name for k in hlo.kernels()] == ["k.1"]


def test_marker_names_may_hold_colons_and_blanks():
    names = parse_marker_names("c/local-wait: 36\nlayer: 3: 134217728\nno number\n: 9\n")
    assert names == {36: "c/local-wait", 134217728: "layer: 3", 9: ""}


OTHER = ("nonsense", "\0\0\0", "const DATA ={", 'const DATA ={"hlo_breakdowns": [1]};', "{" * 9999)
READERS = [read_schedule_analysis, read_critical_path, read_static_gaps, read_vmem_report, read_hlo]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "text", ["nonsense", "\0\0\0", "const DATA ={", 'const DATA ={"hlo_breakdowns": [1]};', "{" * 9999]
)
def test_other_text_is_one_typed_error(tmp_path: Path, reader, text):
    file = tmp_path / "file.txt"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        reader(file)
    assert str(file) in str(caught.value)
    with pytest.raises(InputError):
        reader(tmp_path / "absent.txt")
