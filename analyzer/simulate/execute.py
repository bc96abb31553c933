"""Runs the generated code of one core and gives its trace: block visits and events, no times."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from analyzer.errors import UnsupportedProgramError
from analyzer.llo.operands import TABLE
from analyzer.simulate import expressions
from analyzer.simulate.compiled import Compiled
from analyzer.simulate.scenario import Assumptions, Draw, Number, Scenario, bits_of, sequence_of
from analyzer.simulate.sites import name_of
from analyzer.simulate.words import DeviceWords

type Trace = list[Any]  # int: visit of a block; tuple: event (sites.EVENT_FIELDS)
_CURE = "The simulator stops rather than guess; report the dump, or give the value in a scenario"
_VISIT_LIMIT = 50_000_000
_EVENT_LIMIT = 20_000_000  # kept in memory, about 1 GB


@dataclass(frozen=True, slots=True)
class CoreTrace:
    """What one core did. rank = chip * cores per chip + core; used: entries of the scenario it asked for."""

    rank: int
    chip: int
    core: int
    trace: Trace
    assumptions: Assumptions
    used: frozenset[str] = frozenset()


class _Smem(dict[int, int]):
    """SMEM of one core; a read of a word nobody wrote is an assumption."""

    def __init__(self, missing: Callable[[int], int]) -> None:
        super().__init__()
        self._missing = missing

    def __missing__(self, address: int) -> int:
        return self._missing(address)


class Core:
    """One core's scalar program, ready to run."""

    def __init__(
        self, compiled: Compiled, scenario: Scenario, words: DeviceWords, rank: int, cores_per_chip: int
    ) -> None:
        self.compiled, self.scenario = compiled, scenario
        self.rank, self.chip, self.core = rank, rank // cores_per_chip, rank % cores_per_chip
        self.assumptions = Assumptions()
        self.used: set[str] = set()
        self.trace: Trace = []
        self.smem = _Smem(self._missing_word)
        for addresses, value in (
            (words.core_id, self.core),
            (words.chip_id, self.chip),
            (words.rank, self.rank),
            (words.replica, 0),
        ):
            self.smem.update(dict.fromkeys(addresses, value))
        self._dummies = words.dummies
        self._pops: dict[str, Iterator[Number]] = {}
        self.namespace: dict[str, object] = dict(expressions.helpers())
        self.namespace |= dict.fromkeys(compiled.globals_, 0)
        self.namespace |= {
            "T": self.trace.append,
            "M": self.smem,
            "D": self._descriptor,
            "P": self._pop,
            "S": self._semaphore,
            "L": self._load_smem,
            "U": self._unsupported,
        }
        self._operands()
        for index, block in enumerate(compiled.program.blocks):
            self.namespace[f"B{block.start}"] = self._stub(index, f"B{block.start}")

    def _stub(self, index: int, name: str) -> Callable[[], object]:
        def first() -> object:
            code: CodeType = self.compiled.code(index)
            exec(code, self.namespace)
            made = self.namespace[name]
            assert callable(made)
            return made()

        return first

    def _operands(self) -> None:
        addresses = self.compiled.layout.operand_address
        for operand in self.compiled.program.operands:
            if operand.index == TABLE:
                at = addresses[operand.register]
                listed = [o for o in self.compiled.program.operands if o.register in addresses]
                self.smem.update({at + o.index: addresses[o.register] for o in listed if o.index != TABLE})
            name = name_of(operand.register)
            if operand.register in self.compiled.layout.operand_address:
                self.namespace[name] = self.compiled.layout.operand_address[operand.register]
                continue
            given = operand.index in self.scenario.scalars
            self.used.add(f"scalars.{operand.index}")
            value = self.scenario.scalars.get(operand.index, self.scenario.default)
            self.namespace[name] = bits_of(value)
            if name in self.compiled.live:
                what = f"operand {operand.index} ({operand.shape}) passed by value"
                self.assumptions.note(what, f"bundle {operand.bundle:#x}", value, given)

    def run(self) -> CoreTrace:
        """Execute from the entry to the exit.

        Raises:
            UnsupportedProgramError: something that cannot be executed exactly was reached, or the
                program does not end.
        """
        step: object = self.namespace["B0"]
        remaining = _VISIT_LIMIT
        try:
            while step is not None:
                step = step()  # type: ignore[operator]
                remaining -= 1
                if not remaining or (not remaining & 0xFFFF and len(self.trace) > _EVENT_LIMIT):
                    break
        except (TypeError, NameError, ZeroDivisionError, ValueError) as error:
            block = self._last_block()
            raise UnsupportedProgramError(
                self.compiled.program.path, f"block at bundle {block:#x} cannot be executed: {error}", _CURE
            ) from error
        if step is not None:
            raise UnsupportedProgramError(
                self.compiled.program.path,
                f"no end after {_VISIT_LIMIT - remaining:,} blocks, last at bundle {self._last_block():#x}",
                self._endless_cure(),
            )
        return CoreTrace(self.rank, self.chip, self.core, self.trace, self.assumptions, frozenset(self.used))

    def _endless_cure(self) -> str:
        assumed = "; ".join(f"{a.what} at {a.source} = {a.values}" for a in self.assumptions.items.values())
        if not assumed:
            return "No value is assumed: the bundles are damaged or modelled wrongly; report the dump"
        return f"A value of the scenario probably keeps a loop from ending: {assumed}"

    def _last_block(self) -> int:
        for entry in reversed(self.trace):
            if isinstance(entry, int):
                return self.compiled.program.blocks[entry].start
        return 0

    # -- what the generated code calls ----------------------------------------------------------

    def _unsupported(self, index: int) -> None:
        site = self.compiled.sites[index]
        raise UnsupportedProgramError(
            self.compiled.program.path, f"{site.where}: {site.detail} is not supported", _CURE
        )

    def _missing_word(self, address: int) -> int:
        placed = self.compiled.layout.find("smem", address)
        if placed is not None and placed.start in self._dummies:
            return 0
        name = placed.name if placed is not None else f"word {address:#x}"
        given = name in self.scenario.words
        self.used.add(f"words.{name}")
        value = self.scenario.words.get(name, self.scenario.default)
        frame = sys._getframe(2)  # generated code, from _Smem.__missing__
        bundle = self.compiled.bundle_of_line(frame.f_code.co_filename, frame.f_lineno)
        self.assumptions.note(f"SMEM word {name}", self._load_source(bundle), value, given)
        return bits_of(value)

    def _load_source(self, bundle: int | None) -> str:
        """Source line of the scalar load in a bundle; its address where the dump does not say."""
        if bundle is None:
            return "unknown"
        for i in self.compiled.scalar[bundle]:
            if i.mnemonic == "sld" and i.sources:
                return str(i.sources[0])
        return f"bundle {bundle:#x}"

    def _descriptor(self, address: int) -> tuple[int, ...] | None:
        memory = self.smem
        if address not in memory:
            return None
        words: list[int] = []
        for level in range(address, address + 9, 3):
            # A copy of fewer levels stores fewer words; of a level that none was stored for, none is read.
            used = any(level + k in memory for k in range(3))
            words += (memory[level + k] for k in range(3)) if used else (0, 0, 0)
        return tuple(words)

    def _pop(self, index: int) -> int:
        site = self.compiled.sites[index]
        source = str(site.source) if site.source is not None else f"bundle {site.bundle:#x}"
        short = source.rsplit("/", 1)[-1]
        key = next((k for k in (source, short, short.rpartition(":")[2]) if k in self.scenario.pops), None)
        sequence = self._pops.get(source)
        if sequence is None:
            self.used.add(f"pops.{key}")
            given = self.scenario.pops[key] if key is not None else self.scenario.default
            sequence = self._pops[source] = sequence_of(given, source, self.scenario.default)
        value = next(sequence)
        self.assumptions.note("vector to scalar pop", source, value, key is not None)
        return bits_of(value, as_float=site.detail == "spop float")

    def _semaphore(self, index: int) -> int:
        site = self.compiled.sites[index]
        source = str(site.source) if site.source is not None else f"bundle {site.bundle:#x}"
        self.assumptions.note("semaphore value read", source, 0, False)
        return 0

    def _load_smem(self, index: int, source: int, destination: int, granules: int) -> None:
        """Content that a DMA brings into SMEM: from the operand it is read from, else assumed."""
        layout = self.compiled.layout
        site = self.compiled.sites[index]
        space = site.detail.partition("_to_")[0]
        placed = layout.find(space, source)
        operand = placed.operand if placed is not None else None
        given = self.scenario.smem.get(operand) if operand is not None else None
        self.used.add(f"smem.{operand}")
        origin = f"operand {operand}" if operand is not None else "memory"
        offset = (source - placed.start) * 8 if placed is not None else 0
        where = str(site.source) if site.source is not None else f"bundle {site.bundle:#x}"
        drawn = given.sequence(origin) if isinstance(given, Draw) else None
        value: Number
        for k in range(granules * 8):
            if drawn is not None:
                value = next(drawn)
            elif given is None:
                value = self.scenario.default
            elif isinstance(given, int | float):
                value = given
            elif isinstance(given, list):
                value = given[offset + k] if offset + k < len(given) else self.scenario.default
            if k == 0:
                self.assumptions.note(f"SMEM content copied from {origin}", where, value, given is not None)
            self.smem[destination + k] = bits_of(value)
