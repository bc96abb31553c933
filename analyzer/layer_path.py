"""The critical path of a step, layer by layer: what each layer's stretch of it is made of, in which order.

A layer takes the time in which one of its regions is the innermost one; what lies in no layer is one more
row. Every piece of the path has one part and one place, so the parts of a row add up to its time and the rows
to the step. Models repeat a few kinds of layers many times: `layer_kinds` folds those whose paths are alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer import critical, intervals, nesting, view
from analyzer.critical import Segment
from analyzer.timeline import Track
from analyzer.view import CoreStep

# Of two layers with the same phases, this share of the longer one's time may lie in other links.
ALIKE = 0.25

SourceOf = Callable[[int, int], str]
_Key = tuple[int | None, str, str]
_Place = tuple[str, tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class Link:
    """What one phase of a layer puts on the path in one part, all its visits together.

    Attributes:
        phase: "" is time of the layer itself, between its phases. part: one of `critical.PARTS`.
        start_ps: of its first piece. time_ps: of all its pieces.
        source, bundles: of its longest piece: the wait, the copy, or the code at work; "" and None: unknown.
    """

    phase: str
    part: str
    start_ps: int
    time_ps: int
    source: str
    bundles: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class LayerPath:
    """The stretch of the critical path in one layer; layer None is everything outside layers.

    Attributes:
        start_ps, end_ps: of its first and last piece. parts: picoseconds of each of `critical.PARTS`.
        chain: in order of first pieces; their times add up to time_ps.
    """

    layer: int | None
    start_ps: int
    end_ps: int
    time_ps: int
    parts: dict[str, int]
    chain: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers whose paths are alike.

    Attributes:
        parts: sums over the layers. chain: sums over the layers, in the order of the first of them.
    """

    layers: tuple[int, ...]
    total_ps: int
    min_ps: int
    max_ps: int
    parts: dict[str, int]
    chain: tuple[Link, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """The path cut wherever its part or its place changes: int64[P] each, in order of time."""

    start: NDArray[np.int64]
    length: NDArray[np.int64]
    segment: NDArray[np.int64]
    key: NDArray[np.int64]
    keys: list[_Key]


def layer_paths(core: CoreStep, path: list[Segment], source_of: SourceOf | None = None) -> list[LayerPath]:
    """A row per layer in order of first entry, and what lies outside layers last, if anything does.

    Args:
        core: the core and step.
        path: `critical.critical_path` of it.
        source_of: (first, last bundle) -> source line, for code whose spans have none.

    Returns:
        Rows whose times add up to the step; none where no region of the timeline has a layer.
    """
    if not path or core.regions["layer"].isna().all():
        return []
    cut = _pieces(core, path)
    total = np.zeros(len(cut.keys), dtype=np.int64)
    np.add.at(total, cut.key, cut.length)
    # First and longest piece of each key: pieces are in order of time, and sorting is stable.
    first = np.unique(cut.key, return_index=True)[1]
    by_length = np.lexsort((-cut.length, cut.key))
    longest = by_length[np.unique(cut.key[by_length], return_index=True)[1]]
    last = np.zeros(len(cut.keys), dtype=np.int64)
    np.maximum.at(last, cut.key, cut.start + cut.length)

    places = _Finder(core, path, source_of)
    rows: dict[int | None, list[int]] = {}
    for index in np.argsort(first, kind="stable").tolist():
        rows.setdefault(cut.keys[index][0], []).append(index)
    if None in rows:
        rows[None] = rows.pop(None)  # to the end
    result = []
    for layer, members in rows.items():
        parts = dict.fromkeys(critical.PARTS, 0)
        chain = []
        for index in members:
            _, phase, part = cut.keys[index]
            parts[part] += int(total[index])
            piece = longest[index]
            middle = int(cut.start[piece] + cut.length[piece] // 2)
            source, bundles = places.of(part, int(cut.segment[piece]), middle)
            chain.append(Link(phase, part, int(cut.start[first[index]]), int(total[index]), source, bundles))
        result.append(
            LayerPath(
                layer=layer,
                start_ps=chain[0].start_ps,
                end_ps=int(last[members].max()),
                time_ps=int(total[members].sum()),
                parts=parts,
                chain=tuple(chain),
            )
        )
    return result


def layer_kinds(rows: Sequence[LayerPath]) -> list[LayerKind]:
    """Layers with the same phases in the same order and alike paths, the kind with most time first.

    A layer belongs to the first kind whose first layer it is like: no more than ALIKE of the longer one's
    time lies in other links (phase and part).
    """
    kinds: list[list[LayerPath]] = []
    for row in rows:
        if row.layer is None:
            continue
        for members in kinds:
            if _alike(members[0], row):
                members.append(row)
                break
        else:
            kinds.append([row])
    return sorted(map(_folded, kinds), key=lambda kind: (-kind.total_ps, kind.layers))


def _alike(a: LayerPath, b: LayerPath) -> bool:
    if _phases(a) != _phases(b):
        return False
    times = {(link.phase, link.part): link.time_ps for link in a.chain}
    common = sum(min(times.get((link.phase, link.part), 0), link.time_ps) for link in b.chain)
    longer = max(a.time_ps, b.time_ps)
    return longer - common <= ALIKE * longer


def _phases(row: LayerPath) -> list[str]:
    return list(dict.fromkeys(link.phase for link in row.chain))


def _folded(members: list[LayerPath]) -> LayerKind:
    parts = dict.fromkeys(critical.PARTS, 0)
    links: dict[tuple[str, str], list[Link]] = {}
    for row in members:
        for part, time in row.parts.items():
            parts[part] += time
        for link in row.chain:
            links.setdefault((link.phase, link.part), []).append(link)
    chain = []
    for (phase, part), alike in links.items():
        longest = max(alike, key=lambda link: link.time_ps)
        time = sum(link.time_ps for link in alike)
        chain.append(Link(phase, part, alike[0].start_ps, time, longest.source, longest.bundles))
    order = {phase: number for number, phase in enumerate(_phases(members[0]))}
    chain.sort(key=lambda link: order[link.phase])  # a part that only later layers have joins its phase
    times = [row.time_ps for row in members]
    return LayerKind(
        layers=tuple(sorted(row.layer for row in members if row.layer is not None)),
        total_ps=sum(times),
        min_ps=min(times),
        max_ps=max(times),
        parts=parts,
        chain=tuple(chain),
    )


def _pieces(core: CoreStep, path: list[Segment]) -> _Pieces:
    begin = np.array([segment.start_ps for segment in path], dtype=np.int64)
    low, high = path[0].start_ps, path[-1].end_ps
    regions = core.regions
    entered = np.clip(view.starts(regions), low, high)
    left = np.clip(view.ends(regions), low, high)
    inner_start, inner_end, row = nesting.innermost(entered, left)
    times = np.concatenate((begin, [high], core.mxu.ravel(), inner_start, inner_end))
    bounds = np.unique(np.clip(times, low, high))
    start, length = bounds[:-1], np.diff(bounds)

    segment = np.searchsorted(begin, start, side="right") - 1
    number = {part: index for index, part in enumerate(critical.PARTS)}
    # Work is told apart below; until then it is -1.
    part = np.array([number.get(one.part, -1) for one in path], dtype=np.int64)[segment]
    matrix = intervals.contains(core.mxu, start)
    part[(part < 0) & matrix] = number[critical.MATRIX]
    part[part < 0] = number[critical.OTHER_WORK]

    known: dict[tuple[int | None, str], int] = {(None, ""): 0}
    of_region = np.array(
        [
            known.setdefault((view.optional_int(layer), str(phase) or str(name)), len(known))
            for layer, phase, name in zip(regions["layer"], regions["phase"], regions["name"], strict=True)
        ],
        dtype=np.int64,
    )
    place = np.zeros(len(start), dtype=np.int64)
    at = np.searchsorted(inner_start, start, side="right") - 1
    inside = at >= 0
    inside[inside] = start[inside] < inner_end[at[inside]]
    place[inside] = of_region[row[at[inside]]]

    codes, key = np.unique(place * len(critical.PARTS) + part, return_inverse=True)
    names = list(known)
    keys: list[_Key] = [
        (*names[code // len(critical.PARTS)], critical.PARTS[code % len(critical.PARTS)])
        for code in codes.tolist()
    ]
    return _Pieces(start, length, segment.astype(np.int64), key.astype(np.int64), keys)


class _Finder:
    """Source line and bundles of a piece of the path."""

    def __init__(self, core: CoreStep, path: list[Segment], source_of: SourceOf | None) -> None:
        self._path = path
        self._source_of = source_of
        self._lines: dict[tuple[int, int], str] = {}
        waited = core.spans[core.spans["span"].isin({segment.span for segment in path})]
        self._waited = dict(zip(waited["span"].tolist(), _places(waited), strict=True))
        self._work = {
            part: (view.starts(code), view.ends(code), _places(code))
            for part, code in (
                (critical.MATRIX, view.on(core.spans, (Track.MXU,))),
                (critical.OTHER_WORK, view.on(core.spans, (Track.VECTOR, Track.SCALAR))),
            )
        }

    def of(self, part: str, segment: int, at: int) -> _Place:
        """Of the piece of this segment of the path around this time, in picoseconds."""
        if part in self._work:
            source, bundles = self._at_work(part, at)
        else:
            source, bundles = self._waited.get(self._path[segment].span, ("", None))
        if not source and bundles is not None and self._source_of is not None:
            if bundles not in self._lines:
                self._lines[bundles] = self._source_of(*bundles)
            source = self._lines[bundles]
        return source, bundles

    def _at_work(self, part: str, at: int) -> _Place:
        """Of the stretch of code that ran at this time."""
        starts, ends, places = self._work[part]
        row = int(np.searchsorted(starts, at, side="right")) - 1
        return places[row] if row >= 0 and at < ends[row] else ("", None)


def _places(spans: pd.DataFrame) -> list[_Place]:
    columns = (spans[name].tolist() for name in ("source", "bundle_first", "bundle_last"))
    return [
        (str(source or ""), view.bundle_range(first, last))
        for source, first, last in zip(*columns, strict=True)
    ]
