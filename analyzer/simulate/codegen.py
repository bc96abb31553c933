"""Generates Python code for the scalar program, one function per basic block, once per program.

Only live code is generated: what branches, predicates, SMEM, DMA and semaphore operations need. A block
function appends to the trace and returns the next block function. Registers that live across blocks
are module globals of the core's namespace, the others are locals. No timing enters here, so changing a
machine parameter regenerates nothing.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from types import CodeType

from analyzer.llo.program import Address, Branch, Instruction, Memory, Operand, Predicate, Program, Register
from analyzer.simulate import expressions
from analyzer.simulate.expressions import MASK
from analyzer.simulate.layout import Layout
from analyzer.simulate.sites import Op, Site, Touch

_IGNORED = (
    "sfence",
    "vsyncpa",
    "vsyncmov",
    "shalt",
    "vdelay",
    "setrngseed",
    "inlined_call_operand",
    "vpush",
    "sdivrem",
    "compiler-scheduling-barrier",
)
_DIRECT_DMA = re.compile(r"dma\.(hbm|vmem|smem)_to_(hbm|vmem|smem)$")
_VECTOR_MEMORY = re.compile(
    r"(vld|vst)\b.*?\[vmem:\[(?P<first>%s\d+|#allocation\d+(?:_spill)?|\$?\d+)(?:_s\d+)?"
    r"(?: \+ (?P<second>%s\d+|\$0x[0-9a-f]+)(?:_s\d+)?)?(?: \+ \$(?P<third>0x[0-9a-f]+))?\]"
)
_ROWS_PER_ACCESS = 8
_SCOPE_NAME = re.compile(r"TraceMe(?:Start|End)\((.*)\)")


def name_of(register: Register) -> str:
    """Python name of an SSA value."""
    return f"{register.kind}{register.value}"


class Compiled:
    """The generated program: sites, code per block, and what the runtime needs to start a core.

    Attributes:
        program, layout: what it was made from.
        sites: list[Site]; the first len(program.blocks) are the visits, in block order.
        globals_: names that live across blocks.
        parameters: register name -> HbmOperand index, for operands passed by value or address.
        assumed_reads: (allocation, offset) of SMEM words that nothing in the program writes.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.scalar = [list(program.scalar_instructions(b)) for b in range(program.bundle_count)]
        self.layout = Layout(program, self.scalar)
        self.block_of_bundle = self._block_index()
        self.definitions: dict[str, list[Instruction]] = defaultdict(list)
        for bundle in self.scalar:
            for instruction in bundle:
                for result in instruction.results:
                    self.definitions[name_of(result)].append(instruction)
        self.constants: dict[str, int] = {}
        self._fold_constants()
        self.sites: list[Site] = [Site(i, Op.VISIT, block.start, i) for i, block in enumerate(program.blocks)]
        self.pops = self._pop_order()
        self.touches = self._touch_plan()
        self.live = self._liveness()
        self.globals_ = self._cross_block()
        self.scope_names = {(m.bundle, m.kind): m.name for m in program.markers}
        self._code: dict[int, CodeType] = {}
        self._text: dict[int, str] = {}

    # -- analysis -----------------------------------------------------------------------------

    def _block_index(self) -> list[int]:
        index = [0] * self.program.bundle_count
        for i, block in enumerate(self.program.blocks):
            index[block.start : block.end] = [i] * (block.end - block.start)
        return index

    def _fold_constants(self) -> None:
        changed = True
        while changed:
            changed = False
            for name, made in self.definitions.items():
                if name in self.constants or len(made) != 1:
                    continue
                value = self._constant_result(made[0])
                if value is not None:
                    self.constants[name] = value
                    changed = True

    def _constant_result(self, instruction: Instruction) -> int | None:
        if instruction.predicate is not None or len(instruction.results) != 1:
            return None
        if instruction.results[0].kind != "s" or instruction.mnemonic == "scalar_select":
            return None
        operation = expressions.function(instruction.mnemonic)
        if operation is None or not instruction.operands:
            return None
        values = [self.constant(o) for o in instruction.operands]
        if instruction.mnemonic.startswith("scalar_lea"):
            values = values[:2]
        if any(v is None for v in values):
            return None
        return int(operation(*values))

    def constant(self, operand: Operand | None) -> int | None:
        """The number an operand stands for, where it is known before execution."""
        match operand:
            case bool():
                return None
            case int():
                return operand & MASK
            case float():
                return expressions.to_bits(operand)
            case Address():
                return self.layout.of(operand)
            case Register():
                return self.constants.get(name_of(operand))
            case _:
                return None

    def _pop_order(self) -> dict[int, list[Instruction]]:
        order: dict[int, list[Instruction]] = defaultdict(list)
        for bundle in self.scalar:
            for i in bundle:
                if i.mnemonic == "spop.drf" and i.operands and isinstance(i.operands[0], Register):
                    order[i.operands[0].value].append(i)
        return order

    def is_event(self, instruction: Instruction) -> bool:
        """Does the instruction act on memory, semaphores, DMA or markers?"""
        m = instruction.mnemonic
        if m.startswith(_IGNORED):
            return False
        if m == "vtrace":
            kind = self._marker_kind(instruction)
            return kind is not None
        return m.startswith(("sst", "dma.", "vsyncadd", "vwait", "vtrace.arg"))

    @staticmethod
    def _marker_kind(instruction: Instruction) -> Op | None:
        operand = instruction.operands[0] if instruction.operands else None
        for comment in instruction.comments:
            if "TraceMeStart(" in comment:
                return Op.SCOPE_START
            if "TraceMeEnd(" in comment:
                return Op.SCOPE_END
        if not isinstance(operand, int):
            return None
        return {0xB: Op.SCOPE_START, 0xC: Op.SCOPE_END}.get(operand >> 28)

    def _liveness(self) -> set[str]:
        live: set[str] = set()
        work: list[str] = []

        def need(names: Iterable[str]) -> None:
            for name in names:
                if name not in live and name not in self.constants:
                    live.add(name)
                    work.append(name)

        for bundle in self.scalar:
            for instruction in bundle:
                if self.is_event(instruction) or instruction.mnemonic.startswith("sbr"):
                    need(self.used(instruction))
        for plan in self.touches.values():
            for _, bases, _ in plan:
                need(bases)
        while work:
            for instruction in self.definitions[work.pop()]:
                need(self.used(instruction))
                if instruction.mnemonic == "spop.drf":
                    handle = instruction.operands[0]
                    assert isinstance(handle, Register)
                    for division in self.definitions[name_of(handle)]:
                        need(self.used(division))
        return live

    @staticmethod
    def used(instruction: Instruction) -> set[str]:
        """Names an instruction reads, its predicate included."""
        names = set()
        for operand in (*instruction.operands, instruction.otherwise):
            if isinstance(operand, Register):
                names.add(name_of(operand))
            elif isinstance(operand, Memory):
                names.update(name_of(t) for t in operand.terms if isinstance(t, Register))
        if instruction.predicate is not None:
            names.add(name_of(instruction.predicate.register))
        return {n for n in names if n[0] in "sp"}

    def _cross_block(self) -> set[str]:
        """Live names that are used in another block than the one that makes them, or by a phi."""
        home: dict[str, set[int]] = defaultdict(set)
        used_in: dict[str, set[int]] = defaultdict(set)
        for bundle, instructions in enumerate(self.scalar):
            block = self.block_of_bundle[bundle]
            for instruction in instructions:
                for result in instruction.results:
                    home[name_of(result)].add(block)
                phi = instruction.mnemonic in ("sphi", "pphi")
                if phi:
                    home[name_of(instruction.results[0])].add(-1)
                for name in self.used(instruction):
                    used_in[name].add(-2 if phi else block)
                    if instruction.mnemonic == "spop.drf":
                        used_in[name].add(block)
        for block, plan in self.touches.items():
            for _, bases, _ in plan:
                for name in bases:
                    used_in[name].add(block)
        crossing = set()
        for name in self.live:
            places = home[name] | used_in[name]
            if len(places) > 1:
                crossing.add(name)
        return crossing

    # -- vector accesses ----------------------------------------------------------------------

    def _touch_plan(self) -> dict[int, list[tuple[int, list[str], list[Touch]]]]:
        """Per block: stretches (last bundle, base names, touches) between the block's waits."""
        escaped, pointers = self._escaping()
        plan: dict[int, list[tuple[int, list[str], list[Touch]]]] = {}
        for index, block in enumerate(self.program.blocks):
            stretches = []
            start = block.start
            for bundle in range(block.start, block.end):
                if self.divides(bundle) or bundle == block.end - 1:
                    stretch = self._stretch(start, bundle + 1, escaped, pointers)
                    if stretch is not None:
                        stretches.append((bundle, *stretch))
                    start = bundle + 1
            if stretches:
                plan[index] = stretches
        return plan

    def divides(self, bundle: int) -> bool:
        """Does a wait or a copy in this bundle end a stretch of vector accesses?"""
        return any(i.mnemonic.startswith(("dma.", "vwait")) for i in self.scalar[bundle])

    def _escaping(self) -> tuple[set[str], dict[str, set[str]]]:
        """VMEM allocations whose address reaches a DMA, and the allocations each register may point to."""
        pointers: dict[str, set[str]] = defaultdict(set)
        escaped: set[str] = set()
        for _ in range(2):
            for bundle in self.scalar:
                for i in bundle:
                    sources: set[str] = set()
                    for operand in (*i.operands, i.otherwise):
                        if isinstance(operand, Address):
                            sources.add(f"#allocation{operand.allocation}{'_spill' if operand.spill else ''}")
                        elif isinstance(operand, Register):
                            sources |= pointers[name_of(operand)]
                    if i.mnemonic.startswith(("dma.", "int_to_ptr", "sst")) and sources:
                        escaped |= sources
                    if i.results and sources:
                        pointers[name_of(i.results[0])] |= sources
        return escaped, pointers

    def _stretch(
        self, start: int, end: int, escaped: set[str], pointers: dict[str, set[str]]
    ) -> tuple[list[str], list[Touch]] | None:
        program = self.program
        first, last = int(program.bundle_first[start]), int(program.bundle_first[end])
        ranges: dict[str | None, list[int]] = {}
        for index in range(first, last):
            begin, stop = program.instruction_span[index]
            if program.data.find(b"[vmem:[", begin, stop) < 0:
                continue
            found = _VECTOR_MEMORY.search(program.data[begin:stop].decode("utf-8", "replace"))
            if found is None:
                continue
            base, low = self._base_of(found)
            if base is not None and base.startswith("#"):
                if base not in escaped:
                    continue
                key = (int(base.removesuffix("_spill")[11:]), base.endswith("_spill"))
                row = self.layout.address.get(key)
                if row is None:
                    continue
                low += row
                label: str | None = base
            elif base is not None and base in self.constants:
                low += self.constants[base]
                label = "constant"
            elif base is not None:
                if pointers.get(base) and escaped.isdisjoint(pointers[base]):
                    continue
                label = base
            else:
                continue
            bundle = int(program.instruction_bundle[index])  # type: ignore[attr-defined]
            known = ranges.setdefault(label, [low, low + _ROWS_PER_ACCESS, bundle])
            known[0] = min(known[0], low)
            known[1] = max(known[1], low + _ROWS_PER_ACCESS)
            known[2] = max(known[2], bundle)
        if not ranges:
            return None
        bases = [n for n in ranges if n is not None and n[0] == "s"]
        touches = [
            Touch(bases.index(n) if n in bases else None, low, high, at)
            for n, (low, high, at) in ranges.items()
        ]
        return bases, touches

    @staticmethod
    def _base_of(found: re.Match[str]) -> tuple[str | None, int]:
        offset = int(found["third"], 16) if found["third"] else 0
        first, second = found["first"], found["second"]
        if second is not None and second.startswith("$"):
            offset += int(second[1:], 16)
            second = None
        if second is not None:
            # allocation + register: keep the register, it decides the rows only together with the base
            return (None, 0)
        if first.startswith("%"):
            return first[1:], offset
        return first if first.startswith("#") else None, offset

    # -- code ---------------------------------------------------------------------------------

    def code(self, block: int) -> CodeType:
        """Code object that defines function `B<start>` of a block; made once."""
        if block not in self._code:
            text = self.text(block)
            self._code[block] = compile(text, f"<block {self.program.blocks[block].start:#x}>", "exec")
        return self._code[block]

    def text(self, block: int) -> str:
        """Python text of one block's function."""
        if block not in self._text:
            self._text[block] = _BlockWriter(self, block).write()
        return self._text[block]

    def add_site(
        self, op: Op, instruction: Instruction | None, block: int, bundle: int, **more: object
    ) -> int:
        """Append a site; gives its index."""
        index = len(self.sites)
        self.sites.append(Site(index, op, bundle, block, instruction, **more))  # type: ignore[arg-type]
        return index


