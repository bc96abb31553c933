"""Where a loop waits for results of the cross-lane units."""

import numpy as np
from numpy.typing import NDArray

from analyzer.findings.code import Code, CodeLoop
from analyzer.llo.occupancy import COLUMNS
from analyzer.llo.program import Unit

BUSY = 0.5  # of a kind of slot: with more in use the bundle is no wait
# Pops closer than this drain what was sent together: the bundles between them count as waiting.
_BURST = 8


def pending(code: Code, loop: CodeLoop) -> NDArray[np.int64]:
    """The loop's own bundles from a cross-lane instruction to the pop of its result that do little else."""
    pops = code.with_opcodes(lambda opcode: opcode.startswith("vpop") and ".xlu" in opcode)
    mine = code.of_loop(loop)[code.bundle_of]
    issued, popped = (np.unique(code.bundle_of[own & mine]) for own in (code.on_units(Unit.XLU), pops))
    edges = np.zeros(code.program.bundle_count + 1, dtype=np.int64)
    at = np.searchsorted(popped, issued, side="right")
    ends = np.where(at < len(popped), np.append(popped, loop.last)[np.minimum(at, len(popped))], loop.last)
    np.add.at(edges, issued, 1)
    np.add.at(edges, ends + 1, -1)
    burst = np.flatnonzero(np.diff(popped) <= _BURST)
    np.add.at(edges, popped[burst], 1)
    np.add.at(edges, popped[burst + 1] + 1, -1)
    awaited = np.cumsum(edges[:-1]) > 0
    # Where other slots are busy meanwhile, nothing stands still.
    use = code.occupancy / code.capacity
    use[:, [COLUMNS.index("XLU"), COLUMNS.index("VPOP")]] = 0
    idle = use.max(axis=1) <= BUSY
    return loop.own[awaited[loop.own] & idle[loop.own]]
