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

from analyzer.llo.program import NotUnderstood

HEAD = re.compile(rb"^[ \t]*(0[xX][0-9a-fA-F]+|[0-9]+)[ \t]+([A-Z]{2})?[ \t]*:[> \t]*\{", re.MULTILINE)

# A comment, possibly with one comment inside (BoundsCheck texts quote whole DMA instructions).
_COMMENT = rb"/\*(?>[^*]*+\*/|(?>[^*/]++|\*(?!/)|/(?!\*)|/\*(?>[^*/]++|\*(?!/)|/(?!\*))*+\*/)*+\*/)"
# Braces inside an instruction are balanced: `shape index: {}`, `may-alias: {{0}, {1}}`.
_BRACES = rb"\{(?>[^{}]++|\{(?>[^{}]++|\{[^{}]*+\})*+\})*+\}"
_INSTRUCTION = re.compile(
    rb"\s*+((?:%[^\s=;{}]++(?:,\s*+%[^\s=;{}]++)*+\s*+=\s*+)?+([A-Za-z][^\s;{}/(,]*+))"
    rb"(?>[^;{}/]++|/(?!\*)|" + _COMMENT + rb"|" + _BRACES + rb"|;(?!;))*+"
    rb"(;;|\})"
)
_END = re.compile(rb"\s*+\}")
_SLOW_TOKEN = re.compile(rb"/\*|\*/|;;|\{|\}")
_SLOW_HEAD = re.compile(
    rb"\s*+((?:%[^\s=;{}]{1,80}+(?:,\s{0,9}+%[^\s=;{}]{1,80}+){0,8}+\s{0,9}+=\s{0,9}+)?+"
    rb"([A-Za-z][\w.\-<>:\[\]$#]{0,120}+))"
)
_LOCATION = re.compile(rb'loc\(("[^"\n]*":[0-9]+(?::[0-9]+)?(?: to (?:[0-9]+)?(?::[0-9]+)?)?)')

MAX_SAMPLES = 20
SAMPLE_BYTES = 160


@dataclass(slots=True)
class Scan:
    """Columns of the pass: B bundles, I instructions, offsets into the scanned bytes.

    bundle_address is the printed address; body_end is the offset after the closing brace.
    clean is False where a window needed the slow tokenizer.
    """

    bundle_address: np.ndarray
    bundle_head: np.ndarray
    bundle_label: list[tuple[int, str]]
    bundle_first: np.ndarray
    body_end: np.ndarray
    window_end: np.ndarray
    opcodes: list[str]
    instruction_opcode: np.ndarray
    instruction_start: np.ndarray
    instruction_end: np.ndarray
    not_understood: NotUnderstood
    slow_windows: int
    unclosed: list[int] = field(default_factory=list)


def scan(data: bytes) -> Scan:
    """Find every bundle and instruction of `data`; never raises on odd text."""
    addresses = array("q")
    heads = array("q")
    bodies = array("q")
    labels: list[tuple[int, str]] = []
    for index, match in enumerate(HEAD.finditer(data)):
        text, label = match.groups()
        addresses.append(_address(text))
        heads.append(match.start())
        bodies.append(match.end())
        if label is not None:
            labels.append((index, label.decode("ascii")))
    count = len(heads)

    first = array("i")
    starts = array("q")
    ends = array("q")
    codes = array("i")
    body_end = array("q")
    interned: dict[bytes, int] = {}
    lost = NotUnderstood()
    unclosed: list[int] = []
    slow_windows = 0
    match_instruction = _INSTRUCTION.match
    match_end = _END.match
    add_start, add_end, add_code = starts.append, ends.append, codes.append
    for bundle in range(count):
        first.append(len(starts))
        position = bodies[bundle]
        limit = heads[bundle + 1] if bundle + 1 < count else len(data)
        empty = match_end(data, position, limit)
        if empty is not None:
            body_end.append(empty.end())
            continue
        while True:
            found = match_instruction(data, position, limit)
            if found is None:
                del starts[first[bundle] :], ends[first[bundle] :], codes[first[bundle] :]
                slow_windows += 1
                closed = _scan_slowly(
                    data, bodies[bundle], limit, addresses[bundle], starts, ends, codes, interned, lost
                )
                if closed < 0:
                    unclosed.append(bundle)
                    closed = limit
                body_end.append(closed)
                break
            opcode = found[2]
            code = interned.get(opcode)
            if code is None:
                code = interned[opcode] = len(interned)
            add_start(found.start(1))
            stop, position = found.span(3)
            add_end(stop)
            add_code(code)
            if position - stop == 1:
                body_end.append(position)
                break
    first.append(len(starts))
    start_column = np.frombuffer(starts, dtype=np.int64) if starts else np.zeros(0, np.int64)
    return Scan(
        bundle_address=np.array(addresses, dtype=np.int64),
        bundle_head=np.array(heads, dtype=np.int64),
        bundle_label=labels,
        bundle_first=np.array(first, dtype=np.int32),
        body_end=np.array(body_end, dtype=np.int64),
        window_end=np.append(np.array(heads[1:], dtype=np.int64), len(data))[:count],
        opcodes=[code.decode("utf-8", "replace") for code in interned],
        instruction_opcode=np.array(codes, dtype=np.int32),
        instruction_start=start_column,
        instruction_end=np.array(ends, dtype=np.int64),
        not_understood=lost,
        slow_windows=slow_windows,
        unclosed=unclosed,
    )


