"""How long a sum over all cores takes in one, two and three hops, modelled, compiled for 32 cores.

    python benchmarks/reductions.py [-o FOLDER] [--kinds one two three] [--rows 1 8] [--widths 3584 7168]

Compiles a kernel of some rounds per case (ten seconds each) and simulates all cores. Prints JSON, a line per
case: microseconds per round, with nothing to overlap the exchange, by phase, and bundles issued per round.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megakernels.hooks import Level

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

ROUNDS = 8
PHASES = ("post", "send", "relay", "receive", "total", "finish")


def build(
    *,
    level: "Level" = "regions",
    kind: str = "two",
    rows: int = 1,
    width: int = 7168,
    parts: int = 7,
    hosts: int = 4,
    members: int = 8,
    rounds: int = ROUNDS,
) -> Any:
    """Rounds of two reductions in turn; the share is the sum of the round before."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu
    from jax.sharding import PartitionSpec

    from megakernels.build import KernelBuild
    from megakernels.common import reduction
    from megakernels.common.collectives import EntryBarrier
    from megakernels.hooks import instrument, layer, phase

    columns = width // parts
    grouped = (1, hosts * members) if kind == "one" else (hosts, members)
    mesh = reduction.Mesh("core", *grouped)
    make = reduction.three_hop_scratch if kind == "three" else reduction.two_hop_scratch
    shape = (parts, 8, columns)

    def kernel(x: Any, out: Any, pair: Any, vmem: Any, semaphore: Any) -> None:
        barrier = EntryBarrier("core", hosts * members)
        barrier.signal()
        copy = pltpu.make_async_copy(x, vmem, semaphore)
        copy.start()
        copy.wait()
        barrier.wait()

        def one(scratch: Any) -> None:
            sums = reduction.reduction(mesh, rows, scratch)
            with phase("post"):
                for part in range(parts):
                    sums.post(part, vmem[part])
            with phase("send"):
                sums.send("share")
            with phase("relay"):
                sums.relay("sums")
            with phase("receive"):
                sums.receive()
            with phase("total"):
                for part in range(parts):
                    vmem[part, :rows] = sums.total(part)
            with phase("finish"):
                sums.finish()

        def both(index: Any, carry: int) -> int:
            with layer(index):
                one(pair[0])
                one(pair[1])
            return carry

        lax.fori_loop(0, rounds // 2, both, 0)
        copy = pltpu.make_async_copy(vmem, out, semaphore)
        copy.start()
        copy.wait()

    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    scratch = make(mesh, rows, parts, columns)
    name = f"reduce_in_{kind}"
    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(shape, jnp.float32),
        in_specs=[in_hbm],
        out_specs=in_hbm,
        scratch_shapes=[(scratch, scratch), pltpu.VMEM(shape, jnp.float32), pltpu.SemaphoreType.DMA],
        compiler_params=pltpu.CompilerParams(
            collective_id=0, vmem_limit_bytes=64 << 20, disable_bounds_checks=True
        ),
        name=name,
    )

    def function(x: jax.Array) -> Any:
        return call(pltpu.with_memory_space_constraint(x, pltpu.HBM))

    return KernelBuild(
        name=name,
        function=instrument(function, level),
        arguments=(jax.ShapeDtypeStruct(shape, jnp.float32),),
        in_specs=(PartitionSpec(),),
        out_specs=PartitionSpec(),
        mesh_axes={"core": hosts * members},
        facts={"cores": hosts * members},
    )


def modelled(folder: Path, kind: str, rows: int, width: int) -> dict[str, Any]:
    """One case: compiled, and simulated on all 32 cores."""
    from analyzer.capture import open_capture
    from analyzer.llo.reader import read_program
    from analyzer.machine import load_machine
    from analyzer.simulate import Simulator

    out = folder / f"{kind}-{rows}-{width}"
    command = [sys.executable, f"{ROOT}/megascope.py", "compile", f"{ROOT}/benchmarks/reductions.py:build"]
    options = ["--topology", "2x2x4", "--force", "-o", str(out)]
    for name, value in (("kind", kind), ("rows", rows), ("width", width)):
        options += ["--set", f"{name}={value}"]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    capture = open_capture(out)
    program = read_program(capture.kernel_program().bundles)
    result = Simulator(program).simulate(load_machine("tpu7x"), None, capture.manifest, cores="all")
    spans = result.phase_ps
    of_phase = {name: round(spans.get(name, 0) / ROUNDS / 1e6, 2) for name in PHASES}
    return {
        "hops": kind,
        "rows": rows,
        "width": width,
        "us": round(sum(of_phase.values()), 2),
        **of_phase,
        "messages": result.messages // ROUNDS,
        "bytes_sent": result.sent_bytes // ROUNDS,
        "bundles": result.executed_bundles // ROUNDS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--kinds", nargs="*", default=["one", "two", "three"])
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--widths", nargs="*", type=int, default=[3584, 7168])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for rows in chosen.rows:
            for width in chosen.widths:
                for kind in chosen.kinds:
                    if kind != "three" or (rows > 1 and not width % (8 * 128)):
                        print(
                            json.dumps(modelled(chosen.output or Path(folder), kind, rows, width)), flush=True
                        )


if __name__ == "__main__":
    main()
