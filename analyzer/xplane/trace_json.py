"""Reads `<host>.trace.json.gz`, the Chrome trace that the profiler writes beside the xplane.

It holds less than the xplane (no metadata stats, at most 1,000,000 events, cut without a word), so it is what
one reads where the xplane is gone.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analyzer.errors import InputError

# jax and xprof stop writing at this many events and say so nowhere.
EVENT_LIMIT = 1_000_000
_BLOCK = 1 << 20
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_AGAIN = "Read the .xplane.pb beside it, or record again."


@dataclass(slots=True)
class TraceSummary:
    """What a pass over the events found.

    Attributes:
        events: Events with a duration.
        names: Process and thread names by (pid, tid); tid None for the process.
        complete: False if the file ends in the middle of the list.
        notes: What a reader of the numbers must know.
    """

    events: int = 0
    names: dict[tuple[int, int | None], str] = field(default_factory=dict)
    complete: bool = True
    notes: list[str] = field(default_factory=list)


def read_events(path: Path, summary: TraceSummary) -> Iterator[dict[str, Any]]:
    """The complete events (`ph` = X) in order: `pid`, `tid`, `name`, `ts` and `dur` in us, `args`.

    The file is read in blocks, so memory stays bounded. `summary` is filled on the way; its notes are
    complete once the iteration has ended.

    Raises:
        InputError: the file is no trace, or is damaged before its first event.
    """
    for event in _items(path, summary):
        if not isinstance(event, dict):
            continue
        if event.get("ph") == "M":
            _take_name(event, summary)
        elif event.get("ph") == "X":
            summary.events += 1
            yield event
    if summary.events >= EVENT_LIMIT:
        summary.notes.append(
            f"{summary.events:,} events: the profiler stops writing trace.json at {EVENT_LIMIT:,} without "
            "saying so, and later events are missing; read the .xplane.pb instead"
        )
    if not summary.complete:
        summary.notes.append(f"the file is cut off after {summary.events:,} events; later ones are missing")


def _take_name(event: dict[str, Any], summary: TraceSummary) -> None:
    arguments = event.get("args")
    name = arguments.get("name") if isinstance(arguments, dict) else None
    kind = event.get("name")
    if isinstance(name, str) and kind in ("process_name", "thread_name"):
        thread = event.get("tid") if kind == "thread_name" else None
        summary.names[(event.get("pid", 0), thread)] = name


def _items(path: Path, summary: TraceSummary) -> Iterator[Any]:
    """The items of the list `traceEvents`, decoded one at a time."""
    decoder = json.JSONDecoder()
    blocks = _blocks(path, summary)
    text = ""
    while (found := _EVENTS.search(text)) is None:
        block = next(blocks, None)
        if block is None or len(text) > 64 * _BLOCK:
            raise InputError(path, "is no Chrome trace: it has no traceEvents", _AGAIN)
        text += block
    position = found.end()
    while True:
        position = _skip(text, position)
        if position < len(text) and text[position] == "]":
            return
        try:
            item, behind = decoder.raw_decode(text, position)
            if behind == len(text):
                raise ValueError("a number or word at the end of a block may go on in the next")
        except ValueError:
            block = next(blocks, None)
            if block is None or len(text) - position > 64 * _BLOCK:
                summary.complete = False
                return
            text, position = text[position:] + block, 0
            continue
        position = behind
        yield item


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    return position


def _blocks(path: Path, summary: TraceSummary) -> Iterator[str]:
    """The text of the file in blocks, unpacked where it is packed; ends early where it is damaged."""
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    unpack: Any = gzip.open if packed else open
    try:
        with unpack(path, "rt", encoding="utf-8", errors="replace") as stream:
            while block := stream.read(_BLOCK):
                yield block
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        summary.complete = False
        summary.notes.append(f"the compressed file is damaged ({error})")
