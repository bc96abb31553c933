"""Answers that fit: a page of the list, and long texts and lists cut with a word on what was cut."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
DEFAULT_BYTES, LEAST_BYTES = 16_000, 4_000
# Longest text and longest list, tried in this order until the answer fits.
CUTS = ((2000, 60), (800, 30), (300, 12), (120, 5), (60, 2), (30, 1))
_CUTS_TOLD = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool found.

    Attributes:
        body: everything that is not paged.
        name: of the paged list; None where there is none.
        entries: the page asked for, the first of them number `offset` of `total`.
    """

    body: Json
    name: str | None = None
    entries: Sequence[Any] = ()
    total: int = 0
    offset: int = 0


def page(entries: Sequence[Any], limit: int, offset: int) -> Sequence[Any]:
    """Entries `offset` to `offset + limit`."""
    return entries[offset : offset + limit]


def size_of(value: object) -> int:
    """Bytes of a value as JSON."""
    return len(dump(value))


def dump(value: object) -> str:
    """Strict JSON in ASCII, without spaces."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def fit(answer: Answer, most: int) -> Json:
    """The answer in at most `most` bytes of JSON.

    The body gets what the list leaves, at least half. As many entries follow as there is room for, one at
    least; `page` says how many there are and where to go on.
    """
    room = most - 1200  # for `page` and `shortened`
    wanted = size_of(list(answer.entries)) if answer.name else 0
    body, cut = _shorten(answer.body, max(room // 2, room - wanted))
    if answer.name is not None:
        left = room - size_of(body)
        kept: list[Any] = []
        for entry in answer.entries:
            size = size_of(entry) + 1
            if size > left:
                if kept:
                    break
                entry, more = _shorten(entry, left)  # noqa: PLW2901 - the same entry, shorter
                cut += [f"{answer.name}.0.{one}" for one in more]
                size = size_of(entry)
            kept.append(entry)
            left -= size
        after = answer.offset + len(kept)
        body[answer.name] = kept
        body["page"] = {
            "list": answer.name,
            "total": answer.total,
            "returned": len(kept),
            "offset": answer.offset,
            "next_offset": after if kept and after < answer.total else None,
        }
    if cut:
        told = [one[:100] for one in cut[:_CUTS_TOLD]]
        body["shortened"] = told + ([f"and {len(cut) - len(told)} more"] if len(cut) > len(told) else [])
    return body


def _shorten(value: Any, most: int) -> tuple[Any, list[str]]:
    cut: list[str] = []
    if size_of(value) <= most:
        return dict(value) if isinstance(value, dict) else value, cut
    for longest_text, longest_list in CUTS:
        cut = []
        shorter = _cut(value, "", longest_text, longest_list, cut)
        if size_of(shorter) <= most:
            break
    return shorter, cut


def _cut(value: Any, where: str, text: int, entries: int, cut: list[str]) -> Any:
    if isinstance(value, str) and len(value) > text:
        cut.append(f"{where}: {text} of {len(value)} characters")
        return value[:text]
    if isinstance(value, dict):
        return {
            name: _cut(one, f"{where}.{name}" if where else name, text, entries, cut)
            for name, one in value.items()
        }
    if isinstance(value, list):
        # The digest is one text in lines; a part of it would mislead.
        most = len(value) if where == "digest" else entries
        if len(value) > most:
            cut.append(f"{where}: {most} of {len(value)} entries")
        return [_cut(one, f"{where}.{i}", text, entries, cut) for i, one in enumerate(value[:most])]
    return value
