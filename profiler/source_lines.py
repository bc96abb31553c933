"""Makes each instruction carry the source line it was written on. Imports JAX.

Pallas lowers an equation once and reuses the lowered code for every equal one (same primitive, shapes and
parameters), locations included. So the copies of three weights of the same shape, or two waits for the same
ring, would all carry the line of the first. Without that reuse the program is the same instruction for
instruction (compared on the MLP kernel, libtpu 0.0.50.1) and each has its own line.
"""

import importlib
from typing import Any

_MODULE = "jax._src.pallas.mosaic.lowering"
_NAME = "_uncacheable_primitives"


class _Everything(set[Any]):
    """A set that claims to hold everything, and still takes additions."""

    def __contains__(self, _: object) -> bool:
        return True


def keep_every_line() -> bool:
    """Turn the reuse off for the rest of this process.

    Returns:
        False where this version of JAX keeps no such list; lines may then be those of an equal instruction.
    """
    try:
        lowering = importlib.import_module(_MODULE)
    except ImportError:
        return False
    if not isinstance(getattr(lowering, _NAME, None), set):
        return False
    setattr(lowering, _NAME, _Everything(getattr(lowering, _NAME)))
    return True
