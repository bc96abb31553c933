"""Causes of bubbles and waits on timelines where the answer is known."""

from analyzer import bubbles, groups, view, waits


def found(build):
    return bubbles.find_bubbles(view.core_step(build.frame(), 0))


def test_issued_late_although_the_buffer_was_free(build):
    build.read(0, 10, 1, source="k.py:1")
    build.read(50, 60, 1, issued=45, free_ps=5, source="k.py:7", bundle_first=70, bundle_last=71, name="wq")
    (bubble,) = found(build)
    assert (bubble.start_ps, bubble.duration_ps) == (10, 40)
    assert bubble.cause == bubbles.ISSUED_LATE
    assert (bubble.late_ps, bubble.not_free_ps, bubble.latency_ps) == (40, 0, 0)
    assert bubble.lateness_ps == 40
    assert (bubble.source, bubble.bundles, bubble.next_name) == ("k.py:7", (70, 71), "wq")


def test_buffer_not_free(build):
    build.read(0, 10, 1)
    build.read(50, 60, 1, issued=45, free_ps=40)
    (bubble,) = found(build)
    assert bubble.cause == bubbles.BUFFER_NOT_FREE
    assert (bubble.not_free_ps, bubble.late_ps, bubble.latency_ps) == (30, 5, 5)


def test_latency_of_a_copy_issued_at_the_last_moment(build):
    build.read(0, 10, 1)
    build.read(50, 60, 1, issued=9, free_ps=8)
    (bubble,) = found(build)
    assert bubble.cause == bubbles.LATENCY
    assert (bubble.latency_ps, bubble.late_ps, bubble.duration_ps) == (39, 1, 40)


def test_a_copy_issued_in_the_bubble_could_have_hidden_its_latency_too(build):
    build.read(0, 10, 1)
    build.read(100, 110, 1, issued=30, free_ps=-200)
    (bubble,) = found(build)
    assert bubble.cause == bubbles.ISSUED_LATE
    assert (bubble.late_ps, bubble.latency_ps, bubble.lateness_ps) == (90, 0, 230)


def test_a_copy_too_small_to_fill_the_bubble_is_not_blamed(build):
    build.read(0, 10, 1)
    build.read(1000, 1001, 1, issued=900, free_ps=0, source="small.py:1")
    build.read(1100, 1200, 1, issued=1050, free_ps=1050, source="big.py:2")
    first, second = found(build)
    assert (first.cause, first.source, first.duration_ps) == (bubbles.BUFFER_NOT_FREE, "big.py:2", 990)
    assert (second.cause, second.source) == (bubbles.LATENCY, "big.py:2")


def test_a_store_waits_for_its_result_and_not_for_a_buffer(build):
    build.read(0, 10, 1)
    build.write(50, 60, 1)
    (bubble,) = found(build)
    assert bubble.cause == bubbles.RESULT_NOT_READY
    assert bubble.not_issued_ps == 40


def test_unknown_free_time_is_not_called_late(build):
    build.read(0, 10, 1)
    build.read(50, 60, 1, issued=45)
    (bubble,) = found(build)
    assert bubble.cause == bubbles.ISSUE_UNEXPLAINED
    assert (bubble.not_issued_ps, bubble.lateness_ps) == (35, None)


def test_ramp_drain_and_what_ran_meanwhile(build):
    copy = build.read(20, 40, 1, issued=10)
    build.vector(0, 10)
    build.wait(10, 40, copy)
    build.mxu(40, 70, source="k.py:3", bundle_first=5, bundle_last=9)
    build.wait(70, 75)
    build.vector(75, 80, source="k.py:4")
    ramp, drain = found(build)
    assert (ramp.cause, ramp.duration_ps, ramp.ran) == (bubbles.RAMP, 20, {"other work": 10, "dma wait": 10})
    assert (drain.cause, drain.duration_ps) == (bubbles.DRAIN, 40)
    assert drain.ran == {"mxu": 30, "other wait": 5, "other work": 5}
    assert (drain.source, drain.bundles) == ("k.py:3", (5, 9))


def test_a_step_without_traffic_is_one_bubble(build):
    build.mxu(0, 100)
    (bubble,) = found(build)
    assert (bubble.cause, bubble.duration_ps, bubble.source) == (bubbles.NO_TRAFFIC, 100, "")


def test_bubbles_add_up_to_the_metric_and_carry_layer_and_phase(build):
    from analyzer import metrics

    build.read(5, 10, 1)
    build.read(30, 35, 1)
    build.region(0, 20, "a", 3)
    build.region(8, 12, "a/b", 3)
    build.mxu(0, 50)
    core = view.core_step(build.frame(), 0)
    all_bubbles = bubbles.find_bubbles(core)
    assert sum(b.duration_ps for b in all_bubbles) == metrics.hbm(core, 1.0).bubble_ps
    assert [(b.layer, b.phase) for b in all_bubbles] == [(3, "a"), (3, "a/b"), (None, "")]
    for bubble in all_bubbles:
        assert sum(bubble.ran.values()) == bubble.duration_ps


def test_groups_fold_the_same_fault_in_every_layer(build):
    for layer in range(4):
        at = 100 * layer
        build.read(at, at + 50, 1, source="k.py:1", layer=layer)
        build.region(at, at + 100, "mlp", layer)
        build.read(
            at + 80,
            at + 100,
            1,
            issued=at + 80,
            free_ps=at + 60,
            source="k.py:9",
            bundle_first=layer,
            bundle_last=8,
        )
    (group,) = groups.group_bubbles(found(build))
    assert (group.cause, group.source, group.count, group.total_ps) == (bubbles.ISSUED_LATE, "k.py:9", 4, 120)
    assert (group.layers, group.bundles, group.lateness_ps) == ((0, 1, 2, 3), (0, 8), 20)


def test_exposed_wait_names_the_transfer_and_how_late_it_was(build):
    copy = build.read(20, 40, 64, issued=15, free_ps=5, source="k.py:2", bundle_first=3, name="wq")
    build.wait(10, 40, copy, source="k.py:8", name="dma.done.wait")
    build.wait(50, 60, build.receive(40, 60, 8, source="k.py:5"), source="k.py:9")
    build.wait(70, 70, copy)
    dma, ici = waits.exposed_waits(view.core_step(build.frame(), 0))
    assert (dma.kind, dma.duration_ps, dma.hidden_by_hbm_ps) == ("dma", 30, 20)
    assert (dma.transfer_source, dma.transfer_name, dma.transfer_bytes) == ("k.py:2", "wq", 64)
    assert (dma.lateness_ps, dma.outstanding_ps) == (10, 0)
    assert (ici.kind, ici.transfer_source, ici.lateness_ps) == ("ici", "k.py:5", None)


def test_wait_for_a_span_that_is_not_there_is_a_signal_and_not_a_guess(build):
    build.wait(0, 10, 999)
    build.wait(10, 20)
    build.mxu(20, 30)
    kinds = [w.kind for w in waits.exposed_waits(view.core_step(build.frame(), 0))]
    assert kinds == ["signal", "unknown"]
