"""What one scalar instruction computes, as a Python expression over 32-bit values.

Registers hold unsigned 32-bit integers (float registers their bit pattern), predicates hold bool.
Both the generated code and the plain interpreter in the tests evaluate the semantics written here in
two forms: `expression` as text, `OPERATIONS` as functions; a test holds one against the other.
"""

import math
import struct
from collections.abc import Callable

MASK = 0xFFFFFFFF
SIGN = 0x80000000


def to_bits(value: float) -> int:
    """Bits of the nearest float32 (infinity where it does not fit)."""
    try:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    except OverflowError:
        return 0xFF800000 if value < 0 else 0x7F800000


def from_bits(bits: int) -> float:
    """The float32 with these bits, exactly, as a Python float."""
    return float(struct.unpack("<f", struct.pack("<I", bits & MASK))[0])


def signed(value: int) -> int:
    """Two's complement reading of 32 bits."""
    return (value ^ SIGN) - SIGN


def float_to_signed(bits: int) -> int:
    """Float32 bits to a 32-bit integer, towards zero, saturating; NaN gives 0."""
    value = from_bits(bits)
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return 0x7FFFFFFF if value > 0 else SIGN
    return max(-SIGN, min(SIGN - 1, int(value))) & MASK


def _divide(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _float(operation: Callable[..., float]) -> Callable[..., int]:
    return lambda *bits: to_bits(operation(*(from_bits(b) for b in bits)))


def _compare(operation: Callable[[float, float], bool]) -> Callable[[int, int], bool]:
    return lambda a, b: operation(from_bits(a), from_bits(b))


def _floor(value: float) -> float:
    return float(math.floor(value)) if math.isfinite(value) else value


def _ceil(value: float) -> float:
    return float(math.ceil(value)) if math.isfinite(value) else value


# mnemonic -> (template, function). {0}, {1} are atoms: names or literals.
_INTEGER: dict[str, tuple[str, Callable[..., int]]] = {
    "sadd.s32": ("({0} + {1}) & 0xFFFFFFFF", lambda a, b: (a + b) & MASK),
    "ssub.s32": ("({0} - {1}) & 0xFFFFFFFF", lambda a, b: (a - b) & MASK),
    "smul.u32": ("({0} * {1}) & 0xFFFFFFFF", lambda a, b: (a * b) & MASK),
    "smulhi.u32": ("({0} * {1}) >> 32", lambda a, b: (a * b) >> 32),
    "sshll.u32": (
        "({0} << {1}) & 0xFFFFFFFF if {1} < 32 else 0",
        lambda a, b: (a << b) & MASK if b < 32 else 0,
    ),
    "sshrl.u32": ("{0} >> {1}", lambda a, b: a >> b),
    "sshra.s32": (
        "((({0} ^ 0x80000000) - 0x80000000) >> ({1} if {1} < 31 else 31)) & 0xFFFFFFFF",
        lambda a, b: (signed(a) >> min(b, 31)) & MASK,
    ),
    "sand.u32": ("{0} & {1}", lambda a, b: a & b),
    "sor.u32": ("{0} | {1}", lambda a, b: a | b),
    "sxor.u32": ("{0} ^ {1}", lambda a, b: a ^ b),
    "smin.u32": ("{0} if {0} < {1} else {1}", min),
    "smax.u32": ("{0} if {0} > {1} else {1}", max),
    "smov": ("{0}", lambda a: a),
}
_INTEGER |= {f"scalar_lea.{space}": _INTEGER["sadd.s32"] for space in ("hbm", "vmem", "smem", "sflag")}
_INTEGER |= {f"int_to_ptr.{space}": _INTEGER["smov"] for space in ("hbm", "vmem", "smem", "sflag")}
_INTEGER["scopy"] = _INTEGER["smov"]

_FLOAT: dict[str, Callable[..., int]] = {
    "sadd.f32": _float(lambda a, b: a + b),
    "ssub.f32": _float(lambda a, b: a - b),
    "smul.f32": _float(lambda a, b: a * b),
    "sdiv.f32": _float(_divide),
    "smax.f32": _float(max),
    "smin.f32": _float(min),
    "sfloor.f32": _float(_floor),
    "sceil.f32": _float(_ceil),
    # The name lists source then result type: s32.f32 makes a float from an integer.
    "scvt.s32.f32": lambda a: to_bits(float(signed(a))),
    "scvt.f32.s32": float_to_signed,
}

_RELATIONS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "lt": ("<", lambda a, b: a < b),
    "le": ("<=", lambda a, b: a <= b),
    "gt": (">", lambda a, b: a > b),
    "ge": (">=", lambda a, b: a >= b),
    "eq": ("==", lambda a, b: a == b),
    "ne": ("!=", lambda a, b: a != b),
}

