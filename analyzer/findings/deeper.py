"""The step with more buffers in the ring that weights stream through."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer import bubbles, view
from analyzer.bubbles import Bubble
from analyzer.findings.base import Context
from analyzer.replay import Edit
from analyzer.timeline import Track
from analyzer.waits import ExposedWait

LATE_PS = 1_000_000  # a place that refills its buffers later than this (median) does not wait for them
MOST = 64  # more buffers than this are not thought of
PROMPT = 4  # an issue within a fourth of what the copy had, or lacked, counts as prompt
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
    ring = (size * SMALL >= size[reused].max()) & _on_time(reads)
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


def _on_time(reads: pd.DataFrame) -> NDArray[np.bool_]:
    """Copies started where buffers are refilled as they become free. Others wait for something else, such as
    a choice of experts, and more buffers would not let them start earlier."""
    late = view.issues(reads) - reads["free_ps"].to_numpy(dtype=np.int64)
    places = reads["source"].where(reads["source"] != "", reads["bundle_first"].astype(str))
    median = pd.Series(late, index=reads.index).groupby(places).transform("median")
    return np.asarray(median <= LATE_PS)


def gaps(context: Context) -> list[Bubble]:
    """Gaps in HBM's traffic in which the next copy waited for its buffer, or was issued after it was free."""
    return [b for b in context.bubbles if b.cause in (bubbles.BUFFER_NOT_FREE, bubbles.ISSUED_LATE)]


def prompt_stalls(context: Context) -> list[ExposedWait]:
    """Stalls with HBM idle for copies that were issued as soon as a buffer used before was free."""
    found = []
    for wait in context.waits:
        idle = wait.duration_ps - wait.hidden_by_hbm_ps
        if wait.kind != "dma" or idle <= 0 or wait.lateness_ps is None:
            continue
        issued = wait.start_ps - (wait.outstanding_ps or 0)
        # A copy into a buffer that nothing used before did not wait for it: that is the ramp.
        unused = issued - wait.lateness_ps <= context.core.start_ps
        if not unused and wait.lateness_ps * PROMPT <= max(wait.outstanding_ps or 0, idle):
            found.append(wait)
    return found


def stalls_say_it(context: Context) -> bool:
    """Whether the core mostly waits for copies while buffers are full, or rather works or waits for others.

    It is one fault, seen from two sides: MS102 speaks in the first case, MS112 in the second.
    """
    elsewhere = sum(b.duration_ps - b.ran.get("dma wait", 0) for b in gaps(context))
    return sum(w.duration_ps - w.hidden_by_hbm_ps for w in prompt_stalls(context)) >= elsewhere
