"""Scalar arithmetic end to end: what Python computes is the row the simulated kernel reads."""

import math

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from analyzer.simulate import Scenario
from analyzer.simulate.execute import Core
from analyzer.simulate.expressions import to_bits
from analyzer.simulate.sites import Op

INTEGERS = st.integers(-3000, 3000)


def wrapped(value):
    return (value + 2**31) % 2**32 - 2**31


def rows_of(a, b, f):
    """The kernel's arithmetic in Python, float32 where it is float32 there."""
    f = np.float32(f)
    g = np.float32(np.float32(a) * f) + np.float32(1.5)
    chosen = math.floor(g) if g > 3 else math.ceil(g / np.float32(2))
    divisor = max(b, 1)
    truncated = math.trunc(a / divisor)
    condition = bool((f > 1 and f <= 9) or f != 2)
    rows = [
        chosen,
        wrapped(((a % 2**32) >> 3) + (a << 2) + max(a, -5)),
        a % divisor,
        a // divisor,
        a - truncated * divisor,
        truncated,
        int(np.float32(f * np.float32(10))),
        a ^ b if condition else a & b,
        (a >> 2) + min(a, b),
    ]
    return [min(max(r, 0), 1000) for r in rows]


@given(a=INTEGERS, b=INTEGERS, f=st.floats(-100, 100, width=32))
@example(a=7, b=3, f=2.0)
@example(a=-7, b=3, f=2.0)
@example(a=-1, b=-1, f=1.0)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_follow_the_arithmetic(kernel, a, b, f):
    one = kernel("scalar_arithmetic")
    scenario = Scenario(smem={0: [a, b], 1: [to_bits(f)]})
    compiled = one.simulator.compiled
    trace = Core(compiled, scenario, one.simulator.words, 0, 2).run().trace
    base = next(p.start for p in compiled.layout.placed if p.operand == 2)
    copies = [e for e in trace if not isinstance(e, int) and compiled.sites[e[0]].op is Op.DMA]
    reads = [e for e in copies if compiled.layout.find("hbm", e[1]) is not None]
    rows = [(e[1] - base) * 32 // (8 * 1024 * 4) for e in reads if base <= e[1] < base + 1024 * 1024]
    assert rows == rows_of(a, b, f)
