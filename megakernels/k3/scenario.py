"""A routing as a scenario for the simulator: what the experts' kernel takes from vectors to scalars.

The kernel pops two things, each at a line of its own: how many pairs of an expert of the rank and a row there
are, and the pairs, one after the other, as 8 * expert + row, experts counted from the rank's first.
"""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megakernels.k3.experts import ROW_BITS, ExpertPlan, next_pair, pair_count
from megakernels.k3.routing import Routing


def place_of(function: Callable[..., Any]) -> str:
    """`file.py:line` of a function's last line, where its value leaves the vector unit."""
    lines, first = inspect.getsourcelines(function)
    return f"{Path(inspect.getfile(function)).name}:{first + len(lines) - 1}"


def group_pops(plan: ExpertPlan, layers: list[list[tuple[int, int]]]) -> dict[str, list[int]]:
    """The values popped at each place by a rank that has these pairs of expert and row, layer after layer."""
    return {
        place_of(pair_count): [len(pairs) for pairs in layers],
        place_of(next_pair): [row + (expert << ROW_BITS) for pairs in layers for expert, row in pairs],
    }


def check_routing(plan: ExpertPlan, routing: Routing) -> None:
    """Refuse a routing that is not one of the plan.

    Raises:
        ValueError: The routing is of another model, or has fewer layers than the plan.
    """
    if routing.experts != plan.config.experts or routing.chosen.shape[0] < plan.layers:
        raise ValueError(
            f"a routing of {routing.chosen.shape[0]} layers with {routing.experts} experts does not fit "
            f"{plan.layers} layers with {plan.config.experts}"
        )


def experts_pops(plan: ExpertPlan, routing: Routing) -> list[dict[str, list[int]]]:
    """Per core the values popped at each place, layer after layer.

    Raises:
        ValueError: The routing does not fit the plan.
    """
    check_routing(plan, routing)
    layers = routing.pairs(plan.groups)[: plan.layers]
    by_group = [group_pops(plan, [layer[group] for layer in layers]) for group in range(plan.groups)]
    return [by_group[core // plan.width_ranks] for core in range(plan.cores)]


def busiest_pops(plan: ExpertPlan, routing: Routing) -> dict[str, list[int]]:
    """The values popped at each place, in every layer those of the group with the most experts to read.

    Of groups with as many experts, the one with the most pairs.

    Raises:
        ValueError: The routing does not fit the plan.
    """
    check_routing(plan, routing)
    layers = routing.pairs(plan.groups)[: plan.layers]
    return group_pops(plan, [max(layer, key=lambda g: (len({e for e, _ in g}), len(g))) for layer in layers])


def experts_scenario(plan: ExpertPlan, routing: Routing) -> str:
    """The scenario file (TOML) of a routing, every core with its own values."""
    # JSON strings and integer lists are TOML ones too.
    lines = [f"name = {json.dumps(f'routing: {routing.source}')}", f"devices = {plan.cores}"]
    for core, places in enumerate(experts_pops(plan, routing)):
        lines += ["", f"[cores.{core}.pops]"]
        lines += [f"{json.dumps(place)} = {json.dumps(values)}" for place, values in places.items() if values]
    return "\n".join(lines) + "\n"
