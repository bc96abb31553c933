from hypothesis import given
from hypothesis import strategies as st

from analyzer.simulate.buffers import NEVER, BufferUse, extent
from analyzer.simulate.layout import Placed

COUNTS = st.integers(1, 5)


def touched(granules, levels, side):
    """Granules a descriptor walks over, by walking."""
    counts = [c for _, _, c in levels[:-1]]
    chunk = levels[-1][2] * 16
    block = chunk
    for count in counts:
        block *= count
    counts = [granules // block, *counts]
    places = [0]
    for count, level in zip(counts, levels, strict=True):
        places = [p + k * level[side] for p in places for k in range(count)]
    return max(places) + chunk


@given(st.lists(st.tuples(COUNTS, COUNTS, COUNTS), min_size=1, max_size=3), COUNTS)
def test_extent_is_what_walking_the_descriptor_touches(levels, outer):
    scaled = [(16 * s, 16 * d, c) for s, d, c in levels]
    block = 16
    for _, _, count in scaled:
        block *= count
    words = tuple(w for level in scaled for w in level) + (0,) * (9 - 3 * len(scaled))
    for side, destination in ((0, False), (1, True)):
        expected = touched(block * outer, scaled, side)
        assert extent(block * outer, words, destination=destination) == expected


def test_retile_of_a_stack_of_tiles_is_contiguous_on_both_sides():
    words = (512, 512, 2, 256, 64, 4, 64, 128, 4)
    assert extent(65536, words, destination=False) == extent(65536, words, destination=True) == 65536
    assert extent(1024, (512, 64, 8, 64, 128, 4, 0, 0, 0), destination=False) == 1024


def test_window_reaches_past_its_size():
    assert extent(1024, (1024, 256, 16), destination=False) == 3 * 1024 + 256
    assert extent(1024, (1024, 256, 16), destination=True) == 1024
    assert extent(1024, None, destination=True) == 1024


class OneBuffer:
    def find(self, space, address):
        return Placed("vmem", 0, 1 << 20, "#allocation1") if address < 1 << 20 else None


def test_free_is_the_last_overlapping_use():
    use = BufferUse(OneBuffer())
    use.use(0, 100, 5.0, 7)
    use.use(100, 200, 9.0, 7)
    use.use(50, 150, 7.0, 7)
    assert use.free(0, 40) == (5.0, 7)
    assert use.free(0, 60) == (7.0, 7)
    assert use.free(190, 300) == (9.0, 7)
    assert use.free(400, 500) == NEVER
    assert use.free(1 << 21, (1 << 21) + 1) is None


def test_many_small_uses_coarsen_but_never_free_too_early():
    use = BufferUse(OneBuffer())
    for row in range(5000):
        use.use(row * 16, row * 16 + 16, float(row), 7)
    assert use.free(16 * 100, 16 * 101)[0] >= 100.0
    assert use.free(0, 5000 * 16)[0] == 4999.0
