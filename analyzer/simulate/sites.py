"""Sites: the places of a program where something happens that a simulator must see.

The generated code appends to a trace. An integer is the visit of a block; a tuple is an event,
its first element the site, the rest the values listed in `EVENT_FIELDS`.
"""

from dataclasses import dataclass
from enum import IntEnum

from analyzer.llo.program import Instruction, Register, SourceSpan


def name_of(register: Register) -> str:
    """Python name of an SSA value."""
    return f"{register.kind}{register.value}"


class Op(IntEnum):
    """What kind of event a site makes."""

    VISIT = 0
    WAIT = 1  # flag, amount: until the flag holds at least amount
    WAIT_TAKE = 2  # flag, amount: the same, and then subtract amount
    ADD = 3  # flag, amount (signed)
    REMOTE_ADD = 4  # address (flag | 0x8000 | core << 14 | chip << 17), amount
    DMA = 5  # source, destination, granules, flag, strides
    DMA_GENERAL = 6  # source, destination, granules, destination flag, source flag, descriptor, overrides
    SCOPE_START = 7
    SCOPE_END = 8
    VALUE = 9  # value
    TOUCH = 10  # base rows of vector loads and stores


EVENT_FIELDS = {
    Op.WAIT: ("flag", "amount"),
    Op.WAIT_TAKE: ("flag", "amount"),
    Op.ADD: ("flag", "amount"),
    Op.REMOTE_ADD: ("address", "amount"),
    Op.DMA: ("source", "destination", "granules", "flag", "strides"),
    Op.DMA_GENERAL: (
        "source",
        "destination",
        "granules",
        "destination_flag",
        "source_flag",
        "descriptor",
        "overrides",
    ),
    Op.SCOPE_START: (),
    Op.SCOPE_END: (),
    Op.VALUE: ("value",),
}


@dataclass(frozen=True, slots=True)
class Touch:
    """Rows that vector loads and stores of one stretch of a block touch, relative to a base.

    base: position in the event's values, or None for a constant; low, high: rows, half-open, the
    constant base included where there is one; last, first: bundles of the last and the first access.
    """

    base: int | None
    low: int
    high: int
    last: int
    first: int


@dataclass(frozen=True, slots=True)
class Site:
    """One place in the program. block is an index into `Program.blocks`; detail depends on op.

    detail: DMA: "hbm_to_vmem" and the like; scopes: the marker's name; values: the tag operand;
    waits: "barrier" for the runtime's global barrier.
    """

    index: int
    op: Op
    bundle: int
    block: int
    instruction: Instruction | None = None
    detail: str = ""
    touches: tuple[Touch, ...] = ()

    @property
    def source(self) -> SourceSpan | None:
        """Where the user's source says this, if the dump says so."""
        if self.instruction is None or not self.instruction.sources:
            return None
        return self.instruction.sources[0]

    @property
    def where(self) -> str:
        """Bundle address and text, for messages."""
        text = "" if self.instruction is None else f" {{ {self.instruction.text[:160]} }}"
        return f"bundle {self.bundle:#x}{text}"
