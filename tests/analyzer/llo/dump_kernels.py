"""Compile jax's own Pallas kernels and plain XLA programs for several TPUs and keep their dumps.

    python tests/analyzer/llo/dump_kernels.py OUT                          # everything, minutes
    python tests/analyzer/llo/dump_kernels.py OUT --chip v6e --kernel flash_attention
    python tests/analyzer/llo/dump_kernels.py OUT --list

Each pair of kernel and chip is compiled in a child process (libtpu reads its flags once per process)
into OUT/<chip>/<kernel>/. No TPU is needed. A pair that does not compile is reported and skipped:
not every kernel supports every chip.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TOPOLOGIES = {"tpu7x": "tpu7x:2x2x1", "v6e": "v6e:2x2", "v5p": "v5p:2x2x1", "v5e": "v5e:2x2"}
LABELS = (
    "(final_bundles|trace-markers|final_hlo-static-per-bundle-utilization|critical-path"
    "|hlo-static-bundle-profile|static-gaps|post-scalar-select-transform)"
)

Built = tuple[Callable, tuple]


def _args(*specs: tuple) -> tuple:
    import jax
    import jax.numpy as jnp

    return tuple(jax.ShapeDtypeStruct(shape, getattr(jnp, dtype)) for shape, dtype in specs)


def flash_attention() -> Built:
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention as op

    return lambda q, k, v: op(q, k, v, causal=True), _args(*[((1, 4, 1024, 128), "bfloat16")] * 3)


def flash_attention_backward() -> Built:
    import jax
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention as op

    def loss(q, k, v):
        return op(q, k, v, causal=True).astype("float32").sum()

    return jax.grad(loss, argnums=(0, 1, 2)), _args(*[((1, 2, 512, 128), "float32")] * 3)


def paged_attention() -> Built:
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as op

    def call(q, k, v, lengths, pages):
        return op(q, k, v, lengths, pages, pages_per_compute_block=4)

    return call, _args(
        ((8, 16, 128), "bfloat16"),
        ((4, 128, 16, 128), "bfloat16"),
        ((4, 128, 16, 128), "bfloat16"),
        ((8,), "int32"),
        ((8, 16), "int32"),
    )


def paged_attention_int8() -> Built:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as op
    from jax.experimental.pallas.ops.tpu.paged_attention import quantization_utils

    def call(q, k, ks, v, vs, lengths, pages):
        pack = quantization_utils.QuantizedTensor
        return op(q, pack(k, ks), pack(v, vs), lengths, pages, pages_per_compute_block=4)

    del jax, jnp
    pages = ((4, 128, 32, 128), "int8"), ((4, 128, 32, 1), "float32")
    return call, _args(((8, 16, 128), "bfloat16"), *pages, *pages, ((8,), "int32"), ((8, 16), "int32"))


def ragged_paged_attention() -> Built:
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention as op

    def call(q, kv, lengths, pages, starts, count):
        return op(
            q,
            kv,
            lengths,
            pages,
            starts,
            count,
            num_kv_pages_per_block=8,
            num_queries_per_block=32,
            vmem_limit_bytes=64 << 20,
        )

    return call, _args(
        ((256, 16, 128), "bfloat16"),
        ((256, 16, 8, 128), "bfloat16"),
        ((16,), "int32"),
        ((16, 32), "int32"),
        ((17,), "int32"),
        ((1,), "int32"),
    )


def splash_attention() -> Built:
    import jax
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    mask = splash.MultiHeadMask([splash.CausalMask((1024, 1024)) for _ in range(2)])
    kernel = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1)
    return jax.vmap(kernel), _args(*[((1, 2, 1024, 128), "bfloat16")] * 3)


def splash_attention_local() -> Built:
    import jax
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    mask = splash.MultiHeadMask([splash.LocalMask((1024, 1024), (256, 0), 0) for _ in range(4)])
    kernel = splash.make_splash_mqa(mask, head_shards=1, q_seq_shards=1)

    def loss(q, k, v):
        return kernel(q, k, v).astype("float32").sum()

    return jax.grad(loss, argnums=(0, 1, 2)), _args(
        ((4, 1024, 128), "bfloat16"), ((1024, 128), "bfloat16"), ((1024, 128), "bfloat16")
    )


def matmul() -> Built:
    from jax.experimental.pallas.ops.tpu.matmul import matmul as op

    return lambda x, y: op(x, y, block_shape=(256, 256), block_k=256), _args(
        ((1024, 1024), "bfloat16"), ((1024, 1024), "bfloat16")
    )


def matmul_f32() -> Built:
    from jax.experimental.pallas.ops.tpu.matmul import matmul as op

    return lambda x, y: op(x, y, block_shape=(256, 256), block_k=256), _args(
        ((512, 1024), "float32"), ((1024, 512), "float32")
    )


def _dtype_matmul(dtype: str, out: str) -> Built:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x, y, o):
        o[...] = jnp.dot(x[...], y[...], preferred_element_type=getattr(jnp, out))

    def call(x, y):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((256, 512), getattr(jnp, out)))(x, y)

    return call, _args(((256, 512), dtype), ((512, 512), dtype))


def matmul_int8() -> Built:
    return _dtype_matmul("int8", "int32")


def matmul_fp8() -> Built:
    return _dtype_matmul("float8_e4m3fn", "float32")


def matmul_fp8_e5m2() -> Built:
    return _dtype_matmul("float8_e5m2", "float32")


def matmul_int4_weights() -> Built:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x, y, o):
        o[...] = jnp.dot(x[...], y[...].astype(jnp.bfloat16), preferred_element_type=jnp.float32)

    def call(x, y):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((64, 512), jnp.float32))(x, y)

    return call, _args(((64, 512), "bfloat16"), ((512, 512), "int4"))


def megablox() -> Built:
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    return lambda x, w, sizes: gmm(x, w, sizes, tiling=(128, 256, 256)), _args(
        ((1024, 512), "bfloat16"), ((8, 512, 512), "bfloat16"), ((8,), "int32")
    )


def megablox_backward() -> Built:
    import jax
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    def loss(x, w, sizes):
        return gmm(x, w, sizes, "float32", (128, 256, 256)).sum()

    return jax.grad(loss, argnums=(0, 1)), _args(
        ((512, 256), "bfloat16"), ((4, 256, 256), "bfloat16"), ((4,), "int32")
    )


def all_gather() -> Built:
    """Needs the mesh of the whole topology; see `compile_one`."""
    import jax
    from jax.experimental.pallas.ops.tpu.all_gather import all_gather as op
    from jax.sharding import PartitionSpec as P

    def call(mesh, x):
        return op(x, mesh=mesh, axis_name="x")

    del jax, P
    return call, _args(((1024, 512), "bfloat16"))


def philox() -> Built:
    from jax.experimental.pallas.ops.tpu.random import philox as op

    return lambda key: op.philox_random_bits(key, 32, (512, 512)), _args(((2,), "uint32"))


def elementwise() -> Built:
    """Every vector operation that has a transcendental, a conversion or a relayout in it."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental import pallas as pl

    def kernel(x, i, o):
        v = x[...]
        n = i[...]
        w = jnp.exp(v) + jnp.log(jnp.abs(v) + 1) + jnp.tanh(v) + lax.rsqrt(jnp.abs(v) + 1) + jax.nn.sigmoid(v)
        w += jnp.sin(v) + jnp.cos(v) + lax.erf(v) + 1 / (v + 3) + jnp.sqrt(jnp.abs(v)) + jnp.power(v, 3)
        w += jnp.floor(v) + jnp.ceil(v) + jnp.round(v) + jnp.sign(v) + jnp.maximum(v, 0) + jnp.minimum(v, 1)
        w += v.astype(jnp.bfloat16).astype(jnp.float32) + v.astype(jnp.int32).astype(jnp.float32)
        w += jnp.where(n > 3, v, w) + (n << 2).astype(jnp.float32) + (n >> 1).astype(jnp.float32)
        w += (n % 7).astype(jnp.float32) + (n // 3).astype(jnp.float32) + (n * n).astype(jnp.float32)
        w += (n & 7 | 2 ^ n).astype(jnp.float32) + lax.population_count(n).astype(jnp.float32)
        w += lax.clz(n).astype(jnp.float32)
        w += jnp.sum(v, -1, keepdims=True) + jnp.max(v, -1, keepdims=True) + jnp.min(v, 0, keepdims=True)
        w += jnp.argmax(v, -1, keepdims=True).astype(jnp.float32)
        w += v.T[: v.shape[0]][:, : v.shape[1]] if v.shape[0] == v.shape[1] else 0
        w += jnp.roll(v, 3, 1) + jnp.roll(v, 5, 0) + jnp.concatenate([v[:, 128:], v[:, :128]], 1)
        w += jnp.broadcast_to(v[:1, :], v.shape) + jnp.broadcast_to(v[:, :1], v.shape)
        w += v.reshape(v.shape[0] // 2, 2, v.shape[1]).sum(1).repeat(2, 0)
        o[...] = w

    def call(x, i):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((256, 256), jnp.float32))(x, i)

    return call, _args(((256, 256), "float32"), ((256, 256), "int32"))


def narrow_types() -> Built:
    """bf16, int8 and fp8 vector arithmetic and conversions."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(a, b, c, o):
        x = a[...] * a[...] + jnp.bfloat16(1.5)
        x = jnp.maximum(x, a[...]) + b[...].astype(jnp.bfloat16) + c[...].astype(jnp.bfloat16)
        x += jnp.exp(a[...]) + jnp.tanh(a[...])
        o[...] = x

    def call(a, b, c):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((256, 256), jnp.bfloat16))(a, b, c)

    return call, _args(((256, 256), "bfloat16"), ((256, 256), "int8"), ((256, 256), "float8_e4m3fn"))


def gather_scatter() -> Built:
    """Dynamic indices, scalars from SMEM, DMAs with strides, nested loops and conditionals."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(index, table, o, buffer, sem):
        def row(i, _):
            with jax.named_scope("fetch"):
                copy = pltpu.make_async_copy(
                    table.at[pl.ds(index[i], 1), pl.ds(0, 256)], buffer.at[pl.ds(i % 8, 1)], sem.at[i % 2]
                )
                copy.start()
                copy.wait()

            @pl.when(index[i] % 3 == 0)
            def _():
                def inner(j, carry):
                    o[pl.ds(j, 1), :] = o[pl.ds(j, 1), :] + buffer[pl.ds(i % 8, 1), :] * jnp.float32(index[j])
                    return carry

                with jax.named_scope("accumulate"):
                    lax.fori_loop(0, index[i], inner, 0)

            return 0

        o[...] = jnp.zeros_like(o)
        lax.fori_loop(0, 64, row, 0)

    def call(index, table):
        # Otherwise XLA moves the small table to VMEM, and the program copies from there with HBM addresses.
        table = pltpu.with_memory_space_constraint(table, pltpu.HBM)
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((64, 256), jnp.float32),
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.HBM)],
            scratch_shapes=[pltpu.VMEM((8, 256), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
        )(index, table)

    return call, _args(((64,), "int32"), ((512, 512), "float32"))


def spilling() -> Built:
    """So many live values that vector registers spill."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x, o):
        values = [x[8 * i : 8 * i + 8, :] for i in range(120)]
        for _ in range(3):
            values = [
                v * w + u for v, w, u in zip(values, values[::-1], values[7:] + values[:7], strict=True)
            ]
        o[...] = sum(values[1:], values[0])

    def call(x):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32))(x)

    return call, _args(((960, 128), "float32"))


def unrolled(layers: int = 150) -> Built:
    """Straight-line code of tens of thousands of bundles: the dump has more than 20 MB."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x, weights, o, ring, sems):
        def copy(layer):
            return pltpu.make_async_copy(weights.at[layer], ring.at[layer % 3], sems.at[layer % 3])

        value = x[...]
        copy(0).start()
        copy(1).start()
        for layer in range(layers):
            copy(layer).wait()
            if layer + 2 < layers:
                copy(layer + 2).start()
            product = jnp.dot(value, ring[layer % 3], preferred_element_type=jnp.float32)
            value = (product * jax.nn.sigmoid(product)).astype(jnp.bfloat16)
        o[...] = value

    def call(x, weights):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((8, 1024), jnp.bfloat16),
            in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM), pl.BlockSpec(memory_space=pltpu.HBM)],
            scratch_shapes=[pltpu.VMEM((3, 1024, 1024), jnp.bfloat16), pltpu.SemaphoreType.DMA((3,))],
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=48 << 20),
        )(x, weights)

    return call, _args(((8, 1024), "bfloat16"), ((layers, 1024, 1024), "bfloat16"))


