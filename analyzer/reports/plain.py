"""Text that comes from a capture, made safe and fitted into columns of a terminal."""

import itertools
import re
import unicodedata
from pathlib import PurePath

# Control characters, terminal escapes, line separators, and marks that reorder or hide text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def clean(text: object) -> str:
    """One line without control characters; each is replaced, so that nothing hides."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", str(text))


def width(text: str) -> int:
    """Columns that a cleaned text takes on a terminal."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def fit(text: object, columns: int, *, keep_end: bool = False) -> str:
    """The text in at most that many columns, `...` where something is left out."""
    line = clean(text)
    if width(line) <= columns:
        return line
    if columns <= 3:
        return "."[:columns] * columns
    kept: list[str] = []
    used = 0
    for character in reversed(line) if keep_end else line:
        used += width(character)
        if used > columns - 3:
            break
        kept.append(character)
    return "..." + "".join(reversed(kept)) if keep_end else "".join(kept) + "..."


def pad(text: object, columns: int, *, right: bool = False) -> str:
    """The text in exactly that many columns."""
    line = fit(text, columns)
    blank = " " * (columns - width(line))
    return blank + line if right else line + blank


def place(source: object, bundles: object) -> str:
    """A short place: the last two parts of the file, the line, and the bundle range in hexadecimal."""
    parts = []
    if source:
        path, _, line = str(source).rpartition(":")
        name = "/".join(PurePath(path).parts[-2:]) if path else line
        parts.append(f"{name}:{line}" if path else name)
    if isinstance(bundles, list | tuple) and len(bundles) == 2:
        first, last = bundles
        parts.append(f"{first:#x}" if first == last else f"{first:#x}-{last:#x}")
    return " ".join(parts) or "place unknown"


def percent(share: float | None) -> str:
    """A share as a percentage, or "unknown"."""
    return "unknown" if share is None else f"{share * 100:.1f} %"


def layers(numbers: list[int | None]) -> str:
    """Layers in words: "layers 0-15", "layer 3", ""."""
    known = sorted(n for n in numbers if n is not None)
    if not known:
        return ""
    if len(known) == 1:
        return f"layer {known[0]}"
    if known == list(range(known[0], known[-1] + 1)):
        return f"layers {known[0]}-{known[-1]}"
    return f"{len(known)} layers {known[0]}-{known[-1]}"


def ranges(numbers: list[int]) -> list[str]:
    """Numbers in order as ranges: "1-3", "5"; every fourth as one, "3, 7, ..., 91"."""
    known = sorted(numbers)
    steps = {after - before for before, after in itertools.pairwise(known)}
    if len(known) > 3 and len(steps) == 1 and steps != {1}:
        return [f"{known[0]}, {known[1]}, ..., {known[-1]}"]
    result = []
    first = 0
    for index, number in enumerate(known):
        if index + 1 == len(known) or known[index + 1] != number + 1:
            result.append(str(number) if first == index else f"{known[first]}-{number}")
            first = index + 1
    return result
