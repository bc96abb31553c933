"""The FFN of a layer: the dense one of the first layers, and the mixture of experts of the others.

A mixture, as one core sees it; what the ranks tell one another stands on the right:

    own latent columns = x moe_in            ->  latent gather, within the host
    router = x moe_in; the best experts; their weights requested
    shared expert                            ->  its sum over all ranks, which nobody waits for until the end
    routed experts, from the latent          ->  sum over all ranks
    norm; own output columns = y latent_up   ->  output gather, within the host

The router stands on every rank: the experts' weights are on their way while the latent is gathered. Until
the last of them is requested nothing else is: copies are served in the order of their requests, and the ring
holds what the mixture needs besides.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from megakernels.common.gemv import LANES
from megakernels.hooks import phase
from megakernels.k3 import experts, top_k
from megakernels.k3.mixer import block_of
from megakernels.k3.plan import Matrix
from megakernels.k3.residual import rounded
from megakernels.k3.situ import situ
from megakernels.k3.step_plan import HALF, Gated
from megakernels.k3.step_refs import Core
from megakernels.k3.stream import Stream


def dense_ffn(core: Core, stream: Stream, meanwhile: Callable[[], None]) -> Stream:
    """`prefix += down(situ(gate(x), up(x)))` of the rows in `normed`; `meanwhile` is done in a wait."""
    p, v = core.plan, core.vmem
    total = core.sum(v.ffn_sum)
    with phase("dense_up"):
        stream = core.weights.multiply(stream, p.dense_in, lambda: v.normed[...], keep(v.ffn_in))
        activate(core, p.dense, 0)
    with phase("dense_down"):
        stream = share_down(core, stream, p.dense_out, p.dense)
        total.send("dense_share")
    with phase("dense_sum"):
        total.relay("dense_sum")
        meanwhile()
        total.receive()
        for part in range(p.config.hidden // p.ffn_part):
            core.residual.add(slice(part * p.ffn_part, (part + 1) * p.ffn_part), total.total(part))
        total.finish()
    return stream


def mixture(core: Core, index: Any, slot: Any, stream: Stream, meanwhile: Callable[[], None]) -> Stream:
    """`prefix += routed experts + shared expert` of the rows in `normed`.

    Args:
        core: The core's view.
        index: Number of the MoE layer, int32.
        slot: Where the layer's constants are.
        stream: Where the weights are.
        meanwhile: Done while the output is waited for.
    """
    p, v = core.plan, core.vmem
    routed = core.experts
    with phase("latent_down"):
        stream = moe_in(core, stream, 0, p.latent_tiles)
        send_latent(core)
    with phase("router"):
        stream = moe_in(core, stream, p.latent_tiles, p.router_tiles)
    with phase("top_k"):
        route(core, slot)
        experts.choose(routed, index, experts.first_of_group(p.experts))
        normalize(core)
    with phase("shared_up"):
        before = p.latent_tiles + p.router_tiles
        stream = moe_in(core, stream, before, p.moe_in.tiles - before)
        activate(core, p.shared, p.latent.own + p.router_blocks)
    shared = core.sum(v.ffn_sum)
    with phase("shared_down"):
        stream = share_down(core, stream, p.shared_out, p.shared, refill=False)
        shared.send("shared_share")
    with phase("moe_latent_gather"):
        receive_latent(core)
        experts.spread_rows(routed, v.latent)
    with phase("experts"):
        experts.run(routed, index)
        send_experts(core)
        stream = core.weights.refill(stream, p.moe_in, p.moe_in.tiles + p.shared_out.tiles)
    with phase("experts_sum"):
        sum_experts(core, slot, shared)
    with phase("latent_up"):
        stream = send_output(core, stream)
    with phase("output_gather"):
        meanwhile()
        receive_output(core, shared)
    return stream


def keep(result: Any) -> Callable[[Any, jax.Array], None]:
    """Puts a product where it is read from: `result[tile]`."""

    def put(number: Any, product: jax.Array) -> None:
        result[number] = product

    return put


def moe_in(core: Core, stream: Stream, first: int, tiles: int) -> Stream:
    """Some tiles of `ffn_in = normed @ moe_in`; what takes their banks is requested after the experts."""
    v = core.vmem
    return core.weights.multiply(
        stream,
        core.plan.moe_in,
        lambda: v.normed[...],
        keep(v.ffn_in),
        first=first,
        tiles=tiles,
        refill=False,
    )


def wide_block(core: Core, block: int) -> jax.Array:
    """128 columns of `ffn_in` in full precision, `[8, 128]` f32."""
    tile, first = divmod(block * LANES, core.vmem.ffn_in.shape[-1])
    return core.vmem.ffn_in[tile, :, first : first + LANES]


def activate(core: Core, gated: Gated, first: int) -> None:
    """`activated = situ(gate, up)` from the blocks of `ffn_in` from `first` on."""
    c, v = core.plan.config, core.vmem
    for pair in range(gated.pairs):
        gate, up = (block_of(v.ffn_in, first + 2 * pair + half) for half in range(2))
        value = situ(gate, up, c.gate_cap, c.up_cap)
        v.activated[:, pair * LANES : (pair + 1) * LANES] = value.astype(jnp.bfloat16)
    if gated.has_half:
        both = block_of(v.ffn_in, first + 2 * gated.pairs)
        value = situ(both[:, :HALF], both[:, HALF:], c.gate_cap, c.up_cap)
        v.activated[:, gated.pairs * LANES : gated.inner] = value.astype(jnp.bfloat16)


def share_down(core: Core, stream: Stream, matrix: Matrix, gated: Gated, *, refill: bool = True) -> Stream:
    """This core's share of an FFN's output: `activated @ matrix`, into the sum of shares."""
    v, part = core.vmem, core.plan.ffn_part
    total = core.sum(v.ffn_sum)
    parts = matrix.columns // part

    def post(number: Any, product: jax.Array) -> None:
        for i in range(parts):
            total.post(number * parts + i, product[:, i * part : (i + 1) * part])

    rows = v.activated
    return core.weights.multiply(stream, matrix, lambda: rows[:, : gated.inner], post, refill=refill)


def send_latent(core: Core) -> None:
    """Tell the host's other cores this core's columns of the latent."""
    p, v = core.plan, core.vmem
    gather = core.gather(v.latent_gather)
    for block in range(p.latent.own):
        gather.own[block] = block_of(v.ffn_in, block)[: p.rows].astype(gather.own.dtype)
    gather.send("latent")


def receive_latent(core: Core) -> None:
    """`latent` = all columns, bf16."""
    p, v = core.plan, core.vmem
    gather = core.gather(v.latent_gather)
    mail = gather.receive()
    for member in range(p.members):
        for block in p.latent.of(member):
            columns = slice(block * LANES, (block + 1) * LANES)
            values = mail[member, block - member * p.latent.own]
            v.latent[: p.rows, columns] = values.astype(jnp.bfloat16)
    gather.finish()


def route(core: Core, slot: Any) -> None:
    """The scores of the chosen experts, 0 for the others, from the router's columns."""
    p, v = core.plan, core.vmem
    bias = core.constant("router_bias", slot)
    scores, keys = [], []
    for block in range(p.router_blocks):
        columns = slice(block * LANES, (block + 1) * LANES)
        score = jax.nn.sigmoid(wide_block(core, p.latent.own + block))
        scores.append(score)
        keys.append(score + bias[:, columns])
    for block, score in enumerate(top_k.chosen(scores, keys, p.config.active_experts)):
        v.experts.routing[:, block * LANES : (block + 1) * LANES] = score


