"""The same fault in every layer is one line of a report: bubbles and waits folded by cause and place."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.bubbles import TITLES, Bubble
from analyzer.view import place_key
from analyzer.waits import ExposedWait


@dataclass(frozen=True, slots=True)
class Group:
    """Bubbles or waits of the same cause at the same place.

    Attributes:
        total_ps: sum of the durations. longest_ps: the longest one.
        layers: distinct layers it occurs in, None for outside.
        lateness_ps: median lateness where known, else None.
    """

    cause: str
    title: str
    source: str
    bundles: tuple[int, int] | None
    name: str
    phase: str
    count: int
    total_ps: int
    longest_ps: int
    first_start_ps: int
    layers: tuple[int | None, ...]
    lateness_ps: int | None
    ran: dict[str, int]
    provenance: str


def group_bubbles(bubbles: Sequence[Bubble]) -> list[Group]:
    """Bubbles with the same cause and the same blamed line, the costliest first."""
    keyed: dict[tuple[str, str], list[Bubble]] = {}
    for bubble in bubbles:
        keyed.setdefault((bubble.cause, place_key(bubble.source, bubble.bundles)), []).append(bubble)
    groups = []
    for (cause, _), members in keyed.items():
        ran: dict[str, int] = {}
        for bubble in members:
            for name, time in bubble.ran.items():
                ran[name] = ran.get(name, 0) + time
        latenesses = [b.lateness_ps for b in members if b.lateness_ps is not None]
        largest = max(members, key=lambda b: b.duration_ps)
        groups.append(
            Group(
                cause=cause,
                title=TITLES[cause],
                source=members[0].source,
                bundles=_envelope([b.bundles for b in members]),
                name=_common([b.next_name for b in members]),
                phase=largest.phase,
                count=len(members),
                total_ps=sum(b.duration_ps for b in members),
                longest_ps=largest.duration_ps,
                first_start_ps=members[0].start_ps,
                layers=_layers([b.layer for b in members]),
                lateness_ps=int(np.median(latenesses)) if latenesses else None,
                ran=ran,
                provenance=members[0].provenance,
            )
        )
    return sorted(groups, key=lambda g: (-g.total_ps, g.first_start_ps))


def group_waits(waits: Sequence[ExposedWait]) -> list[Group]:
    """Stalls of the same kind at the same wait, the costliest first."""
    keyed: dict[tuple[str, str, str], list[ExposedWait]] = {}
    for wait in waits:
        started = place_key(wait.transfer_source, wait.transfer_bundles)
        keyed.setdefault((wait.kind, place_key(wait.source, wait.bundles), started), []).append(wait)
    groups = []
    for (kind, _, _), members in keyed.items():
        latenesses = [w.lateness_ps for w in members if w.lateness_ps is not None]
        total = sum(w.duration_ps for w in members)
        hidden = sum(w.hidden_by_hbm_ps for w in members)
        groups.append(
            Group(
                cause=f"{kind}_wait",
                title=f"{kind} wait",
                source=members[0].source,
                bundles=_envelope([w.bundles for w in members]),
                name=_common([w.transfer_name or w.name for w in members]),
                phase=members[0].phase,
                count=len(members),
                total_ps=total,
                longest_ps=max(w.duration_ps for w in members),
                first_start_ps=members[0].start_ps,
                layers=_layers([w.layer for w in members]),
                lateness_ps=int(np.median(latenesses)) if latenesses else None,
                ran={"hbm moving": hidden, "hbm idle": total - hidden},
                provenance=members[0].provenance,
            )
        )
    return sorted(groups, key=lambda g: (-g.total_ps, g.first_start_ps))


def _layers(layers: list[int | None]) -> tuple[int | None, ...]:
    """Distinct layers in order, None first."""
    return tuple(sorted(set(layers), key=lambda layer: -1 if layer is None else layer))


def _envelope(ranges: list[tuple[int, int] | None]) -> tuple[int, int] | None:
    """The smallest range around the known ones."""
    known = [r for r in ranges if r is not None]
    return (min(r[0] for r in known), max(r[1] for r in known)) if known else None


def _common(names: list[str]) -> str:
    """The distinct names, at most three of them."""
    distinct = list(dict.fromkeys(n for n in names if n))
    return ", ".join(distinct[:3]) + (", ..." if len(distinct) > 3 else "")
