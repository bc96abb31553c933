"""Our count of what bundles occupy against the compiler's own files, column by column."""

import re
from pathlib import Path

import numpy as np
import pytest
from llo_helpers import listing, sample_files

from analyzer.errors import InputError
from analyzer.llo.occupancy import CAPACITY, COLUMNS, covered, occupancy, push_hold, push_occupancy
from analyzer.llo.opcodes import dtype, family, normalise, unit_index, unit_of
from analyzer.llo.program import Unit
from analyzer.llo.reader import parse_program, read_program
from analyzer.llo.schedule import read_schedule_analysis
from analyzer.llo.utilization import read_utilization, utilization_file

HERE = Path("/nonexistent/1796000000000000000-k.1-04-final_bundles.txt")
WITH_UTILIZATION = [file for file in sample_files() if utilization_file(file) is not None]


@pytest.mark.parametrize("file", WITH_UTILIZATION, ids=lambda f: f"{f.parent.name}-{f.name[20:40]}")
def test_every_column_equals_the_compilers_file(file: Path):
    program = read_program(file)
    theirs = read_utilization(utilization_file(file))
    ours = occupancy(program)
    pushes = theirs.column("MATPUSH")
    if pushes is not None:
        assert np.array_equal(pushes, push_occupancy(program))
    if len(theirs.capacity) == len(COLUMNS) and pushes is None:
        assert theirs.capacity == CAPACITY[program.generation]
    assert len(theirs.rows) == program.bundle_count
    compared = [column for column in COLUMNS if theirs.column(column) is not None]
    assert len(compared) >= len(COLUMNS) - 1  # libtpu 0.0.23 has no VPOP
    for column in compared:
        wrong = np.flatnonzero(theirs.column(column) != ours[:, COLUMNS.index(column)])
        assert list(wrong) == [], f"{column} differs at {[hex(b) for b in wrong[:5]]}"


@pytest.mark.parametrize("file", WITH_UTILIZATION, ids=lambda f: f"{f.parent.name}-{f.name[20:40]}")
def test_totals_equal_the_schedule_analysis(file: Path):
    stem = re.sub(r"-\d+-final_bundles\.txt$", "", file.name)
    schedule = read_schedule_analysis(next(file.parent.glob(f"{stem}-*schedule-analysis_final_bundles.txt")))
    program = read_program(file)
    assert (schedule.total, schedule.empty) == (program.bundle_count, int(program.empty.sum()))
    assert schedule.non_empty == schedule.total - schedule.empty


def test_there_are_dumps_of_every_generation_to_compare_with():
    assert {read_program(file).generation for file in WITH_UTILIZATION} == {5, 6, 7}


def count(generation_chip: str, *lines: str) -> dict[str, list[int]]:
    program = parse_program(listing(*lines), HERE, generation_chip)
    rows = occupancy(program)
    return {name: rows[:, i].tolist() for i, name in enumerate(COLUMNS) if rows[:, i].any()}


def test_a_matrix_unit_is_busy_after_the_push_and_overlaps_count_once():
    pushes = ["{ %1 = vmatmul.mubr.f32.gmra.mrb[0].mxu0 %v1_v0 }", "{ %2 = vtrace 1 }"] * 2
    assert count("tpu7x", *pushes, *["{}"] * 4)["MXU"] == [0, 1, 1, 1, 1, 1, 1, 0]
    both = ["{ %1 = vmatmul.mubr.bf16.gmra.mxu0 %v1_v0  ;;  %2 = vmatmul.mubr.bf16.gmra.mxu1 %v1_v0 }"]
    assert count("v6e", *both, *["{}"] * 9)["MXU"] == [0] + [2] * 8 + [0]


def test_pointer_casts_cost_a_slot_only_where_they_move():
    same = "{ %s7_s7 = int_to_ptr.vmem [resolvable:$true] %s6_s7 }"
    moved = "{ %s7_s8 = int_to_ptr.vmem [resolvable:$true] %s6_s7 }"
    assert count("tpu7x", same, moved) == {"SALU": [0, 1]}
    program = parse_program(listing(same, moved, "{}"), HERE, "tpu7x")
    assert program.empty.tolist() == [True, False, True]


def test_mask_constants_and_wide_products():
    assert count("tpu7x", "{ %vm1_vm2 = vmmov 1  ;;  %vm3_vm4 = vmmov %vm5_vm6 }") == {
        "VALU": [1],
        "VLOAD": [1],
    }
    wide = "{ %v1_v0 = vmul.u32.u64.low %v2_v1, %v3_v2  ;;  %v4_v3 = vmul.u32.u64.high %v2_v1, %v3_v2 }"
    assert count("tpu7x", wide) == {"VALU": [1]}


