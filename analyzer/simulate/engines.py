"""The engines around a core, each a small class with one job. Times in picoseconds as floats.

An engine is handed requests in the order the core issues them and says when bytes flow. Any of them can
be replaced: `EngineSet` is what the scheduler uses, built from a machine by `engines_for`.
"""

import heapq
from dataclasses import dataclass, field

from analyzer.machine import Machine

PS = 1e12


class SerialQueue:
    """One copy at a time, in issue order: latency is pipelined, bytes are not.

    Used for the HBM queue of a core (reads and writes share it) and for copies inside VMEM.
    """

    __slots__ = ("descriptor", "free", "latency", "ps_per_byte")

    def __init__(self, latency_s: float, bandwidth: float, descriptor_s: float = 0.0) -> None:
        self.latency = latency_s * PS
        self.ps_per_byte = PS / bandwidth if bandwidth else 0.0
        self.descriptor = descriptor_s * PS
        self.free = 0.0

    def submit(self, issued: float, size: int) -> tuple[float, float]:
        """Start and end of the byte flow of a copy of `size` bytes issued at `issued`."""
        start = issued + self.latency
        start = max(start, self.free)
        end = start + self.descriptor + size * self.ps_per_byte
        self.free = end
        return start, end


class FairQueue:
    """All outstanding copies share the bandwidth equally (the alternative service order).

    Completion times of earlier copies would move when a later one joins, so a copy's end is only
    bounded here: it is served as if the others outstanding at its issue stay until it ends.
    """

    __slots__ = ("ends", "latency", "ps_per_byte")

    def __init__(self, latency_s: float, bandwidth: float, descriptor_s: float = 0.0) -> None:
        self.latency = latency_s * PS + descriptor_s * PS
        self.ps_per_byte = PS / bandwidth if bandwidth else 0.0
        self.ends: list[float] = []

    def submit(self, issued: float, size: int) -> tuple[float, float]:
        """Start and end of the byte flow of a copy of `size` bytes issued at `issued`."""
        start = issued + self.latency
        while self.ends and self.ends[0] <= start:
            heapq.heappop(self.ends)
        end = start + size * self.ps_per_byte * (len(self.ends) + 1)
        heapq.heappush(self.ends, end)
        return start, end


class IciPort:
    """What one core sends: a serial cost per message, an injection limit, one link per destination chip.

    The sibling core of the chip is reached without the links. Injection and links are separate
    servers: a message waits for its own link, not for the link of the message before it.
    """

    __slots__ = (
        "cost",
        "hop_latency",
        "injection_free",
        "injection_ps",
        "link_free",
        "link_latency",
        "link_ps",
        "send_free",
        "sibling_free",
        "sibling_latency",
        "sibling_ps",
    )

    def __init__(self, machine: Machine) -> None:
        def per_byte(name: str) -> float:
            return PS / machine[name] if machine[name] else 0.0

        self.cost = machine["ici.send.cost"] * PS
        self.injection_ps = per_byte("ici.send.bandwidth")
        self.link_ps = per_byte("ici.link.bandwidth")
        self.sibling_ps = per_byte("ici.sibling.bandwidth")
        self.link_latency = machine["ici.link.latency"] * PS
        self.sibling_latency = machine["ici.sibling.latency"] * PS
        self.hop_latency = machine["ici.hop.latency"] * PS
        self.send_free = 0.0
        self.injection_free = 0.0
        self.sibling_free = 0.0
        self.link_free: dict[int, float] = {}

    def send(self, issued: float, size: int, chip: int | None, hops: int = 0) -> tuple[float, float, float]:
        """Send `size` bytes to another chip, `hops` hosts away, or to the sibling core where chip is None.

        Returns:
            (start of the byte flow, when the source buffer is free again, arrival at the peer).
        """
        ready = issued if issued > self.send_free else self.send_free
        ready += self.cost
        self.send_free = ready
        if chip is None:
            start = ready if ready > self.sibling_free else self.sibling_free
            end = start + size * self.sibling_ps
            self.sibling_free = end
            return start, end, end + self.sibling_latency
        start = ready if ready > self.injection_free else self.injection_free
        injected = start + size * self.injection_ps
        self.injection_free = injected
        link_start = max(start, self.link_free.get(chip, 0.0))
        link_end = link_start + size * self.link_ps
        self.link_free[chip] = link_end
        end = link_end if link_end > injected else injected
        return start, end, end + self.link_latency + hops * self.hop_latency


@dataclass(slots=True)
class Semaphore:
    """One semaphore: a value and the additions that are on their way (time, amount, cause).

    latest: cause of the last addition that the last wait counted in, -1 if it needed none.
    """

    value: int = 0
    pending: list[tuple[float, int, int]] = field(default_factory=list)
    latest: int = -1

    def arrive(self, time: float, amount: int, cause: int) -> None:
        """`amount` will be added at `time` by transfer or signal `cause`."""
        heapq.heappush(self.pending, (time, amount, cause))

    def wait(self, now: float, amount: int) -> tuple[float, int] | None:
        """When the value reaches `amount`, from `now` on, and what raised it there.

        Returns:
            (time, cause), cause -1 where no wait was needed; None where nothing known reaches it:
            what was on its way before is then part of the value.
        """
        value, cause, pending = self.value, -1, self.pending
        self.latest = -1
        while value < amount:
            if not pending:
                self.value = value
                return None
            time, added, by = heapq.heappop(pending)
            value += added
            self.latest = by
            if time > now:
                now, cause = time, by
        self.value = value
        return now, cause

    def holds(self, now: float, amount: int) -> bool:
        """Does the value reach `amount` by `now` with what is known?"""
        value, pending = self.value, self.pending
        while value < amount and pending and pending[0][0] <= now:
            value += heapq.heappop(pending)[1]
        self.value = value
        return value >= amount

    def satisfied_at(self, now: float, amount: int) -> float | None:
        """When what is known raises the value to `amount`, changing nothing; None if it does not."""
        value = self.value
        if value >= amount:
            return now
        if value + sum(added for _, added, _ in self.pending) < amount:
            return None
        for time, added, _ in sorted(self.pending):
            value += added
            if value >= amount:
                return max(now, time)
        return None

    def settle(self) -> int:
        """The value once everything on its way has arrived."""
        while self.pending:
            self.value += heapq.heappop(self.pending)[1]
        return self.value


@dataclass(slots=True)
class EngineSet:
    """The engines of one core."""

    hbm: SerialQueue | FairQueue
    vmem: SerialQueue | FairQueue
    ici: IciPort


def engines_for(machine: Machine) -> EngineSet:
    """Fresh engines with the machine's parameters."""
    return EngineSet(
        hbm=SerialQueue(machine["hbm.latency"], machine["hbm.bandwidth"], machine["hbm.descriptor"]),
        vmem=SerialQueue(machine["vmem.latency"], machine["vmem.bandwidth"]),
        ici=IciPort(machine),
    )
