"""The occupancy of VMEM, from stays whose sums are known."""

import numpy as np

from analyzer import residency


def stay(buffer, low, size, issued, start, arrived, end, core=0, used=True):
    return {
        "core": core,
        "buffer": buffer,
        "name": "w",
        "offset_bytes": low,
        "bytes": size,
        "issued_ps": issued,
        "start_ps": start,
        "arrived_ps": arrived,
        "end_ps": end,
        "used": used,
        "span": 0,
        "layer": None,
        "phase": "",
        "source": "k.py:1",
    }


STAYS = residency.table(
    [
        stay("#allocation1", 0, 100, 0, 10, 20, 50),
        stay("#allocation1", 100, 100, 5, 20, 30, 40),
        stay("#allocation2", 0, 30, 35, 40, 45, 45, used=False),
        stay("#allocation1", 0, 7, 0, 0, 1, 100, core=1),
    ]
)


def test_the_curve_adds_up():
    time, held = residency.occupancy(STAYS, 0)
    assert list(time) == [10, 20, 40, 45, 50]
    assert list(held) == [100, 200, 130, 100, 0]
    assert int((held[:-1] * np.diff(time)).sum()) == 100 * 40 + 100 * 20 + 30 * 5
    time, taken = residency.occupancy(STAYS, 0, "issued_ps")
    assert list(zip(time, taken, strict=True))[:2] == [(0, 100), (5, 200)]
    assert residency.occupancy(STAYS, 7)[0].size == 0


def test_the_summary_names_peak_and_buffers():
    found = residency.summary(STAYS, 0, 100)
    assert found is not None
    assert (found["peak_bytes"], found["peak_at_ps"], found["copies"]) == (200, 20, 3)
    assert found["mean_bytes"] == round((100 * 40 + 100 * 20 + 30 * 5) / 100)
    assert found["taken_peak_bytes"] == 230
    first, second = found["buffers"]
    assert (first["buffer"], first["bytes"], first["copies"], first["never_used"]) == (
        "#allocation1",
        200,
        2,
        0,
    )
    assert (second["bytes"], second["never_used"]) == (30, 1)
    assert residency.summary(STAYS, 7, 100) is None


def test_a_long_curve_keeps_its_peak():
    many = [
        stay("#a", 0, 10 if n != 777 else 99, n * 10, n * 10, n * 10 + 1, n * 10 + 5) for n in range(2000)
    ]
    found = residency.summary(residency.table(many), 0, 20_000)
    assert found is not None
    assert len(found["curve"]) == residency.POINTS
    assert max(b for _, b in found["curve"]) == found["peak_bytes"] == 99