def normalize(core: Core) -> None:
    """Routing weights from the scores of the chosen experts: they add up to 1."""
    routing = core.vmem.experts.routing
    routing[...] = routing[...] / (jnp.sum(routing[...], axis=-1, keepdims=True) + 1e-20)


def latent_strips(core: Core) -> list[slice]:
    """The columns of the experts' output in the parts they are summed in."""
    width = core.plan.latent_part
    return [slice(first, first + width) for first in range(0, core.plan.config.latent, width)]


def send_experts(core: Core) -> None:
    """This core's share of the routed experts' output goes to the sum over all cores."""
    total = core.sum(core.vmem.experts_sum)
    for part, columns in enumerate(latent_strips(core)):
        total.post(part, core.vmem.experts.total[:, columns])
    total.send("experts_share")


def sum_experts(core: Core, slot: Any, shared: Any) -> None:
    """`latent` = the norm of the routed experts' sum over all cores; the shared expert's sum goes on."""
    p, c, v = core.plan, core.plan.config, core.vmem
    strips = latent_strips(core)
    total = core.sum(v.experts_sum)
    total.relay("experts_sum")
    total.receive()
    values = [rounded(total.total(part)) for part in range(len(strips))]
    squares = sum(jnp.sum(value * value, axis=-1, keepdims=True) for value in values)
    scale = lax.rsqrt(squares * (1.0 / c.latent) + c.norm_eps)
    weight = core.constant("expert_norm", slot)
    for value, columns in zip(values, strips, strict=True):
        normed = rounded(value * scale) * weight[:, columns]
        v.latent[: p.rows, columns] = normed.astype(jnp.bfloat16)
    total.finish()
    shared.relay("shared_sum")


def send_output(core: Core, stream: Stream) -> Stream:
    """Tell the host's other cores this core's columns of the routed experts' output."""
    p, v = core.plan, core.vmem
    gather = core.gather(v.output_gather)
    blocks = p.latent_up.columns // LANES
    for tile in range(p.latent_up.tiles):
        product, stream = core.weights.next_product(stream, p.latent_up, v.latent[...])
        for i in range(min(blocks, p.hidden.own - tile * blocks)):
            value = product[: p.rows, i * LANES : (i + 1) * LANES].astype(jnp.bfloat16)
            gather.own[tile * blocks + i] = value.astype(gather.own.dtype)
    gather.send("output")
    return stream


def receive_output(core: Core, shared: Any) -> None:
    """`prefix += routed + shared`, each rounded."""
    p, v = core.plan, core.vmem
    gather = core.gather(v.output_gather)
    shared.receive()
    sums = [shared.total(part) for part in range(p.config.hidden // p.ffn_part)]
    mail = gather.receive()
    for member in range(p.members):
        for block in p.hidden.of(member):
            part, first = divmod(block * LANES, p.ffn_part)
            routed = mail[member, block - member * p.hidden.own].astype(jnp.float32)
            other = rounded(sums[part][:, first : first + LANES])
            core.residual.add(slice(block * LANES, (block + 1) * LANES), routed + other)
    gather.finish()
    shared.finish()
