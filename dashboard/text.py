"""Text for people: escaping names, and numbers with units.

Names come from captures made by anybody. Plotly reads a subset of HTML in hovers, labels and tick
texts, so every name passes `plain` before it reaches a figure. Dash components render text as text.
"""

import math
import re
from functools import lru_cache

UNKNOWN = "unknown"
_CONTROLS = re.compile(
    "[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]+"
)


def shorten(name: object, limit: int = 80) -> str:
    """`name` on one line, without control or direction characters, at most `limit` characters.

    Right-to-left letters stay; the marks that reorder the text around them go.
    """
    return _shortened(str(name)[: 4 * limit], limit)


# A step has few names and many spans: half of the time of a zoom went into shortening the same ones again.
@lru_cache(maxsize=8192)
def _shortened(name: str, limit: int) -> str:
    text = _CONTROLS.sub(" ", name).strip()
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def plain(name: object, limit: int = 80) -> str:
    """`name` as literal text for Plotly: shortened, then HTML characters replaced by entities."""
    return _escaped(str(name)[: 4 * limit], limit)


@lru_cache(maxsize=8192)
def _escaped(name: str, limit: int) -> str:
    text = _shortened(name, limit)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def place(source: object, limit: int = 60) -> str:
    """`qwen/kernel.py:333` of a longer `file:line`; the full path belongs in a tooltip."""
    return _place(str(source)[:4000], limit)


@lru_cache(maxsize=8192)
def _place(source: str, limit: int) -> str:
    shown = "/".join(_shortened(source, 1000).replace("\\", "/").split("/")[-2:])
    return shown if len(shown) <= limit else "…" + shown[1 - limit :]


def size(count: float | None) -> str:
    """Bytes with a binary unit: `2.00 MiB`, `512 B`, `unknown`."""
    if _missing(count):
        return UNKNOWN
    value = float(count)  # type: ignore[arg-type]
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def duration(picoseconds: float | None) -> str:
    """A duration with the unit that leaves one to three digits before the point: `0.67 µs`."""
    if _missing(picoseconds):
        return UNKNOWN
    value = float(picoseconds)  # type: ignore[arg-type]
    for unit, scale in (("s", 1e12), ("ms", 1e9), ("µs", 1e6), ("ns", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} ps"


def rate(bytes_per_second: float | None) -> str:
    """Bandwidth in decimal GB/s."""
    return UNKNOWN if _missing(bytes_per_second) else f"{float(bytes_per_second) / 1e9:,.0f} GB/s"  # type: ignore[arg-type]


def percent(fraction: float | None) -> str:
    """`0.732` as `73.2 %`."""
    return UNKNOWN if _missing(fraction) else f"{100 * float(fraction):.1f} %"  # type: ignore[arg-type]


def bundles(first: object, last: object) -> str:
    """A bundle range as addresses: `0x1a2-0x1f0`, `0x1a2` or `unknown`."""
    if _missing(first):
        return UNKNOWN
    low = int(first)  # type: ignore[call-overload]
    if _missing(last) or int(last) == low:  # type: ignore[call-overload]
        return f"{low:#x}"
    return f"{low:#x}-{int(last):#x}"  # type: ignore[call-overload]


def count(value: int | None, singular: str, plural: str | None = None) -> str:
    """`1 span`, `12,345 spans`."""
    if _missing(value):
        return f"{UNKNOWN} {plural or singular + 's'}"
    return f"{value:,} {singular if value == 1 else plural or singular + 's'}"


def _missing(value: object) -> bool:
    """None, pd.NA and NaN; without importing pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and math.isnan(value)