class _BlockWriter:
    """Writes the function of one block."""

    def __init__(self, compiled: Compiled, block: int) -> None:
        self.c = compiled
        self.block = block
        self.lines: list[str] = []
        self.assigned: set[str] = set()
        self.branch: Branch | None = None
        self.skip: set[tuple[int, int]] = set()

    def write(self) -> str:
        c, program = self.c, self.c.program
        block = program.blocks[self.block]
        stretches = {s[0]: s for s in c.touches.get(self.block, [])}
        for bundle in range(block.start, block.end):
            branch = program.branches.get(bundle)
            if branch is not None:
                self._note_branch(branch, block.end)
            touch = stretches.get(bundle)
            before = touch is not None and c.divides(bundle)
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
            index = self.c.add_site(Op.VISIT, i, self.block, i.bundle, detail="spop")
            self._define(name, f"P({index})", i)
        elif m in ("vpop.sfrf",):
            index = self.c.add_site(Op.VISIT, i, self.block, i.bundle, detail="semaphore")
            self._define(name, f"S({index})", i)
        elif m.startswith("inlined_call_operand"):
            return
        else:
            operands = i.operands[:2] if m.startswith("scalar_lea") else i.operands
            text = expressions.expression(m, [self.atom(o, i) for o in operands])
            if text is None:
                raise _Unknown(f"operation {m}")
            self._define(name, text, i)

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
        elif m == "dma.done.wait" or m == "vwait.ge":
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
            op = self.c._marker_kind(i)
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
        values.append(f"D({self.atom(i.operand('stridedescaddr'), i)})")
        values.append(self.atom(i.operand("overrides"), i))
        second = i.operand("dst_syncflagno_1")
        if second not in (None, 0):
            raise _Unknown("a second destination semaphore")
        self._append(i, Op.DMA_GENERAL, values)

    def _touch(self, stretch: tuple[int, list[str], list[Touch]]) -> None:
        bundle, bases, touches = stretch
        index = self.c.add_site(Op.TOUCH, None, self.block, bundle, touches=tuple(touches))
        self.lines.append(f"T(({', '.join([str(index), *bases])},))")

    def _finish(self, end: int) -> None:
        blocks = self.c.program.blocks
        following = blocks[self.block + 1].start if self.block + 1 < len(blocks) else None
        if self.branch is None:
            self._leave(following, "")
            return
        guard = self.guard(self.branch.predicate)
        if guard is None:
            self._leave(self.branch.target, "")
            return
        self.lines.append(f"if {guard}:")
        self._leave(self.branch.target, " ")
        self._leave(following, "")

    def _leave(self, target: int | None, indent: str) -> None:
        if target is None:
            self.lines.append(f"{indent}return None")
            return
        back = target <= self.c.program.blocks[self.block].start
        copies = []
        for phi in self.c.scalar[target]:
            if phi.mnemonic not in ("sphi", "pphi") or name_of(phi.results[0]) not in self.c.live:
                continue
            if not self._is_loop_head(target):
                self._unsupported(phi, phi.bundle, "a phi outside a loop head")
                continue
            copies.append((name_of(phi.results[0]), self.atom(phi.operands[1 if back else 0], phi)))
        if copies:
            left, right = ", ".join(a for a, _ in copies), ", ".join(b for _, b in copies)
            self.lines.append(f"{indent}{left} = {right}")
            self.assigned.update(a for a, _ in copies)
        self.lines.append(f"{indent}return B{target}")

    def _is_loop_head(self, bundle: int) -> bool:
        return any(loop.start == bundle for loop in self.c.program.loops)


class _Unknown(Exception):
    """Something the generated code cannot do; raised again if it is ever executed."""
