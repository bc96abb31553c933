"""Which experts a step visits: made at random or recorded from the reference, kept as JSON.

The compiled kernel does not hold these numbers, the router computes them. A simulation of the step therefore
needs them from outside, and its result depends on them: each layer waits for the group of cores that has the
most experts to read.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.output import write_output
from megakernels.k3.config import K3Config

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts every row of a step visits.

    Attributes:
        model: Name of the config.
        experts: Routed experts of a layer.
        first_layer: 0-based number of the first MoE layer; the others follow without a gap.
        source: Where the choice comes from, in words.
        chosen: int32 `[MoE layers, rows, active experts]`, all different within a row.

    Raises:
        ValueError: Experts that do not exist, or one twice in a row.
    """

    model: str
    experts: int
    first_layer: int
    source: str
    chosen: np.ndarray

    def __post_init__(self) -> None:
        """Refuse what no router returns."""
        if self.chosen.ndim != 3:
            raise ValueError(f"routing is [layers, rows, active experts], not {list(self.chosen.shape)}")
        if self.chosen.size and not 0 <= self.chosen.min() <= self.chosen.max() < self.experts:
            raise ValueError(f"routing names an expert outside 0 to {self.experts - 1}")
        ordered = np.sort(self.chosen, -1)
        if (ordered[..., 1:] == ordered[..., :-1]).any():
            raise ValueError("routing names an expert twice for one row of a layer")

    @property
    def rows(self) -> int:
        """Rows of the step."""
        return int(self.chosen.shape[1])

    def distinct(self) -> list[np.ndarray]:
        """The experts each layer has to read, ascending."""
        return [np.unique(layer) for layer in self.chosen]

    def by_group(self, groups: int) -> list[list[list[int]]]:
        """The experts each layer and group of cores has to read, ascending: `[layers][groups][any]`.

        Group g holds the experts from g * experts / groups on.

        Raises:
            ValueError: The experts do not split evenly.
        """
        if self.experts % groups:
            raise ValueError(f"{self.experts} experts do not split over {groups} groups")
        share = self.experts // groups
        return [
            [ids[(ids >= g * share) & (ids < (g + 1) * share)].tolist() for g in range(groups)]
            for ids in self.distinct()
        ]

    def pairs(self, groups: int) -> list[list[list[tuple[int, int]]]]:
        """Which experts of each layer and group of cores meet which rows: `[layers][groups][any]`, ascending.

        A pair is the expert, counted from the first of its group, and the row.

        Raises:
            ValueError: The experts do not split evenly.
        """
        share = self.experts // groups
        found = []
        for layer, distinct in zip(self.chosen, self.by_group(groups), strict=True):
            rows = {expert: np.nonzero((layer == expert).any(-1))[0].tolist() for expert in np.unique(layer)}
            found.append([[(e % share, row) for e in group for row in rows[e]] for group in distinct])
        return found

    def busiest(self, groups: int) -> list[int]:
        """Per layer, how many experts the group with the most has to read: what sets the layer's pace."""
        return [max(len(group) for group in layer) for layer in self.by_group(groups)]

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "routing",
            "model": self.model,
            "experts": self.experts,
            "first_layer": self.first_layer,
            "source": self.source,
            "chosen": self.chosen.tolist(),
        }

    def save(self, path: Path) -> None:
        """Write it, and the folders above it.

        Raises:
            InputError: That cannot be done.
        """
        write_output(path, (json.dumps(self.to_json(), separators=(",", ":")) + "\n").encode())


def load(path: Path) -> Routing:
    """Read what `save` wrote.

    Raises:
        ValueError: The file holds something else; names the file and what is wrong.
    """
    try:
        data = json.loads(path.read_text())
        if data["kind"] != "routing" or data["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"kind {data['kind']!r}, version {data['schema_version']!r}")
        return Routing(
            model=str(data["model"]),
            experts=int(data["experts"]),
            first_layer=int(data["first_layer"]),
            source=str(data["source"]),
            chosen=np.asarray(data["chosen"], np.int32),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a routing this version reads ({error}); make it anew") from error


def uniform(config: K3Config, rows: int, seed: int) -> Routing:
    """Every set of experts equally likely, rows and layers independent. Real rows share more experts."""
    c = config
    rng = np.random.RandomState(seed)  # its stream is frozen for good: a seed names a routing for ever
    keys = rng.random_sample((c.moe_layers, rows, c.experts))
    chosen = np.argsort(keys, -1, kind="stable")[..., : c.active_experts].astype(np.int32)
    return Routing(c.name, c.experts, c.dense_layers, f"uniform, independent, seed {seed}", chosen)


def recorded(config: K3Config, routing: Any, source: str) -> Routing:
    """What a forward of the reference chose.

    Args:
        config: The model.
        routing: `Output.routing`, int32 `[MoE layers, B, rows, active experts]`; rows of one sequence stay
            together.
        source: Of the weights and tokens, in words.
    """
    array = np.asarray(routing, np.int32)
    chosen = array.reshape(array.shape[0], -1, array.shape[-1])
    return Routing(config.name, config.experts, config.dense_layers, f"reference, {source}", chosen)