def xla_mlp() -> Built:
    import jax
    import jax.numpy as jnp

    def call(x, w1, w2):
        return jax.nn.softmax(jnp.dot(jax.nn.gelu(jnp.dot(x, w1)), w2), -1)

    return call, _args(((512, 1024), "bfloat16"), ((1024, 4096), "bfloat16"), ((4096, 1024), "bfloat16"))


def xla_mixed() -> Built:
    """Sort, scatter, gather, convolution, cumulative sums, top-k, random numbers, a while loop."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def call(x, i, image, filters):
        order = jnp.sort(x, -1)
        values, indices = lax.top_k(x, 8)
        picked = x[i] + jnp.zeros_like(x).at[i].add(x)
        image = lax.conv_general_dilated(image, filters, (1, 1), "SAME")
        noise = jax.random.normal(jax.random.key(0), x.shape)
        looped = lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, jnp.sin(s[1]) @ s[1].T), (0, x))[1]
        return order, values, indices, picked, image, noise, jnp.cumsum(x, 0), looped

    return call, _args(
        ((256, 256), "float32"), ((256,), "int32"), ((4, 16, 32, 32), "float32"), ((32, 16, 3, 3), "float32")
    )


KERNELS: dict[str, Callable[[], Built]] = {
    build.__name__: build
    for build in (
        flash_attention,
        flash_attention_backward,
        paged_attention,
        paged_attention_int8,
        ragged_paged_attention,
        splash_attention,
        splash_attention_local,
        matmul,
        matmul_f32,
        matmul_int8,
        matmul_fp8,
        matmul_fp8_e5m2,
        matmul_int4_weights,
        megablox,
        megablox_backward,
        all_gather,
        philox,
        elementwise,
        narrow_types,
        gather_scatter,
        spilling,
        xla_mlp,
        xla_mixed,
    )
}
LARGE: dict[str, Callable[[], Built]] = {"unrolled": unrolled}  # compiled only when asked for by name


def compile_one(chip: str, kernel: str) -> None:
    """Compile one pair in this process, whose libtpu flags are already set."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_enable_compilation_cache", False)
    topology = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[chip])
    function, specs = (KERNELS | LARGE)[kernel]()
    whole = kernel == "all_gather"
    mesh = Mesh(np.array(topology.devices if whole else topology.devices[:1]), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x") if whole else PartitionSpec())
    specs = tuple(jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding) for s in specs)
    bound = (lambda *args: function(mesh, *args)) if whole else function
    # Some kernels ask what device they are lowered for: the mesh knows, this process has only a CPU.
    with contextlib.nullcontext() if whole else jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        lowered = jax.jit(bound).lower(*specs)
    lowered.compile()


