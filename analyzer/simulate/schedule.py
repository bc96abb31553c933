"""Puts times on the trace of one core: drives the engines in trace order."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappush
from typing import NamedTuple

from analyzer.machine import Machine
from analyzer.simulate.compiled import Compiled
from analyzer.simulate.engines import EngineSet, Semaphore, engines_for
from analyzer.simulate.execute import CoreTrace
from analyzer.simulate.issue import IssueModel
from analyzer.simulate.layout import GRANULE, HBM_BASE
from analyzer.simulate.log import CoreLog, Scopes, Transfer, phase_matches
from analyzer.simulate.sites import Op

# Plain integers: comparing members of an enumeration costs more than the rest of an event.
_WAIT_TAKE, _ADD, _REMOTE_ADD = int(Op.WAIT_TAKE), int(Op.ADD), int(Op.REMOTE_ADD)
_DMA, _DMA_GENERAL, _TOUCH = int(Op.DMA), int(Op.DMA_GENERAL), int(Op.TOUCH)
_SCOPE_START, _SCOPE_END = int(Op.SCOPE_START), int(Op.SCOPE_END)
_REMOTE = 0x4000
_FLAG = 0x1FFF
NO_FLAGS: frozenset[int] = frozenset()
_new = tuple.__new__  # skips the constructor of a named tuple


class Message(NamedTuple):
    """What arrives at another core: `amount` on semaphore `flag` at `time` (ps)."""

    peer: int
    flag: int
    time: float
    amount: int
    sender: int
    transfer: int


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to time a core.

    start: when its program begins (ps). remote_flags: semaphores that other simulated cores raise: a wait
    on one that does not hold yet stops the run. without: phases that take no time.
    """

    start: float = 0.0
    remote_flags: frozenset[int] = NO_FLAGS
    without: frozenset[str] = frozenset()
    hops: Callable[[int, int], int] = lambda a, b: 0