def test_spills_count_in_their_own_columns_too():
    spill = "{ %1 = vst [vmem:[#allocation7_spill] sm:$0xff] /*vst_source=*/%v2_v0 }"
    fill = "{ %v3_v1 = vld [vmem:[#allocation7_spill] sm:$0xff] }"
    assert count("tpu7x", spill, fill) == {
        "VLOAD": [0, 1], "VLOAD:FILL": [0, 1], "VSTORE": [1, 0], "VSTORE:SPILL": [1, 0]
    }  # fmt: skip


def test_weight_pushes_hold_the_push_port():
    holds = {"vmatpush1.msra.mxu0": 2, "vmatpush1.bf16.msra.mxu1": 4, "vmatpush3.bf16.xpose.msra.mxu0": 8}
    holds |= {"vmatpush.xpose.msra.mxu3": 4, "vmatprep.subr.bf16.mxu0": 0, "vmatmul.mubr.bf16.mxu0": 0}
    assert {mnemonic: push_hold(mnemonic) for mnemonic in holds} == holds


def test_covered_is_a_union():
    starts, ends = np.array([1, 2, 8]), np.array([4, 3, 99])
    assert covered(starts, ends, 10).tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("mnemonic", "unit"),
    [
        ("vmatpush1.bf16.msra.mxu0", Unit.MXU),
        ("vpop.f32.mrb[12].mxu0", Unit.VPOP),
        ("vpop.sfrf", Unit.SYNC),
        ("vadd.xlane.f32.xlu1", Unit.XLU),
        ("vrot.slane", Unit.VALU),
        ("vrsqrt.f32", Unit.EUP),
        ("vld.sshfl", Unit.VLOAD),
        ("vst.msk", Unit.VSTORE),
        ("vstv", Unit.VALU),
        ("vsmask.f32", Unit.VALU),
        ("call", Unit.SALU),
        ("vpush", Unit.VSTORE),
        ("dma.done.wait", Unit.SYNC),
        ("dma.hbm_to_smem", Unit.DMA),
        ("scalar_lea.sflag", Unit.SALU),
        ("sbr.rel", Unit.SALU),
        ("sphi", Unit.PSEUDO),
        ("inlined_call_operand.<no memory space>", Unit.PSEUDO),
        ("vquux.f32", Unit.UNKNOWN),
        ("squux", Unit.UNKNOWN),
        ("quux", Unit.UNKNOWN),
    ],
)
def test_units(mnemonic, unit):
    assert unit_of(mnemonic) is unit


def test_parts_of_a_mnemonic():
    assert normalise("vpop.f32.mrb[12].mxu0") == "vpop.f32.mrb.mxu0"
    assert family("vmatpush1.bf16.msra.mxu0") == "vmatpush1"
    assert [dtype(m) for m in ("vmatmul.mubr.f8e4m3fn.gmra", "vcvt.s32.f32", "vlaneseq")] == [
        "f8e4m3fn",
        "s32",
        None,
    ]
    assert [unit_index(m) for m in ("vpop.trf.xlu1", "vmatmul.mxu3", "vadd.f32")] == [1, 3, None]


def test_old_column_set_is_read(tmp_path: Path):
    file = tmp_path / "u.txt"
    file.write_text(
        "== CAPACTIY:\nMXU| XLU| VALU| EUP| LOAD|STORE| SALU\n  2|  2|   4|  1|   3|   2|   2\n"
        "== UTILIZATION:\n0|0|1|0|3|0|1\n1|0|0|0|0|2|0\n"
    )
    found = read_utilization(file)
    assert found.columns == ("MXU", "XLU", "VALU", "EUP", "VLOAD", "VSTORE", "SALU")
    assert found.capacity == (2, 2, 4, 1, 3, 2, 2)
    assert found.column("VLOAD").tolist() == [3, 0]
    assert found.column("VPOP") is None


HEADER = "== CAPACTIY:\nMXU, XLU\n2 2\n"
DAMAGED = ("", "nonsense", HEADER, HEADER + "== UTILIZATION:\n0 x\n", HEADER + "== UTILIZATION:\n0 0 0\n")


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_utilization_is_a_typed_error(tmp_path: Path, text):
    file = tmp_path / "u.txt"
    file.write_text(text)
    with pytest.raises(InputError):
        read_utilization(file)
