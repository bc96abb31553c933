"""Each operation in its two forms, against each other and against numpy's fixed-width arithmetic."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.simulate.expressions import (
    MASK,
    expression,
    from_bits,
    function,
    helpers,
    signed,
    to_bits,
)

EDGES = [0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0x80000001, MASK - 1, MASK]
WORDS = st.one_of(st.sampled_from(EDGES), st.integers(0, MASK))
FLOATS = st.floats(width=32, allow_nan=False).map(to_bits)
I32, U32 = np.int32, np.uint32


def u(value):
    return np.array(value, dtype=np.uint64).astype(U32)


def i(value):
    return u(value).view(I32)


def word(value):
    return int(np.asarray(value).astype(np.int64)) & MASK


NUMPY = {
    "sadd.s32": lambda a, b: word(i(a).astype(np.int64) + i(b)),
    "ssub.s32": lambda a, b: word(i(a).astype(np.int64) - i(b)),
    "smul.u32": lambda a, b: int(np.uint64(a) * np.uint64(b) & np.uint64(MASK)),
    "smulhi.u32": lambda a, b: int(np.uint64(a) * np.uint64(b) >> np.uint64(32)),
    "sshll.u32": lambda a, b: int(np.uint64(a) << np.uint64(b) & np.uint64(MASK)) if b < 32 else 0,
    "sshrl.u32": lambda a, b: int(np.uint64(a) >> np.uint64(b)) if b < 32 else 0,
    "sshra.s32": lambda a, b: word(i(a) >> I32(min(b, 31))),
    "sand.u32": lambda a, b: int(u(a) & u(b)),
    "sor.u32": lambda a, b: int(u(a) | u(b)),
    "sxor.u32": lambda a, b: int(u(a) ^ u(b)),
    "smin.u32": lambda a, b: int(min(u(a), u(b))),
    "scalar_lea.hbm": lambda a, b: word(u(a).astype(np.uint64) + u(b)),
    "scmp.lt.s32.totalorder": lambda a, b: bool(i(a) < i(b)),
    "scmp.le.s32.totalorder": lambda a, b: bool(i(a) <= i(b)),
    "scmp.gt.s32.totalorder": lambda a, b: bool(i(a) > i(b)),
    "scmp.ge.s32.totalorder": lambda a, b: bool(i(a) >= i(b)),
    "scmp.eq.s32.totalorder": lambda a, b: bool(i(a) == i(b)),
    "scmp.ne.s32.totalorder": lambda a, b: bool(i(a) != i(b)),
    "scmp.lt.u32.totalorder": lambda a, b: bool(u(a) < u(b)),
    "scmp.ge.u32.totalorder": lambda a, b: bool(u(a) >= u(b)),
}


def evaluate(mnemonic, values, literal):
    """The generated text with the values as names, or the last one as a literal."""
    names = ["a", "b", "c"][: len(values)]
    atoms = [*names[:-1], str(values[-1])] if literal else names
    text = expression(mnemonic, atoms)
    return eval(text, helpers() | dict(zip(names, values, strict=True)))


@pytest.mark.parametrize("mnemonic", sorted(NUMPY))
@given(a=WORDS, b=WORDS)
def test_integer_operations_match_numpy(mnemonic, a, b):
    expected = NUMPY[mnemonic](a, b)
    assert function(mnemonic)(a, b) == expected
    assert evaluate(mnemonic, [a, b], literal=False) == expected
    assert evaluate(mnemonic, [a, b], literal=True) == expected


FLOAT_NUMPY = {
    "sadd.f32": np.add,
    "ssub.f32": np.subtract,
    "smul.f32": np.multiply,
}


@pytest.mark.parametrize("mnemonic", sorted(FLOAT_NUMPY))
@given(a=FLOATS, b=FLOATS)
def test_float_operations_round_to_float32(mnemonic, a, b):
    with np.errstate(all="ignore"):
        expected = FLOAT_NUMPY[mnemonic](np.float32(from_bits(a)), np.float32(from_bits(b)))
    got = from_bits(function(mnemonic)(a, b))
    assert got == expected or (math.isnan(got) and np.isnan(expected))
    assert evaluate(mnemonic, [a, b], literal=False) == function(mnemonic)(a, b)


@given(a=FLOATS, b=FLOATS)
def test_float_comparison(a, b):
    assert function("scmp.gt.f32.partialorder")(a, b) == (from_bits(a) > from_bits(b))
    assert evaluate("scmp.gt.f32.partialorder", [a, b], literal=False) == (from_bits(a) > from_bits(b))


@given(a=WORDS)
def test_conversion_to_float_rounds_once(a):
    assert from_bits(function("scvt.s32.f32")(a)) == np.float32(signed(a))


@given(a=FLOATS)
def test_conversion_to_integer_truncates_and_saturates(a):
    value = from_bits(a)
    got = signed(function("scvt.f32.s32")(a))
    if math.isinf(value) or abs(value) >= 2**31:
        assert got in (2**31 - 1, -(2**31))
    else:
        assert got == math.trunc(value)


@given(p=st.booleans(), q=st.booleans())
def test_predicates(p, q):
    expected = {"pnand": not (p and q), "por": p or q, "pand": p and q, "pxor": p != q}
    for mnemonic, value in expected.items():
        assert function(mnemonic)(p, q) == value
        assert bool(evaluate(mnemonic, [p, q], literal=False)) == value
    assert function("pneg")(p) is (not p)


def test_select_takes_the_first_where_the_predicate_holds():
    assert function("scalar_select")(True, 1, 2) == 1
    assert evaluate("scalar_select", [False, 1, 2], literal=False) == 2


def test_unknown_operation_is_not_guessed():
    assert function("sfrobnicate.u32") is None
    assert expression("sfrobnicate.u32", ["a"]) is None
