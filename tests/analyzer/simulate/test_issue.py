"""Cycles of hand-made blocks."""

import itertools

import numpy as np
import pytest

from analyzer.llo.program import Block, Branch
from analyzer.machine import load_machine
from analyzer.simulate.issue import IssueModel, MxuUse

PUSH0, PUSH1 = "vmatpush1.bf16.msra.mxu0", "vmatprep.subr.bf16.mxu1"
BF16, F32 = "vmatmul.mubr.bf16.vlgmr.msra.gmra.mrb[4].mxu0", "vmatmul.mubr.f32.gmra.mrb[0].mxu0"
FP8 = "vmatmul.mubr.f8e4m3.vlgmr.msra.gmra.mrb[4].mxu0"


class Program:
    """Bundles as lists of mnemonics, in one block or several."""

    def __init__(self, bundles, cuts=(), branches=()):
        names = [m for bundle in bundles for m in bundle]
        self.opcodes = sorted(set(names))
        self.instruction_opcode = np.array([self.opcodes.index(m) for m in names], dtype=np.int32)
        self.bundle_first = np.concatenate(([0], np.cumsum([len(b) for b in bundles]))).astype(np.int32)
        edges = [0, *cuts, len(bundles)]
        self.blocks = [Block(a, b) for a, b in itertools.pairwise(edges)]
        self.branches = {b.bundle: b for b in branches}


def model(program, chip="tpu7x", **overrides):
    machine = load_machine(chip).with_overrides({k.replace("_", ".", 1): v for k, v in overrides.items()})
    return IssueModel(program, MxuUse(program), machine)


def total_of(program, **overrides):
    one = model(program, **overrides)
    return one.block(0, one.idle).total


def total(bundles, **overrides):
    return total_of(Program(bundles), **overrides)


def test_one_bundle_per_cycle_without_matrix_work():
    assert total([["vadd.f32"], [], ["sst"]]) == 3


def test_pushes_hold_their_mxu_two_cycles():
    assert total([[PUSH0]] * 4) == 7  # 0, 2, 4, 6
    assert total([[PUSH0, PUSH1]] * 4) == 7
    assert total([[PUSH0], [PUSH1]] * 4) == 8  # in turn: nothing waits
    assert total([[PUSH0]] * 4, mxu_push=1) == 4


def test_weights_and_rows_have_ports_of_their_own():
    assert total([[PUSH0], [BF16]] * 4) == 26  # the products alone: 1, 9, 17, 25
    assert total([[BF16], *[[PUSH0]] * 4]) == 8  # pushes at 1, 3, 5, 7


def test_matmul_cost_follows_its_type():
    assert total([[F32]] * 3) == 9
    assert total([[BF16]] * 3) == 17
    assert total([[FP8]] * 3) == 17  # twice the rows at twice the rate


def test_a_weight_tile_takes_the_published_time():
    """256 x 256 bf16: 32 pushes and a matmul; two MXUs; 20 ns per tile and core were published, of code
    whose schedule is not known: the pushes alone take 18.3."""
    one = [[PUSH0]] * 32 + [[BF16]]
    program = Program(one * 20)
    machine = load_machine("tpu7x")
    cycles = total_of(program) / 20
    assert cycles / 2 * machine.cycle_ps / 1000 == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize(("mnemonic", "rows", "peak"), [(BF16, 16, "bf16_flops"), (FP8, 32, "fp8_flops")])
def test_no_faster_than_the_peak(mnemonic, rows, peak):
    machine = load_machine("tpu7x")
    count = 500
    both = [[mnemonic, mnemonic.replace("mxu0", "mxu1")]] * count
    seconds = total(both) * machine.cycle_ps * 1e-12
    flops = 2 * count * rows * 256 * 256 * 2
    assert flops / seconds <= getattr(machine.peaks, peak)
    assert flops / seconds >= 0.7 * getattr(machine.peaks, peak)


def test_held_mxu_is_carried_into_the_next_block():
    program = Program([[BF16], [BF16], []], cuts=(1,))
    one = model(program)
    first = one.block(0, one.idle)
    assert (first.total, first.state) == (1, (0.0, 7.0))
    assert one.block(1, first.state).offset == [7.0, 8.0]
    assert one.block(1, one.idle).offset == [0.0, 1.0]


def test_branch_charges_six_cycles():
    branch = Branch(bundle=1, target=0, delay_slots=2, predicate=None)
    program = Program([[], ["sbr.rel"], [], []], branches=[branch])
    one = model(program)
    assert one.block(0, one.idle).total == 8  # the branch issues at 1, six cycles after it are charged


def test_straight_line_code_waits_for_its_fetch_once():
    program = Program([[]] * 100, cuts=(50,))
    fetched = model(program, fetch_bandwidth=0.875e9, fetch_resident=1000)  # one bundle per two cycles
    fetch = fetched.new_fetch()
    assert fetch.visit(0)
    assert fetched.block(0, fetched.idle, cold=True).total == 99 + 1
    assert not fetch.visit(0)
    assert fetched.block(0, fetched.idle).total == 50


def test_code_that_does_not_fit_is_fetched_again():
    program = Program([[]] * 100, cuts=(50,))
    fetch = model(program, fetch_bandwidth=1e9, fetch_resident=60).new_fetch()
    assert [fetch.visit(b) for b in (0, 1, 0, 1, 1)] == [True, True, True, True, False]


def test_a_block_larger_than_what_stays_is_fetched_every_time():
    fetch = model(Program([[]] * 100), fetch_bandwidth=1e9, fetch_resident=60).new_fetch()
    assert [fetch.visit(0), fetch.visit(0)] == [True, True]
    assert model(Program([[]])).new_fetch() is None
