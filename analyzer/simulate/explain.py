"""Why a core stood still: the chain from a wait to what could have been done earlier.

For each exposed wait: which transfer ended it, where that was issued, what it stood behind in its queue, who
used its buffer until when, and how much earlier it could have been issued.
"""

from dataclasses import dataclass

from analyzer.simulate.compiled import Compiled
from analyzer.simulate.layout import GRANULE
from analyzer.simulate.log import CoreLog, Transfer
from analyzer.simulate.residency import buffer_history


@dataclass(frozen=True, slots=True)
class Story:
    """One exposed wait and its cause. Times in ps; sources are file:line, or a bundle address.

    Attributes:
        wait_source, start_ps, duration_ps, phase, layer: the wait; stall: its index in the core's stalls.
        kind: "copy", "message" (of another core) or "barrier".
        issue_source, issued_ps, bytes: the transfer that ended it; None of them for a barrier.
        cause: the transfer or receipt as the stall names it; sender: rank, of a message.
        behind: sources of the transfers whose bytes it had to wait for, latest first, at most four.
        behind_ps: time between issue and first byte beyond the latency; flow_ps: its bytes moving.
        buffer, buffer_free_ps, freed_by: the buffer it goes to, when it was free, who used it last.
        could_be_earlier_ps: issue after the buffer was free; None where that is not known.
        slack_ps: how long before the wait the transfer would have had to be complete: its duration.
    """

    core: int
    wait_source: str
    start_ps: int
    duration_ps: int
    phase: str
    layer: int | None
    kind: str
    stall: int
    cause: int = -1
    sender: int | None = None
    issue_source: str = ""
    issued_ps: int | None = None
    bytes: int | None = None
    behind: tuple[str, ...] = ()
    behind_ps: int = 0
    flow_ps: int | None = None
    buffer: str = ""
    buffer_free_ps: int | None = None
    freed_by: str = ""
    could_be_earlier_ps: int | None = None

    @property
    def slack_ps(self) -> int:
        """How much earlier the transfer would have had to be complete."""
        return self.duration_ps

    def sentences(self) -> list[str]:
        """The chain in words, the wait first."""
        where = f"layer {self.layer}, " if self.layer is not None else ""
        lines = [
            f"{self.wait_source} waits {self.duration_ps / 1e6:.2f} us ({where}{self.phase or 'no phase'})"
        ]
        if self.kind == "barrier":
            return [*lines, "for the barrier of all cores"]
        size = f"{self.bytes:,} bytes" if self.bytes else "a signal"
        lines.append(f"for a {self.kind} of {size}, issued at {self.issue_source}")
        if self.behind:
            lines.append(f"which stood {self.behind_ps / 1e6:.2f} us behind {', '.join(self.behind)}")
        if self.buffer_free_ps is not None and self.could_be_earlier_ps is not None:
            by = f", last used by {self.freed_by}" if self.freed_by else ""
            lines.append(
                f"into {self.buffer}{by}, free {self.could_be_earlier_ps / 1e6:.2f} us before the issue"
            )
        return lines


def explain(
    compiled: Compiled, log: CoreLog, cycle_ps: float, latency_ps: float, senders: dict[int, CoreLog]
) -> list[Story]:
    """The story of every exposed wait of a core, the longest first.

    Args:
        compiled: the program.
        log: the core's step.
        cycle_ps: length of a cycle.
        latency_ps: latency of a copy, the part of the time before its first byte that is nobody's fault.
        senders: logs by rank, for messages; of a core that is not there, what it sends mirrors `log`.
    """
    uses, _ = buffer_history(compiled, log, cycle_ps)
    queue = [i for i, t in enumerate(log.transfers) if t.peer < 0]
    place = {index: k for k, index in enumerate(queue)}
    stories = []
    for number, (site, start, end, cause, context, _) in enumerate(log.stalls):
        phase, layer = log.contexts[context]
        common = {
            "core": log.rank,
            "wait_source": where(compiled, site),
            "start_ps": round(start),
            "duration_ps": round(end) - round(start),
            "phase": phase,
            "layer": layer,
            "stall": number,
            "cause": cause,
        }
        if cause < 0:
            stories.append(Story(kind="barrier", **common))  # type: ignore[arg-type]
            continue
        index, sender = cause >> 1, None
        if cause & 1:
            sender, index, _ = log.receipts[index]
            transfer = (senders.get(sender, log) if len(senders) > 1 else log).transfers[index]
        else:
            transfer = log.transfers[index]
        own = not cause & 1
        facts: dict[str, object] = {
            "kind": "copy" if transfer.peer < 0 else "message",
            "sender": sender,
            "issue_source": where(compiled, transfer.site),
            "issued_ps": round(transfer.issued),
            "bytes": transfer.bytes,
            "flow_ps": round(transfer.source_end - transfer.start),
        }
        if own and transfer.peer < 0:
            facts |= _queue(compiled, log, queue, place[index], latency_ps)
            use = uses[index]
            if use is not None:
                placed = compiled.layout.find("vmem", transfer.destination)
                facts |= {
                    "buffer": "" if placed is None else _place(transfer, placed.name, placed.start),
                    "buffer_free_ps": round(use[0]),
                    "freed_by": "" if use[1] < 0 else _bundle_source(compiled, use[1]),
                    "could_be_earlier_ps": round(transfer.issued) - round(use[0]),
                }
        stories.append(Story(**common, **facts))  # type: ignore[arg-type]
    return sorted(stories, key=lambda s: -s.duration_ps)


def _queue(
    compiled: Compiled, log: CoreLog, queue: list[int], at: int, latency_ps: float
) -> dict[str, object]:
    """Who a copy stood behind: earlier copies that were still moving when it could have begun."""
    transfer = log.transfers[queue[at]]
    ready = transfer.issued + latency_ps
    if transfer.start <= ready + 1:
        return {}
    behind: dict[str, None] = {}
    for earlier in reversed(queue[:at]):
        other = log.transfers[earlier]
        if other.end <= ready or len(behind) == 4:
            break
        behind[where(compiled, other.site)] = None
    return {"behind": tuple(behind), "behind_ps": round(transfer.start - ready)}


def _place(transfer: Transfer, name: str, start: int) -> str:
    offset = (transfer.destination - start) * GRANULE
    return f"{name}+{offset:#x}" if offset else name


def where(compiled: Compiled, site: int) -> str:
    """Source line of a site, or its bundle address."""
    found = compiled.sites[site]
    return str(found.source) if found.source is not None else f"bundle {found.bundle:#x}"


def _bundle_source(compiled: Compiled, bundle: int) -> str:
    """First source line named in a bundle, and its address."""
    program = compiled.program
    first, last = int(program.bundle_first[bundle]), int(program.bundle_first[bundle + 1])
    for index in range(first, last):
        source = int(program.instruction_source[index])
        if source >= 0:
            return f"{program.sources[source]} (bundle {bundle:#x})"
    return f"bundle {bundle:#x}"
