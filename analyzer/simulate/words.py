"""SMEM words that the runtime sets before a kernel starts: core id, chip id, place in the mesh."""

from dataclasses import dataclass

from analyzer.llo.program import Address, Instruction, Memory, Register
from analyzer.simulate.compiled import Compiled
from analyzer.simulate.sites import name_of


@dataclass(frozen=True, slots=True)
class DeviceWords:
    """SMEM words the runtime sets, by address: what each one holds.

    devices: count the program states; dummies: words that are only read where the value is not used.
    """

    core_id: frozenset[int]
    chip_id: frozenset[int]
    rank: frozenset[int]
    replica: frozenset[int]
    devices: int | None
    dummies: frozenset[int] = frozenset()


def unwritten_words(compiled: Compiled) -> dict[int, list[Instruction]]:
    """Constant SMEM addresses that are read and that no store of the program writes."""
    written: set[int] = set()
    read: dict[int, list[Instruction]] = {}
    for bundle in compiled.scalar:
        for i in bundle:
            if i.mnemonic not in ("sst", "sld") or not i.operands or not isinstance(i.operands[0], Memory):
                continue
            values = [compiled.constant(t) for t in i.operands[0].terms]
            if any(v is None for v in values):
                continue
            address = sum(v for v in values if v is not None)
            if i.mnemonic == "sst":
                written.add(address)
            else:
                read.setdefault(address, []).append(i)
    return {address: loads for address, loads in read.items() if address not in written}


def device_words(compiled: Compiled) -> DeviceWords:
    """Tell the runtime's words apart: core id and chip id by comment, the mesh position by its use.

    A mesh position is computed as `(replica << log2(devices)) + partition` and masked; with a mesh of
    devices that is no power of two the shift is a product.
    """
    unwritten = unwritten_words(compiled)
    core: set[int] = set()
    chip: set[int] = set()
    origin: dict[str, int] = {}
    for address, loads in unwritten.items():
        for load in loads:
            comments = " ".join(load.comments)
            if "core id" in comments:
                core.add(address)
            elif "chip id" in comments:
                chip.add(address)
            origin[name_of(load.results[0])] = address
    if not core and 0 in (k[0] for k in compiled.layout.address):
        zero = compiled.layout.of(Address(0))
        if zero in unwritten:
            core.add(zero)
    rank, replica, devices = _mesh_words(compiled, origin, core | chip)
    dummies = guarded_dummies(compiled)
    return DeviceWords(
        frozenset(core), frozenset(chip), frozenset(rank), frozenset(replica), devices, dummies
    )


def _mesh_words(
    compiled: Compiled, origin: dict[str, int], others: set[int]
) -> tuple[set[int], set[int], int | None]:
    """Words of partition and replica, and the devices, from the sums `replica * devices + partition`."""
    rank: set[int] = set()
    replica: set[int] = set()
    devices = None
    scaled: dict[str, tuple[str, int]] = {}
    sums: list[list[str]] = []
    for bundle in compiled.scalar:
        for i in bundle:
            names = [name_of(o) for o in i.operands if isinstance(o, Register)]
            if i.mnemonic == "sadd.s32" and len(names) == 2:
                sums.append(names)
            elif i.mnemonic in ("sshll.u32", "smul.u32") and len(names) == 1 and names[0] in origin:
                factor = next((o for o in i.operands if isinstance(o, int)), None)
                if factor is not None:
                    times = 1 << factor if i.mnemonic == "sshll.u32" else factor
                    scaled[name_of(i.results[0])] = (names[0], times)
    for names in sums:
        for a, b in (names, names[::-1]):
            if a not in scaled or b not in origin:
                continue
            high, low = origin[scaled[a][0]], origin[b]
            if high not in others and low not in others:
                replica.add(high)
                rank.add(low)
                devices = scaled[a][1]
    return rank, replica, devices


def guarded_dummies(compiled: Compiled) -> frozenset[int]:
    """Words that are only read where the value is not used.

    The compiler turns `if p: x = load(core id)` into a load from `p ? #allocation0 : #allocationN`, with
    #allocationN never written: what it loads there feeds only operations guarded by p.
    """
    selected: set[Address] = set()
    elsewhere: set[int] = set()
    for bundle in compiled.scalar:
        for i in bundle:
            for operand in (*i.operands, i.otherwise):
                for term in operand.terms if isinstance(operand, Memory) else (operand,):
                    if not isinstance(term, Address):
                        continue
                    if i.mnemonic == "scalar_select":
                        selected.add(term)
                    else:
                        elsewhere.add(term.allocation)
    addresses = (compiled.layout.of(s) for s in selected if s.allocation not in elsewhere)
    return frozenset(a for a in addresses if a is not None)
