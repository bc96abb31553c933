"""Writes the Python function of one basic block.

A block function appends to the trace and returns the next block function. Values that live across
blocks are globals of the core's namespace, the others are locals.
"""

import re
from typing import TYPE_CHECKING

from analyzer.llo.program import Address, Branch, Instruction, Memory, Operand, Predicate, Register
from analyzer.simulate import expressions
from analyzer.simulate.expressions import MASK
from analyzer.simulate.sites import Op, name_of
from analyzer.simulate.touches import Stretch, divides

if TYPE_CHECKING:
    from analyzer.simulate.compiled import Compiled

_DIRECT_DMA = re.compile(r"dma\.(hbm|vmem|smem)_to_(hbm|vmem|smem)$")


class _Lines(list[str]):
    """Lines of code; notes for each the bundle it belongs to."""

    def __init__(self, writer: "BlockWriter") -> None:
        super().__init__()
        self.writer = writer

    def append(self, line: str) -> None:
        self.writer.places.append(self.writer.bundle)
        super().append(line)


class BlockWriter:
    """Writes the function of one block."""

    def __init__(self, compiled: "Compiled", block: int) -> None:
        self.c = compiled
        self.block = block
        self.lines = _Lines(self)
        self.places: list[int] = []
        self.bundle = 0
        self.assigned: set[str] = set()
        self.branch: Branch | None = None
        self.skip: set[tuple[int, int]] = set()

    def write(self) -> str:
        """The text of the function `B<start>`."""
        c, program = self.c, self.c.program
        block = program.blocks[self.block]
        stretches = {s.bundle: s for s in c.touches.stretches.get(self.block, [])}
        for bundle in range(block.start, block.end):
            self.bundle = bundle
            branch = program.branches.get(bundle)
            if branch is not None:
                self._note_branch(branch, block.end)
            touch = stretches.get(bundle)
            before = touch is not None and divides(c.scalar[bundle])
            if not c.scalar[bundle]:
                if touch is not None:
                    self._touch(touch)
                continue
            for instruction in self._ordered(c.scalar[bundle]):
                if before and touch is not None and c.is_event(instruction) and instruction.mnemonic != "sst":
                    self._touch(touch)
                    touch = None
                self._instruction(instruction)
            if touch is not None:
                self._touch(touch)
        self._finish(block.end)
        declared = sorted(self.assigned & c.globals_)
        head = [f"def B{block.start}():"]
        if declared:
            head.append(f" global {', '.join(declared)}")
        head.append(f" T({self.block})")
        c.line_bundles[self.block] = [block.start] * (len(head) + 1) + self.places
        return "\n".join(head + [f" {line}" for line in self.lines]) + "\n"

    def _note_branch(self, branch: Branch, end: int) -> None:
        if self.branch is not None:
            self._unsupported(None, branch.bundle, "a second branch in the delay slots of a branch")
        if branch.bundle + branch.delay_slots + 1 != end:
            self._unsupported(None, branch.bundle, "a branch whose delay slots reach into another block")
        self.branch = branch

    def _unsupported(self, instruction: Instruction | None, bundle: int, reason: str) -> None:
        index = self.c.add_site(Op.VISIT, instruction, self.block, bundle, detail=reason)
        guard = None if instruction is None else self.guard(instruction.predicate)
        self.lines.append(f"U({index})" if guard is None else f"if {guard}: U({index})")

    def _ordered(self, instructions: list[Instruction]) -> list[Instruction]:
        """Values first (each after what it needs), then stores, then events: reads come before writes."""
        values, stores, events = [], [], []
        for i in instructions:
            if i.mnemonic == "sst":
                if self.c.is_event(i):
                    stores.append(i)
            elif self.c.is_event(i):
                events.append(i)
            else:
                values.append(i)
        made_here = {name_of(r) for i in values for r in i.results}
        ready: list[Instruction] = []
        done: set[str] = set()
        waiting = values
        while waiting:
            rest = []
            for i in waiting:
                if (self.c.used(i) & made_here) - done and i.mnemonic not in ("sphi", "pphi"):
                    rest.append(i)
                else:
                    ready.append(i)
                    done.update(name_of(r) for r in i.results)
            if len(rest) == len(waiting):
                ready += rest
                break
            waiting = rest
        return ready + stores + events

    def atom(self, operand: Operand | None, instruction: Instruction) -> str:
        """Name or literal for an operand."""
        value = self.c.constant(operand)
        if value is not None:
            return str(value)
        if isinstance(operand, Register):
            return name_of(operand)
        if isinstance(operand, Address):
            raise _Unknown(f"allocation {operand.allocation} is in no known memory space")
        raise _Unknown(f"operand {operand!r}")

    def guard(self, predicate: Predicate | None) -> str | None:
        """Python condition of a predicate, or None."""
        if predicate is None:
            return None
        name = name_of(predicate.register)
        return f"not {name}" if predicate.negated else name

    def _instruction(self, i: Instruction) -> None:
        if (i.bundle, i.slot) in self.skip or i.mnemonic.startswith(("sbr", "inlined_call", "vtrace 0xA")):
            return
        try:
            if i.mnemonic in ("sphi", "pphi"):
                return
            if self.c.is_event(i):
                self._event(i)
            elif i.results and name_of(i.results[0]) in self.c.live:
                self._value(i)
            elif i.mnemonic.startswith("sdivrem"):
                self._division(i)
        except _Unknown as unknown:
            self._unsupported(i, i.bundle, str(unknown))
            if i.results and name_of(i.results[0]) in self.c.live:
                self._define(name_of(i.results[0]), "0", i)

    def _define(self, name: str, text: str, i: Instruction) -> None:
        guard = self.guard(i.predicate)
        if guard is not None:
            otherwise = "0" if i.otherwise is None else self.atom(i.otherwise, i)
            text = f"({text}) if {guard} else {otherwise}"
        self.lines.append(f"{name} = {text}")
        self.assigned.add(name)

    def _value(self, i: Instruction) -> None:
        name = name_of(i.results[0])
        m = i.mnemonic
        if m == "sld":
            self._define(name, f"M[{self._address(i.operands[0], i)}]", i)
        elif m == "spop.drf":
            handle = i.operands[0]
            assert isinstance(handle, Register)
            pops = self.c.pops[handle.value]
            kind = self._division_kind(handle)
            part = "q" if (kind == "kDiv" or (len(pops) == 2 and pops[0] is i)) else "r"
            if len(pops) > 2:
                raise _Unknown("more than two pops of one division")
            text = f"{part}{handle.value}"
            self.lines.append(f"{name} = {text}")
            self.assigned.add(name)
        elif m == "spop":
            index = self.c.add_site(Op.VISIT, i, self.block, i.bundle, detail=self.c.pop_kind(name))
            self._define(name, f"P({index})", i)
        elif m in ("vpop.sfrf",):
            index = self.c.add_site(Op.VISIT, i, self.block, i.bundle, detail="semaphore")
            self._define(name, f"S({index})", i)
        elif m.startswith("inlined_call_operand"):
            return
        else:
            operands = i.operands[:2] if m.startswith("scalar_lea") else i.operands
            computed = expressions.expression(m, [self.atom(o, i) for o in operands])
            if computed is None:
                raise _Unknown(f"operation {m}")
            self._define(name, computed, i)

    def _division_kind(self, handle: Register) -> str | None:
        for division in self.c.definitions[name_of(handle)]:
            for comment in division.comments:
                if comment in ("kDiv", "kRem", "kDivAndRem"):
                    return comment
        return None

    def _division(self, i: Instruction) -> None:
        handle = i.results[0]
        if not any(name_of(p.results[0]) in self.c.live for p in self.c.pops[handle.value]):
            return
        if i.mnemonic != "sdivrem.u32":
            raise _Unknown(f"operation {i.mnemonic}")
        a, b = (self.atom(o, i) for o in i.operands[:2])
        q, r = f"q{handle.value}", f"r{handle.value}"
        self.lines.append(f"{q}, {r} = divmod({a}, {b}) if {b} else (0xFFFFFFFF, {a})")
        if any(self.c.block_of_bundle[p.bundle] != self.block for p in self.c.pops[handle.value]):
            self.c.globals_ |= {q, r}
            self.assigned |= {q, r}

    def _address(self, operand: Operand, i: Instruction) -> str:
        if not isinstance(operand, Memory):
            raise _Unknown("a memory operation without a memory operand")
        constant = 0
        parts: list[str] = []
        for term in operand.terms:
            value = self.c.constant(term)
            if value is not None:
                constant += value
            else:
                parts.append(self.atom(term, i))
        if not parts:
            return str(constant)
        if constant:
            parts.append(str(constant))
        return parts[0] if len(parts) == 1 else f"({' + '.join(parts)}) & 0xFFFFFFFF"

    def _emit(self, i: Instruction, line: str) -> None:
        guard = self.guard(i.predicate)
        self.lines.append(f"if {guard}: {line}" if guard is not None else line)

    def _event(self, i: Instruction) -> None:
        m = i.mnemonic
        if m == "sst":
            address = self._address(i.operands[0], i)
            self._emit(i, f"M[{address}] = {self.atom(i.operands[1], i)}")
        elif m in {"dma.done.wait", "vwait.ge"}:
            self._wait(i)
        elif m == "vsyncadd":
            flag, amount = self.atom(i.operands[0], i), self._signed(i.operands[1], i)
            self._append(i, Op.ADD, [flag, amount])
        elif m == "vsyncadd.remote":
            self._append(i, Op.REMOTE_ADD, [self.atom(i.operands[0], i), self._signed(i.operands[1], i)])
        elif m == "dma.general":
            self._general(i)
        elif m.startswith("dma."):
            self._direct(i)
        elif m == "vtrace.arg":
            tag = self.c.constant(i.operands[0])
            self._append(i, Op.VALUE, [self.atom(i.operands[1], i)], detail=str((tag or 0) >> 26))
        elif m == "vtrace":
            op = self.c.marker_kind(i)
            assert op is not None
            kind = "scope_start" if op is Op.SCOPE_START else "scope_end"
            self._append(i, op, [], detail=self.c.scope_names.get((i.bundle, kind)) or "")
        else:
            raise _Unknown(f"operation {m}")

    def _signed(self, operand: Operand, i: Instruction) -> str:
        value = self.c.constant(operand)
        if value is not None:
            return str(expressions.signed(value))
        return f"(({self.atom(operand, i)} ^ 0x80000000) - 0x80000000)"

    def _append(self, i: Instruction, op: Op, values: list[str], detail: str = "") -> None:
        index = self.c.add_site(op, i, self.block, i.bundle, detail=detail)
        self._emit(i, f"T(({', '.join([str(index), *values])},))")

    def _wait(self, i: Instruction) -> None:
        flag = self.atom(i.operands[0], i)
        amount = self.atom(i.operands[1], i)
        barrier = "barrier" if "global-barrier-wait" in i.comments else ""
        take = self._following_take(i)
        if take is not None:
            self.skip.add((take.bundle, take.slot))
        self._append(i, Op.WAIT if take is None else Op.WAIT_TAKE, [flag, amount], detail=barrier)

    def _following_take(self, wait: Instruction) -> Instruction | None:
        """The `vsyncadd [flag], -N` in the next bundle that belongs to this wait."""
        following = wait.bundle + 1
        if following >= self.c.program.blocks[self.block].end:
            return None
        amount = self.c.constant(wait.operands[1])
        for i in self.c.scalar[following]:
            if (
                i.mnemonic == "vsyncadd"
                and i.operands[0] == wait.operands[0]
                and i.predicate == wait.predicate
                and amount is not None
                and self.c.constant(i.operands[1]) == -amount & MASK
            ):
                return i
        return None

    def _direct(self, i: Instruction) -> None:
        found = _DIRECT_DMA.match(i.mnemonic)
        if found is None:
            raise _Unknown(f"operation {i.mnemonic}")
        source, destination = i.operand(found[1]), i.operand(found[2])
        if found[1] == found[2]:
            ends = [o for o, n in zip(i.operands, i.operand_names, strict=True) if n == found[1]]
            source, destination = ends[0], ends[1]
        values = [
            self.atom(source, i),
            self.atom(destination, i),
            self.atom(i.operand("size_in_granules"), i),
            self.atom(i.operand("dst_syncflagno"), i),
        ]
        strides = [i.operand(n) for n in ("src_stride", "dst_stride", "steps_per_stride")]
        if any(s is not None for s in strides):
            values.append(f"({', '.join(self.atom(s, i) for s in strides)})")
        else:
            values.append("None")
        detail = f"{found[1]}_to_{found[2]}"
        self._append(i, Op.DMA, values, detail=detail)
        if found[2] == "smem":
            self._emit(i, f"L({len(self.c.sites) - 1}, {values[0]}, {values[1]}, {values[2]})")

    def _general(self, i: Instruction) -> None:
        names = ("src", "dst", "size_in_granules", "dst_syncflagno", "src_syncflagno")
        values = [self.atom(i.operand(n), i) for n in names]
        known = self.c.descriptors.known.get((i.bundle, i.slot), ())
        values.append(str(known) if known != () else f"D({self.atom(i.operand('stridedescaddr'), i)})")
        values.append(self.atom(i.operand("overrides"), i))
        second = i.operand("dst_syncflagno_1")
        if second not in (None, 0):
            raise _Unknown("a second destination semaphore")
        self._append(i, Op.DMA_GENERAL, values)

    def _touch(self, stretch: Stretch) -> None:
        index = self.c.add_site(Op.TOUCH, None, self.block, stretch.bundle, touches=stretch.touches)
        self.lines.append(f"T(({', '.join([str(index), *stretch.bases])},))")

    def _finish(self, end: int) -> None:
        blocks = self.c.program.blocks
        following = blocks[self.block + 1].start if self.block + 1 < len(blocks) else None
        if self.branch is None:
            self._leave(following, "", jump=False)
            return
        guard = self.guard(self.branch.predicate)
        if guard is None:
            self._leave(self.branch.target, "", jump=True)
            return
        self.lines.append(f"if {guard}:")
        self._leave(self.branch.target, " ", jump=True)
        self._leave(following, "", jump=False)

    def _leave(self, target: int | None, indent: str, *, jump: bool) -> None:
        if target is None:
            self.lines.append(f"{indent}return None")
            return
        source = self.c.program.blocks[self.block].start
        # At a loop head the first operand is the entry's, the second the back edge's; at a merge after a
        # skipped region the first belongs to the branch that skips it.
        second = target <= source if self._is_loop_head(target) else not jump
        copies = []
        for phi in self.c.scalar[target]:
            if phi.mnemonic in ("sphi", "pphi") and name_of(phi.results[0]) in self.c.live:
                copies.append((name_of(phi.results[0]), self.atom(phi.operands[int(second)], phi)))
        if copies:
            left, right = ", ".join(a for a, _ in copies), ", ".join(b for _, b in copies)
            self.lines.append(f"{indent}{left} = {right}")
            self.assigned.update(a for a, _ in copies)
        self.lines.append(f"{indent}return B{target}")

    def _is_loop_head(self, bundle: int) -> bool:
        return any(loop.start == bundle for loop in self.c.program.loops)


class _Unknown(Exception):
    """Something the generated code cannot do; raised again if it is ever executed."""
