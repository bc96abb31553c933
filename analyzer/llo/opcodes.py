"""From a mnemonic as printed to the unit it runs on, its family and its data type.

The rules were read off the compiler's own per-bundle utilization files (docs/llo.md); the tests compare
them with every dump at hand. A mnemonic that matches no rule is `Unit.UNKNOWN`, never a guess.
"""

import re
from functools import lru_cache

from analyzer.llo.program import Unit


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Families (the mnemonic up to its first dot) by unit.
PSEUDO = _words(
    "sphi pphi vphi vmphi inlined_call_operand compiler-scheduling-barrier int_to_ptr scheduling-barrier"
)
SYNC = _words(
    "vsyncadd vsyncpa vsyncset vsyncmov vsyncdone vwait vtrace vdelay vsettm sfence vfence vstfence shalt "
    "vnop vint"
)
TRANSCENDENTAL = _words(
    "vrsqrt vrcp vpow2 vexp2 vlog2 vtanh vsigshft verf vsinq vcosq vsqrt vexp vlog vsin vcos vlogistic"
)
VECTOR = _words(
    "vadd vsub vmul vfma vand vor vxor vnot vandn vorn vshll vshrl vshra vshl vshr vmin vmax vclamp "
    "vclamps vcmp vsmask vf32 vsel vnsel vmov vstv vneg vabs vcvt vpack vunpack vcombine vlaneseq "
    "vcmask vnez vweird vceil vfloor vtrunc vround vclz vpcnt vctz vc vmmov vmand vmor vmxor vmneg "
    "vmnand vmnor vmandn vmorn vmpackc vmpack vmunpackc vmunpack vmsel vrot vperm vbcast vrng vclass "
    "vclassify vsplat vlane vsublane vavg vadde vsube vmulhi vmullo vinterleave vdeinterleave vcompress "
    "vmask vshuffle"
)
SCALAR = _words(
    "pmov pnand por pneg pand pxor pnor pnot reloc sld sst smov sadd ssub smul smulhi sdivrem sdiv sand sor "
    "sxor snot sneg sabs sshll sshllo sshrl sshra smin smax scmp sc scvt sfloor sceil sround strunc sclz "
    "spcnt sphi sbr scall sret spop spush scalar_lea scalar_select scalar_parameter_address setrngseed "
    "inlined_call call srdreg swrreg ssel slea sclamps srcp ssqrt sweird sclass sjmp scombine sdelay"
)
STORE = _words("vst vpush vsetiar vsetrngseed vsetspr vsetperm")
_DTYPE = re.compile(
    r"\.(bf16|f32|f16|f8e\w+|e4m3\w*|e5m2\w*|bf8|if8|f4\w+|s32|u32|s16|u16|s8|u8|s4|u4|s2|u2|b32|b16|b8)(?=\.|$)"
)
_BUFFER_INDEX = re.compile(r"\[\d+\]")
_XLU = re.compile(r"\.xlu\d")
_UNIT_INDEX = re.compile(r"\.(?:mxu|xlu)(\d)")


@lru_cache(maxsize=100_000)
def unit_of(mnemonic: str) -> Unit:  # noqa: PLR0911, PLR0912
    """The unit that `mnemonic` runs on."""
    first = family(mnemonic)
    if first in PSEUDO:
        return Unit.PSEUDO
    if first in SYNC or mnemonic.startswith("dma.done"):
        return Unit.SYNC
    if first == "dma":
        return Unit.DMA
    if mnemonic == "vpop.sfrf":
        return Unit.SYNC
    if first == "vpop":
        return Unit.VPOP
    if first in SCALAR:
        return Unit.SALU
    if not mnemonic.startswith("v"):
        return Unit.UNKNOWN
    if first.startswith(("vmat", "vllmr", "vdwg")):
        return Unit.MXU
    if _XLU.search(mnemonic) or first == "vxpose":
        return Unit.XLU
    if first == "vld":
        return Unit.VLOAD
    if first in STORE:
        return Unit.VSTORE
    if first in TRANSCENDENTAL:
        return Unit.EUP
    if first in VECTOR:
        return Unit.VALU
    return Unit.UNKNOWN


def normalise(mnemonic: str) -> str:
    """Without the result-buffer index glued to it: `vpop.f32.mrb[12].mxu0` -> `vpop.f32.mrb.mxu0`."""
    return _BUFFER_INDEX.sub("", mnemonic)


def family(mnemonic: str) -> str:
    """The mnemonic up to its first dot: `vmatpush1.bf16.msra.mxu0` -> `vmatpush1`."""
    return mnemonic.split(".", 1)[0]


def dtype(mnemonic: str) -> str | None:
    """The first data type named in the mnemonic, or None."""
    found = _DTYPE.search(mnemonic)
    return found[1] if found is not None else None


def unit_index(mnemonic: str) -> int | None:
    """Which MXU or XLU the mnemonic names: `vmatpush1.bf16.msra.mxu1` -> 1; None where it names none."""
    found = _UNIT_INDEX.search(mnemonic)
    return int(found[1]) if found is not None else None
