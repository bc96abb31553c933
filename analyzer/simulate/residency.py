"""What lies in which VMEM buffer from when to when: from the first byte of a copy to its last use.

Uses are vector loads and stores and copies out. A buffer that is overwritten ends what lay in it; what
the program computes into VMEM itself is not followed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from analyzer.simulate.buffers import BufferUse, Use, extent
from analyzer.simulate.compiled import Compiled
from analyzer.simulate.layout import GRANULE, GRANULES_PER_ROW
from analyzer.simulate.log import CoreLog


@dataclass(frozen=True, slots=True)
class Resident:
    """One copy's stay in VMEM.

    buffer: `#allocation12`; offset_bytes: of its first byte in the buffer; bytes: extent it occupies;
    transfer: index into the core's transfers; issued_ps: its issue; start_ps, arrived_ps: its first and last
    byte; first_use_ps: first use, None where none was followed; end_ps: last use before it was overwritten or
    the program ended (arrival, where nothing used it).
    """

    core: int
    buffer: str
    offset_bytes: int
    bytes: int
    transfer: int
    issued_ps: int
    start_ps: int
    arrived_ps: int
    first_use_ps: int | None
    end_ps: int


def buffer_history(
    compiled: Compiled, log: CoreLog, cycle_ps: float
) -> tuple[list[Use | None], list[Resident]]:
    """Walks transfers and vector accesses in the order of issue.

    Returns:
        (per transfer the last use of its destination in VMEM before it was issued, None where that is not
        known; every stay of copied data in VMEM).
    """
    layout = compiled.layout
    use = BufferUse(layout)
    touches = iter(log.touches)
    touch = next(touches, None)
    free: list[Use | None] = []
    here: dict[tuple[int, int], int] = {}
    begun: dict[int, float] = {}
    stays: list[Resident] = []

    def begins(low: int, high: int, time: float) -> None:
        """Granules low..high are used at a time: the first use of what lies there since its arrival."""
        for (first, last), index in here.items():
            if first < high and low < last and index not in begun and time >= log.transfers[index].end:
                begun[index] = time

    def leaves(place: tuple[int, int]) -> None:
        index = here.pop(place)
        transfer = log.transfers[index]
        placed = layout.find("vmem", place[0])
        last = use.free(*place)
        if placed is None or last is None:
            return
        stays.append(
            Resident(
                core=log.rank,
                buffer=placed.name,
                offset_bytes=(place[0] - placed.start) * GRANULE,
                bytes=(place[1] - place[0]) * GRANULE,
                transfer=index,
                issued_ps=round(transfer.issued),
                start_ps=round(transfer.start),
                arrived_ps=round(transfer.end),
                first_use_ps=None if index not in begun else round(begun[index]),
                end_ps=round(max(last[0], transfer.end)),
            )
        )

    for index, transfer in enumerate(log.transfers):
        while touch is not None and touch[2] <= index:
            _apply_touch(compiled, log, touch, use, cycle_ps, begins)
            touch = next(touches, None)
        found: Use | None = None
        bundle = compiled.sites[transfer.site].bundle
        if (
            transfer.destination >= 0
            and layout.space_of(transfer.destination) == "vmem"
            and transfer.peer < 0
        ):
            low = transfer.destination
            high = low + extent(transfer.bytes // GRANULE, transfer.strides, destination=True)
            found = use.free(low, high)
            if found is not None:
                found = (min(found[0], transfer.issued), found[1])
            for place in [p for p in here if p[0] < high and low < p[1]]:
                leaves(place)
            here[low, high] = index
            use.use(low, high, transfer.end, bundle)
        if transfer.source >= 0 and layout.space_of(transfer.source) == "vmem":
            low = transfer.source
            high = low + extent(transfer.bytes // GRANULE, transfer.strides, destination=False)
            use.use(low, high, transfer.source_end, bundle)
            begins(low, high, transfer.issued)
        free.append(found)
    while touch is not None:
        _apply_touch(compiled, log, touch, use, cycle_ps, begins)
        touch = next(touches, None)
    for place in list(here):
        leaves(place)
    return free, stays


def _apply_touch(  # noqa: PLR0917 -- the walk's own state
    compiled: Compiled,
    log: CoreLog,
    touch: tuple[tuple[int, ...], float, int, int],
    use: BufferUse,
    cycle: float,
    begins: Callable[[int, int, float], None],
) -> None:
    event, base, _, visit = touch
    offsets = log.visit_cycles[visit].offset
    first = compiled.program.blocks[log.visit_block[visit]].start
    for one in compiled.sites[event[0]].touches:
        row = 0 if one.base is None else event[one.base + 1]
        time = base + (offsets[one.last - first] + 1) * cycle
        low, high = (row + one.low) * GRANULES_PER_ROW, (row + one.high) * GRANULES_PER_ROW
        use.use(low, high, time, one.last)
        begins(low, high, base + offsets[one.first - first] * cycle)
