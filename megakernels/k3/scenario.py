"""A routing as a scenario for the simulator: what the experts' kernel takes from vectors to scalars.

The kernel pops two things, each at a line of its own: how many of its experts are visited, and which, one
after the other. Both are float32 there, so the scenario gives their bits.
"""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from megakernels.k3.experts import ExpertPlan, next_expert, visited_count
from megakernels.k3.routing import Routing


def place_of(function: Callable[..., Any]) -> str:
    """`file.py:line` of a function's last line, where its value leaves the vector unit."""
    lines, first = inspect.getsourcelines(function)
    return f"{Path(inspect.getfile(function)).name}:{first + len(lines) - 1}"


def float_bits(values: list[int]) -> list[int]:
    """The bits of float32 numbers, as int32."""
    return np.asarray(values, np.float32).view(np.int32).tolist()


def experts_pops(plan: ExpertPlan, routing: Routing) -> list[dict[str, list[int]]]:
    """Per core the values popped at each place, layer after layer.

    Raises:
        ValueError: The routing is of another model, or has fewer layers than the plan.
    """
    if routing.experts != plan.config.experts or routing.chosen.shape[0] < plan.layers:
        raise ValueError(
            f"a routing of {routing.chosen.shape[0]} layers with {routing.experts} experts does not fit "
            f"{plan.layers} layers with {plan.config.experts}"
        )
    pops = []
    for core in range(plan.cores):
        group = core // plan.width_ranks
        visited = [layer[group] for layer in routing.by_group(plan.groups)[: plan.layers]]
        own = [expert - group * plan.experts for layer in visited for expert in layer]
        counts = [len(layer) for layer in visited]
        pops.append({place_of(visited_count): float_bits(counts), place_of(next_expert): float_bits(own)})
    return pops


def experts_scenario(plan: ExpertPlan, routing: Routing) -> str:
    """The scenario file (TOML) of a routing, every core with its own values."""
    # JSON strings and integer lists are TOML ones too.
    lines = [f"name = {json.dumps(f'routing: {routing.source}')}", f"devices = {plan.cores}"]
    for core, places in enumerate(experts_pops(plan, routing)):
        lines += ["", f"[cores.{core}.pops]"]
        lines += [f"{json.dumps(place)} = {json.dumps(values)}" for place, values in places.items() if values]
    return "\n".join(lines) + "\n"
