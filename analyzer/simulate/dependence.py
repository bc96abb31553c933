"""Which branches depend on values that the bundles do not contain.

Values from outside (pops of the vector unit, operands passed by value, SMEM that a copy fills or that nobody
writes) are followed through scalar operations and through SMEM words at constant addresses. What is stored at
a computed address makes every later read of that allocation dependent.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable

from analyzer.llo.program import Address, Instruction, Memory, Register
from analyzer.simulate.compiled import Compiled
from analyzer.simulate.layout import passed_by_value
from analyzer.simulate.scenario import Assumption
from analyzer.simulate.sites import name_of

_WORD = re.compile(r"SMEM word #allocation(\d+)")


def dependent_branches(compiled: Compiled, values: Iterable[Assumption] | None = None) -> list[int]:
    """Bundles of the branches whose predicate depends on a value from outside, in order.

    Args:
        compiled: the program.
        values: only what these decide (of one run); None: every value from outside that there may be.
    """
    chosen = None if values is None else [(value.what, value.source) for value in values]
    if chosen is not None and not chosen:
        return []
    tainted, memory = _outside(compiled) if chosen is None else _of(compiled, chosen)
    users: dict[str, list[Instruction]] = defaultdict(list)
    loads: dict[int, list[Instruction]] = defaultdict(list)
    for i in itertools.chain.from_iterable(compiled.scalar):
        for name in compiled.used(i):
            users[name].append(i)
        if i.mnemonic == "sld":
            for allocation in _allocations(compiled, i):
                loads[allocation].append(i)
    names, cells = list(tainted), list(memory)
    while names or cells:
        reached = loads[cells.pop()] if cells else users[names.pop()]
        for i in reached:
            if i.mnemonic == "sst":
                cells += _allocations(compiled, i) - memory
                memory |= _allocations(compiled, i)
            new = _made(compiled, i) - tainted
            names += new
            tainted |= new
    return [
        bundle
        for bundle, branch in sorted(compiled.program.branches.items())
        if branch.predicate is not None and name_of(branch.predicate.register) in tainted
    ]


def _outside(compiled: Compiled) -> tuple[set[str], set[int]]:
    """Names and SMEM allocations that hold values from outside."""
    names = {name_of(o.register) for o in compiled.program.operands if passed_by_value(o)}
    memory: set[int] = set()
    for i in itertools.chain.from_iterable(compiled.scalar):
        if i.mnemonic == "spop" and i.results:
            names.add(name_of(i.results[0]))
        elif i.mnemonic.startswith("dma.") and i.mnemonic.endswith("_to_smem"):
            memory |= _pointed_at(compiled, i.operand("smem"))
    return names, memory


def _of(compiled: Compiled, chosen: list[tuple[str, str]]) -> tuple[set[str], set[int]]:
    """The same for some values, named as a run notes them (what, place)."""
    names = {
        name_of(o.register)
        for o in compiled.program.operands
        if passed_by_value(o) and any(what.startswith(f"operand {o.index} ") for what, _ in chosen)
    }
    memory = {int(found[1]) for what, _ in chosen if (found := _WORD.match(what))}
    pops = {place for what, place in chosen if what == "vector to scalar pop"}
    copies = {place for what, place in chosen if what.startswith("SMEM content")}
    for bundle, instructions in enumerate(compiled.scalar):
        for i in instructions:
            place = str(i.sources[0]) if i.sources else f"bundle {bundle:#x}"
            if i.mnemonic == "spop" and i.results and place in pops:
                names.add(name_of(i.results[0]))
            elif i.mnemonic.startswith("dma.") and i.mnemonic.endswith("_to_smem") and place in copies:
                memory |= _pointed_at(compiled, i.operand("smem"))
    return names, memory


def _made(compiled: Compiled, i: Instruction) -> set[str]:
    """Names whose value the instruction decides."""
    if i.mnemonic.startswith("sdivrem"):
        return {name_of(p.results[0]) for p in compiled.pops[i.results[0].value]}
    return {name_of(r) for r in i.results if r.kind in "sp"}


def _allocations(compiled: Compiled, instruction: Instruction) -> set[int]:
    """Allocations that a scalar load or store may address."""
    memory = instruction.operands[0] if instruction.operands else None
    if not isinstance(memory, Memory):
        return set()
    found: set[int] = set()
    for term in memory.terms:
        found |= _pointed_at(compiled, term)
    return found


def _pointed_at(compiled: Compiled, operand: object) -> set[int]:
    if isinstance(operand, Address):
        return {operand.allocation}
    if not isinstance(operand, Register):
        return set()
    value = compiled.constants.get(name_of(operand))
    if value is not None:
        placed = compiled.layout.find("smem", value)
        if placed is not None and placed.name.startswith("#allocation"):
            return {int(placed.name.removeprefix("#allocation").removesuffix("_spill"))}
    return {
        int(name.removeprefix("#allocation").removesuffix("_spill"))
        for name in compiled.touches.pointers.get(name_of(operand), ())
    }
