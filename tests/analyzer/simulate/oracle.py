"""A plain interpreter of scalar programs, instruction by instruction: the oracle for the generated code.

It shares with the simulator only the reader, the addresses of the layout and the table of single operations
(which has its own test against numpy). Control flow, ordering within a bundle, phis, memory and events are
done in another way: phis take whatever was last written to their physical register, delay slots are counted
down, nothing is dropped as dead and nothing is generated.
"""

from analyzer.llo.program import Address, Memory, Register
from analyzer.simulate.expressions import MASK, function, signed, to_bits
from analyzer.simulate.sites import Op

NOTHING = (
    "sfence",
    "vsyncpa",
    "vsyncmov",
    "shalt",
    "vpush",
    "vdelay",
    "inlined_call",
    "setrngseed",
    "compiler",
    "vphi",
    "vmphi",
)


class Oracle:
    """Runs one core; `events` are (what, bundle, values) in program order."""

    def __init__(self, compiled, words, scenario, rank, cores_per_chip=2):
        self.compiled, self.program, self.layout = compiled, compiled.program, compiled.layout
        self.words, self.scenario = words, scenario
        self.rank, self.chip, self.core = rank, rank // cores_per_chip, rank % cores_per_chip
        self.registers, self.physical, self.memory = {}, {}, {}
        self.divisions = {}
        self.events = []
        self.executed = 0
        self.starts = {block.start: i for i, block in enumerate(self.program.blocks)}
        for operand in self.program.operands:
            address = self.layout.operand_address.get(operand.register)
            if address is None:
                address = scenario.scalars.get(operand.index, scenario.default)
            self.write(operand.register, address)

    def write(self, register, value):
        self.registers[register] = value
        self.physical[register.kind, register.physical] = value

    def read(self, operand, mine):
        if isinstance(operand, Register):
            return mine.get(operand, self.registers.get(operand, 0))
        if isinstance(operand, Address):
            return self.layout.of(operand) or 0
        if isinstance(operand, float):
            return to_bits(operand)
        return operand & MASK

    def holds(self, instruction, mine):
        guard = instruction.predicate
        return guard is None or bool(self.read(guard.register, mine)) is not guard.negated

    def word(self, address):
        if address in self.memory:
            return self.memory[address]
        if address in self.words.core_id:
            return self.core
        if address in self.words.chip_id:
            return self.chip
        if address in self.words.rank:
            return self.rank
        return self.scenario.default

    def address(self, memory, mine):
        return sum(self.read(term, mine) for term in memory.terms) & MASK

    def run(self, limit=None):
        """Events of the whole program, or of its first `limit` executed bundles."""
        bundle, countdown, target = 0, None, None
        last = self.program.bundle_count
        while bundle < last and (limit is None or self.executed < limit):
            if countdown is None or countdown < 0:
                countdown = None
            branch = self.execute(bundle)
            self.executed += 1
            if branch is not None:
                countdown, target = self.program.branches[bundle].delay_slots, branch
            if countdown == 0:
                bundle, countdown = target, None
                continue
            if countdown is not None:
                countdown -= 1
            bundle += 1
        return self.events

    def execute(self, bundle):
        """One bundle; gives the target of a taken branch."""
        instructions = self.program.scalar_instructions(bundle)
        mine, stores, events, taken = {}, [], [], None
        todo = []
        for i in instructions:
            if i.mnemonic in ("sphi", "pphi"):
                value = self.physical.get((i.results[0].kind, i.results[0].physical), 0)
                mine[i.results[0]] = value
            else:
                todo.append(i)
        made = {r for i in todo for r in i.results}
        while todo:
            later = []
            for i in todo:
                needs = {o for o in (*i.operands, i.otherwise) if isinstance(o, Register)}
                if i.predicate is not None:
                    needs.add(i.predicate.register)
                if needs & made - set(mine):
                    later.append(i)
                    continue
                taken = self.one(i, mine, stores, events) or taken
                for r in i.results:
                    mine.setdefault(r, None)
            if len(later) == len(todo):
                raise AssertionError(f"cycle in bundle {bundle:#x}")
            todo = later
        for register, value in mine.items():
            if value is not None:
                self.write(register, value)
        for address, value in stores:
            self.memory[address] = value
        for i in events:
            self.event(i, mine)
        return taken

    def one(self, i, mine, stores, events):
        m = i.mnemonic
        if m.startswith(NOTHING) or m == "vpop.sfrf":
            return None
        if m.startswith("sbr"):
            return self.program.branches[i.bundle].target if self.holds(i, mine) else None
        if m == "sst":
            if self.holds(i, mine):
                stores.append((self.address(i.operands[0], mine), self.read(i.operands[1], mine)))
        elif m.startswith(("dma.", "vsyncadd", "vwait", "vtrace")):
            events.append(i)
        elif m.startswith("sdivrem"):
            a, b = (self.read(o, mine) for o in i.operands[:2])
            both = list(divmod(a, b)) if b else [MASK, a]
            pops = self.compiled.pops[i.results[0].value]
            kinds = [c for c in i.comments if c.startswith("k")]
            if len(pops) == 1:
                both = both[:1] if "kDiv" in kinds else both[1:]
            self.divisions[i.results[0]] = both
        elif m == "spop.drf":
            mine[i.results[0]] = self.divisions[i.operands[0]].pop(0)
        elif not self.holds(i, mine):
            if i.otherwise is not None:
                mine[i.results[0]] = self.read(i.otherwise, mine)
        elif m == "sld":
            mine[i.results[0]] = self.word(self.address(i.operands[0], mine))
        elif m == "spop":
            mine[i.results[0]] = self.pop(i)
        else:
            operands = i.operands[:2] if m.startswith("scalar_lea") else i.operands
            operation = function(m)
            if operation is None:
                raise AssertionError(f"oracle does not know {i.text}")
            mine[i.results[0]] = operation(*(self.read(o, mine) for o in operands))
        return None

    def pop(self, i):
        place = str(i.sources[0]).rpartition("/")[2] if i.sources else ""
        return self.scenario.pops.get(place, self.scenario.default)

    def event(self, i, mine):
        if not self.holds(i, mine):
            return
        m = i.mnemonic
        values = [self.read(o, mine) for o in i.operands if not isinstance(o, Memory)]
        if m == "vtrace":
            if self.compiled.marker_kind(i) is not None:
                self.events.append((self.compiled.marker_kind(i).name, i.bundle))
            return
        if m == "vtrace.arg":
            self.events.append(("VALUE", i.bundle, values[1]))
            return
        if m.startswith("vsyncadd") and m != "vsyncadd.remote":
            self.events.append(("ADD", i.bundle, values[0], signed(values[1])))
        elif m == "vsyncadd.remote":
            self.events.append(("REMOTE_ADD", i.bundle, values[0], signed(values[1])))
        elif m in ("vwait.ge", "dma.done.wait"):
            self.events.append(("WAIT", i.bundle, values[0], values[1]))
        elif m == "dma.general":
            named = dict(zip(i.operand_names, values, strict=True))
            at = named["stridedescaddr"]
            words = tuple(self.memory[at + k] for k in range(9)) if at in self.memory else None
            self.events.append(
                (
                    "DMA",
                    i.bundle,
                    named["src"],
                    named["dst"],
                    named["size_in_granules"],
                    words,
                    named["overrides"],
                )
            )
        else:
            named = dict(zip(i.operand_names, values, strict=True))
            source, destination = m[4:].split("_to_")
            strides = tuple(named[n] for n in ("src_stride", "dst_stride", "steps_per_stride") if n in named)
            self.events.append(
                (
                    "DMA",
                    i.bundle,
                    named[source],
                    named[destination],
                    named["size_in_granules"],
                    strides or None,
                )
            )
            if destination == "smem":
                self.load(named[source], named["smem"], named["size_in_granules"], source)

    def load(self, source, destination, granules, space):
        placed = self.layout.find(space, source)
        given = self.scenario.smem.get(placed.operand if placed else None, self.scenario.default)
        offset = (source - placed.start) * 8 if placed else 0
        for k in range(granules * 8):
            value = given
            if isinstance(given, list):
                value = given[offset + k] if offset + k < len(given) else self.scenario.default
            self.memory[destination + k] = value


def events_of(compiled, trace):
    """The simulator's trace in the oracle's form; a wait that takes counts as a wait and an addition."""
    found = []
    for entry in trace:
        if isinstance(entry, int):
            continue
        site = compiled.sites[entry[0]]
        values = entry[1:]
        if site.op is Op.TOUCH:
            continue
        if site.op is Op.WAIT_TAKE:
            found.append(("WAIT", site.bundle, *values))
            found.append(("ADD", site.bundle + 1, values[0], -values[1]))
        elif site.op is Op.DMA:
            found.append(("DMA", site.bundle, values[0], values[1], values[2], values[4]))
        elif site.op is Op.DMA_GENERAL:
            found.append(("DMA", site.bundle, values[0], values[1], values[2], values[5], values[6]))
        else:
            found.append((site.op.name, site.bundle, *values))
    return found
