"""What the reader makes of a whole file: bundles, labels, sources, operands, markers, faults."""

from pathlib import Path

import numpy as np
import pytest
from llo_helpers import GOLDENS, KEY, SHARED, bundles_files, listing, plain_bundles, sample_files

from analyzer.errors import INPUT, InputError
from analyzer.llo.printer import normalise
from analyzer.llo.program import Register, Unit
from analyzer.llo.reader import parse_program, read_program

HERE = Path("1796000000000000000-k.1-04-final_bundles.txt")


def parse(*lines: str):
    return parse_program(listing(*lines), HERE)


@pytest.mark.parametrize("file", sample_files(), ids=lambda f: f.name[:60])
def test_agrees_with_a_plain_reader(file: Path):
    program = read_program(file)
    plain = plain_bundles(file.read_bytes())
    assert program.bundle_count == len(plain)
    for bundle, (address, label, instructions, trailer) in enumerate(plain):
        assert program.bundle_address[bundle] == address
        assert program.labels.get(bundle) == label
        texts = [instruction.text for instruction in program.bundle(bundle)]
        assert texts == instructions
        said = program.trailer(bundle).text
        assert said == trailer.removeprefix("/*").removesuffix("*/").strip()


@pytest.mark.parametrize("file", sample_files(), ids=lambda f: f.name[:60])
def test_samples_are_understood_without_loss(file: Path):
    program = read_program(file)
    assert program.not_understood.count == 0
    assert program.dangling == []
    assert np.array_equal(program.bundle_address, np.arange(program.bundle_count))
    assert program.columns.slow_windows == 0


def test_public_dumps_are_there_or_said_to_be_absent():
    if not SHARED.is_dir():
        pytest.skip("../shared/data is absent: only the goldens are read")
    assert len(bundles_files(SHARED / "old-formats")) == 6


def test_braces_and_separators_inside_instructions_do_not_split():
    program = parse(
        "{ %s1_s0 = inlined_call_operand.hbm [shape: f32[8,128], index: 0, kind: input, shape index: {0}, "
        "may-alias: {0,3}] /* operand 0, ;; may alias } with */  ;;  %2 = vtrace 1 }",
        "{ %7 = shalt.err (!%p4_p0) /* BoundsCheck 0 [deref of %s9] for %11 = dma.hbm_to_vmem [thread:$0]  "
        "/*hbm=*/%s0, /*size_in_granules=*/32 ;; }\nhlo: k.1\n */ }",
    )
    assert [len(program.bundle(b)) for b in range(2)] == [2, 1]
    assert program.columns.slow_windows == 0
    operand = program.operands[0]
    assert (operand.index, operand.dimensions, operand.size_bytes) == (0, (8, 128), 4096)
    assert operand.aliases == (3,)


def test_scalar_operands_by_value_have_no_space():
    program = parse(
        "{ %s1_s0 = inlined_call_operand.<no memory space> [shape: s32[], index: 2, kind: input, "
        "shape index: {}] /* operand 2 */ }"
    )
    assert (program.operands[0].space, program.operands[0].size_bytes) == ("", 4)
    assert program.not_understood.count == 0


def test_addresses_labels_and_depth_marks():
    program = parse("{ %1 = vtrace 5 }", "LB|> { %2 = vtrace 6 }", "PF|{}", ">> { %3 = vtrace 7 }")
    assert program.labels == {1: "LB", 2: "PF"}
    assert list(np.diff(program.bundle_first)) == [1, 1, 0, 1]


def test_multi_line_bundles_keep_their_place():
    program = parse(
        "{ %9 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s1_s0, /*size_in_granules=*/64, /*vmem=*/%s2_s1, "
        "/*dst_syncflagno=*/[#allocation3] /* \nbase_bounds: (1, 64)\nelement_size_in_bytes: 4096 */  ;;  "
        "%v3_v0 = vld [vmem:[#allocation0] sm:$0xff] }",
        "{ %4 = vtrace 1 }",
    )
    copy, load = program.bundle(0)
    assert copy.operand("size_in_granules") == 64
    assert "element_size_in_bytes: 4096" in copy.comments[0]
    assert load.unit is Unit.VLOAD


def test_sources_are_interned_and_the_first_of_a_chain_counts():
    program = parse(
        '{ %s1_s0 = smov 1 /* phi copy :: loc("/a/k.py":9:4 to :8) :: loc("/a/k.py":3:1 to 5:2) */  ;;  '
        '%s2_s1 = smov 2 /* loc("/a/k.py":9:4 to :8) */ }'
    )
    assert list(program.instruction_source) == [0, 0]
    assert [str(s) for s in program.bundle(0)[0].sources] == ["/a/k.py:9", "/a/k.py:3"]
    second = program.bundle(0)[0].sources[1]
    assert (second.column, second.end_line, second.end_column) == (1, 5, 2)


