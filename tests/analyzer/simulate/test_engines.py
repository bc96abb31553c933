from hypothesis import given
from hypothesis import strategies as st

from analyzer.machine import load_machine
from analyzer.simulate.engines import FairQueue, IciPort, Semaphore, SerialQueue
from analyzer.simulate.topology import chip_place, hop_counter, parse

MICRO = 1e6  # ps
COPIES = st.lists(st.tuples(st.floats(0, 1e7), st.integers(0, 1 << 24)), min_size=1, max_size=30)


def test_copies_are_served_in_order_of_issue_with_latency_hidden():
    queue = SerialQueue(latency_s=1e-6, bandwidth=1e12)
    assert queue.submit(0.0, 4_000_000) == (MICRO, 5 * MICRO)
    assert queue.submit(0.0, 1_000_000) == (5 * MICRO, 6 * MICRO)
    assert queue.submit(10 * MICRO, 1_000_000) == (11 * MICRO, 12 * MICRO)


def test_descriptor_cost_holds_the_queue():
    queue = SerialQueue(latency_s=0, bandwidth=1e12, descriptor_s=1e-6)
    assert queue.submit(0.0, 1_000_000)[1] == 2 * MICRO
    assert queue.submit(0.0, 0)[1] == 3 * MICRO


@given(COPIES)
def test_serial_queue_moves_one_byte_at_a_time(copies):
    queue = SerialQueue(latency_s=7e-7, bandwidth=3e12)
    end = 0.0
    for issued, size in sorted(copies):
        start, stop = queue.submit(issued, size)
        assert start >= issued + 7e5
        assert start >= end
        assert stop >= start
        end = stop
    assert end >= sum(size for _, size in copies) / 3e12 * 1e12 - 1


@given(COPIES, st.floats(1.01, 10))
def test_more_bandwidth_never_ends_later(copies, factor):
    slow, fast = SerialQueue(1e-6, 1e12), SerialQueue(1e-6, 1e12 * factor)
    for issued, size in sorted(copies):
        assert fast.submit(issued, size)[1] <= slow.submit(issued, size)[1] + 1e-3


def test_fair_queue_delays_a_small_copy_beside_a_big_one():
    fair, serial = FairQueue(0, 1e12), SerialQueue(0, 1e12)
    fair.submit(0.0, 10_000_000)
    serial.submit(0.0, 10_000_000)
    assert fair.submit(0.0, 1_000_000)[1] == 2 * MICRO
    assert serial.submit(0.0, 1_000_000)[1] == 11 * MICRO


def port(**changes):
    base = {
        "ici.send.cost": 1e-7,
        "ici.send.bandwidth": 80e9,
        "ici.link.bandwidth": 40e9,
        "ici.link.latency": 2e-6,
        "ici.sibling.bandwidth": 600e9,
        "ici.sibling.latency": 1e-6,
        "ici.hop.latency": 0.5e-6,
    }
    return IciPort(load_machine("tpu7x").with_overrides(base | changes))


def test_links_to_different_chips_do_not_wait_for_each_other():
    one = port()
    _, _, first = one.send(0.0, 400_000, 1)
    _, _, second = one.send(0.0, 400_000, 2)
    assert first == 1e5 + 10e6 + 2e6
    # the second message waits for the injection of the first (5 us), not for its link (10 us)
    assert second == 1e5 + 5e6 + 10e6 + 2e6


def test_messages_to_one_chip_share_its_link():
    one = port()
    one.send(0.0, 400_000, 1)
    assert one.send(0.0, 400_000, 1)[2] == 1e5 + 20e6 + 2e6


def test_sibling_core_is_reached_without_the_links():
    one = port()
    one.send(0.0, 4_000_000, 1)
    start, free, arrival = one.send(0.0, 600_000, None)
    assert (start, free, arrival) == (2e5, 2e5 + 1e6, 2e5 + 2e6)


def test_sending_is_serial_and_hops_cost_latency():
    one = port()
    arrivals = [one.send(0.0, 0, chip, hops)[2] for chip, hops in ((1, 0), (2, 0), (3, 2))]
    assert arrivals == [1e5 + 2e6, 2e5 + 2e6, 3e5 + 3e6]


def test_semaphore_waits_for_the_arrival_that_is_enough():
    semaphore = Semaphore()
    semaphore.arrive(5.0, 2, cause=10)
    semaphore.arrive(3.0, 1, cause=11)
    assert not semaphore.holds(2.0, 1)
    assert semaphore.satisfied_at(0.0, 3) == 5.0
    assert semaphore.wait(0.0, 1) == (3.0, 11)
    semaphore.value -= 1
    assert semaphore.wait(4.0, 2) == (5.0, 10)
    semaphore.value -= 2
    assert semaphore.wait(9.0, 1) is None
    assert semaphore.settle() == 0


def test_semaphore_that_holds_costs_nothing():
    semaphore = Semaphore()
    semaphore.arrive(5.0, 2, cause=1)
    assert semaphore.wait(6.0, 2) == (6.0, -1)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5)), min_size=1, max_size=20), st.floats(0, 100))
def test_semaphore_look_ahead_agrees_with_waiting(arrivals, now):
    amount = sum(a for _, a in arrivals) // 2 + 1
    semaphore = Semaphore()
    for cause, (time, added) in enumerate(arrivals):
        semaphore.arrive(time, added, cause)
    expected = semaphore.satisfied_at(now, amount)
    assert semaphore.holds(now, amount) == (expected == now)
    assert semaphore.wait(now, amount)[0] == expected
    assert semaphore.settle() == sum(a for _, a in arrivals)


def test_chips_of_a_slice():
    assert parse("tpu7x:2x2x4") == (2, 2, 4)
    assert parse(None) is None
    assert parse("weird") is None
    shape = (2, 2, 4)
    places = {chip_place(c, shape) for c in range(16)}
    assert len(places) == 16
    hops = hop_counter("2x2x4", 16)
    assert hops(0, 1) == hops(0, 3) == 0  # one host: every peer took the same time
    assert hops(0, 4) == hops(3, 4) == 1  # next host
    assert hops(0, 8) == 2
    assert hops(0, 12) == 1  # wraps round
    assert hop_counter(None, 4)(0, 3) == 0
    assert hop_counter("4x4x4", 64)(0, 63) == 3  # boards of 2x2: one step in each direction
