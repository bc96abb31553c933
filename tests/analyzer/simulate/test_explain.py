"""Cause chains of planted faults."""

from analyzer.machine import load_machine

TPU7X = load_machine("tpu7x")
SLOW = {"hbm.bandwidth": "/8"}


def test_every_exposed_wait_has_a_story(kernel):
    result = kernel("mlp").run(TPU7X)
    waits = result.timeline[(result.timeline["track"] == "wait") & (result.timeline["duration_ps"] > 0)]
    assert len(result.stories) >= len(waits) > 0
    assert sum(s.duration_ps for s in result.stories) == sum(result.exposed_wait_ps.values())
    longest = result.stories[0]
    assert longest.duration_ps == waits["duration_ps"].max()
    assert longest.sentences()[0].startswith(longest.wait_source)


def test_a_late_copy_could_have_been_earlier(kernel):
    """Prefetch distance 1 in a ring of 4: the buffer of each copy was free three tiles before its issue."""
    late = kernel("ring", "distance=1").run(TPU7X, overrides=SLOW)
    steady = [s for s in late.stories if s.kind == "copy" and "banks" not in s.wait_source and s.behind == ()]
    early = [s.could_be_earlier_ps for s in steady if s.could_be_earlier_ps]
    tile_ps = 64 * 256 * 4 / late.machine["hbm.bandwidth"] * 1e12
    assert len(early) > 10
    assert min(sorted(early)[5:]) > tile_ps
    deep = kernel("ring").run(TPU7X, overrides=SLOW)
    prompt = [s for s in deep.stories if s.kind == "copy" and s.could_be_earlier_ps is not None]
    assert sorted(s.could_be_earlier_ps for s in prompt)[len(prompt) // 2] < 0.2 * tile_ps
    assert late.step_time_ps > deep.step_time_ps


def test_a_copy_behind_others_names_them(kernel):
    result = kernel("ring").run(TPU7X, overrides=SLOW)
    behind = [s for s in result.stories if s.behind]
    assert behind
    assert all("kernels.py:" in source for s in behind for source in s.behind)
    assert all(s.behind_ps > 0 for s in behind)


def test_the_last_user_of_a_buffer_is_named(kernel):
    result = kernel("ring", "distance=1").run(TPU7X)
    freed = [s for s in result.stories if s.freed_by]
    assert len(freed) > 5
    assert all("kernels.py:" in s.freed_by for s in freed)
    assert all("allocation" in s.buffer for s in freed)


def test_messages_and_barriers(kernel):
    result = kernel("all_to_all").run(TPU7X, cores="all")
    kinds = {s.kind for s in result.stories}
    assert kinds == {"copy", "message"}
    message = next(s for s in result.stories if s.kind == "message" and s.bytes)
    assert message.issued_ps is not None
    assert message.issued_ps < message.start_ps + message.duration_ps


def test_tables_point_into_the_timeline(kernel):
    result = kernel("ring", "distance=1").run(TPU7X, overrides=SLOW)
    stays, stories, timeline = result.residency_table, result.stories_table, result.timeline
    copies = timeline.set_index("span").loc[stays["span"]]
    assert list(copies["name"]) == list(stays["name"])
    assert list(copies["issued_ps"]) == list(stays["issued_ps"])
    assert stays["used"].all(), "every tile is added up"
    waits = timeline.set_index("span").loc[stories["span"]]
    assert list(waits["duration_ps"]) == list(stories["duration_ps"])
    assert list(waits["cause"].dropna()) == list(stories["cause"].dropna())
    assert stories["duration_ps"].is_monotonic_decreasing
    assert stories["explanation"].str.contains("issued at .*kernels.py").all()


def test_a_message_names_who_sent_it(kernel):
    stories = kernel("all_to_all").run(TPU7X, cores="all", delays_ps={3: 20e6}).stories_table
    first = stories[stories["core"] != 3].drop_duplicates("core")
    assert (first["sender"] == 3).all()
    assert first["explanation"].str.contains("from core 3").all()
