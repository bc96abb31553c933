"""Puts times on the traces of one or all cores.

The scalar program does not depend on time, so the traces are made first; here the engines are driven in
trace order. A core runs ahead until a wait that nothing known satisfies; then the core whose next wait is
satisfied earliest goes on. That order is exact: whatever another core still sends arrives later.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from analyzer.errors import UnsupportedProgramError
from analyzer.machine import Machine
from analyzer.simulate.codegen import Compiled
from analyzer.simulate.engines import EngineSet, Semaphore, engines_for
from analyzer.simulate.execute import CoreTrace
from analyzer.simulate.issue import IssueModel
from analyzer.simulate.layout import GRANULE
from analyzer.simulate.sites import Op

_REMOTE = 0x4000


@dataclass(slots=True)
class Transfer:
    """One DMA or remote signal. Times in ps; addresses in granules; end: the destination is complete.

    peer: rank of the other core, or -1. source_end: when the source may be overwritten.
    context: index into `CoreLog.contexts`. blocked: transfer that held the queue before, or -1.
    """

    site: int
    issued: float
    start: float
    end: float
    source_end: float
    bytes: int
    source: int
    destination: int
    peer: int
    context: int
    cause: int
    strides: tuple[int, ...] | None


@dataclass(slots=True)
class CoreLog:
    """Everything one core did, with times.

    visit_block, visit_start: block visits in order; marks: (time, visit, site, context) where the
    context changed; stalls: (site, start, end, cause, context, visit); touches: (event, time of the block's
    start with the stalls so far, transfers issued so far, visit); receipts: (sender rank, sender's transfer,
    semaphore), one per message received.

    A cause is 2 * t for the end of own transfer t, 2 * r + 1 for receipt r, negative for a barrier.
    """

    rank: int
    visit_block: list[int] = field(default_factory=list)
    visit_start: list[float] = field(default_factory=list)
    visit_state: list[tuple[float, ...]] = field(default_factory=list)
    stalls: list[tuple[int, float, float, int, int, int]] = field(default_factory=list)
    marks: list[tuple[float, int, int, int]] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    contexts: list[tuple[str, int | None]] = field(default_factory=lambda: [("", None)])
    end: float = 0.0
    semaphores: dict[int, int] = field(default_factory=dict)
    touches: list[tuple[object, float, int, int]] = field(default_factory=list)
    receipts: list[tuple[int, int, int]] = field(default_factory=list)


class _Scopes:
    """Phase path and layer from scope markers; gives the index of the current context."""

    def __init__(self, contexts: list[tuple[str, int | None]]) -> None:
        self.contexts = contexts
        self.known = {context: i for i, context in enumerate(contexts)}
        self.stack: list[tuple[str, int | None]] = []
        self.value_scope = False
        self.layer: int | None = None
        self.low = 0

    def start(self, name: str) -> int:
        self.stack.append((name, self.layer))
        return self.current()

    def end(self, name: str) -> int:
        if self.value_scope:
            self.value_scope = False
            if self.stack:
                self.stack.pop()
            return self.current()
        for depth in range(len(self.stack) - 1, -1, -1):
            if self.stack[depth][0] == name:
                self.layer = self.stack[depth][1]
                del self.stack[depth:]
                break
        return self.current()

    def value(self, tag: int, value: int) -> int:
        """`vtrace.arg`: tag 1 carries the low 16 bits, tag 3 the high ones of a trace value."""
        if tag == 1:
            self.low = value & 0xFFFF
        layer = self.low | ((value & 0xFFFF) << 16) if tag == 3 else self.low
        if self.stack and self.stack[-1][0].rpartition("/")[2] == "layer":
            self.layer = layer
        self.value_scope = True
        return self.current()

    def current(self) -> int:
        phase = "/".join(name for name, _ in self.stack if name and name != "layer")
        context = (phase, self.layer)
        index = self.known.get(context)
        if index is None:
            index = self.known[context] = len(self.contexts)
            self.contexts.append(context)
        return index


class CoreRun:
    """One core in time: runs until a wait that nothing known satisfies."""

    def __init__(
        self, compiled: Compiled, trace: CoreTrace, issue: IssueModel, machine: Machine, start: float
    ) -> None:
        self.compiled, self.core, self.issue = compiled, trace, issue
        self.engines: EngineSet = engines_for(machine)
        self.cycle_ps = machine.cycle_ps
        self.cores_per_chip = machine.cores_per_chip
        self.log = CoreLog(trace.rank)
        self.scopes = _Scopes(self.log.contexts)
        self.semaphores: dict[int, Semaphore] = {}
        self.position = 0
        self.base = start
        self.now = start
        self.state = issue.idle
        self.total = 0.0
        self.context = 0
        self._offsets: list[float] = []
        self._first = 0
        self.blocked_on: tuple[int, int] | None = None
        self.deliver: Callable[[int, int, float, int, int, int], None] | None = None

    def semaphore(self, flag: int) -> Semaphore:
        """The semaphore of that number, made when first used."""
        found = self.semaphores.get(flag)
        if found is None:
            found = self.semaphores[flag] = Semaphore()
        return found

    def receive(self, flag: int, arrival: float, amount: int, sender: int, index: int) -> None:
        """A message or signal of another core arrives: transfer `index` of core `sender`."""
        receipts = self.log.receipts
        self.semaphore(flag).arrive(arrival, amount, 2 * len(receipts) + 1)
        receipts.append((sender, index, flag))

    def run(self) -> bool:
        """Go on; True at the exit, False at a wait that nothing known satisfies (`blocked_on`)."""
        events = self.core.trace
        sites = self.compiled.sites
        log, cycle = self.log, self.cycle_ps
        base, context = self.base, self.context
        position, last = self.position, len(events)
        offsets = self._offsets
        while position < last:
            entry = events[position]
            if type(entry) is int:
                base += self.total
                cycles = self.issue.block(entry, self.state)
                log.visit_block.append(entry)
                log.visit_start.append(base)
                log.visit_state.append(self.state)
                self.state, self.total = cycles.state, cycles.total * cycle
                offsets = self._offsets = cycles.offset
                self._first = self.compiled.program.blocks[entry].start
                position += 1
                continue
            site = sites[entry[0]]  # type: ignore[index]
            op = site.op
            if op is Op.TOUCH:
                log.touches.append((entry, base, len(log.transfers), len(log.visit_block) - 1))
                position += 1
                continue
            now = base + offsets[site.bundle - self._first] * cycle
            if op is Op.WAIT_TAKE or op is Op.WAIT:
                _, flag, amount = entry  # type: ignore[misc]
                semaphore = self.semaphore(flag)
                found = semaphore.wait(now, amount)
                if found is None:
                    self.base, self.context, self.position = base, context, position
                    self.now, self.blocked_on = now, (flag, amount)
                    return False
                until, cause = found
                if cause != -1:
                    log.stalls.append((site.index, now, until, cause, context, len(log.visit_block) - 1))
                    base += until - now
                if op is Op.WAIT_TAKE:
                    semaphore.value -= amount
            elif op is Op.DMA_GENERAL or op is Op.DMA:
                self._dma(site.index, op, entry, now, context)
            elif op is Op.ADD:
                self.semaphore(entry[1]).value += entry[2]  # type: ignore[index, operator]
            elif op is Op.REMOTE_ADD:
                self._signal(site.index, entry, now, context)
            else:
                if op is Op.SCOPE_START:
                    context = self.scopes.start(site.detail)
                elif op is Op.SCOPE_END:
                    context = self.scopes.end(site.detail)
                elif op is Op.VALUE:
                    context = self.scopes.value(int(site.detail), entry[1])  # type: ignore[index]
                log.marks.append((now, len(log.visit_block) - 1, site.index, context))
            position += 1
        log.end = base + self.total
        self.base, self.position = base, position
        log.semaphores = {flag: s.settle() for flag, s in self.semaphores.items()}
        return True

    def _dma(self, site: int, op: Op, entry: object, now: float, context: int) -> None:
        if op is Op.DMA:
            _, source, destination, granules, flag, strides = entry  # type: ignore[misc]
            self._local(site, source, destination, granules, flag, strides, now, context)
            return
        _, source, destination, granules, flag, source_flag, strides, overrides = entry  # type: ignore[misc]
        if overrides & _REMOTE:
            chip, core = overrides & 0x3FFF, (overrides >> 26) & 1
            self._remote(site, source, destination, granules, flag, source_flag, chip, core, now, context)
        else:
            self._local(site, source, destination, granules, flag, strides, now, context)

    def _local(  # noqa: PLR0917
        self,
        site: int,
        source: int,
        destination: int,
        granules: int,
        flag: int,
        strides: tuple[int, ...] | None,
        now: float,
        context: int,
    ) -> None:
        space = self.compiled.layout.space_of
        hbm = space(source) == "hbm" or space(destination) == "hbm"
        queue = self.engines.hbm if hbm else self.engines.vmem
        start, end = queue.submit(now, granules * GRANULE)
        self.semaphore(flag & 0x1FFF).arrive(end, granules, 2 * len(self.log.transfers))
        self.log.transfers.append(
            Transfer(
                site, now, start, end, end, granules * GRANULE, source, destination, -1, context, -1, strides
            )
        )

    def _remote(  # noqa: PLR0917
        self,
        site: int,
        source: int,
        destination: int,
        granules: int,
        flag: int,
        source_flag: int,
        chip: int,
        core: int,
        now: float,
        context: int,
    ) -> None:
        peer = chip * self.cores_per_chip + core
        size = granules * GRANULE
        if self.compiled.layout.space_of(source) == "hbm":
            now_ready = self.engines.hbm.submit(now, size)[1]
        else:
            now_ready = now
        to = None if chip == self.core.chip else chip
        start, source_end, arrival = self.engines.ici.send(now_ready, size, to)
        index = len(self.log.transfers)
        self.log.transfers.append(
            Transfer(
                site, now, start, arrival, source_end, size, source, destination, peer, context, -1, None
            )
        )
        self.semaphore(source_flag & 0x1FFF).arrive(source_end, granules, 2 * index)
        assert self.deliver is not None
        self.deliver(peer, flag & 0x1FFF, arrival, granules, self.core.rank, index)

    def _signal(self, site: int, entry: object, now: float, context: int) -> None:
        _, address, amount = entry  # type: ignore[misc]
        flag, core, chip = address & 0x1FFF, (address >> 14) & 1, address >> 17
        peer = chip * self.cores_per_chip + core
        start, source_end, arrival = self.engines.ici.send(now, 0, None if chip == self.core.chip else chip)
        index = len(self.log.transfers)
        self.log.transfers.append(
            Transfer(site, now, start, arrival, source_end, 0, -1, -1, peer, context, -1, None)
        )
        assert self.deliver is not None
        self.deliver(peer, flag, arrival, amount, self.core.rank, index)


def schedule_mirrored(compiled: Compiled, trace: CoreTrace, issue: IssueModel, machine: Machine) -> CoreRun:
    """Time one core whose peers do the same at the same time: what it sends, it also receives.

    Raises:
        UnsupportedProgramError: a wait is never satisfied, or a semaphore does not end at zero.
    """
    run = CoreRun(compiled, trace, issue, machine, 0.0)

    def mirror(peer: int, flag: int, arrival: float, amount: int, sender: int, index: int) -> None:
        run.receive(flag, arrival, amount, peer, index)

    run.deliver = mirror
    while not run.run():
        assert run.blocked_on is not None
        flag, amount = run.blocked_on
        entry = trace.trace[run.position]
        site = compiled.sites[entry[0]]  # type: ignore[index]
        if site.detail == "barrier":
            latency = machine["ici.link.latency"] * 1e12
            run.semaphore(flag).arrive(run.now + latency, amount - run.semaphore(flag).value, -2)
            continue
        raise UnsupportedProgramError(
            compiled.program.path,
            f"{site.where}: waits for {amount} on semaphore {flag} and holds {run.semaphore(flag).value}, "
            f"and nothing raises it",
            "With mirrored peers a core receives what it sends; try all cores",
        )
    return run


def check_balance(compiled: Compiled, runs: Sequence[CoreRun]) -> None:
    """Every semaphore must end at zero.

    Raises:
        UnsupportedProgramError: one does not; names it and what was done to it last.
    """
    for run in runs:
        left = {flag: value for flag, value in run.log.semaphores.items() if value}
        if left:
            flag, value = next(iter(left.items()))
            last = _last_use(compiled, run, flag)
            raise UnsupportedProgramError(
                compiled.program.path,
                f"semaphore {flag} of core {run.core.rank} ends at {value}, not 0 ({len(left)} such); last used at {last}",
                "A branch, a delay slot or a peer is not modelled rightly; report the dump",
            )


def _last_use(compiled: Compiled, run: CoreRun, flag: int) -> str:
    for entry in reversed(run.core.trace):
        if not isinstance(entry, int) and flag in entry[1:]:
            return compiled.sites[entry[0]].where  # type: ignore[index]
    return "no site"
