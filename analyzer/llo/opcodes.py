"""From a mnemonic as printed to the issue slot it takes, its family and its data type.

The rules were read off the compiler's own per-bundle utilization files; tests/analyzer/llo compares
them with every dump at hand. A mnemonic that matches no rule is `Unit.UNKNOWN`, never a guess.
"""

import re
from functools import lru_cache

from analyzer.llo.program import Unit

PSEUDO = frozenset(
    (
        "sphi",
        "pphi",
        "vphi",
        "vmphi",
        "inlined_call",
        "compiler-scheduling-barrier",
        "scalar_parameter_address",
    )
)
SYNC_PREFIXES = ("vsync", "vwait", "dma.done", "sfence", "vfence", "vtrace", "vdelay", "vsettm", "shalt")
SCALAR = frozenset(
    (
        "pmov",
        "pnand",
        "por",
        "pneg",
        "pand",
        "pxor",
        "reloc",
        "spop",
        "sld",
        "sst",
        "smov",
    )
)
TRANSCENDENTAL = re.compile(
    r"v(rsqrt|rcp|pow2|log2|tanh|sigshft|erf|exp|exp2|sin|cos|sqrt|logistic)(\.|$)",
)
_DTYPE = re.compile(r"\.(bf16|f32|f16|f8e\w+|e4m3\w*|e5m2\w*|s32|u32|s16|u16|s8|u8|s4|u4|b32|b16|b8)\b")
_MRB = re.compile(r"\[\d+\]")


@lru_cache(maxsize=100_000)
def unit_of(mnemonic: str) -> Unit:  # noqa: PLR0911, PLR0912
    """The slot that `mnemonic` issues in."""
    if mnemonic in PSEUDO or mnemonic.startswith(("int_to_ptr", "inlined_call_operand")):
        return Unit.PSEUDO
    if mnemonic.startswith(SYNC_PREFIXES):
        return Unit.SYNC
    if mnemonic.startswith("dma."):
        return Unit.DMA
    if mnemonic.startswith("v"):
        if mnemonic.startswith("vmat"):
            return Unit.MXU
        if mnemonic == "vpop.sfrf":
            return Unit.SYNC
        if mnemonic.startswith("vpop"):
            return Unit.VPOP
        if ".xlu" in mnemonic:
            return Unit.XLU
        if mnemonic.startswith("vld"):
            return Unit.VLOAD
        if mnemonic.startswith("vst") and not mnemonic.startswith("vstv"):
            return Unit.VSTORE
        if TRANSCENDENTAL.match(mnemonic):
            return Unit.EUP
        return Unit.VALU
    if mnemonic in SCALAR or mnemonic.startswith(("s", "p")):
        return Unit.SALU
    return Unit.UNKNOWN


def normalise(mnemonic: str) -> str:
    """The mnemonic without the result-buffer index glued to it: `vpop.f32.mrb[12].mxu0` -> `vpop.f32.mrb.mxu0`."""
    return _MRB.sub("", mnemonic)


def family(mnemonic: str) -> str:
    """The first word of the mnemonic: `vmatpush1.bf16.msra.mxu0` -> `vmatpush1`."""
    return mnemonic.split(".", 1)[0]


def dtype(mnemonic: str) -> str | None:
    """The data type named in the mnemonic, or None."""
    found = _DTYPE.search(mnemonic)
    return found[1] if found is not None else None
