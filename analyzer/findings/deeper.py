"""The step with more buffers in the ring that weights stream through."""

import numpy as np

from analyzer import view
from analyzer.findings.base import Context
from analyzer.replay import Edit
from analyzer.timeline import Track

MOST = 64  # more buffers than this are not thought of
SMALL = 4  # copies smaller than a fourth of the largest do not go through the ring


def more_buffers(context: Context) -> tuple[int, int, Edit] | None:
    """How many more buffers fit, the bytes of one, and the edit that issues each copy so many copies earlier.

    None where VMEM is not known, nothing fits, or no copy ever went into a buffer used before.
    """
    if context.vmem_used is None or context.vmem_capacity is None:
        return None
    reads = view.on(context.core.hbm, (Track.HBM_READ,))
    reads = reads[reads["bytes"].notna() & reads["free_ps"].notna()]
    if not len(reads):
        return None
    size = reads["bytes"].to_numpy(dtype=np.int64)
    reused = reads["free_ps"].to_numpy(dtype=np.int64) > context.core.start_ps
    if not reused.any():
        return None
    ring = size * SMALL >= size[reused].max()
    if not (ring & reused).any():
        return None
    one = int(size[ring & reused].max())
    more = min((context.vmem_capacity - context.vmem_used) // one, MOST)
    if more < 1:
        return None
    # What is read once before the ring turns over (activations, tables) stays in front.
    every = view.issues(reads)
    others = every[~ring & (every < every[ring & reused].min())]
    front = int(others.max()) if len(others) else int(every.min())
    issued, spans = every[ring], reads["span"].to_numpy(dtype=np.int64)[ring]
    order = np.argsort(issued, kind="stable")
    issued, spans = issued[order], spans[order]
    earlier = np.concatenate(
        (np.full(min(more, len(issued)), issued[0]), issued[: max(len(issued) - more, 0)])
    )
    moved = {
        int(span): int(at)
        for span, at, own in zip(spans, np.minimum(np.maximum(earlier, front), issued), issued, strict=True)
        if at < own
    }
    return more, one, Edit(issue_at=moved)
