"""Prints a decoded program back as text, and brings printed text into the same normal form.

Both sides serve one purpose: to prove that decoding loses nothing. `print_instruction` uses only the
decoded fields; `normalise` uses only text operations and knows nothing of the decoder. The normal form
has single blanks, numbers spelled one way, and all comments moved to the end, source locations last.
"""

import re
from typing import TYPE_CHECKING

from analyzer.llo.program import (
    Address,
    Instruction,
    Memory,
    Operand,
    Predicate,
    Register,
    SourceSpan,
    Text,
)

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

_EDGE = re.compile(r"/\*|\*/")
_NAME = re.compile(r"/\*([A-Za-z_][\w ]*)=\*/")
_LOCATION = re.compile(r"loc\(unknown\)|loc\(.*\)$", re.DOTALL)
_OFFSET = re.compile(r"\+ \$(0x[0-9a-f]+|\d+)")
_FLOAT = re.compile(r"(?<![\w.$#%\[:{(+|-])-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)(?![\w.|])")


def print_register(value: Register) -> str:
    """`%s12_s4`, `%123`."""
    if value.kind == "h":
        return f"%{value.value}"
    if value.physical is None:
        return f"%{value.kind}{value.value}"
    return f"%{value.kind}{value.value}_{value.kind}{value.physical}"


def _address(value: Address) -> str:
    return f"#allocation{value.allocation}{'_spill' * value.spill}"


def _terms(terms: tuple[Operand, ...]) -> str:
    parts: list[str] = []
    for term in terms:
        if isinstance(term, Address):
            parts.append(_address(term) + (f" + $0x{term.offset:x}" if term.offset else ""))
        elif isinstance(term, int):
            parts.append(f"$0x{term:x}")
        elif isinstance(term, Register):
            parts.append(print_register(term))
        else:
            parts.append(term.text if isinstance(term, Text) else str(term))
    return " + ".join(parts)


def print_operand(value: Operand) -> str:
    """One operand in the normal form."""
    if isinstance(value, Register):
        return print_register(value)
    if isinstance(value, Address):
        return f"[{_terms((value,))}]"
    if isinstance(value, Memory):
        suffix = f" {value.suffix}" if value.suffix else ""
        return f"[{value.space}:[{_terms(value.terms)}]{suffix}]"
    if isinstance(value, Text):
        return value.text
    return repr(value)


def _guard(predicate: Predicate, otherwise: Operand | None) -> str:
    old = f", {print_operand(otherwise)}" if otherwise is not None else ""
    return f"({'!' * predicate.negated}{print_register(predicate.register)}{old})"


def print_location(span: SourceSpan) -> str:
    """`loc("file.py":3:4 to :9)`."""
    text = f'"{span.file}":{span.line}'
    if span.column is not None:
        text += f":{span.column}"
    if span.end_line is not None or span.end_column is not None:
        line = "" if span.end_line in (None, span.line) else str(span.end_line)
        text += f" to {line}" + (f":{span.end_column}" if span.end_column is not None else "")
    return f"loc({text})"


def print_instruction(instruction: Instruction) -> str:
    """One instruction in the normal form, from its decoded fields alone."""
    words: list[str] = []
    if instruction.results:
        words += [", ".join(print_register(r) for r in instruction.results), "="]
    words.append(instruction.spelled or instruction.mnemonic)
    hints = [a for a in instruction.attributes if a.startswith("into:")]
    words += [f"[{a}]" for a in instruction.attributes if not a.startswith("into:")]
    line = " ".join(words)
    guard = instruction.predicate
    count = len(instruction.operands)
    for position in range(count + 1):
        guarded = guard is not None and instruction.guard_position == position
        if guarded and guard is not None:
            line += " " + _guard(guard, instruction.otherwise)
        if position == count:
            break
        operand, name = instruction.operands[position], instruction.operand_names[position]
        previous = instruction.operands[position - 1] if position else None
        glued = previous is None or (isinstance(previous, Memory | Text) and _is_bracket(previous))
        comma = guarded or not glued
        line += f"{',' * comma} {f'/*{name}=*/' * (name is not None)}{print_operand(operand)}"
    line += "".join(f" [{hint.removeprefix('into:')}]" for hint in hints)
    if instruction.target_bundle is not None:
        at = instruction.target_bundle
        line += f" target bundleno = {at} ({at:#x}), region = {instruction.target_region}"
    elif instruction.target_region is not None:
        line += f" target = $region{instruction.target_region}"
    comments = [f"/* {_blanks(part)} */" for c in instruction.comments for part in c.split(" :: ")]
    locations = [f"/* {print_location(span)} */" for span in instruction.sources]
    return " ".join([line, *comments, *locations])


def print_bundle(program: "FileProgram", bundle: int) -> str:
    """One bundle in the normal form: `0x1a LB: { ins ;; ins } /* Start region 3 */`."""
    instructions = " ;; ".join(print_instruction(instruction) for instruction in program.bundle(bundle))
    address = int(program.bundle_address[bundle])
    label = program.labels.get(bundle)
    head = (hex(address) if address else "0") + f" {label}" * (label is not None)
    line = f"{head}: {{ {instructions} }}" if instructions else f"{head}: {{}}"
    trailer = program.trailer(bundle)
    if trailer.kind == "regions":
        listed = " :: ".join(f"{event} region {number}" for event, number in trailer.events)
        return f"{line} /* {listed} */"
    return f"{line} /* {trailer.text} */" if trailer.text else line


def _is_bracket(value: Memory | Text) -> bool:
    return isinstance(value, Memory) or value.text.endswith(("]", ")"))


def _blanks(text: str) -> str:
    return " ".join(text.split())


def normalise(text: str) -> str:
    """The normal form of one instruction as printed, by text operations alone."""
    core: list[str] = []
    comments: list[str] = []
    position = 0
    while True:
        opening = text.find("/*", position)
        if opening < 0:
            core.append(text[position:])
            break
        core.append(text[position:opening])
        name = _NAME.match(text, opening)
        if name is not None:
            core.append(name[0])
            position = name.end()
            continue
        position = _comment_end(text, opening)
        core.append(" ")
        body = text[opening + 2 : position - 2]
        comments += [_blanks(part) for part in body.strip().split(" :: ")]
    texts = [c for c in comments if c and not _LOCATION.match(c)]
    locations = [c for c in comments if _LOCATION.match(c) and c != "loc(unknown)"]
    line = _blanks("".join(core)).replace(" ,", ",")
    line = _OFFSET.sub(lambda m: f"+ $0x{int(m[1], 0):x}", line)
    line = _FLOAT.sub(lambda m: repr(float(m[0])), line)
    return " ".join([line, *(f"/* {c} */" for c in [*texts, *locations])])


def _comment_end(text: str, position: int) -> int:
    depth = 0
    for edge in _EDGE.finditer(text, position):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)
