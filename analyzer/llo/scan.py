"""One linear pass over the text of a final_bundles file: where every bundle and instruction is.

The pass is split in two so that no input can make it quadratic. First the bundle heads
(`  0x1a LB: >> {`) cut the text into windows; then one possessive regular expression eats each
window instruction by instruction. A window that the expression cannot eat (a truncated line,
comments nested more than two deep, text of a future libtpu) goes to a slow, careful tokenizer that
keeps what it can and counts the rest.
"""

import re
from array import array
from dataclasses import dataclass, field

import numpy as np

from analyzer.llo.comments import comment_end_bytes
from analyzer.llo.flow import FlowTable
from analyzer.llo.program import NotUnderstood

# Possessive throughout: a megabyte of blanks or digits in a broken line must not be tried twice.
HEAD = re.compile(rb"^[ \t]*+(0[xX][0-9a-fA-F]++|[0-9]++)[ \t]++([A-Z]{2})?+[ \t]*+:[> \t]*+\{", re.MULTILINE)

# A comment, possibly with one comment inside (BoundsCheck texts quote whole DMA instructions).
_COMMENT = rb"/\*(?>[^*]*+\*/|(?>[^*/]++|\*(?!/)|/(?!\*)|/\*(?>[^*/]++|\*(?!/)|/(?!\*))*+\*/)*+\*/)"
# Braces inside an instruction are balanced: `shape index: {}`, `may-alias: {{0}, {1}}`.
_BRACES = rb"\{(?>[^{}]++|\{(?>[^{}]++|\{[^{}]*+\})*+\})*+\}"
_INSTRUCTION = re.compile(
    rb"\s*+((?:%[^\s=;{}]++(?:,\s*+%[^\s=;{}]++)*+\s*+=\s*+)?+([A-Za-z][^\s;{}/(,<]*+(?:<[^<>\n]{0,40}+>)?+))"
    rb"(?>[^;{}/]++|/(?!\*)|" + _COMMENT + rb"|" + _BRACES + rb"|;(?!;))*+"
    rb"(;;|\})"
)
_END = re.compile(rb"\s*+\}")
_SLOW_TOKEN = re.compile(rb"/\*|;;|\{|\}")
_SLOW_HEAD = re.compile(
    rb"\s*+((?:%[^\s=;{}]{1,80}+(?:,\s{0,9}+%[^\s=;{}]{1,80}+){0,8}+\s{0,9}+=\s{0,9}+)?+"
    rb"([A-Za-z][\w.\-:\[\]$#]{0,120}+(?:<[^<>\n]{0,40}+>)?+))"
)
_LOCATION = re.compile(rb'loc\(("[^"\n]*":[0-9]+(?::[0-9]+)?(?: to (?:[0-9]+)?(?::[0-9]+)?)?)')

MAX_SAMPLES = 20
SAMPLE_BYTES = 160


@dataclass(slots=True)
class Columns:
    """What the pass found: B bundles, I instructions, offsets into the scanned bytes.

    bundle_address: int64[B], as printed, -1 where absurd. bundle_head, body_end, window_end: int64[B],
    where the line of the bundle starts, where its closing brace ends, where the next one starts.
    bundle_first: int32[B+1]. instruction_span: int64[I, 2]. instruction_opcode, instruction_source:
    int32[I] into opcodes and locations (-1: no location). labels: (bundle, "LB") pairs.
    unclosed: bundles without a closing brace. slow_windows: bundles that needed the slow tokenizer.
    flow: the resolved control flow, once a program has worked it out.
    """

    bundle_address: np.ndarray
    bundle_head: np.ndarray
    bundle_first: np.ndarray
    body_end: np.ndarray
    window_end: np.ndarray
    instruction_span: np.ndarray
    instruction_opcode: np.ndarray
    instruction_source: np.ndarray
    labels: list[tuple[int, str]]
    opcodes: list[str]
    locations: list[str]
    not_understood: NotUnderstood
    unclosed: list[int]
    slow_windows: int
    flow: FlowTable | None = None


@dataclass(slots=True)
class _Found:
    """The instructions found so far, as growing columns."""

    starts: "array[int]" = field(default_factory=lambda: array("q"))
    ends: "array[int]" = field(default_factory=lambda: array("q"))
    codes: "array[int]" = field(default_factory=lambda: array("i"))
    interned: dict[bytes, int] = field(default_factory=dict)
    lost: NotUnderstood = field(default_factory=NotUnderstood)

    def forget_from(self, first: int) -> None:
        """Drop the instructions from index `first` on."""
        del self.starts[first:], self.ends[first:], self.codes[first:]


