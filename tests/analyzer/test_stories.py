"""Cause chains as a table, folded by place, and in words."""

from analyzer import stories


def row(duration, *, kind="copy", source="k.py:5", issue="k.py:1", layer=0, core=0, **more):
    base = {
        "core": core, "span": duration, "start_ps": 1000, "duration_ps": duration, "phase": "mlp",
        "layer": layer, "kind": kind, "source": source, "name": "w", "cause": 1, "sender": None,
        "issue_source": issue, "issued_ps": 400, "bytes": 2_000_000, "flow_ps": 50, "behind": "",
        "behind_ps": 0, "buffer": "#allocation3", "buffer_free_ps": 100, "freed_by": "k.py:9",
        "could_be_earlier_ps": 300,
    }  # fmt: skip
    made = base | more
    return made | {"explanation": stories.explanation(made)}


def test_equal_places_fold_and_the_longest_tells():
    table = stories.table(
        [
            row(10, could_be_earlier_ps=100),
            row(30, layer=2, behind="k.py:2, k.py:3", behind_ps=77, could_be_earlier_ps=300),
            row(25, source="k.py:8", kind="message", issue="k.py:7", sender=3),
            row(99, core=1),
        ]
    )
    first, second = stories.folded(table, 0)
    assert (first["source"], first["count"], first["total_ps"], first["longest_ps"]) == ("k.py:5", 2, 40, 30)
    assert first["layers"] == [0, 2]
    assert (first["behind"], first["behind_ps"], first["could_be_earlier_ps"]) == (
        ["k.py:2", "k.py:3"],
        77,
        200,
    )
    assert first["span"] == 30
    assert second["transfer"]["sender"] == 3
    assert stories.folded(table, 5) == []


def test_the_words_name_issue_queue_and_buffer():
    words = stories.explanation(row(1, behind="k.py:2", behind_ps=2_000_000))
    assert words == (
        "for a copy of 2 MB, issued at k.py:1 0.6 ns before the wait began; it stood 2 us behind k.py:2; "
        "its buffer #allocation3 (last used by k.py:9) was free 0.3 ns earlier"
    )
    barrier = row(1, kind="barrier")
    assert barrier["explanation"] == "for the barrier of all cores"
    (entry,) = stories.folded(stories.table([barrier]), 0)
    assert entry["transfer"] is None


def test_an_empty_table_has_the_columns():
    table = stories.table([])
    assert list(table.columns) == list(stories.COLUMNS)
    assert stories.folded(table, 0) == []
