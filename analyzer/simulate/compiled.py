"""What is known about a program before it runs: constants, live values, sites; and its generated code.

Only live code is generated: what branches, predicates, SMEM, DMA and semaphore operations need. Code is
made per basic block, once per program. No timing enters, so changing a machine parameter regenerates
nothing.
"""

from collections import defaultdict
from collections.abc import Iterable
from types import CodeType
from typing import Any

from analyzer.llo.program import Address, Instruction, Memory, Operand, Program, Register
from analyzer.simulate import expressions
from analyzer.simulate.blockcode import BlockWriter
from analyzer.simulate.descriptors import Descriptors
from analyzer.simulate.expressions import MASK
from analyzer.simulate.layout import Layout
from analyzer.simulate.sites import Op, Site, name_of
from analyzer.simulate.touches import TouchPlan

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
        self.users: dict[str, list[Instruction]] = defaultdict(list)
        for bundle in self.scalar:
            for instruction in bundle:
                if instruction.mnemonic not in ("smov", "sphi", "scalar_select", "sst"):
                    for name in self.used(instruction):
                        self.users[name].append(instruction)
        self.constants: dict[str, int] = {}
        self._fold_constants()
        self.sites: list[Site] = [Site(i, Op.VISIT, block.start, i) for i, block in enumerate(program.blocks)]
        self.pops = self._pop_order()
        self.descriptors = Descriptors(self.scalar, self.block_of_bundle, self.constant)
        self.touches = TouchPlan(self.program, self.scalar, self.layout, self.constants)
        self.live = self._liveness()
        self.globals_ = self._cross_block()
        self.scope_names = {(m.bundle, m.kind): m.name for m in program.markers}
        self._tables: tuple[list[int], list[int]] = ([], [])
        self._code: dict[int, CodeType] = {}
        self.line_bundles: dict[int, list[int]] = {}
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
        if m.startswith(_IGNORED) or (instruction.bundle, instruction.slot) in self.descriptors.dropped:
            return False
        if m == "vtrace":
            kind = self.marker_kind(instruction)
            return kind is not None
        return m.startswith(("sst", "dma.", "vsyncadd", "vwait", "vtrace.arg"))

    @staticmethod
    def marker_kind(instruction: Instruction) -> Op | None:
        """Whether a `vtrace` starts or ends a scope of the user; None for the compiler's own."""
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
        for plan in self.touches.stretches.values():
            for stretch in plan:
                need(stretch.bases)
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
        for block, plan in self.touches.stretches.items():
            for stretch in plan:
                for name in stretch.bases:
                    used_in[name].add(block)
        crossing = set()
        for name in self.live:
            places = home[name] | used_in[name]
            if len(places) > 1:
                crossing.add(name)
        return crossing

    # -- code ---------------------------------------------------------------------------------

    def code(self, block: int) -> CodeType:
        """Code object that defines function `B<start>` of a block; made once."""
        if block not in self._code:
            text = self.text(block)
            self._code[block] = compile(text, f"<block {block}>", "exec")
        return self._code[block]

    def pop_kind(self, name: str) -> str:
        """`spop float` where an operation on float32 uses a popped value, else `spop`.

        Conversions test the sign of the bits with an integer comparison, so not every user is a float's.
        """
        reads_float = ("f32" in i.mnemonic and i.mnemonic != "scvt.s32.f32" for i in self.users.get(name, []))
        return "spop float" if any(reads_float) else "spop"

    def bundle_of_line(self, file: str, line: int) -> int | None:
        """Bundle of a line of generated code, by the file name that `code` gives it."""
        if not file.startswith("<block "):
            return None
        bundles = self.line_bundles[int(file[7:-1])]
        return bundles[line] if line < len(bundles) else bundles[-1]

    def text(self, block: int) -> str:
        """Python text of one block's function."""
        if block not in self._text:
            self._text[block] = BlockWriter(self, block).write()
        return self._text[block]

    def site_tables(self) -> tuple[list[int], list[int]]:
        """Per site its operation and its bundle counted from the start of its block, as plain integers."""
        if len(self._tables[0]) != len(self.sites):
            starts = [block.start for block in self.program.blocks]
            self._tables = (
                [int(site.op) for site in self.sites],
                [site.bundle - starts[site.block] for site in self.sites],
            )
        return self._tables

    def add_site(self, op: Op, instruction: Instruction | None, block: int, bundle: int, **more: Any) -> int:
        """Append a site; gives its index."""
        index = len(self.sites)
        self.sites.append(Site(index, op, bundle, block, instruction, **more))
        return index
