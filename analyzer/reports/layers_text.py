"""The critical path layer by layer in a few lines: kinds of layers, or the layers that were asked for."""

import textwrap
from dataclasses import dataclass
from typing import Any

from analyzer.reports.plain import clean, fit, ranges
from analyzer.units import duration

Report = dict[str, Any]
SHOWN = 3  # kinds, or layers
NAMED = 2  # of the others
_INDENT = 8
_SMALL = 0.05  # parts of a layer below this share are left out


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    time_ps: int
    total_ps: int
    parts: dict[str, int]
    chain: list[tuple[str, str, int]]


def lines(report: Report, most: int, columns: int) -> list[str]:
    """At most `most` lines; none where the program marks no layers.

    Kinds of layers, that with most time first, with how many there are, mean, shortest and longest time, the
    parts, and the longest links of the chain in order, mean times. In a report on some layers these layers.
    """
    layers, kinds = report.get("layers") or [], report.get("layer_kinds") or []
    count = report.get("selected", {}).get("layers")
    # A part of a kind was asked for: its mean would be that of other layers too.
    chosen = count is not None and count["matching"] < sum(kind["count"] for kind in kinds)
    rows = [_of_layer(row) for row in layers if row["layer"] is not None]
    if not chosen:
        rows = [_of_kind(kind) for kind in kinds]
    outside = [_of_layer(row) for row in layers if row["layer"] is None]
    shown, others = rows[:SHOWN], [*rows[SHOWN:], *outside]
    if not shown:
        left_out = count["total"] if count is not None else 0
        return [f"layers  none of {left_out} selected"] if left_out else []
    heads = [_head(row, columns - _INDENT) for row in shown]
    rest = _rest(others)
    room = most - len(heads) - len(rest)
    result = []
    for number, (row, head) in enumerate(zip(shown, heads, strict=True)):
        allowed = (room + 1) // 2 if number + 1 < len(shown) else room  # the rows behind get the rest
        chain = _wrapped(row, allowed, columns - _INDENT)
        room -= len(chain)
        result += [head, *chain]
    result += rest
    return [("layers" if not number else "").ljust(_INDENT) + line for number, line in enumerate(result)]


def part_name(part: str) -> str:
    """A part of the path in few words."""
    return part.removesuffix("_ps").replace("_", " ").removesuffix(" work")


def parts(values: dict[str, int], total_ps: int, least: float = _SMALL) -> str:
    """Shares of the parts, the largest first."""
    ordered = sorted(values.items(), key=lambda item: -item[1])
    return " | ".join(
        f"{part_name(name)} {value / total_ps:.0%}"
        for name, value in ordered
        if total_ps and value >= least * total_ps
    )


def extent(low: int, high: int) -> str:
    """Two times as a range, the unit once if it is one."""
    first, last = duration(low), duration(high)
    if first == last:
        return last
    (number, unit), other = first.split(" "), last.split(" ")[-1]
    return f"{number}-{last}" if unit == other else f"{first}-{last}"


def link_words(phase: str, part: str, time_ps: int) -> str:
    """One link of a chain."""
    return f"{clean(phase) or '(no phase)'} {part_name(part)} {duration(time_ps)}"


def _of_kind(kind: Report) -> _Row:
    numbers = kind["layers"]
    if len(numbers) == 1:
        name = f"layer {numbers[0]}, {duration(kind['total_ps'])}"
    else:
        mean, around = duration(kind["mean_ps"]), extent(kind["min_ps"], kind["max_ps"])
        spread = "" if around == mean else f" ({around})"
        name = f"{len(numbers)} x {mean}{spread}, {_few(ranges(numbers))}"
    chain = [(link["phase"], link["part"], link["mean_ps"]) for link in kind["chain"]]
    return _Row(name, kind["mean_ps"], kind["total_ps"], kind["parts"], chain)


def _of_layer(row: Report) -> _Row:
    where = "outside layers" if row["layer"] is None else f"layer {row['layer']}"
    chain = [(link["phase"], link["part"], link["time_ps"]) for link in row["chain"]]
    return _Row(f"{where}, {duration(row['time_ps'])}", row["time_ps"], row["time_ps"], row["parts"], chain)


def _few(found: list[str]) -> str:
    """Ranges with the middle left out where there are many."""
    return ", ".join(found if len(found) < 4 else [found[0], found[1], "...", found[-1]])


def _head(row: _Row, columns: int) -> str:
    return fit(f"{row.name}: {parts(row.parts, row.total_ps)}", columns)


def _rest(others: list[_Row]) -> list[str]:
    """What is not shown: one line, with names and the largest part of each where they are few."""
    if not others:
        return []
    named = "; ".join(f"{row.name}, {parts(row.parts, row.total_ps).split(' | ')[0]}" for row in others)
    if len(others) > NAMED:
        named = f"{len(others)} more, {duration(sum(row.total_ps for row in others))} together"
    return [f"and {named}"]


def _wrapped(row: _Row, count: int, columns: int) -> list[str]:
    """As many of the longest links as fit into so many lines, in order."""
    found: list[str] = []
    by_time = sorted(range(len(row.chain)), key=lambda index: -row.chain[index][2])
    for number in range(1, len(by_time) + 1 if count else 1):
        words = [link_words(*row.chain[index]) for index in sorted(by_time[:number])]
        # A link stays in one line: its blanks must not break.
        packed = ", ".join(word.replace(" ", "\N{NO-BREAK SPACE}") for word in words)
        wrapped = textwrap.wrap(packed, columns - 2, break_long_words=False, break_on_hyphens=False)
        if len(wrapped) > count or max(map(len, wrapped)) > columns - 2:
            break
        found = wrapped
    return ["  " + line.replace("\N{NO-BREAK SPACE}", " ") for line in found]
