"""One core with mirrored peers, or all cores together.

The scalar program does not depend on time, so every core's trace is made first. All cores together: each
runs ahead until a wait on a semaphore that others raise and that does not hold yet; then the core whose
wait is satisfied earliest goes on. That order is exact: whatever a core still sends arrives later than the
time at which it stands.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from analyzer.errors import UnsupportedProgramError
from analyzer.machine import Machine
from analyzer.simulate.compiled import Compiled
from analyzer.simulate.execute import CoreTrace
from analyzer.simulate.issue import IssueModel
from analyzer.simulate.schedule import CoreRun, Message, RunOptions
from analyzer.simulate.sites import Op, Site

_BARRIER_CAUSE = -2


class UnbalancedError(UnsupportedProgramError):
    """A wait is never satisfied, or a semaphore does not end at zero."""


def run_mirrored(
    compiled: Compiled, trace: CoreTrace, issue: IssueModel, machine: Machine, options: RunOptions
) -> CoreRun:
    """Time one core whose peers do the same at the same time: what it sends, it also receives.

    Raises:
        UnbalancedError: a wait is never satisfied, or a semaphore does not end at zero.
    """
    run = CoreRun(compiled, trace, issue, machine, options)

    def mirror(message: Message) -> None:
        if message.flag != compiled.layout.global_barrier_flag:
            run.receive(message)

    run.deliver = mirror
    while not run.run():
        site = _site(compiled, run)
        flag, amount = run.blocked_on or (0, 0)
        semaphore = run.semaphore(flag)
        if site.detail == "barrier":
            latency = machine["ici.link.latency"] * 1e12
            semaphore.arrive(run.now + latency, amount - semaphore.value, _BARRIER_CAUSE)
            continue
        raise UnbalancedError(
            compiled.program.path,
            f"{site.where}: waits for {amount} on semaphore {flag}, which holds {semaphore.value}; "
            "nothing the core does raises it",
            "With mirrored peers a core receives what it sends; simulate all cores" + _assumed(run),
        )
    _check_balance(compiled, [run])
    return run


def run_all(
    compiled: Compiled,
    traces: Sequence[CoreTrace],
    issue: IssueModel,
    machine: Machine,
    options: Mapping[int, RunOptions],
) -> list[CoreRun]:
    """Time all cores together.

    Args:
        compiled: the program all cores run.
        traces: one per core; ranks 0..n-1 in order.
        issue: cycles per block.
        machine: the chip.
        options: per rank; remote_flags is filled in here.

    Raises:
        UnbalancedError: the cores wait for each other for ever, or a semaphore does not end at zero.
    """
    flags = remote_flags(compiled, traces)
    runs = []
    for trace in traces:
        given = options.get(trace.rank, RunOptions())
        chosen = RunOptions(given.start, flags, given.without, given.hops)
        runs.append(CoreRun(compiled, trace, issue, machine, chosen))

    changed: dict[int, CoreRun] = {}  # stopped cores whose wait may now be satisfied, or earlier

    def deliver(message: Message) -> None:
        if message.peer >= len(runs):
            raise UnsupportedProgramError(
                compiled.program.path,
                f"core {message.sender} sends to core {message.peer}, and {len(runs)} cores take part",
                "Give the number of devices in the scenario",
            )
        peer = runs[message.peer]
        peer.receive(message)
        if peer.blocked_on is not None and peer.blocked_on[0] == message.flag:
            changed[message.peer] = peer

    for run in runs:
        run.deliver = deliver
    waiting = {run.core.rank: run for run in runs if not run.run()}
    changed |= waiting
    ready: list[tuple[float, int, int]] = []  # when a core goes on, its rank, where it stood; old ones too
    known: dict[int, tuple[float, int, int]] = {}
    while waiting:
        for rank, run in changed.items():
            time = run.wake_time()
            if time is not None:
                known[rank] = (time, rank, run.position)
                heappush(ready, known[rank])
        changed.clear()
        while ready and known.get(ready[0][1]) != ready[0]:
            heappop(ready)
        if not ready:
            _deadlock(compiled, list(waiting.values()))
        rank = heappop(ready)[1]
        del known[rank]
        if waiting[rank].run(decided=True):
            del waiting[rank]
        else:
            changed[rank] = waiting[rank]
    _check_balance(compiled, runs)
    return runs


def _site(compiled: Compiled, run: CoreRun) -> Site:
    """The site a run stands at."""
    entry = run.core.trace[min(run.position, len(run.core.trace) - 1)]
    return compiled.sites[entry if isinstance(entry, int) else entry[0]]


def remote_flags(compiled: Compiled, traces: Sequence[CoreTrace]) -> frozenset[int]:
    """Semaphores that any core raises at another."""
    sites = compiled.sites
    found: set[int] = set()
    for trace in traces:
        for entry in trace.trace:
            if type(entry) is int:
                continue
            op = sites[entry[0]].op
            if op is Op.DMA_GENERAL:
                if entry[7] & 0x4000:
                    found.add(entry[4] & 0x1FFF)
            elif op is Op.REMOTE_ADD:
                found.add(entry[1] & 0x1FFF)
    return frozenset(found)


def _deadlock(compiled: Compiled, waiting: Sequence[CoreRun]) -> None:
    run = waiting[0]
    flag, amount = run.blocked_on or (0, 0)
    raise UnbalancedError(
        compiled.program.path,
        f"{len(waiting)} cores wait for each other; core {run.core.rank} at {_site(compiled, run).where} "
        f"waits for {amount} on semaphore {flag}, which holds {run.semaphore(flag).value}",
        "The cores' scenarios do not fit together, or a message is not modelled rightly" + _assumed(run),
    )


def _check_balance(compiled: Compiled, runs: Sequence[CoreRun]) -> None:
    for run in runs:
        left = {flag: value for flag, value in run.log.semaphores.items() if value}
        if not left:
            continue
        flag, value = next(iter(left.items()))
        raise UnbalancedError(
            compiled.program.path,
            f"semaphore {flag} of core {run.core.rank} ends at {value}, not 0 ({len(left)} such); "
            f"last used at {_last_use(compiled, run, flag)}",
            "A branch, a delay slot or a peer is not modelled rightly; report the dump" + _assumed(run),
        )


def _last_use(compiled: Compiled, run: CoreRun, flag: int) -> str:
    for entry in reversed(run.core.trace):
        if not isinstance(entry, int) and flag in entry[1:]:
            return compiled.sites[entry[0]].where
    return "no site"


def _assumed(run: CoreRun) -> str:
    """The core's assumed values, for messages: one of them may be what does not fit."""
    items = run.core.assumptions.items.values()
    if not items:
        return ""
    return "; or give other values for what is assumed: " + ", ".join(
        f"{a.what} at {a.source} = {a.values[0]}{'...' if len(a.values) > 1 else ''}" for a in items
    )
