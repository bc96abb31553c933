"""Draws the diagrams of `dashboard.post` as SVG, to scale or simplified."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dashboard import text
from dashboard.marks import INK
from dashboard.palette import Theme
from dashboard.post import Arrow, Block, Diagram
from dashboard.svg import Picture

WIDTH = 1200.0
_LEFT, _RIGHT, _TOP = 118.0, 24.0, 66.0
_LANE, _GAP = 58.0, 26.0
_CHARACTER = 7.2
_LEGEND = (
    ("transfer", "HBM → VMEM transfer"),
    ("write", "transfer for the next layer"),
    ("matrix", "matrix work"),
    ("vector", "vector work"),
    ("collective", "collective"),
    ("scalar", "work of unknown kind"),
    ("wait", "wait"),
    ("bubble", "bubble: HBM idle"),
)


class Scale:
    """Time to pixels: proportional, or "not to scale", with short stretches widened to be readable."""

    def __init__(self, diagram: Diagram, to_scale: bool):
        edges = {diagram.start, diagram.end}
        for blocks in diagram.lanes.values():
            for block in blocks:
                edges |= {block.start, block.end}
        for span in diagram.spans:
            edges |= {span.start, span.end}
        self.times = np.array(sorted(e for e in edges if diagram.start <= e <= diagram.end), np.float64)
        lengths = np.diff(self.times)
        # The power flattens; order, and what overlaps what, stay as they are.
        widths = lengths if to_scale else np.power(np.maximum(lengths, 0), 0.35)
        total = widths.sum() or 1.0
        room = WIDTH - _LEFT - _RIGHT
        self.pixels = _LEFT + np.concatenate(([0.0], np.cumsum(widths))) * room / total

    def __call__(self, time: int) -> float:
        """Horizontal place of a time."""
        return float(np.interp(time, self.times, self.pixels))


@dataclass(frozen=True, slots=True)
class _Sheet:
    """What the parts of one drawing share."""

    picture: Picture
    diagram: Diagram
    scale: Scale
    theme: Theme
    hatch: str
    head: str


def draw(diagram: Diagram, theme: Theme, to_scale: bool = True) -> str:
    """The diagram as an SVG document of 1200 pixels width."""
    height = _TOP + len(diagram.lanes) * (_LANE + _GAP) + 96
    picture = Picture(WIDTH, height, theme.paper)
    hatch = picture.hatch("bubble", theme.colours["bubble"])
    head = picture.arrowhead("head", theme.muted)
    sheet = _Sheet(picture, diagram, Scale(diagram, to_scale), theme, hatch, head)
    picture.text(16, 28, diagram.title, fill=theme.text, size=18, anchor="start", weight="bold")
    about = f"{diagram.provenance}, {text.duration(diagram.end - diagram.start)}"
    about += "" if to_scale else ", not to scale"
    picture.text(WIDTH - _RIGHT, 28, about, fill=theme.muted, size=13, anchor="end")
    tops: dict[str, float] = {}
    top = _TOP
    for name, blocks in diagram.lanes.items():
        tops[name] = top
        picture.text(_LEFT - 12, top + _LANE / 2 + 4, name, fill=theme.text, anchor="end", weight="bold")
        for block in blocks:
            _block(sheet, block, top)
        top += _LANE + _GAP
    for arrow in diagram.arrows:
        _arrow(sheet, arrow, tops)
    _spans(sheet, top - _GAP + 12)
    _axis(sheet, top + 28, to_scale)
    _legend(sheet, height - 16)
    return picture.render()


def _block(sheet: _Sheet, block: Block, top: float) -> None:
    left, right = sheet.scale(block.start), sheet.scale(block.end)
    idle = block.kind == "bubble"
    colour, paper = sheet.theme.colours[block.kind], sheet.theme.paper
    inset = 8.0 if block.kind == "wait" else 0.0
    sheet.picture.rectangle(
        left,
        top + inset,
        max(right - left, 0.7),
        _LANE - 2 * inset,
        fill=sheet.hatch if idle else colour,
        stroke=colour if idle else (paper if right - left > 3 else "none"),
        title=f"{block.label}: {block.detail}",
    )
    width = len(block.label) * _CHARACTER + 8
    if width + (20 if idle else 0) > right - left:
        return
    middle = top + _LANE / 2
    if idle:
        sheet.picture.rectangle((left + right - width) / 2, middle - 9, width, 19, fill=paper)
    ink = colour if idle else INK[block.kind]
    sheet.picture.text((left + right) / 2, middle + 4, block.label, fill=ink)


def _arrow(sheet: _Sheet, arrow: Arrow, tops: dict[str, float]) -> None:
    low, high = tops[arrow.from_lane], tops[arrow.to_lane]
    down = high > low
    start = (sheet.scale(arrow.from_time), low + (_LANE if down else 0))
    end = (sheet.scale(arrow.to_time), high + (0 if down else _LANE))
    sheet.picture.line([start, end], stroke=sheet.theme.muted, dash="4 3", end=sheet.head)


def _spans(sheet: _Sheet, y: float) -> None:
    """Brackets with their names and lengths under the lanes."""
    diagram, used = sheet.diagram, -1e9
    for span in diagram.spans:
        left = sheet.scale(max(span.start, diagram.start))
        right = sheet.scale(min(span.end, diagram.end))
        sheet.picture.line([(left, y - 5), (left, y), (right, y), (right, y - 5)], stroke=sheet.theme.muted)
        words = f"{span.label} {text.duration(span.end - span.start)}"
        half = len(words) * _CHARACTER / 2
        middle = min(max((left + right) / 2, _LEFT + half), WIDTH - _RIGHT - half)
        if middle - half < used:
            words, half = span.label, len(span.label) * _CHARACTER / 2
            middle = max(used + half, (left + right) / 2)
            if middle + half > WIDTH:
                continue
        used = middle + half + 8
        sheet.picture.text(middle, y + 16, words, fill=sheet.theme.text)


def _axis(sheet: _Sheet, y: float, to_scale: bool) -> None:
    """Ticks in µs; without a scale only the order counts, so only the direction of time is said."""
    picture, muted = sheet.picture, sheet.theme.muted
    if not to_scale:
        picture.text(WIDTH - _RIGHT, y + 14, "time →", fill=muted, anchor="end", size=12)
        return
    for time in ticks(sheet.diagram.start, sheet.diagram.end):
        x = sheet.scale(time)
        picture.line([(x, y - 4), (x, y)], stroke=muted)
        picture.text(x, y + 14, _tick(time), fill=muted, size=12)
    picture.text(_LEFT - 12, y + 14, "time (µs)", fill=muted, anchor="end", size=12)


def _tick(time: int) -> str:
    value = time / 1e6
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def ticks(start: int, end: int, wanted: int = 9) -> list[int]:
    """Round times in ps within [start, end]."""
    raw = max(1.0, (end - start) / wanted)
    power = 10.0 ** np.floor(np.log10(raw))
    step = int(next(m * power for m in (1, 2, 5, 10) if m * power >= raw))
    first = -(-start // step) * step
    return list(range(int(first), int(end) + 1, step))


def _legend(sheet: _Sheet, y: float) -> None:
    diagram, theme = sheet.diagram, sheet.theme
    present = {b.kind for blocks in diagram.lanes.values() for b in blocks}
    prefetch = "HBM → VMEM" in diagram.lanes
    x = _LEFT
    for kind, usual in _LEGEND:
        if kind not in present:
            continue
        words = "VMEM → HBM" if kind == "write" and not prefetch else usual
        fill = sheet.hatch if kind == "bubble" else theme.colours[kind]
        sheet.picture.rectangle(x, y - 11, 16, 12, fill=fill, stroke=theme.colours[kind])
        sheet.picture.text(x + 22, y, words, fill=theme.text, size=12, anchor="start")
        x += 22 + len(words) * 7 + 20


def overlaps(diagram: Diagram) -> int:
    """Blocks of one lane that cover each other; 0 in a sound diagram."""
    return sum(
        1
        for blocks in diagram.lanes.values()
        for one, two in pairwise(sorted(blocks, key=lambda b: (b.start, b.end)))
        if two.start < one.end
    )
