"""Decoding of one instruction's text into the small frozen values of the program model.

Grammar, as far as it was seen (libtpu 0.0.42 to 0.0.50 and older v5e dumps):

    [%result[, %result] =] mnemonic [\\[key:$value\\]] [predicate] operand, operand ... [comments]

A predicate stands after the mnemonic, after `[thread:$0]`, after the address of a store, at the end
of a load, or before `target =` of a branch. Comments stand anywhere, also between the two.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from analyzer.llo.comments import comment_end
from analyzer.llo.program import Address, Memory, Operand, Predicate, Register, SourceSpan, Text

_TOKEN = re.compile(
    r"""\s*+(?:
      /\*(?P<name>[A-Za-z_][\w ]*)=\*/
    | (?P<comment>/\*)
    | \((?P<not>!?)(?P<guard>%[\w]+)(?P<select>,)?
    | (?P<register>%[\w]+)
    | \[\#allocation(?P<allocation>\d{1,18})(?P<spill>_spill)?
      (?:\s*\+\s*\$(?P<offset>-?(?:0x[0-9a-fA-F]{1,16}|\d{1,18})))?\]
    | \[(?P<space>[a-z_]\w*):(?=[\[%\d#])
    | \[(?P<attribute>[a-z_]\w*:\$?[\w]+)\]
    | (?P<target>target\b)
    | (?P<number>[-+]?(?:0x[0-9a-fA-F]+|inf|nan|\d+(?:\.\d*)?(?:e[-+]?\d+)?))(?=[\s,)\]]|/\*|$)
    | (?P<comma>,)
    | (?P<other>[^\s,])
    )""",
    re.VERBOSE,
)
_HEAD = re.compile(r"((?:%[^\s=]+(?:,\s*%[^\s=]+)*\s*=\s*)?)([^\s;{}/(,<]+(?:<[^<>\n]{0,40}>)?)")
_REGISTER = re.compile(r"%(?:(s|p|vm|v)(\d{1,18})(?:_(?:s|p|vm|v)(\d{1,18}))?|(\d{1,18}))$")
_TARGET = re.compile(
    r"target\s*(?:=\s*\$region(?P<region>\d{1,18})|bundleno\s*=\s*(?P<bundle>\d{1,18})\s*(?:\(0x[0-9a-f]+\))?"
    r"(?:,\s*region\s*=\s*(?P<old_region>\d{1,18}))?)"
)
_TERM_ALLOCATION = re.compile(r"#allocation(\d{1,18})(_spill)?$")
_SPAN = re.compile(r'"([^"\n]*)":(\d{1,9})(?::(\d{1,9}))?(?: to (\d{1,9})?(?::(\d{1,9}))?)?$')
_LOCATION = re.compile(r'loc\(("[^"\n]*":\d+(?::\d+)?(?: to (?:\d+)?(?::\d+)?)?)')
MAX_DIGITS = 64
_FLAT = re.compile(r"[^,\s/]+")


@dataclass(slots=True)
class Decoded:
    """What `decode_text` found; the reader adds bundle, slot and unit."""

    mnemonic: str
    results: tuple[Register, ...] = ()
    operands: tuple[Operand, ...] = ()
    names: tuple[str | None, ...] = ()
    predicate: Predicate | None = None
    otherwise: Operand | None = None
    target_region: int | None = None
    target_bundle: int | None = None
    attributes: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    sources: tuple[SourceSpan, ...] = ()
    guard_position: int = 0
    understood: bool = True


@lru_cache(maxsize=200_000)
def register(text: str) -> Register | None:
    """`%s12_s4` as a Register; None for a name of another form."""
    found = _REGISTER.match(text)
    if found is None:
        return None
    kind, value, physical, handle = found.groups()
    if handle is not None:
        return Register("h", int(handle))
    return Register(kind, int(value), int(physical) if physical is not None else None)


@lru_cache(maxsize=100_000)
def source_span(text: str) -> SourceSpan | None:
    """`"file.py":33:44 to :54` as a SourceSpan. `to :54` ends on the same line."""
    found = _SPAN.match(text)
    if found is None:
        return None
    file, line, column, end_line, end_column = found.groups()
    start = int(line)
    return SourceSpan(
        file,
        start,
        _integer(column),
        int(end_line) if end_line else (start if end_column else None),
        _integer(end_column),
    )


def _integer(text: str | None) -> int | None:
    return int(text) if text else None


def _number(text: str) -> int | float | Text:
    """The value of a printed number; Text where it has more digits than any number here."""
    if len(text) > MAX_DIGITS:
        return Text(text)
    sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text.lstrip("+"))
    if digits.startswith("0x"):
        return sign * int(digits, 16)
    if digits.isdigit():
        return sign * int(digits)
    return float(text)


def decode_text(text: str) -> Decoded:
    """Decode one instruction as printed; `understood` is False where a part had no known form."""
    head = _HEAD.match(text)
    if head is None:
        return Decoded(mnemonic="", understood=False)
    out = Decoded(mnemonic=head[2])
    if head[1]:
        results = [register(part.strip()) for part in head[1].rstrip().rstrip("=").split(",")]
        out.results = tuple(r for r in results if r is not None)
        out.understood = len(out.results) == len(results)
    if head[2].startswith("inlined_call_operand"):
        _decode_call_operand(out, text, head.end())
    else:
        _decode_operands(out, text, head.end())
    return out


def _take_comment(text: str, position: int, comments: list[str], sources: list[SourceSpan]) -> int:
    end = comment_end(text, position)
    end = end if end >= 0 else len(text)
    body = text[position + 2 : end - 2 if text.endswith("*/", position, end) else end].strip()
    kept = []
    for part in body.split(" :: ") if "loc(" in body else [body]:
        found = _LOCATION.match(part) if part.startswith("loc(") else None
        span = source_span(found[1]) if found is not None else None
        if span is not None:
            sources.append(span)
        elif part != "loc(unknown)":
            kept.append(part)
    if kept:
        comments.append(" :: ".join(kept))
    return end


def _decode_call_operand(out: Decoded, text: str, position: int) -> None:
    """`inlined_call_operand.hbm [shape: ..., index: 0, ...] /* operand 0 */`."""
    comments: list[str] = []
    sources: list[SourceSpan] = []
    opening = text.find("/*", position)
    out.operands = (Text(text[position : opening if opening >= 0 else len(text)].strip()),)
    out.names = (None,)
    while opening >= 0:
        opening = text.find("/*", _take_comment(text, opening, comments, sources))
    out.comments, out.sources = tuple(comments), tuple(sources)


def _decode_operands(out: Decoded, text: str, position: int) -> None:
    parser = _Operands(out, text)
    end = len(text)
    while position < end:
        token = _TOKEN.match(text, position)
        if token is None:
            break
        position = parser.take(token)
    parser.finish()


class _Operands:
    """Takes the tokens behind a mnemonic one by one."""

    def __init__(self, out: Decoded, text: str) -> None:
        self.out = out
        self.text = text
        self.operands: list[Operand] = []
        self.names: list[str | None] = []
        self.attributes: list[str] = []
        self.comments: list[str] = []
        self.sources: list[SourceSpan] = []
        self.words: list[str] = []  # of the last operand, while it is text that may go on
        self.pending: str | None = None  # the /*name=*/ waiting for its operand
        self.fresh = True  # at the beginning of an operand: start of the list or after a comma

    def take(self, token: re.Match[str]) -> int:
        """Handle one token; the offset behind what it stands for."""
        kind = token.lastgroup
        if kind == "comma":
            self.fresh = True
        elif kind == "name":
            self.pending = token["name"]
        elif kind == "comment":
            return _take_comment(self.text, token.start("comment"), self.comments, self.sources)
        elif kind == "attribute":
            self.attributes.append(token["attribute"])
        elif kind == "target":
            return _decode_target(self.out, self.text, token.start("target"))
        elif kind in ("guard", "select"):
            return self._guard(token)
        else:
            return self._operand(token)
        return token.end()

    def _guard(self, token: re.Match[str]) -> int:
        guard = register(token["guard"])
        position = token.end()
        if guard is None:
            self.out.understood = False
            return position
        self.out.predicate = Predicate(guard, bool(token["not"]))
        self.out.guard_position = len(self.operands)
        if token["select"]:
            self.out.otherwise, position = _operand_at(self.text, position)
        return self.text.find(")", position) + 1 or len(self.text)

    def _operand(self, token: re.Match[str]) -> int:
        kind, position = token.lastgroup, token.end()
        value: Operand
        if kind == "register":
            value = register(token["register"]) or Text(token["register"])
        elif kind in ("allocation", "spill", "offset"):
            value = _address(token)
        elif kind == "space":
            value, position = _memory(self.text, token["space"], position)
        elif kind == "number":
            value = _number(token["number"])
        else:
            value, position = _other(self.text, token.start("other"))
        if not self.fresh and isinstance(value, Text) and self.words:
            self.words.append(value.text)
        elif not self.fresh and isinstance(value, Address) and self.out.mnemonic.startswith("scalar_lea"):
            # A trailing `[#allocation5]` says which allocation the address computed here points into.
            self.attributes.append(f"into:#allocation{value.allocation}")
        else:
            self._close_text()
            self.operands.append(value)
            self.names.append(self.pending)
            self.words = [value.text] if isinstance(value, Text) else []
            self.pending = None
            self.fresh = False
        return position

    def _close_text(self) -> None:
        if len(self.words) > 1:
            self.operands[-1] = Text(" ".join(self.words))

    def finish(self) -> None:
        """Hand over what was found."""
        self._close_text()
        out = self.out
        out.operands, out.names, out.attributes = (
            tuple(self.operands),
            tuple(self.names),
            tuple(self.attributes),
        )
        out.comments, out.sources = tuple(self.comments), tuple(self.sources)


def _address(token: re.Match[str]) -> Address:
    offset = token["offset"]
    return Address(int(token["allocation"]), int(offset, 0) if offset else 0, token["spill"] is not None)


def _operand_at(text: str, position: int) -> tuple[Operand | None, int]:
    """The single operand at `position` (register, number or address)."""
    token = _TOKEN.match(text, position)
    if token is None:
        return None, position
    kind = token.lastgroup
    if kind == "register":
        return register(token["register"]), token.end()
    if kind in ("allocation", "spill", "offset"):
        return _address(token), token.end()
    if kind == "number":
        return _number(token["number"]), token.end()
    return None, position


def _other(text: str, start: int) -> tuple[Text, int]:
    """Text kept as printed: a bracket or parenthesis with its content, or a word."""
    opening = text[start]
    if opening in "[(":
        depth = 0
        for index in range(start, len(text)):
            depth += (text[index] in "[(") - (text[index] in "])")
            if depth == 0:
                return Text(text[start : index + 1]), index + 1
        return Text(text[start:].strip()), len(text)
    word = _FLAT.match(text, start)
    stop = word.end() if word is not None else start + 1
    return Text(text[start:stop]), stop


def _memory(text: str, space: str, position: int) -> tuple[Memory, int]:
    """`[vmem:[%s3 + $0x40] sm:$0xff]` from after `vmem:`; a missing bracket ends at the text's end."""
    start = position
    if text.startswith("[", position):
        close = text.find("]", position)
        close = close if close >= 0 else len(text)
        inner, after = text[position + 1 : close], close + 1
    else:
        close = text.find("]", position)
        close = close if close >= 0 else len(text)
        inner, after = text[start:close], close
    end = text.find("]", after)
    end = end if end >= 0 else len(text)
    return Memory(space, _terms(inner), text[after:end].strip()), min(end + 1, len(text))


@lru_cache(maxsize=100_000)
def _terms(inner: str) -> tuple[Operand, ...]:
    """The sum inside the brackets: `%s3 + $0x40`; allocation and constant merge into one Address."""
    terms: list[Operand] = []
    for part in inner.split("+"):
        word = part.strip()
        allocation = _TERM_ALLOCATION.match(word)
        if allocation is not None:
            terms.append(Address(int(allocation[1]), 0, allocation[2] is not None))
        elif word.startswith("%"):
            terms.append(register(word) or Text(word))
        elif word.startswith("$") or word.lstrip("-").isdigit():
            try:
                offset = int(word.lstrip("$")[:MAX_DIGITS], 0)
            except ValueError:
                terms.append(Text(word))
                continue
            last = terms[-1] if terms else None
            if isinstance(last, Address):
                terms[-1] = Address(last.allocation, last.offset + offset, last.spill)
            else:
                terms.append(offset)
        else:
            terms.append(Text(word))
    return tuple(terms)


def _decode_target(out: Decoded, text: str, position: int) -> int:
    found = _TARGET.match(text, position)
    if found is None:
        out.understood = False
        return position + len("target")
    region = found["region"] or found["old_region"]
    out.target_region = int(region) if region is not None else None
    out.target_bundle = int(found["bundle"]) if found["bundle"] is not None else None
    return found.end()
