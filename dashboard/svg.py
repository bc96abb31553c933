"""A small writer of SVG pictures: rectangles, texts, lines, arrows and hatches; names are always text."""

from xml.sax.saxutils import escape, quoteattr

from dashboard.text import shorten


class Picture:
    """An SVG under construction. Coordinates are pixels from the top left."""

    def __init__(self, width: float, height: float, background: str):
        self.width, self.height = width, height
        self._definitions: list[str] = []
        self._items: list[str] = [
            _tag("rect", {"x": 0, "y": 0, "width": width, "height": height, "fill": background})
        ]

    def hatch(self, name: str, colour: str) -> str:
        """Define a diagonal hatch; returns the fill to use it with."""
        line = _tag("path", {"d": "M0 7L7 0", "stroke": colour, "stroke-width": 1.3})
        self._definitions.append(
            f'<pattern id="{name}" width="7" height="7" patternUnits="userSpaceOnUse">{line}</pattern>'
        )
        return f"url(#{name})"

    def arrowhead(self, name: str, colour: str) -> str:
        """Define an arrow head; returns the marker to use it with."""
        head = _tag("path", {"d": "M0 0L8 4L0 8z", "fill": colour})
        self._definitions.append(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto">{head}</marker>'
        )
        return f"url(#{name})"

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        stroke: str = "none",
        title: str = "",
    ) -> None:
        """A rectangle; `title` appears when the mouse rests on it."""
        inner = f"<title>{escape(shorten(title, 200))}</title>" if title else ""
        place = {"x": x, "y": y, "width": max(0.0, width), "height": height}
        self._items.append(_tag("rect", {**place, "fill": fill, "stroke": stroke, "rx": 1.5}, inner))

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        fill: str,
        size: float = 13,
        anchor: str = "middle",
        weight: str = "normal",
    ) -> None:
        """A text with its baseline at y."""
        style = {"font-size": size, "text-anchor": anchor, "font-weight": weight}
        self._items.append(_tag("text", {"x": x, "y": y, "fill": fill, **style}, escape(shorten(words, 120))))

    def line(
        self,
        points: list[tuple[float, float]],
        *,
        stroke: str,
        width: float = 1.2,
        dash: str = "",
        end: str = "",
    ) -> None:
        """A line through points, with an optional arrow head at its end."""
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        attributes: dict[str, object] = {"d": path, "stroke": stroke, "fill": "none", "stroke-width": width}
        if dash:
            attributes["stroke-dasharray"] = dash
        if end:
            attributes["marker-end"] = end
        self._items.append(_tag("path", attributes))

    def render(self) -> str:
        """The picture as an SVG document."""
        family = "system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" font-family="{family}">'
            f"<defs>{''.join(self._definitions)}</defs>{''.join(self._items)}</svg>"
        )


def _tag(name: str, attributes: dict[str, object], inner: str = "") -> str:
    parts = []
    for key, value in attributes.items():
        shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
        parts.append(f" {key}={quoteattr(shown)}")
    return f"<{name}{''.join(parts)}>{inner}</{name}>" if inner else f"<{name}{''.join(parts)}/>"
