"""Innermost spans against a picture of every picosecond."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer import metrics, nesting, timeline


def painted(spans, until):
    """The innermost span at each picosecond: spans painted over each other in the order of their entry."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1]))
    return [
        max(
            (rank for rank, i in enumerate(order) if spans[i][0] <= time < spans[i][1]),
            key=lambda rank: (spans[order[rank]][0], rank),
            default=None,
        )
        for time in range(until)
    ], order


def check(spans, until=40):
    start, end = (np.array([s[i] for s in spans], dtype=np.int64) for i in (0, 1))
    starts, ends, rows = nesting.innermost(start, end)
    assert (starts[1:] >= ends[:-1]).all()
    found = [None] * until
    for first, last, row in zip(starts.tolist(), ends.tolist(), rows.tolist(), strict=True):
        assert first < last
        found[first:last] = [row] * (last - first)
    ranks, order = painted(spans, until)
    assert found == [None if rank is None else order[rank] for rank in ranks]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=20))
def test_spans_of_any_kind(given_spans):
    check([(start, start + length) for start, length in given_spans])


@st.composite
def tree(draw):
    """Spans that nest, in any order."""
    spans = [(0, 40)]
    for _ in range(draw(st.integers(0, 15))):
        low, high = draw(st.sampled_from(spans))
        first = draw(st.integers(low, high))
        one = (first, draw(st.integers(first, high)))
        if all(one[1] <= a or one[0] >= b or (a <= one[0] and one[1] <= b) for a, b in spans):
            spans.append(one)
    return draw(st.permutations(spans))


@given(tree())
def test_spans_that_nest(spans):
    check(spans)


def test_blocks_give_the_same_as_one_piece(monkeypatch):
    chance = np.random.default_rng(5)
    start = np.sort(chance.integers(0, 20_000, 3_000))
    end = start + chance.integers(0, 30, 3_000)
    whole = nesting.innermost(start, end)
    monkeypatch.setattr(nesting, "BLOCK", 7)
    for one, other in zip(whole, nesting.innermost(start, end), strict=True):
        assert one.tolist() == other.tolist()


def test_nothing_covers_nothing():
    none = np.empty(0, dtype=np.int64)
    assert [len(column) for column in nesting.innermost(none, none)] == [0, 0, 0]
    assert [len(column) for column in nesting.innermost(none + 1, none)] == [0, 0, 0]


@pytest.mark.parametrize("inner", [(20, 30), (20, 60)])
def test_places_come_in_the_order_of_entry(inner):
    rows = [
        {"track": "region", "phase": phase, "name": phase, "start_ps": start, "duration_ps": end - start}
        | {"core": 0, "step": 0, "span": i, "kind": "idle", "provenance": "measured"}
        for i, (phase, start, end) in enumerate([("inner", *inner), ("outer", 10, 50), ("none", 70, 70)])
    ]
    times = metrics.self_times(timeline.from_rows(rows), 0, 100)
    assert list(times) == [(None, "outer"), (None, "inner"), (None, "none")]
    assert times[None, "inner"].tolist() == [list(inner)]
    assert times[None, "none"].tolist() == []
