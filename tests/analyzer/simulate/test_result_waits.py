"""Bundles that take results before a unit has them ready."""

import pytest

from analyzer.simulate import result_waits
from tests.analyzer.simulate.test_issue import Program, model

PRODUCT = "vmatmul.mubr.bf16.vlgmr.msra.gmra.mrb[{}].mxu{}"
TAKE = "vpop.f32.mrb[{}].mxu{}"
REDUCE, PERMUTE = "vmax.xlane.f32.xlu0", "vperm.lane.xlu1"
TAKE_REDUCED, TAKE_PERMUTED = "vpop.xlane.xlu0", "vpop.permute.xlu1"


def offsets(bundles, cuts=(), **delays):
    one = model(Program(bundles, cuts), **delays)
    return [one.block(index, one.idle).offset for index in range(len(one.program.blocks))]


def test_a_product_is_taken_when_it_is_ready_and_the_rest_of_it_follows():
    bundles = [[PRODUCT.format(0, 1)], [], [TAKE.format(0, 1)], [TAKE.format(1, 1)], []]
    assert offsets(bundles) == [[0, 1, 2, 3, 4]]  # off: as printed
    assert offsets(bundles, mxu_result=50) == [[0, 1, 50, 51, 52]]


def test_what_was_filled_in_between_is_not_waited_for_again():
    bundles = [[PRODUCT.format(0, 0)], *[[]] * 59, [TAKE.format(0, 0)]]
    assert offsets(bundles, mxu_result=50)[0][-1] == 60


@pytest.mark.parametrize(
    ("number", "asked"), [(0, 0), (3, 0), (4, 1), (7, 1)], ids=["first", "its last", "second", "its last too"]
)
def test_results_belong_to_the_product_whose_numbers_they_continue(number, asked):
    program = Program([[PRODUCT.format(0, 0)], [PRODUCT.format(4, 0)], [TAKE.format(number, 0)]])
    assert result_waits.waits(program) == {2: [(asked, 0)]}


def test_numbers_used_again_are_those_of_the_last_product():
    program = Program(
        [[PRODUCT.format(0, 0)], [TAKE.format(0, 0)], [PRODUCT.format(0, 0)], [TAKE.format(0, 0)]]
    )
    assert result_waits.waits(program) == {1: [(0, 0)], 3: [(2, 0)]}


def test_queues_give_back_in_order_and_units_have_their_own():
    program = Program(
        [[REDUCE], [REDUCE, PERMUTE], [TAKE_PERMUTED], [TAKE_REDUCED], [TAKE_REDUCED], ["vpush"], ["spop"]]
    )
    assert result_waits.waits(program) == {2: [(1, 1)], 3: [(0, 1)], 4: [(1, 1)], 6: [(5, 2)]}


def test_what_an_earlier_block_asked_for_is_taken_as_ready():
    assert offsets([[REDUCE], [TAKE_REDUCED]], cuts=(1,), xlu_result=100) == [[0], [0]]


def test_matrix_units_with_a_result_queue_are_not_followed():
    assert result_waits.waits(Program([["vmatmul.mubr.f32.gmra.mxu0"], ["vpop.f32.mrf.mxu0"]])) == {}