def child_environment(folder: Path, regions: bool, annotated: bool, all_passes: bool) -> dict[str, str]:
    """The environment in which libtpu writes its dump to `folder`."""
    flags = [f"--xla_jf_dump_to={folder}", "--xla_jf_dump_llo_text=true"]
    if not all_passes:
        flags.append(f"--xla_jf_dump_llo_pass_label_regex={LABELS}")
    flags.append("--xla_jf_dump_llo_static_gaps=true")
    if regions:
        flags.append("--xla_enable_custom_call_region_trace=true")
    if annotated:
        flags.append("--xla_mosaic_enable_llo_source_annotations=true")
    return os.environ | {
        "TPU_SKIP_MDS_QUERY": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_TRACEBACK_FILTERING": "off",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "LIBTPU_INIT_ARGS": " ".join(flags),
    }


def dump(
    out: Path,
    chip: str,
    kernel: str,
    *,
    regions: bool = True,
    annotated: bool = True,
    all_passes: bool = False,
    timeout: float = 600,
    python: str = sys.executable,
) -> Path | None:
    """Compile `kernel` for `chip` in a child process; the dump folder, or None where it failed.

    python: an interpreter whose environment has another jax and libtpu, for dumps of other versions.
    """
    folder = out / chip / kernel
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    result = subprocess.run(
        [python, __file__, str(out), "--child", "--chip", chip, "--kernel", kernel],
        env=child_environment(folder, regions, annotated, all_passes),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    seconds = time.monotonic() - started
    made = len(list(folder.glob("*-final_bundles.txt")))
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    fault = "" if result.returncode == 0 else f"  FAILED: {lines[-1][:150] if lines else result.returncode}"
    print(f"{chip:6} {kernel:26} {seconds:6.1f} s {made:4d} files{fault}", file=sys.stderr, flush=True)
    return folder if result.returncode == 0 and made else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--chip", action="append", choices=sorted(TOPOLOGIES))
    parser.add_argument("--kernel", action="append", choices=sorted(KERNELS | LARGE))
    parser.add_argument("--plain", action="store_true", help="no region trace, no source annotations")
    parser.add_argument("--all-passes", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    chips, kernels = options.chip or list(TOPOLOGIES), options.kernel or list(KERNELS)
    if options.list:
        print("\n".join(KERNELS))
    elif options.child:
        compile_one(chips[0], kernels[0])
    else:
        for chip in chips:
            for kernel in kernels:
                dump(
                    options.out,
                    chip,
                    kernel,
                    regions=not options.plain,
                    annotated=not options.plain,
                    all_passes=options.all_passes,
                )


if __name__ == "__main__":
    main()
