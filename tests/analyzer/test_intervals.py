"""Interval arithmetic against a brute-force oracle: sets of integer points."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analyzer import intervals

POINTS = st.integers(-8, 24)
SPANS = st.lists(st.tuples(POINTS, POINTS), max_size=8)


def build(spans):
    return intervals.from_spans([s for s, _ in spans], [e for _, e in spans])


def points(spans):
    return {t for s, e in spans for t in range(s, e)}


def points_of(a):
    return {t for s, e in a.tolist() for t in range(s, e)}


def assert_canonical(a):
    assert a.dtype == np.int64
    assert a.ndim == 2
    assert a.shape[1] == 2
    assert (a[:, 1] > a[:, 0]).all()
    assert (a[1:, 0] > a[:-1, 1]).all()


@given(SPANS)
def test_from_spans_covers_the_same_points_in_canonical_form(spans):
    a = build(spans)
    assert_canonical(a)
    assert points_of(a) == points(spans)
    assert intervals.measure(a) == len(points(spans))


@given(SPANS, SPANS)
def test_set_operations_match_sets_of_points(x, y):
    a, b = build(x), build(y)
    for result, expected in (
        (intervals.union(a, b), points(x) | points(y)),
        (intervals.intersection(a, b), points(x) & points(y)),
        (intervals.subtraction(a, b), points(x) - points(y)),
    ):
        assert_canonical(result)
        assert points_of(result) == expected


@given(SPANS, SPANS)
def test_measures_add_up(x, y):
    a, b = build(x), build(y)
    m = intervals.measure
    assert m(a) + m(b) == m(intervals.union(a, b)) + m(intervals.intersection(a, b))
    assert m(a) == m(intervals.subtraction(a, b)) + m(intervals.intersection(a, b))


@given(SPANS)
def test_operations_with_itself(x):
    a = build(x)
    assert np.array_equal(intervals.union(a, a), a)
    assert np.array_equal(intervals.intersection(a, a), a)
    assert len(intervals.subtraction(a, a)) == 0


@given(SPANS, POINTS, POINTS)
def test_complement_and_clip_split_a_window(x, start, end):
    a = build(x)
    inside, outside = intervals.clip(a, start, end), intervals.complement(a, start, end)
    assert points_of(inside) == points(x) & set(range(start, end))
    assert points_of(outside) == set(range(start, end)) - points(x)
    assert intervals.measure(inside) + intervals.measure(outside) == max(end - start, 0)


@given(SPANS, SPANS)
def test_covered_counts_each_window_on_its_own(x, windows):
    a = build(x)
    got = intervals.covered(a, [s for s, _ in windows], [e for _, e in windows])
    assert got.tolist() == [len(points(x) & set(range(s, e))) for s, e in windows]


def test_union_of_nothing_is_empty():
    assert len(intervals.union()) == 0
    assert intervals.measure(intervals.EMPTY) == 0


def test_times_of_a_long_trace_do_not_overflow():
    start = 2**62
    a = intervals.from_spans([start, start + 5], [start + 3, start + 10])
    assert intervals.measure(a) == 8
    assert intervals.complement(a, start, start + 10).tolist() == [[start + 3, start + 5]]
