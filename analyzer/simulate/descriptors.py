"""Stride descriptors that are known before execution.

A strided copy reads nine SMEM words that the program stores just before it, nearly always constants. Where
that can be seen, the words become part of the copy and the stores are dropped: they are the larger half of
the scalar work of a kernel that streams weights.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from analyzer.llo.program import Address, Instruction, Memory, Operand

WORDS = 9
Place = tuple[int, int]  # bundle, slot


class Descriptors:
    """known: (bundle, slot) of a copy -> its nine words, or None where it has none and is contiguous.

    dropped: stores that only make known descriptors.
    """

    def __init__(
        self,
        scalar: Sequence[Sequence[Instruction]],
        block_of_bundle: Sequence[int],
        constant: Callable[[Operand | None], int | None],
    ) -> None:
        self.known: dict[Place, tuple[int, ...] | None] = {}
        self.dropped: set[Place] = set()
        copies: dict[int, list[Instruction]] = defaultdict(list)
        stores: dict[int, list[Instruction]] = defaultdict(list)
        other: set[int] = set()
        for bundle in scalar:
            for i in bundle:
                address = i.operand("stridedescaddr") if i.mnemonic == "dma.general" else None
                if isinstance(address, Address) and address.offset == 0 and not address.spill:
                    copies[address.allocation].append(i)
                target = i.operands[0] if i.mnemonic == "sst" and i.operands else None
                own = target.terms if isinstance(target, Memory) else ()
                if len(own) == 1 and isinstance(own[0], Address) and not own[0].spill:
                    stores[own[0].allocation].append(i)
                for operand in (*i.operands, i.otherwise):
                    if operand is address or (operand is target and len(own) == 1):
                        continue
                    terms = operand.terms if isinstance(operand, Memory) else (operand,)
                    other.update(t.allocation for t in terms if isinstance(t, Address))
        for allocation, users in copies.items():
            if allocation in other:
                continue
            self._settle(users, stores[allocation], block_of_bundle, constant)

    def _settle(
        self,
        copies: Sequence[Instruction],
        stores: Sequence[Instruction],
        block_of_bundle: Sequence[int],
        constant: Callable[[Operand | None], int | None],
    ) -> None:
        if not stores:
            self.known.update({(c.bundle, c.slot): None for c in copies})
            return
        if len(copies) != 1 or len(stores) != WORDS:
            return
        copy = copies[0]
        words: dict[int, int] = {}
        for store in stores:
            target = store.operands[0]
            assert isinstance(target, Memory)
            place = target.terms[0]
            assert isinstance(place, Address)
            value = constant(store.operands[1])
            before = (
                store.bundle <= copy.bundle and block_of_bundle[store.bundle] == block_of_bundle[copy.bundle]
            )
            if value is None or not before or store.predicate not in (None, copy.predicate):
                return
            words[place.offset] = value
        if sorted(words) != list(range(WORDS)):
            return
        self.known[copy.bundle, copy.slot] = tuple(words[k] for k in range(WORDS))
        self.dropped.update((s.bundle, s.slot) for s in stores)
