"""What the bundles do not contain: where a core stands, and values that come from data.

A scenario gives them; whatever it does not give is assumed, and every assumption is recorded with its
place in the source and how often it was used. Nothing is assumed silently.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from analyzer.options import TABLES
from analyzer.simulate import expressions


@dataclass(frozen=True, slots=True)
class Draw:
    """Values drawn from a seeded distribution: integers from low to high inclusive, or from `choices`.

    Each place in the program draws its own sequence, the same in every run.
    """

    low: int = 0
    high: int = 0
    choices: tuple[int | float, ...] = ()
    seed: int = 0

    def sequence(self, place: str) -> Iterator[int | float]:
        """The values that one place in the program sees, in turn, without end."""
        generator = random.Random(f"{self.seed}:{place}")
        while True:
            yield generator.choice(self.choices) if self.choices else generator.randint(self.low, self.high)

    def __str__(self) -> str:
        what = f"one of {list(self.choices)}" if self.choices else f"{self.low} to {self.high}"
        return f"drawn from {what}, seed {self.seed}"


type Number = int | float
type Values = Number | list[Number] | Draw


@dataclass(frozen=True, slots=True)
class Scenario:
    """Values for one run.

    Attributes:
        name: shown with every result.
        devices: cores that take part, None: taken from the program where it says so, else 1.
        scalars: operand index -> value of an operand passed by value (int32 bits).
        smem: operand index -> words of an operand that the kernel copies to SMEM; a single int fills.
        pops: `path/file.py:line`, `file.py:line` or `line` -> values of vector-to-scalar pops there, in
            turn, from the first again at the end.
        words: `#allocation12` -> value of an SMEM word that the program never writes.
        default: value of everything else (0).

    A float stands for its float32 bits. An int given to a pop that the program reads as a float does too.
    """

    name: str = "default"
    devices: int | None = None
    scalars: Mapping[int, Number] = field(default_factory=dict)
    smem: Mapping[int, Values] = field(default_factory=dict)
    pops: Mapping[str, Values] = field(default_factory=dict)
    words: Mapping[str, Number] = field(default_factory=dict)
    default: int = 0


def entries_of(scenario: Scenario) -> set[str]:
    """Everything a scenario gives a value for: `pops.router.py:88`, `smem.1`, ..."""
    return {f"{table}.{key}" for table in TABLES for key in getattr(scenario, table)}


def sequence_of(values: Values, place: str, default: int) -> Iterator[Number]:
    """Values in turn for one place: a constant, a list over and over, or draws."""
    if isinstance(values, Draw):
        return values.sequence(place)
    if isinstance(values, int | float):
        return itertools.repeat(values)
    return itertools.cycle(values or [default])


def bits_of(value: Number, *, as_float: bool = False) -> int:
    """The 32 bits a register holds for a value of a scenario."""
    if as_float or isinstance(value, float):
        return expressions.to_bits(float(value))
    return value & expressions.MASK


@dataclass(slots=True)
class Assumption:
    """One value that the bundles do not contain.

    what: `vector to scalar pop`, `SMEM word #allocation17`, ...; source: file:line or bundle address;
    given: the scenario named it (else it is the scenario's default); values: the first few used.
    """

    what: str
    source: str
    given: bool
    count: int = 0
    values: list[Number] = field(default_factory=list)

    def note(self, value: Number) -> None:
        """Count one use of `value`."""
        self.count += 1
        if len(self.values) < 8 and value not in self.values:
            self.values.append(value)


class Assumptions:
    """All assumptions of one core's run, by (what, source)."""

    def __init__(self) -> None:
        self.items: dict[tuple[str, str], Assumption] = {}

    def note(self, what: str, source: str, value: Number, given: bool) -> None:
        """Record one use."""
        key = (what, source)
        found = self.items.get(key)
        if found is None:
            found = self.items[key] = Assumption(what, source, given)
        found.note(value)


def merge_assumptions(of_cores: Iterable[Assumptions]) -> tuple[Assumption, ...]:
    """Assumptions of several cores in one list; equal places are counted together."""
    merged: dict[tuple[str, str], Assumption] = {}
    for assumptions in of_cores:
        for key, item in assumptions.items.items():
            known = merged.setdefault(key, Assumption(item.what, item.source, item.given))
            known.count += item.count
            known.values += [v for v in item.values if v not in known.values]
            del known.values[8:]
    return tuple(merged.values())
