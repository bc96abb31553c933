"""MS204: cores that wait for a peer that is still at work: skew, seen where all cores are in the timeline."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from analyzer import intervals, view
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.timeline import Track
from analyzer.units import duration
from analyzer.view import CoreStep


@dataclass(frozen=True, slots=True)
class Place:
    """Waits for messages at one place of the program, over all cores and rounds.

    Attributes:
        source: its line, "" if unknown. worst: per round (lateness of the last sender in ps, that sender).
    """

    source: str
    bundles: tuple[int, int] | None
    phase: str
    worst: list[tuple[int, int]]

    @property
    def time_ps(self) -> int:
        """The worst lateness of each round, added up."""
        return sum(late for late, _ in self.worst)


def late_places(context: Context) -> list[Place]:
    """Where cores wait for one still at work; empty where the timeline has one core only."""
    cores = {core.core: core for core in (context.core, *context.others)}
    working = {
        number: intervals.subtraction(core.program, core.stalled_ici) for number, core in cores.items()
    }
    # place -> number of the wait there -> (lateness, who was late) on each core
    found: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    where: dict[str, tuple[str, tuple[int, int] | None, str]] = {}
    for core in cores.values() if len(cores) > 1 else ():
        for key, number, late, sender, place in _lateness(core, working):
            found[key][number].append((late, sender))
            where.setdefault(key, place)
    return [Place(*where[key], [max(one) for one in rounds.values()]) for key, rounds in found.items()]


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    for place in late_places(context):
        time = min(place.time_ps, context.core.window_ps)
        if not context.significant(time):
            continue
        by_sender: Counter[int] = Counter()
        for late, sender in place.worst:
            by_sender[sender] += late
        (sender, most), *_ = by_sender.most_common(1)
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=time,
            saving_basis="bound: every message sent as early as its receivers wait for it",
            confidence=MEDIUM,
            source=place.source,
            bundles=place.bundles,
            phase=place.phase,
            count=len(place.worst),
            evidence=(
                f"in {len(place.worst)} rounds the last message was sent {duration(time)} (sum of the worst"
                " of each round) after a core began to wait for it, because its sender was at work",
                f"core {sender} is the last in {duration(most)} of it;"
                f" {len(by_sender)} of {1 + len(context.others)} cores are last in some round",
            ),
        )


def _lateness(
    core: CoreStep, working: dict[int, intervals.Intervals]
) -> Iterator[tuple[str, int, int, int, tuple[str, tuple[int, int] | None, str]]]:
    """Per wait for a message whose sender still worked: place, number there, how long, sender, names."""
    of_ici = core.wait_class == "ici"
    waits = core.waits[of_ici & core.waits["cause"].notna().to_numpy()]
    receipts = view.on(core.spans, (Track.ICI_RECV,)).set_index("span")
    receipts = receipts.reindex(waits["cause"].to_numpy(dtype=np.int64))
    seen: Counter[str] = Counter()
    for begin, source, first, last, phase, issued, queue in zip(
        waits["start_ps"], waits["source"], waits["bundle_first"], waits["bundle_last"], waits["phase"],
        receipts["issued_ps"], receipts["queue"], strict=True,
    ):  # fmt: skip
        bundles = view.bundle_range(first, last)
        place = view.place_key(str(source), bundles)
        number = seen[place]
        seen[place] += 1
        sender = str(queue).removeprefix("ici:")
        if view.optional_int(issued) is None or not sender.isdecimal() or int(sender) not in working:
            continue
        if int(issued) <= int(begin):
            continue
        edges = (np.array([begin], dtype=np.int64), np.array([issued], dtype=np.int64))
        late = int(intervals.covered(working[int(sender)], *edges)[0])
        if late:
            yield place, number, late, int(sender), (str(source), bundles, str(phase))


RULE = Rule(
    identifier="MS204",
    title="Late peer: cores wait for one still at work",
    family="Collectives",
    sees=(
        "With all cores in the timeline: a core waits for a message whose sender had not sent it yet, because"
        " it was still computing or waiting for its own copies."
    ),
    costs="A collective ends when the last core has sent; the others stand still until then.",
    example="if rank == 0: extra_work()  # before an all-reduce of all ranks",
    advice=(
        "Move what only the late core does after the collective, spread it over the cores, or send finished"
        " parts earlier."
    ),
    verify="megascope report CAPTURE --cores all, then compile again and run: megascope diff CAPTURE NEW",
    doubt=(
        "Skew in a real run also comes from what no model has (clocks, contention). A core that is late in"
        " one round may save that time in the next."
    ),
    look=_look,
)