def scan(data: bytes) -> Columns:
    """Find every bundle and instruction of `data`; never raises on odd text."""
    addresses, heads, bodies = array("q"), array("q"), array("q")
    labels: list[tuple[int, str]] = []
    for index, match in enumerate(HEAD.finditer(data)):
        text, label = match.groups()
        addresses.append(_address(text))
        heads.append(match.start())
        bodies.append(match.end())
        if label is not None:
            labels.append((index, label.decode("ascii")))
    count = len(heads)
    limits = np.append(np.array(heads[1:], dtype=np.int64), len(data))[:count]
    found = _Found()
    first, body_end, unclosed, slow = _scan_bodies(data, addresses, bodies, limits.tolist(), found)
    starts = np.frombuffer(found.starts, dtype=np.int64) if found.starts else np.zeros(0, np.int64)
    ends = np.frombuffer(found.ends, dtype=np.int64) if found.ends else np.zeros(0, np.int64)
    sources, locations = _first_sources(data, starts, ends)
    return Columns(
        bundle_address=np.array(addresses, dtype=np.int64),
        bundle_head=np.array(heads, dtype=np.int64),
        bundle_first=np.array(first, dtype=np.int32),
        body_end=np.array(body_end, dtype=np.int64),
        window_end=limits,
        instruction_span=np.stack([starts, ends], axis=1),
        instruction_opcode=np.array(found.codes, dtype=np.int32),
        instruction_source=sources,
        labels=labels,
        opcodes=[code.decode("utf-8", "replace") for code in found.interned],
        locations=locations,
        not_understood=found.lost,
        unclosed=unclosed,
        slow_windows=slow,
    )


def _scan_bodies(
    data: bytes, addresses: "array[int]", bodies: "array[int]", limits: list[int], found: _Found
) -> tuple["array[int]", "array[int]", list[int], int]:
    """Instructions of every bundle: (first, end of the body) per bundle, unclosed, slow windows."""
    first, body_end = array("i"), array("q")
    unclosed: list[int] = []
    slow = 0
    match_instruction, match_end = _INSTRUCTION.match, _END.match
    add_start, add_end, add_code = found.starts.append, found.ends.append, found.codes.append
    interned = found.interned
    for bundle, limit in enumerate(limits):
        begin = len(found.starts)
        first.append(begin)
        position = bodies[bundle]
        empty = match_end(data, position, limit)
        if empty is not None:
            body_end.append(empty.end())
            continue
        while True:
            match = match_instruction(data, position, limit)
            if match is None:
                found.forget_from(begin)
                slow += 1
                closed = _scan_slowly(data, bodies[bundle], limit, addresses[bundle], found)
                if closed < 0:
                    unclosed.append(bundle)
                    closed = limit
                body_end.append(closed)
                break
            opcode = match[2]
            code = interned.get(opcode)
            if code is None:
                code = interned[opcode] = len(interned)
            add_start(match.start(1))
            stop, position = match.span(3)
            add_end(stop)
            add_code(code)
            if position - stop == 1:
                body_end.append(position)
                break
    first.append(len(found.starts))
    return first, body_end, unclosed, slow


def _address(text: bytes) -> int:
    """The printed address; -1 where it is too large to be one."""
    if len(text) > 16:
        return -1
    return int(text, 16) if text[:2] in (b"0x", b"0X") else int(text)


def _scan_slowly(data: bytes, position: int, limit: int, address: int, found: _Found) -> int:
    """Eat one bundle token by token with explicit depths; the offset after its brace, or -1.

    Linear in the size of the window, however deep comments or braces nest.
    """
    braces = 0
    begin = position
    while (token := _SLOW_TOKEN.search(data, position, limit)) is not None:
        kind, position = token[0], token.end()
        if kind == b"/*":
            position = comment_end_bytes(data, token.start(), limit)
            if position < 0:
                break
        elif kind == b"{":
            braces += 1
        elif kind == b"}" and braces:
            braces -= 1
        elif kind == b"}" or not braces:
            _keep(data, (begin, token.start()), address, found)
            begin = position
            if kind == b"}":
                return begin
    _lose(data, (begin, limit), address, found)
    return -1


def _keep(data: bytes, span: tuple[int, int], address: int, found: _Found) -> None:
    """Record one slowly found instruction, or count it as not understood."""
    match = _SLOW_HEAD.match(data, *span)
    if match is None:
        _lose(data, span, address, found)
        return
    found.starts.append(match.start(1))
    found.ends.append(span[1])
    found.codes.append(found.interned.setdefault(match[2], len(found.interned)))


def _lose(data: bytes, span: tuple[int, int], address: int, found: _Found) -> None:
    text = data[span[0] : min(span[1], span[0] + SAMPLE_BYTES)].strip()
    if text:
        note(found.lost, address, text.decode("utf-8", "replace"))


def note(lost: NotUnderstood, address: int, text: str) -> None:
    """Count one piece of text that was not understood and keep a sample of the first few."""
    lost.count += 1
    if len(lost.samples) < MAX_SAMPLES:
        lost.samples.append((address, text))


def all_sources(
    data: bytes, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Every source location inside an instruction: (which, in which instruction, distinct locations)."""
    interned: dict[bytes, int] = {}
    where, which = array("q"), array("i")
    for match in _LOCATION.finditer(data):
        where.append(match.start())
        which.append(interned.setdefault(match[1], len(interned)))
    texts = [text.decode("utf-8", "replace") for text in interned]
    if not where or not len(starts):
        return np.zeros(0, np.int32), np.zeros(0, np.int64), texts
    positions = np.frombuffer(where, dtype=np.int64)
    owner = np.searchsorted(starts, positions, side="right") - 1
    inside = (owner >= 0) & (positions < ends[np.maximum(owner, 0)])
    return np.frombuffer(which, dtype=np.int32)[inside], owner[inside], texts


def _first_sources(data: bytes, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The first source location in each instruction: (index or -1 per instruction, distinct locations)."""
    which, owner, texts = all_sources(data, starts, ends)
    sources = np.full(len(starts), -1, np.int32)
    # Written back to front, so that the first location of an instruction wins.
    sources[owner[::-1]] = which[::-1]
    return sources, texts
