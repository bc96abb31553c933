"""One spelling for what libtpu versions spell differently.

The model speaks as libtpu 0.0.50 does; what was printed is kept beside it. A new version that renames an
instruction needs one line here.
"""

_RENAMED = {
    "smov.u32": "smov",  # 0.0.52
    "vpop.erf": "vpop.eup",  # 0.0.52
    "spop.sfrf": "vpop.sfrf",  # 0.0.52
    "set.rngseed": "setrngseed",  # 0.0.42
    "vclamps-f32": "vclamps.f32",  # 0.0.42
}


def canonical(mnemonic: str) -> str:
    """The mnemonic as libtpu 0.0.50 spells it."""
    return _RENAMED.get(mnemonic, mnemonic)