_PREDICATE: dict[str, tuple[str, Callable[..., bool]]] = {
    "pnand": ("not ({0} and {1})", lambda a, b: not (a and b)),
    "pand": ("{0} and {1}", lambda a, b: bool(a and b)),
    "por": ("{0} or {1}", lambda a, b: bool(a or b)),
    "pnor": ("not ({0} or {1})", lambda a, b: not (a or b)),
    "pxor": ("{0} is not {1}", lambda a, b: bool(a) is not bool(b)),
    "pneg": ("not {0}", lambda a: not a),
    "pmov": ("{0}", bool),
}


def _flip(atom: str) -> str:
    """`atom ^ 0x80000000`: unsigned order of the result is the signed order of the atom."""
    return str(int(atom, 0) ^ SIGN) if atom[0].isdigit() else f"({atom} ^ 0x80000000)"


def _comparison(mnemonic: str, atoms: list[str]) -> str | None:
    _, relation, dtype, *_ = mnemonic.split(".")
    symbol = _RELATIONS[relation][0]
    if dtype == "f32":
        return f"F_{mnemonic.replace('.', '_')}({', '.join(atoms)})"
    if dtype not in ("s32", "u32"):
        return None
    if relation in ("eq", "ne") or dtype == "u32":
        return f"{atoms[0]} {symbol} {atoms[1]}"
    return f"{_flip(atoms[0])} {symbol} {_flip(atoms[1])}"


def _is_comparison(mnemonic: str) -> bool:
    parts = mnemonic.split(".")
    return len(parts) >= 3 and parts[0] == "scmp" and parts[1] in _RELATIONS


def expression(mnemonic: str, atoms: list[str]) -> str | None:  # noqa: PLR0911
    """Python text that computes `mnemonic` from atoms (names or integer literals); None if unknown."""
    if mnemonic in _INTEGER:
        if mnemonic == "sshll.u32" and atoms[1][0].isdigit() and int(atoms[1], 0) < 32:
            return f"({atoms[0]} << {atoms[1]}) & 0xFFFFFFFF"
        return _INTEGER[mnemonic][0].format(*atoms)
    if mnemonic in _PREDICATE:
        return _PREDICATE[mnemonic][0].format(*atoms)
    if _is_comparison(mnemonic):
        return _comparison(mnemonic, atoms)
    if mnemonic in _FLOAT:
        return f"F_{mnemonic.replace('.', '_')}({', '.join(atoms)})"
    if mnemonic == "scalar_select":
        return f"{atoms[1]} if {atoms[0]} else {atoms[2]}"
    return None


def function(mnemonic: str) -> Callable[..., int | bool] | None:  # noqa: PLR0911
    """The same operation as a function of 32-bit values; None if unknown."""
    if mnemonic in _INTEGER:
        return _INTEGER[mnemonic][1]
    if mnemonic in _PREDICATE:
        return _PREDICATE[mnemonic][1]
    if mnemonic in _FLOAT:
        return _FLOAT[mnemonic]
    if mnemonic == "scalar_select":
        return lambda p, a, b: a if p else b
    if _is_comparison(mnemonic):
        _, relation, dtype, *_ = mnemonic.split(".")
        compare = _RELATIONS[relation][1]
        if dtype == "u32":
            return compare
        if dtype == "s32":
            return lambda a, b: compare(signed(a), signed(b))
        if dtype == "f32":
            return _compare(compare)
    return None


def helpers() -> dict[str, Callable[..., int | bool]]:
    """Names the generated code calls for operations that are not one expression."""
    found: dict[str, Callable[..., int | bool]] = {
        f"F_{name.replace('.', '_')}": operation for name, operation in _FLOAT.items()
    }
    for relation in _RELATIONS:
        for order in ("totalorder", "partialorder"):
            name = f"scmp.{relation}.f32.{order}"
            operation = function(name)
            assert operation is not None
            found[f"F_{name.replace('.', '_')}"] = operation
    return found
