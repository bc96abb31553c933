"""Trip counts of the loops whose counter, step and bound stand in the code as constants."""

from typing import TYPE_CHECKING

from analyzer.llo.dataflow import WORD, Scalars
from analyzer.llo.program import Instruction, Loop, Operand, Register

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

MAX_TRIPS = 1_000_000


def trip_count(program: "FileProgram", loop: Loop, scalars: Scalars) -> int | None:
    """How often the loop's body runs per entry; None where the code alone does not fix it."""
    latch = program.branches.get(loop.latch)
    if latch is None or latch.predicate is None or not _only_exit(program, loop):
        return None
    test = _predicate_definition(program, latch.predicate.register, loop)
    if test is None or not test.mnemonic.startswith("scmp.") or len(test.operands) != 2:
        return None
    parts = test.mnemonic.split(".")
    if len(parts) < 3 or parts[2] not in ("s32", "u32"):
        return None
    walk = [_walk(program, operand, loop, scalars) for operand in test.operands]
    if walk[0] is None or walk[1] is None or not (walk[0][1] or walk[1][1]):
        return None
    return _count(parts[1], parts[2] == "s32", (walk[0], walk[1]), latch.predicate.negated)


def _count(
    relation: str, signed: bool, walks: tuple[tuple[int, int], tuple[int, int]], negated: bool
) -> int | None:
    """Iterations until the branch back is not taken."""
    (left, left_step), (right, right_step) = walks
    for trips in range(1, MAX_TRIPS + 1):
        holds = _compare(relation, left, right, signed)
        if holds is None or holds == negated:
            return trips if holds is not None else None
        left, right = (left + left_step) & WORD, (right + right_step) & WORD
    return None


def _only_exit(program: "FileProgram", loop: Loop) -> bool:
    """True if control leaves the loop, and returns to its head, at the latch only."""
    return all(
        bundle == loop.latch or loop.start < branch.target <= loop.end
        for bundle, branch in program.branches.items()
        if loop.start <= bundle <= loop.end
    )


def _predicate_definition(program: "FileProgram", register: Register, loop: Loop) -> Instruction | None:
    for index in range(program.bundle_first[loop.start], program.bundle_first[loop.end + 1]):
        if program.opcodes[program.instruction_opcode[index]].startswith("scmp"):
            instruction = program.instruction(index)
            if register in instruction.results:
                return instruction
    return None


def _walk(program: "FileProgram", operand: Operand, loop: Loop, scalars: Scalars) -> tuple[int, int] | None:
    """(value in the first iteration, change per iteration), 32 bits; None where it is something else."""
    constant = scalars.constant(operand)
    if constant is not None:
        return constant, 0
    offset = 0
    for _ in range(8):  # what is added to the counter before it is compared
        made = _source(operand, scalars)
        if made is None:
            return None
        if made.mnemonic == "sphi":
            return _counter(program, made, loop, scalars, offset)
        if made.mnemonic not in ("sadd.s32", "ssub.s32"):
            return None
        step = _step(made, scalars)
        if step is None:
            return None
        operand, change = step
        offset += change
    return None


def _counter(
    program: "FileProgram", phi: Instruction, loop: Loop, scalars: Scalars, offset: int
) -> tuple[int, int] | None:
    if phi.bundle != loop.start or len(phi.operands) != 2:
        return None
    first = scalars.constant(phi.operands[0])
    back = _source(phi.operands[1], scalars)
    if first is None or back is None:
        return None
    step = _step(back, scalars) if back.mnemonic in ("sadd.s32", "ssub.s32") else None
    if step is None or _source(step[0], scalars) != phi:
        return None
    return (first + offset) & WORD, step[1]


def _step(made: Instruction, scalars: Scalars) -> tuple[Operand, int] | None:
    """`sadd 1, %x` as (%x, 1)."""
    if len(made.operands) != 2:
        return None
    left, right = made.operands
    added = scalars.constant(right)
    if added is not None:
        return left, -added if made.mnemonic.startswith("ssub") else added
    added = scalars.constant(left) if made.mnemonic.startswith("sadd") else None
    return (right, added) if added is not None else None


def _source(operand: Operand, scalars: Scalars) -> Instruction | None:
    """The instruction that computes a scalar, behind copies and spill slots."""
    for _ in range(8):
        made = scalars.definition(operand) if isinstance(operand, Register) else None
        if made is None or made.mnemonic == "sphi":
            return made
        inputs = scalars.copies(made)
        if inputs is None:
            return made
        if len(set(inputs)) != 1:
            return None
        operand = inputs[0]
    return None


def _compare(relation: str, left: int, right: int, signed: bool) -> bool | None:
    if signed:
        left, right = ((value ^ 1 << 31) - (1 << 31) for value in (left & WORD, right & WORD))
    answers = {
        "lt": left < right,
        "le": left <= right,
        "gt": left > right,
        "ge": left >= right,
        "eq": left == right,
        "ne": left != right,
    }
    return answers.get(relation)
