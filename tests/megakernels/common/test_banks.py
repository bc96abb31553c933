"""What the stored form of weight tiles is for: their loads do not wait for each other's bank of VMEM."""

import importlib.util
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common import gemv

ROWS, RING, MXU = 8, 4, 256
SHAPES = {"pairs": (3584, 512), "deep": (7168, 256)}  # two column pairs; one, its depth over both MXUs
PUSH = re.compile(r"vmatpush|vmatprep")


def plain_pair(tile, k, pair):
    """A column pair of a tile whose column blocks lie under one another, not turned."""
    first = 2 * pair * k
    return jnp.concatenate([tile[first : first + k], tile[first + k : first + 2 * k]], axis=1)


def build(shape: str, stored: bool, dtype: str = "bfloat16"):
    """A product with one tile of a ring, which one is known only when it runs."""
    k, columns = SHAPES[shape]
    scaled = jnp.dtype(dtype).itemsize == 1
    m = 2 * ROWS if scaled else ROWS

    def kernel(slot, x, ring, scales, out):
        tile = ring.at[slot[0]]
        if scaled and stored:
            out[...] = gemv.scaled_tile_product(x[...], tile, columns, scales[...])
        elif stored:
            out[...] = gemv.tile_product(x[...], tile, columns)
        else:
            for pair in range(columns // MXU):
                product = jnp.dot(x[...], plain_pair(tile, k, pair), preferred_element_type=jnp.float32)
                out[:, pair * MXU : (pair + 1) * MXU] = product[:ROWS]

    vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
    call = pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), vmem, vmem, vmem],
        out_specs=vmem,
        out_shape=jax.ShapeDtypeStruct((ROWS, columns), jnp.float32),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=60 << 20, disable_bounds_checks=True),
        name="tile",
    )
    arguments = (
        jax.ShapeDtypeStruct((1,), jnp.int32),
        jax.ShapeDtypeStruct((m, k), jnp.bfloat16),
        jax.ShapeDtypeStruct((RING, columns // 128 * k, 128), jnp.dtype(dtype)),
        jax.ShapeDtypeStruct((k // 128, 128), jnp.float32),
    )
    return call, arguments, {}


def bundles_per_tile(capture: Path, shape: str) -> float:
    """Bundles from the first push of weights to the last, per 256 x 256 weights."""
    (dump,) = (f for f in (capture / "dump").iterdir() if re.search(r"tile[^-]*-\d+-final_bundles", f.name))
    lines = (line for line in dump.read_text().splitlines() if re.match(r"\s*(0x[0-9a-f]+|0)\s*:", line))
    pushing = [number for number, line in enumerate(lines) if PUSH.search(line)]
    k, columns = SHAPES[shape]
    return (pushing[-1] - pushing[0] + 1) / (k * columns / MXU**2)


@pytest.mark.slow
def test_a_turned_tile_takes_little_more_than_its_pushes_and_a_plain_one_much_longer(tmp_path):
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: nothing can be compiled for a TPU")
    sys.path.insert(0, str(Path(__file__).parents[2] / "analyzer" / "findings"))
    from compile_many import compile_many

    cases = [(shape, stored) for shape in SHAPES for stored in (True, False)]
    jobs = [
        {
            "name": f"{shape}-{stored}",
            "target": f"{__file__}:build",
            "topology": "1x1x1",
            "options": {"shape": shape, "stored": stored},
        }
        for shape, stored in cases
    ]
    compile_many(jobs, tmp_path)
    for shape, stored in cases:
        taken = bundles_per_tile(tmp_path / f"{shape}-{stored}", shape)
        assert taken <= 20 if stored else taken > 28, (shape, stored, taken)
