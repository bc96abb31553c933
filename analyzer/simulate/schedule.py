"""Puts times on the trace of one core: drives the engines in trace order."""

from collections.abc import Callable
from dataclasses import dataclass

from analyzer.machine import Machine
from analyzer.simulate.compiled import Compiled
from analyzer.simulate.engines import EngineSet, Semaphore, engines_for
from analyzer.simulate.execute import CoreTrace
from analyzer.simulate.issue import IssueModel
from analyzer.simulate.layout import GRANULE
from analyzer.simulate.log import CoreLog, Scopes, Transfer, phase_matches
from analyzer.simulate.sites import Op

_REMOTE = 0x4000
_FLAG = 0x1FFF
NO_FLAGS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Message:
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
    hops: Callable[[int, int], int] = lambda a, b: 1


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
        self.cycle_ps = machine.cycle_ps
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
        self._first = 0
        self._frozen: float | None = None

    def semaphore(self, flag: int) -> Semaphore:
        """The semaphore of that number, made when first used."""
        found = self.semaphores.get(flag)
        if found is None:
            found = self.semaphores[flag] = Semaphore()
        return found

    def receive(self, message: Message) -> None:
        """A message or signal of another core is on its way here."""
        receipts = self.log.receipts
        self.semaphore(message.flag).arrive(message.time, message.amount, 2 * len(receipts) + 1)
        receipts.append((message.sender, message.transfer, message.flag))

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
        sites, blocks = self.compiled.sites, self.compiled.program.blocks
        log, cycle = self.log, self.cycle_ps
        base, context, offsets, first = self.base, self._context, self._offsets, self._first
        position, last = self.position, len(events)
        remote_flags = self.options.remote_flags
        visit_block, visit_start, visit_cycles = log.visit_block, log.visit_start, log.visit_cycles
        semaphores, fetch = self.semaphores, self._fetch
        while position < last:
            entry = events[position]
            if type(entry) is int:
                base += self._total
                state = self._state
                cycles = self.issue.block(entry, state, fetch is not None and fetch.visit(entry))
                visit_block.append(entry)
                visit_start.append(base)
                visit_cycles.append(cycles)
                self._state, self._total = cycles.state, cycles.total * cycle
                offsets = cycles.offset
                first = blocks[entry].start
                position += 1
                continue
            site = sites[entry[0]]
            op = site.op
            if op is Op.TOUCH:
                log.touches.append((entry, base, len(log.transfers), len(visit_block) - 1))
                position += 1
                continue
            now = base + offsets[site.bundle - first] * cycle
            if self._frozen is not None and op < Op.SCOPE_START:
                now = self._frozen
            if op is Op.WAIT_TAKE or op is Op.WAIT:
                _, flag, amount = entry
                semaphore = semaphores.get(flag)
                if semaphore is None:
                    semaphore = semaphores[flag] = Semaphore()
                found = None
                if decided or flag not in remote_flags or semaphore.holds(now, amount):
                    found = semaphore.wait(now, amount)
                    decided = False
                if found is None:
                    self.base, self._context, self._offsets, self._first = base, context, offsets, first
                    self.now, self.position, self.blocked_on = now, position, (flag, amount)
                    return False
                until, cause = found
                if cause != -1 and self._frozen is None:
                    log.stalls.append((site.index, now, until, cause, context, len(visit_block) - 1))
                    base += until - now
                elif semaphore.latest >= 0 and self._frozen is None:
                    log.satisfied.append((site.index, now, semaphore.latest, context))
                if op is Op.WAIT_TAKE:
                    semaphore.value -= amount
            elif op is Op.DMA_GENERAL or op is Op.DMA:
                self._dma(op, entry, now, context)
            elif op is Op.ADD:
                self.semaphore(entry[1]).value += entry[2]
            elif op is Op.REMOTE_ADD:
                self._signal(entry, now, context)
            else:
                if op is Op.SCOPE_START:
                    context = self.scopes.start(site.detail)
                elif op is Op.SCOPE_END:
                    context = self.scopes.end(site.detail)
                else:
                    context = self.scopes.value(int(site.detail), entry[1])
                shift = self._freeze(now, context) if self.options.without else 0.0
                base += shift
                log.marks.append((now, len(visit_block) - 1, site.index, context, shift))
            position += 1
        log.end = base + self._total
        if self._frozen is not None:
            log.end = self._frozen
        self.base, self.position, self.blocked_on = base, position, None
        log.semaphores = {flag: s.settle() for flag, s in semaphores.items()}
        return True

    def _freeze(self, now: float, context: int) -> float:
        """Stop or resume time where a removed phase begins or ends; gives the time to take back."""
        removed = phase_matches(self.log.contexts[context][0], self.options.without)
        if removed:
            self.log.removed.add(context)
            if self._frozen is None:
                self._frozen = now
            return 0.0
        if self._frozen is None:
            return 0.0
        shift, self._frozen = self._frozen - now, None
        return shift

    def _dma(self, op: Op, entry: tuple[int, ...], now: float, context: int) -> None:
        if op is Op.DMA:
            site, source, destination, granules, flag, strides = entry
            overrides = source_flag = 0
        else:
            site, source, destination, granules, flag, source_flag, strides, overrides = entry
        size = granules * GRANULE
        log = self.log
        index = len(log.transfers)
        space = self.compiled.layout.space_of
        if not overrides & _REMOTE:
            if self._frozen is not None:
                start = end = now
            else:
                hbm = space(source) == "hbm" or space(destination) == "hbm"
                start, end = (self.engines.hbm if hbm else self.engines.vmem).submit(now, size)
            self.semaphore(flag & _FLAG).arrive(end, granules, 2 * index)
            log.transfers.append(
                Transfer(site, now, start, end, end, size, source, destination, -1, context, strides)  # type: ignore[arg-type]
            )
            return
        chip, core = overrides & 0x3FFF, (overrides >> 26) & 1
        peer = chip * self.cores_per_chip + core
        if self._frozen is not None:
            start = source_end = arrival = now
        else:
            ready = self.engines.hbm.submit(now, size)[1] if space(source) == "hbm" else now
            start, source_end, arrival = self._send(ready, size, chip)
        log.transfers.append(
            Transfer(site, now, start, arrival, source_end, size, source, destination, peer, context, None)
        )
        self.semaphore(source_flag & _FLAG).arrive(source_end, granules, 2 * index)
        self.deliver(Message(peer, flag & _FLAG, arrival, granules, self.core.rank, index))

    def _send(self, now: float, size: int, chip: int) -> tuple[float, float, float]:
        own = self.core.chip
        if chip == own:
            return self.engines.ici.send(now, size, None)
        return self.engines.ici.send(now, size, chip, self.options.hops(own, chip))

    def _signal(self, entry: tuple[int, ...], now: float, context: int) -> None:
        site, address, amount = entry
        flag, core, chip = address & _FLAG, (address >> 14) & 1, address >> 17
        peer = chip * self.cores_per_chip + core
        if self._frozen is not None:
            start = source_end = arrival = now
        else:
            start, source_end, arrival = self._send(now, 0, chip)
        index = len(self.log.transfers)
        self.log.transfers.append(
            Transfer(site, now, start, arrival, source_end, 0, -1, -1, peer, context, None)
        )
        self.deliver(Message(peer, flag, arrival, amount, self.core.rank, index))
