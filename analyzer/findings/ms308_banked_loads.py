"""MS308: weights whose loads wait for each other's bank of VMEM."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.findings.code import Code, CodeLoop, shorter
from analyzer.llo import opcodes
from analyzer.llo.occupancy import COLUMNS
from analyzer.llo.program import Address, Instruction, Memory
from analyzer.replay import Edit
from analyzer.units import duration

# See docs/llo.md: one register of 8 rows of 512 bytes out of each of four banks per bundle.
BANKS, REGISTER_ROWS, REGISTER_BYTES = 4, 8, 4096
TILE = 256 * 256  # weights that fill a matrix unit
GAP = 8  # bundles without a push that end a stretch of pushes
LEAST = 32  # pushes of a stretch
BLOCKED = 0.45  # of its bundles in which a load waits for its bank
WORTH = 0.9  # of its cycles that it may take without that
APART = 1.8  # loads per bundle in compiles of tiles whose loads lie in four banks
ITEM_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4}  # others: 1


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Pushes that stand close together: bundles, cycles they take and could take, loads, 256 x 256 tiles."""

    bundles: int
    blocked: int
    loads: int
    cycles: float
    could: float
    tiles: float


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None or not code.parameters:
        return
    pushes = code.with_opcodes(_pushes_weights)
    loads = code.with_opcodes(lambda opcode: opcodes.family(opcode) == "vld")
    for loop in code.loops:
        if not context.significant(loop.time_ps):
            break
        found = [one for one in _stretches(code, loop, pushes, loads) if one.could < WORTH * one.cycles]
        time = round(sum(one.cycles - one.could for one in found) * loop.iterations * code.cycle_ps)
        saving, basis = context.priced(Edit(shorten=shorter([(code.stretches(loop.first, loop.last), time)])))
        if not found or not context.significant(time if saving is None else saving):
            continue
        bundles, tiles = sum(one.bundles for one in found), sum(one.tiles for one in found)
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed with the pushes' own time, at most" if saving is not None else basis,
            confidence=MEDIUM,
            source=code.matrix_source(loop),
            bundles=(loop.first, loop.last),
            count=loop.iterations,
            evidence=(
                f"{bundles / tiles:.0f} bundles and {sum(one.cycles for one in found) / tiles:.0f} cycles per"
                f" 256 x 256 weights, and could take {sum(one.could for one in found) / tiles:.0f} cycles;"
                f" {loop.iterations:,} iterations, {duration(time)} in all",
                f"in {sum(one.blocked for one in found)} of {bundles} bundles a load slot stays"
                f" free while the next load lies in a bank that the bundle reads ({BANKS} banks;"
                f" {sum(one.loads for one in found) / bundles:.1f} loads per bundle)",
            ),
        )


def _pushes_weights(opcode: str) -> bool:
    return opcode.startswith(("vmatpush", "vmatprep.subr"))


def _stretches(
    code: Code, loop: CodeLoop, pushes: NDArray[np.bool_], loads: NDArray[np.bool_]
) -> Iterator[_Stretch]:
    """The stretches of pushes in a loop whose loads wait for banks."""
    first = code.program.bundle_first
    usual, issued, _ = code.issued(loop)
    pushing = [at for at, bundle in enumerate(usual) if pushes[first[bundle] : first[bundle + 1]].any()]
    cuts = [at for at in range(1, len(pushing)) if pushing[at] - pushing[at - 1] > GAP]
    for own in (pushing[a:b] for a, b in pairwise([0, *cuts, len(pushing)])):
        if not own:
            continue
        start, end = own[0], own[-1]
        inside = [np.arange(first[bundle], first[bundle + 1]) for bundle in usual[start : end + 1]]
        names = [
            code.program.opcodes[code.program.instruction_opcode[i]]
            for i in np.concatenate(inside)
            if pushes[i]
        ]
        if len(names) < LEAST:
            continue
        banks = [_banks(code, [int(i) for i in one if loads[i]]) for one in inside]
        count, blocked = sum(map(len, banks)), _blocked(banks, code)
        if blocked < BLOCKED * len(banks):
            continue
        unit = [name.rpartition(".mxu")[2] for name in names]
        held = max(unit.count(one) for one in set(unit)) * code.push_cycles
        items = [REGISTER_BYTES // ITEM_BYTES.get(opcodes.dtype(name) or "", 1) for name in names]
        yield _Stretch(
            bundles=len(banks),
            blocked=blocked,
            loads=count,
            cycles=issued[end] + 1 - issued[start],
            could=max(held, count / APART),
            tiles=sum(items) / TILE,
        )


def _blocked(banks: list[list[int]], code: Code) -> int:
    """Bundles with a load slot left although the next load stands a bundle later, in a bank they read."""
    slots = code.capacity[COLUMNS.index("VLOAD")]
    full = [one for one in banks if one]
    return sum(len(one) < slots and after[0] in one for one, after in pairwise(full))


def _banks(code: Code, loads: list[int]) -> list[int]:
    """The banks that these loads read, as far as their offsets tell; a base counts as one in bank 0."""
    found = (_bank(code.program.instruction(index)) for index in loads)
    return [bank for bank in found if bank is not None]


def _bank(load: Instruction) -> int | None:
    """The bank of a load of one whole register; None where it is another load."""
    memory = next((operand for operand in load.operands if isinstance(operand, Memory)), None)
    if memory is None or "ss:" in memory.suffix:
        return None
    row = 0
    for term in memory.terms:
        if isinstance(term, Address):
            if term.spill:
                return None
            row += term.offset
        elif isinstance(term, int):
            row += term
    return row // REGISTER_ROWS % BANKS


RULE = Rule(
    identifier="MS308",
    title="Weight loads share a bank of VMEM",
    family="MXU",
    sees=(
        "Where a loop pushes weights one after the other, nearly half of the bundles or more leave a load"
        " slot free while the next load lies in a bank of VMEM that the bundle already reads (registers a"
        " multiple of four apart share one), and the pushes take longer than the matrix units need."
    ),
    costs=(
        "A bundle takes one register out of each bank. A product loads from four places at a time (two column"
        " blocks for either matrix unit); where all four lie in one bank, their loads follow one another: a"
        " 256 x 256 bf16 tile takes 31 bundles instead of 18. Pushes of the two units then come in turns and"
        " stall: 47 cycles instead of 32."
    ),
    example=(
        "# column blocks of 128 under one another, [4 * 3584, 128] bf16: 224 registers apart\n"
        "pair = jnp.concatenate([w[:3584], w[3584:7168]], axis=1)\n"
        "acc += dot(x, pair)"
    ),
    advice=(
        "Turn or pad the column blocks so that what is loaded together lies in four banks: block b by b"
        " registers (of 8 rows of 32 bits, 16 of bf16, 32 of 8 bits), the lower half of a deep one by two"
        " more (`stack_columns` in megakernels/common/gemv.py). Where that is done already: a product that is"
        " added to an accumulator at once takes its weights from other places; store it first."
    ),
    verify="megascope show CAPTURE, at the bundle range of the finding, or compile again and megascope diff",
    doubt=(
        "Banks are inferred from what the compiler puts into one bundle, and bases of addresses are taken to"
        " lie in one bank. Which loads feed which pushes is not followed. That the rest would reach"
        f" {APART} loads per bundle was seen in compiles of turned tiles; the cycles of a push are assumed."
    ),
    look=_look,
)
