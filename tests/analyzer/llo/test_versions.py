"""Dumps of other libtpu versions say the same in another spelling."""

from pathlib import Path

import pytest
from llo_helpers import OTHER_VERSIONS, bundles_files, listing, read_program_of

from analyzer.llo.printer import normalise, print_instruction
from analyzer.llo.reader import parse_program, read_program


@pytest.mark.parametrize("folder", OTHER_VERSIONS, ids=lambda f: f.name)
def test_nothing_is_unknown_and_every_branch_resolves(folder):
    files = bundles_files(folder)
    assert len(files) >= 2
    for file in files:
        program = read_program(file)
        assert program.not_understood.count == 0
        assert program.notes == []
        for branch in program.branches.values():
            inside = range(branch.bundle + 1, branch.bundle + branch.delay_slots + 1)
            assert not any(bundle in program.labels for bundle in inside)


def test_there_are_older_and_newer_versions():
    assert [folder.name for folder in OTHER_VERSIONS] == ["llo-0.0.23.1", "llo-0.0.42.1", "llo-0.0.52"]


def test_the_same_kernel_has_the_same_loops_in_three_versions():
    folders = [f / "tpu7x" for f in OTHER_VERSIONS[1:]] + [OTHER_VERSIONS[0].parent / "llo/tpu7x"]
    programs = [read_program_of(folder, "call.1") for folder in folders]
    assert [sorted(x for x in p.trip_counts.values() if x) for p in programs] == [[64]] * 3
    assert len({tuple(o.shape for o in p.operands) for p in programs}) == 1


def test_renamed_instructions_have_one_name_and_keep_their_spelling():
    lines = {
        "%s1_s0 = smov.u32 7": "smov",
        "%s30_s7 = spop.sfrf %29": "vpop.sfrf",
        "%v2_v1 = vpop.erf %9": "vpop.eup",
    }
    program = parse_program(listing(*(f"{{ {line} }}" for line in lines)), Path("/x/k-1-final_bundles.txt"))
    for index, (line, name) in enumerate(lines.items()):
        instruction = program.instruction(index)
        assert instruction.mnemonic == program.opcodes[program.instruction_opcode[index]] == name
        assert print_instruction(instruction) == normalise(line) == line
