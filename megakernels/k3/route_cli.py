"""The verb `route`: which experts a step visits, made at random or recorded, and as a scenario."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from megakernels.k3.config import K3Config
    from megakernels.k3.routing import Routing

MOST_ROWS = 8
# The program runs once: compiling it takes longer than it does.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def route_verb(
    kernel: Annotated[str, typer.Argument(help="The kernel: k3.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="Routing to write, JSON; folders are made.")],
    random: Annotated[int | None, typer.Option(help="Uniform independent choices from this seed.")] = None,
    from_reference: Annotated[
        bool, typer.Option("--from-reference", help="Record what the reference chooses for the last rows.")
    ] = False,
    rows: Annotated[int, typer.Option(help="Rows of the step, 1 to 8.")] = 1,
    model: Annotated[str | None, typer.Option(help="kimi-k3, k3-small or k3-tiny.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="With --from-reference: weights of this checkpoint, not random ones.")
    ] = None,
    seed: Annotated[int, typer.Option(help="With --from-reference: of random weights.")] = 0,
    prompt: Annotated[
        str, typer.Option(help="With --from-reference: its bytes are the tokens.")
    ] = "The quick brown fox jumps over the lazy dog.",
    scenario: Annotated[
        Path | None, typer.Option(help="Write a scenario for the simulator (TOML) too.")
    ] = None,
    cores: Annotated[int, typer.Option(min=1, help="For the scenario: TensorCores.")] = 32,
    hosts: Annotated[int | None, typer.Option(min=1, help="For the scenario: hosts; 8 cores each.")] = None,
    width_ranks: Annotated[
        int | None, typer.Option(min=1, help="For the scenario: cores that share an expert by width.")
    ] = None,
) -> None:
    """Say which experts a step visits: a file, and a scenario that tells the simulator."""
    from analyzer.errors import UsageError
    from analyzer.output import write_output

    if kernel != "k3":
        raise UsageError(kernel, "routes nothing", "Kernels: k3.")
    if (random is None) == (not from_reference):
        raise UsageError("route", "one source is needed", "Give --random SEED or --from-reference.")
    if not 1 <= rows <= MOST_ROWS:
        raise UsageError(f"--rows {rows}", "a step has 1 to 8 rows", "Choose one of these.")
    if checkpoint is not None and not from_reference:
        raise UsageError("--checkpoint", "needs --from-reference", "Give it too.")
    from megakernels.cli import known_model, quiet_jax

    quiet_jax()
    from megakernels.k3.config import CONFIGS
    from megakernels.k3.routing import uniform

    config = CONFIGS[known_model(model or ("k3-small" if from_reference else "kimi-k3"), CONFIGS)]
    if random is not None:
        routing = uniform(config, rows, random)
    else:
        routing, config = _recorded(config, checkpoint, seed, prompt.encode(), rows)
    text = None
    if scenario is not None:
        text = _scenario(config, routing, cores=cores, hosts=hosts, width_ranks=width_ranks)
    routing.save(output)
    if scenario is not None and text is not None:
        write_output(scenario, text.encode())
    distinct = [len(ids) for ids in routing.distinct()]
    mean = sum(distinct) / len(distinct)
    print(f"{output}: {routing.model}, {rows} rows, {mean:.1f} different experts in a layer, in the mean")


def _scenario(
    config: "K3Config", routing: "Routing", *, cores: int, hosts: int | None, width_ranks: int | None
) -> str:
    """The scenario of a routing, for a split of the ranks."""
    from analyzer.errors import UsageError
    from megakernels.k3.scenario import experts_scenario
    from megakernels.k3.topology import step_plan

    try:
        plan = step_plan(config, cores, hosts=hosts, width_ranks=width_ranks)
        return experts_scenario(dataclasses.replace(plan.experts, rows=routing.rows), routing)
    except ValueError as error:
        raise UsageError("--scenario", str(error), "Choose other --cores or --width-ranks.") from None


def _recorded(
    config: "K3Config", checkpoint: Path | None, seed: int, prompt: bytes, rows: int
) -> tuple["Routing", "K3Config"]:
    """The reference's choices for the last rows of a prompt."""
    from functools import partial

    import jax
    import jax.numpy as jnp

    from analyzer.errors import InputError, UsageError
    from megakernels.common.safetensors import CheckpointError
    from megakernels.k3 import reference
    from megakernels.k3.checkpoint import open_checkpoint, random_source, stored_tensors
    from megakernels.k3.routing import recorded
    from megakernels.k3.state import initial_state

    try:
        source = random_source(config, seed) if checkpoint is None else open_checkpoint(checkpoint)
        stored = stored_tensors(source)
    except CheckpointError as error:
        raise InputError(error.where, error.fault, error.cure) from None
    config = source.config
    if len(prompt) < rows:
        raise UsageError("--prompt", f"has {len(prompt)} bytes for {rows} rows", "Give a longer one.")
    tokens = jnp.asarray([[byte % config.vocab for byte in prompt]], jnp.int32)
    print(f"running the reference of {config.name} over {len(prompt)} tokens", file=sys.stderr, flush=True)
    weights = reference.load(config, stored, jnp.bfloat16)
    state = initial_state(config, 1, len(prompt), jnp.bfloat16)
    forward = jax.jit(partial(reference.forward, config), compiler_options=QUICK)
    output, _ = forward(weights, state, tokens, jnp.zeros(1, jnp.int32))
    said = f"weights {checkpoint.name if checkpoint else f'random, seed {seed}'}, last {rows} of a prompt"
    return recorded(config, output.routing[:, :, -rows:], said), config
