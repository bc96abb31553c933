"""What lies where in VMEM over one layer: which tile in which bank of the ring, requested and used when.

The kernel has no such table; its stream makes the same moves one by one. Here they are played through without
a kernel, so that the plan can be printed, and a test can hold it against the compiled step.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from megakernels.k3.plan import Matrix
from megakernels.k3.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class Use:
    """A tile as the step takes it up: its matrix and number, the layer and phase that use it.

    deferred: its bank is filled again only at the end of the routed experts.
    """

    matrix: str
    tile: int
    layer: int
    phase: str
    bytes: int
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class Stay:
    """A tile's stay in a bank of the ring: requested in one phase, used in another, layers 0-based."""

    bank: int
    matrix: str
    tile: int
    bytes: int
    requested_layer: int
    requested_phase: str
    used_layer: int
    used_phase: str


def _tiles(matrix: Matrix, layer: int, phases: list[str], deferred: bool = False) -> Iterator[Use]:
    """A matrix in order; phases names that of each tile, the last one of all others."""
    for tile in range(matrix.tiles):
        phase = phases[min(tile, len(phases) - 1)]
        yield Use(matrix.name, tile, layer, phase, matrix.bytes // matrix.tiles, deferred)


def uses(plan: StepPlan) -> Iterator[Use]:
    """Every tile of a step in the order it is used."""
    p, c = plan, plan.config
    moe_phases = ["latent_down"] * p.latent_tiles + ["router"] * p.router_tiles + ["shared_up"]
    for layer in range(c.layers):
        if c.is_mla(layer):
            yield from _tiles(p.mla.mla_latent, layer, ["latent_proj"])
            yield from _tiles(p.mla.mla_side, layer, ["side_proj"])
            yield from _tiles(p.mla.mla_query, layer, ["query_proj"])
        else:
            yield from _tiles(p.kda.kda_in, layer, ["in_proj"])
        yield from _tiles(p.kda.mixer_out, layer, ["out_proj"])
        if c.is_moe(layer):
            yield from _tiles(p.moe_in, layer, moe_phases, deferred=True)
            yield from _tiles(p.shared_out, layer, ["shared_down"], deferred=True)
            yield from _tiles(p.latent_up, layer, ["latent_up"])
        else:
            yield from _tiles(p.dense_in, layer, ["dense_up"])
            yield from _tiles(p.dense_out, layer, ["dense_down"])
    yield from _tiles(p.lm_head, c.layers, ["lm_head"])


def stays(plan: StepPlan) -> list[Stay]:
    """Every tile's stay in the ring, in the order of use."""
    order = list(uses(plan))
    requested: list[tuple[int, str]] = [(0, "enter")] * (plan.ring_depth - 1)
    waiting = 0
    for use in order:
        if use.deferred:
            waiting += 1
            continue
        requested += [(use.layer, "experts")] * waiting + [(use.layer, use.phase)]
        waiting = 0
    return [
        Stay(i % plan.ring_depth, use.matrix, use.tile, use.bytes, *asked, use.layer, use.phase)
        for i, (use, asked) in enumerate(zip(order, requested, strict=False))
    ]


def layer_plan(plan: StepPlan, layer: int) -> list[dict[str, Any]]:
    """The ring's tiles that layer uses or requests, as rows."""
    return [asdict(s) for s in stays(plan) if layer in (s.requested_layer, s.used_layer)]


def as_text(rows: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    lines = [f"{'bank':>4}  {'MB':>5}  {'tile':<16}  requested            used"]
    for row in rows:
        tile = f"{row['matrix']} {row['tile']}"
        asked = f"{row['requested_layer']:>2} {row['requested_phase']}"
        used = f"{row['used_layer']:>2} {row['used_phase']}"
        lines.append(f"{row['bank']:>4}  {row['bytes'] / 1e6:5.2f}  {tile:<16}  {asked:<19}  {used}")
    return "\n".join(lines)