class CoreRun:
    """One core in time: runs until its exit or a wait that must be decided by others."""

    def __init__(
        self,
        compiled: Compiled,
        trace: CoreTrace,
        issue: IssueModel,
        machine: Machine,
        options: RunOptions = RunOptions(),
    ) -> None:
        self.compiled, self.core, self.issue, self.options = compiled, trace, issue, options
        self.engines: EngineSet = engines_for(machine)
        self.cores_per_chip = machine.cores_per_chip
        self.log = CoreLog(trace.rank)
        self.scopes = Scopes(self.log.contexts)
        self.semaphores: dict[int, Semaphore] = {}
        self.deliver: Callable[[Message], None] = lambda message: None
        self.position = 0
        self.now = self.base = options.start
        self.blocked_on: tuple[int, int] | None = None
        self._state = issue.idle
        self._fetch = issue.new_fetch()
        self._total = 0.0
        self._context = 0
        self._offsets: list[float] = []
        self._frozen: float | None = None

    def semaphore(self, flag: int) -> Semaphore:
        """The semaphore of that number, made when first used."""
        found = self.semaphores.get(flag)
        if found is None:
            found = self.semaphores[flag] = Semaphore()
        return found

    def receive(self, message: Message) -> None:
        """A message or signal of another core is on its way here."""
        _, flag, time, amount, sender, transfer = message
        receipts = self.log.receipts
        semaphore = self.semaphores.get(flag)
        if semaphore is None:
            semaphore = self.semaphores[flag] = Semaphore()
        heappush(semaphore.pending, (time, amount, 2 * len(receipts) + 1))
        receipts.append((sender, transfer, flag))

    def wake_time(self) -> float | None:
        """When what is known satisfies the wait this core stands at; None if nothing does."""
        assert self.blocked_on is not None
        flag, amount = self.blocked_on
        return self.semaphore(flag).satisfied_at(self.now, amount)

    # The hot loop: a call per event would double its cost.
    def run(self, *, decided: bool = False) -> bool:  # noqa: PLR0912, PLR0915
        """Go on; True at the exit, False at a wait to be decided (`blocked_on`).

        Args:
            decided: the wait the core stands at is satisfied at `wake_time` and by nothing earlier.
        """
        events = self.core.trace
        sites = self.compiled.sites
        operations, places = self.compiled.site_tables()
        log, issue, known = self.log, self.issue.block, self.issue.known
        base, context, offsets = self.base, self._context, self._offsets
        position, last = self.position, len(events)
        remote_flags = self.options.remote_flags
        visit_block, visit_start, visit_cycles = log.visit_block, log.visit_start, log.visit_cycles
        semaphores, fetch, stalls = self.semaphores, self._fetch, log.stalls
        touches, transfers, satisfied = log.touches, log.transfers, log.satisfied
        hbm, local = self.engines.hbm, self.engines.vmem
        state, total, frozen = self._state, self._total, self._frozen
        visits = len(visit_block) - 1
        while position < last:
            entry = events[position]
            if type(entry) is int:
                base += total
                if fetch is not None:
                    cycles = issue(entry, state, fetch.visit(entry))
                else:
                    cycles = known.get((entry, state, False)) or issue(entry, state)
                visit_block.append(entry)
                visit_start.append(base)
                visit_cycles.append(cycles)
                visits += 1
                state, total, offsets = cycles.state, cycles.total_ps, cycles.offset_ps
                position += 1
                continue
            site = entry[0]
            op = operations[site]
            if op == _TOUCH:
                touches.append((entry, base, len(transfers), visits))
                position += 1
                continue
            now = base + offsets[places[site]]
            if frozen is not None and op < _SCOPE_START:
                now = frozen
            if op <= _WAIT_TAKE:
                _, flag, amount = entry
                semaphore = semaphores.get(flag)
                if semaphore is None:
                    semaphore = semaphores[flag] = Semaphore()
                found = None
                if decided or flag not in remote_flags or semaphore.holds(now, amount):
                    found = semaphore.wait(now, amount)
                    decided = False
                if found is None:
                    self.base, self._context, self._offsets = base, context, offsets
                    self._state, self._total, self._frozen = state, total, frozen
                    self.now, self.position, self.blocked_on = now, position, (flag, amount)
                    return False
                until, cause = found
                if cause != -1 and frozen is None:
                    stalls.append((site, now, until, cause, context, visits))
                    base += until - now
                elif semaphore.latest >= 0 and frozen is None:
                    satisfied.append((site, now, semaphore.latest, context))
                if op == _WAIT_TAKE:
                    semaphore.value -= amount
            elif op == _DMA or (op == _DMA_GENERAL and not entry[7] & _REMOTE):
                source, destination, granules, flag = entry[1], entry[2], entry[3], entry[4] & _FLAG
                if frozen is not None:
                    start = end = now
                elif source >= HBM_BASE or destination >= HBM_BASE:
                    start, end = hbm.submit(now, granules * GRANULE)
                else:
                    start, end = local.submit(now, granules * GRANULE)
                semaphore = semaphores.get(flag)
                if semaphore is None:
                    semaphore = semaphores[flag] = Semaphore()
                heappush(semaphore.pending, (end, granules, 2 * len(transfers)))
                strides = entry[5] if op == _DMA else entry[6]
                copy = (
                    site,
                    now,
                    start,
                    end,
                    end,
                    granules * GRANULE,
                    source,
                    destination,
                    -1,
                    context,
                    strides,
                )
                transfers.append(_new(Transfer, copy))
            elif op == _DMA_GENERAL:
                self._remote(entry, now, context, frozen)
            elif op == _ADD:
                self.semaphore(entry[1]).value += entry[2]
            elif op == _REMOTE_ADD:
                self._signal(entry, now, context, frozen)
            else:
                if op == _SCOPE_START:
                    context = self.scopes.start(sites[site].detail)
                elif op == _SCOPE_END:
                    context = self.scopes.end(sites[site].detail)
                else:
                    context = self.scopes.value(int(sites[site].detail), entry[1])
                shift = 0.0
                if self.options.without:
                    frozen, shift = self._freeze(now, context, frozen)
                base += shift
                log.marks.append((now, visits, site, context, shift))
            position += 1
        log.end = base + total if frozen is None else frozen
        self.base, self.position, self.blocked_on = base, position, None
        log.semaphores = {flag: s.settle() for flag, s in semaphores.items()}
        return True

    def _freeze(self, now: float, context: int, frozen: float | None) -> tuple[float | None, float]:
        """Stop or resume time at a removed phase: (time it stands at, time to take back)."""
        if phase_matches(self.log.contexts[context][0], self.options.without):
            self.log.removed.add(context)
            return (now if frozen is None else frozen), 0.0
        return None, 0.0 if frozen is None else frozen - now

    def _remote(self, entry: tuple[int, ...], now: float, context: int, frozen: float | None) -> None:
        """A copy to another core: its semaphore there and ours here are raised."""
        site, source, destination, granules, flag, source_flag, _, overrides = entry
        size = granules * GRANULE
        transfers = self.log.transfers
        index = len(transfers)
        chip = overrides & 0x3FFF
        peer = chip * self.cores_per_chip + (overrides >> 26 & 1)
        if frozen is not None:
            start = source_end = arrival = now
        else:
            ready = self.engines.hbm.submit(now, size)[1] if source >= HBM_BASE else now
            start, source_end, arrival = self._send(ready, size, chip)
        sent = (site, now, start, arrival, source_end, size, source, destination, peer, context, None)
        transfers.append(_new(Transfer, sent))
        source_flag &= _FLAG
        semaphore = self.semaphores.get(source_flag)
        if semaphore is None:
            semaphore = self.semaphores[source_flag] = Semaphore()
        heappush(semaphore.pending, (source_end, granules, 2 * index))
        self.deliver(_new(Message, (peer, flag & _FLAG, arrival, granules, self.core.rank, index)))

    def _send(self, now: float, size: int, chip: int) -> tuple[float, float, float]:
        own = self.core.chip
        if chip == own:
            return self.engines.ici.send(now, size, None)
        return self.engines.ici.send(now, size, chip, self.options.hops(own, chip))

    def _signal(self, entry: tuple[int, ...], now: float, context: int, frozen: float | None) -> None:
        site, address, amount = entry
        flag, core, chip = address & _FLAG, (address >> 14) & 1, address >> 17
        peer = chip * self.cores_per_chip + core
        if frozen is not None:
            start = source_end = arrival = now
        else:
            start, source_end, arrival = self._send(now, 0, chip)
        index = len(self.log.transfers)
        self.log.transfers.append(
            Transfer(site, now, start, arrival, source_end, 0, -1, -1, peer, context, None)
        )
        self.deliver(Message(peer, flag, arrival, amount, self.core.rank, index))
