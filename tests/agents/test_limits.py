"""Answers that fit, for any content."""

import json

from hypothesis import given
from hypothesis import strategies as st

from agents.limits import LEAST_BYTES, Answer, dump, fit

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3000),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)


@given(st.lists(VALUES, max_size=30), st.lists(st.text(max_size=500), max_size=80), st.integers(0, 5))
def test_pages_cover_the_list_within_the_limit(entries, notes, offset):
    total = offset + len(entries)
    answer = Answer({"schema_version": 1, "notes": notes}, "entries", entries, total, offset)
    result = fit(answer, LEAST_BYTES)
    assert len(dump(result)) <= LEAST_BYTES
    page = result["page"]
    assert page["returned"] == len(result["entries"]) >= min(1, len(entries))
    if len(result["entries"]) > 1:
        assert result["entries"][1:] == entries[1 : len(result["entries"])]
    after = offset + page["returned"]
    assert page["next_offset"] == (after if entries and after < total else None)


def test_what_was_cut_is_named():
    answer = Answer({"notes": ["x" * 9000], "small": 1})
    result = fit(answer, LEAST_BYTES)
    assert result["small"] == 1
    assert result["shortened"] == ["notes.0: 2000 of 9000 characters"]
    assert fit(Answer({"a": [1, 2]}), LEAST_BYTES) == {"a": [1, 2]}


def test_a_digest_is_cut_in_no_line():
    digest = [f"line {i}" for i in range(30)]
    result = fit(Answer({"digest": digest, "notes": ["y" * 100] * 200}), LEAST_BYTES)
    assert result["digest"] == digest
    assert len(json.dumps(result)) < LEAST_BYTES + 200