def _address(text: bytes) -> int:
    """The printed address; -1 where it is too large to be one."""
    if len(text) > 16:
        return -1
    return int(text, 16) if text[:2] in (b"0x", b"0X") else int(text)


def _scan_slowly(
    data: bytes,
    position: int,
    limit: int,
    address: int,
    starts: array[int],
    ends: array[int],
    codes: array[int],
    interned: dict[bytes, int],
    lost: NotUnderstood,
) -> int:
    """Eat one bundle token by token with explicit depths; the offset after its brace, or -1.

    Linear in the size of the window and constant in memory however deep comments or braces nest.
    """
    comment = braces = 0
    begin = position
    for token in _SLOW_TOKEN.finditer(data, position, limit):
        kind = token[0]
        if kind == b"/*":
            comment += 1
        elif kind == b"*/":
            comment = max(comment - 1, 0)
        elif comment:
            continue
        elif kind == b"{":
            braces += 1
        elif kind == b"}" and braces:
            braces -= 1
        elif kind == b"}" or not braces:
            _keep(data, begin, token.start(), address, starts, ends, codes, interned, lost)
            begin = token.end()
            if kind == b"}":
                return begin
    _keep(data, begin, limit, address, starts, ends, codes, interned, lost, whole=False)
    return -1


def _keep(
    data: bytes,
    begin: int,
    end: int,
    address: int,
    starts: array[int],
    ends: array[int],
    codes: array[int],
    interned: dict[bytes, int],
    lost: NotUnderstood,
    whole: bool = True,
) -> None:
    """Record one slowly found instruction, or count it as not understood."""
    found = _SLOW_HEAD.match(data, begin, end) if whole else None
    if found is not None:
        starts.append(found.start(1))
        ends.append(end)
        codes.append(interned.setdefault(found[2], len(interned)))
        return
    text = data[begin : min(end, begin + SAMPLE_BYTES)].strip()
    if text:
        note(lost, address, text.decode("utf-8", "replace"))


def note(lost: NotUnderstood, address: int, text: str) -> None:
    """Count one piece of text that was not understood and keep a sample of the first few."""
    lost.count += 1
    if len(lost.samples) < MAX_SAMPLES:
        lost.samples.append((address, text))


def first_sources(data: bytes, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, list[bytes]]:
    """The first source location inside each instruction: (index per instruction or -1, distinct locations)."""
    interned: dict[bytes, int] = {}
    where = array("q")
    which = array("i")
    for match in _LOCATION.finditer(data):
        where.append(match.start())
        which.append(interned.setdefault(match[1], len(interned)))
    sources = np.full(len(starts), -1, np.int32)
    if where and len(starts):
        positions = np.frombuffer(where, dtype=np.int64)
        owner = np.searchsorted(starts, positions, side="right") - 1
        inside = (owner >= 0) & (positions < ends[np.maximum(owner, 0)])
        owner, values = owner[inside], np.frombuffer(which, dtype=np.int32)[inside]
        # Written back to front, so that the first location of an instruction wins.
        sources[owner[::-1]] = values[::-1]
    return sources, list(interned)