def test_scope_names_come_from_the_trace_markers_file(tmp_path: Path):
    file = tmp_path / "1796000000000000000-k.1-04-final_bundles.txt"
    file.write_bytes(listing("{ %1 = vtrace 3087007744 }", "{ %2 = vtrace 3355443200 }"))
    (tmp_path / "1796000000000000000-TLP-05-trace-markers.txt").write_text("vdelay: 31\nnorm: 134217728\n")
    program = read_program(file)
    assert [(m.kind, m.name) for m in program.markers] == [("scope_start", "norm"), ("scope_end", "norm")]


def test_golden_has_the_scopes_of_its_kernel():
    program = read_program(next((GOLDENS / "tpu7x").glob("*call.1-*-final_bundles.txt")))
    assert {m.name for m in program.markers if m.kind == "scope_start"} == {"fetch", "accumulate"}
    assert [o.kind for o in program.operands] == ["input", "input", "output"]
    assert any(loop.depth == 2 for loop in program.loops)


def test_unknown_opcodes_are_counted_with_address_and_sample():
    program = parse("{ %1 = vtrace 1 }", "{ %v9_v1 = vfrobnicate.f32 %v8_v0  ;;  %s1_s0 = smov 3 }")
    assert program.not_understood.count == 1
    address, sample = program.not_understood.samples[0]
    assert (address, sample) == (1, "%v9_v1 = vfrobnicate.f32 %v8_v0")
    assert program.bundle(1)[0].unit is Unit.UNKNOWN
    assert program.bundle(1)[0].operands == (Register("v", 8, 0),)


def test_garbage_inside_one_bundle_loses_only_that_piece():
    program = parse("{ %s1_s0 = smov 1  ;;  = = ??  ;;  %s2_s1 = smov 2 }", "{ %3 = vtrace 1 }")
    assert [i.text for i in program.bundle(0)] == ["%s1_s0 = smov 1", "%s2_s1 = smov 2"]
    assert program.not_understood.count == 1
    assert len(program.bundle(1)) == 1


def test_bundle_cut_in_the_middle_of_the_file_is_a_counted_loss():
    data = listing("{ %s1_s0 = smov 1 /* never closed }", "{ %2 = vtrace 1 }")
    program = parse_program(data, HERE)
    assert program.bundle_count == 2
    assert program.not_understood.count == 1
    assert len(program.bundle(1)) == 1


FAULTS = {
    "empty": (b"", "is empty"),
    "blank": (b"\n\n  \n", "is empty"),
    "key only": (KEY.encode(), "holds no bundles"),
    "prose": (b"hello\nworld\n", "holds no bundles"),
    "truncated": (listing("{ %s1_s0 = smov 1 }", "{ %2 = vtrace 1 }")[:-4], "truncated inside bundle 0x1"),
    "schedule": (b"Schedule analysis:\n\ttotal scheduled bundles:    2\n", "schedule analysis"),
    "utilization": (b"== CAPACTIY:\nMXU, XLU\n 2 2\n== UTILIZATION:\n0 0\n", "utilization file"),
    "unbundled": (b"\n$region0: #{kernel}\n  %1 = smov 3\n", "before bundling"),
    "mlir": (b"module @k {\n  func.func @main() {\n    %0 = llo.constant 4 : i32\n  }\n}\n", "MLIR"),
    "binary": (b"\x7fELF\x02\x01\0\0\0\0 nothing", "binary"),
    "utf-16": (listing("{ %s1_s0 = smov 1 }").decode().encode("utf-16"), "UTF-16"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_one_line_with_file_fault_and_cure(tmp_path: Path, name: str):
    data, fault = FAULTS[name]
    file = tmp_path / "1796000000000000000-k.1-04-final_bundles.txt"
    file.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_program(file)
    message = str(caught.value)
    assert fault in message
    assert str(file) in message
    assert "\n" not in message
    assert caught.value.cure
    assert caught.value.exit_code == INPUT


def test_missing_file_and_folder_are_input_errors(tmp_path: Path):
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_program(path)


def test_windows_line_ends_and_bom_are_read():
    data = listing("{ %s1_s0 = smov 1 }", "{ %2 = vtrace 1 } /* End region 0 */")
    program = parse_program(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"), HERE)
    assert [len(program.bundle(b)) for b in range(2)] == [1, 1]
    assert program.trailer(1).events == (("End", 0),)


def test_spills_are_marked():
    program = parse(
        "{ %1 = vst [vmem:[#allocation7_spill] sm:$0xff] /*vst_source=*/%v2_v0 }",
        "{ %v3_v1 = vld [vmem:[#allocation7_spill] sm:$0xff]  ;;  %s4_s0 = sld [smem:[#allocation8]] }",
    )
    assert program.spills == [0, 1]


def test_normal_form_moves_comments_and_spells_numbers_one_way():
    text = '%1 = sbr.rel (!%p2_p0) /* loc("k.py":3:1 to :9) */ target = $region17'
    assert normalise(text) == '%1 = sbr.rel (!%p2_p0) target = $region17 /* loc("k.py":3:1 to :9) */'
