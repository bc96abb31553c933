"""MS403: bounds checks left on."""

from collections.abc import Iterator

import numpy as np

from analyzer.findings.base import LOW, Context, Finding, Rule
from analyzer.findings.code import Code
from analyzer.llo.program import Register, Unit
from analyzer.replay import Edit
from analyzer.units import duration


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None or b"BoundsCheck" not in code.program.data:
        return
    checks = [
        i
        for i in code.program.find(lambda opcode: opcode.startswith("shalt"))
        if "BoundsCheck" in code.program.text(i)
    ]
    if not checks:
        return
    belongs = code.mask(_with_conditions(code, checks))
    holding = np.zeros(code.program.bundle_count, dtype=bool)
    holding[code.bundle_of[belongs]] = True
    time = code.time_ps(holding)
    if not context.significant(time):
        return
    only = code.only(belongs)
    most, _ = context.priced(Edit(shorten=code.without(holding)))
    if most is not None and not context.significant(most):
        return  # hidden behind HBM or messages
    executed = int(code.executed[code.bundle_of[np.array(checks)]].sum())
    worst = max(checks, key=lambda i: int(code.executed[code.bundle_of[i]]))
    bundle = int(code.bundle_of[worst])
    yield rule.finding(
        context,
        time_ps=time,
        saving_ps=None,
        saving_basis="not estimated: the bundles may be needed all the same, to wait for latencies",
        confidence=LOW,
        source=_checked_copy(code, worst),
        bundles=(bundle, bundle),
        count=executed,
        evidence=(
            f"{len(checks)} checks in the program, {executed:,} executed in the step",
            f"bundles with a check or its condition issue for {duration(time)}, those with nothing else for"
            f" {duration(code.time_ps(only))}",
        ),
    )


def _checked_copy(code: Code, check: int) -> str:
    """Source line of the copy that follows a check; checks themselves carry no line."""
    for index in range(check, min(check + 200, len(code.program.instruction_opcode))):
        source = int(code.program.instruction_source[index])
        if source >= 0 and code.program.opcode_units[code.program.instruction_opcode[index]] is Unit.DMA:
            return str(code.program.sources[source])
    return ""


def _with_conditions(code: Code, checks: list[int]) -> set[int]:
    """The checks and the instructions whose results only they use (comparisons, predicate logic)."""
    candidates = code.program.find(lambda opcode: opcode.startswith(("scmp", "pnand", "por", "pneg", "pmov")))
    users: dict[Register, set[int]] = {}
    makers: dict[int, tuple[Register, ...]] = {}
    for index in sorted({*candidates, *checks, *code.program.find(lambda o: not o.startswith("v"))}):
        instruction = code.program.instruction(index)
        operands = [o for o in instruction.operands if isinstance(o, Register) and o.kind == "p"]
        if instruction.predicate is not None:
            operands.append(instruction.predicate.register)
        for register in operands:
            users.setdefault(Register(register.kind, register.value), set()).add(index)
        if index in candidates or instruction.results:
            makers[index] = tuple(Register(r.kind, r.value) for r in instruction.results)
    chosen = set(checks)
    grew = True
    while grew:
        grew = False
        for index in candidates:
            results = makers.get(index, ())
            if index in chosen or not results:
                continue
            used_by = set().union(*(users.get(result, set()) for result in results))
            if used_by and used_by <= chosen:
                chosen.add(index)
                grew = True
    return chosen


RULE = Rule(
    identifier="MS403",
    title="Bounds checks left on",
    family="Code",
    sees="`shalt.err` instructions that check the address range of copies, executed during the step.",
    costs=(
        "Comparisons and predicate logic before each copy take scalar slots, and bundles where they "
        "stand alone."
    ),
    example="pltpu.CompilerParams()  # disable_bounds_checks is False by default",
    advice="pltpu.CompilerParams(disable_bounds_checks=True), once the kernel is tested with them on.",
    verify="Compile with disable_bounds_checks=True and run: megascope diff CAPTURE NEW",
    doubt="Checks often fill bundles that would be empty without them, while something else is waited for.",
    look=_look,
)
