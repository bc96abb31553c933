"""Routings: what they say of the experts to read, and that files come back as written."""

import dataclasses
import json
import tomllib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from megakernels.k3 import experts
from megakernels.k3.config import KIMI_K3, TINY
from megakernels.k3.counts import Counts
from megakernels.k3.experts import ExpertPlan
from megakernels.k3.routing import Routing, load, recorded, uniform
from megakernels.k3.scenario import busiest_pops, experts_scenario


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_uniform_routing_visits_as_many_experts_as_expected(rows: int) -> None:
    routing = uniform(KIMI_K3, rows, seed=1)
    assert routing.chosen.shape == (92, rows, 16)
    mean = np.mean([len(ids) for ids in routing.distinct()])
    assert abs(mean / Counts(KIMI_K3).distinct_experts(rows) - 1) < 0.02
    counts = np.bincount(routing.chosen.ravel(), minlength=896)
    assert counts.max() < 6 * counts.mean()


def test_a_seed_names_a_routing() -> None:
    first = uniform(KIMI_K3, 2, seed=7)
    np.testing.assert_array_equal(first.chosen, uniform(KIMI_K3, 2, seed=7).chosen)
    assert (first.chosen != uniform(KIMI_K3, 2, seed=8).chosen).any()
    assert first.chosen[0, 0, :4].tolist() == [616, 652, 55, 805]


def test_groups_of_cores() -> None:
    chosen = np.asarray([[[0, 5, 3], [5, 6, 7]], [[11, 10, 9], [8, 11, 10]]], np.int32)
    routing = Routing("m", 12, 1, "by hand", chosen)
    assert [ids.tolist() for ids in routing.distinct()] == [[0, 3, 5, 6, 7], [8, 9, 10, 11]]
    assert routing.by_group(3) == [[[0, 3], [5, 6, 7], []], [[], [], [8, 9, 10, 11]]]
    assert routing.pairs(3)[0] == [[(0, 0), (3, 0)], [(1, 0), (1, 1), (2, 1), (3, 1)], []]
    assert routing.busiest(3) == [3, 4]
    with pytest.raises(ValueError, match="5 groups"):
        routing.by_group(5)


def test_the_busiest_of_eight_groups_reads_more_than_its_share() -> None:
    busiest = uniform(KIMI_K3, 1, seed=0).busiest(8)
    assert 3.5 < np.mean(busiest) < 5  # 16 experts over 8 groups: 2 on average


def test_a_file_comes_back(tmp_path: Path) -> None:
    routing = uniform(TINY, 3, seed=2)
    path = tmp_path / "routing.json"
    routing.save(path)
    back = load(path)
    np.testing.assert_array_equal(back.chosen, routing.chosen)
    assert dataclasses.replace(back, chosen=routing.chosen) == routing
    assert [p.name for p in tmp_path.iterdir()] == ["routing.json"]


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for text in ("{", "[]", "{}", json.dumps({**uniform(TINY, 1, 0).to_json(), "schema_version": 9})):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"other\.json: not a routing"):
            load(path)


@pytest.mark.parametrize(
    ("chosen", "fault"),
    [([[[0, 12]]], "outside 0 to 11"), ([[[3, 3]]], "twice"), ([[1, 2]], "layers, rows")],
)
def test_what_no_router_returns_is_refused(chosen: list[list[list[int]]], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Routing("m", 12, 1, "by hand", np.asarray(chosen, np.int32))


def test_recording_the_reference(models) -> None:
    rows = models.tokens(TINY, 1, 11)
    out, _ = models.forward(TINY)(
        models.weights(TINY), models.begin(TINY, 1, 16), rows, jnp.zeros(1, jnp.int32)
    )
    routing = recorded(TINY, out.routing, "random weights 5, tokens 3")
    assert routing.chosen.shape == (TINY.moe_layers, 11, TINY.active_experts)
    np.testing.assert_array_equal(routing.chosen[2], out.routing[2, 0])
    assert routing.first_layer == 1
    assert routing.source.startswith("reference")


def test_a_scenario_gives_every_core_its_own_experts() -> None:
    chosen = np.asarray([[[0, 5, 3], [5, 6, 7]], [[11, 10, 9], [8, 11, 10]]], np.int32)
    routing = Routing("m", 12, 1, "by hand", chosen)
    config = dataclasses.replace(TINY, latent=256, expert_width=512)
    plan = ExpertPlan(config, layers=2, groups=3, width_ranks=2, rows=2)
    places = tomllib.loads(experts_scenario(plan, routing))["cores"]
    values = [list(core["pops"].values()) for core in places.values()]
    assert values[0] == values[1] == [[2, 0], [0, 24]]
    # Expert 5 of row 0 and of row 1, then 6 and 7 of row 1.
    assert values[2] == values[3] == [[4, 0], [8, 9, 17, 25]]
    assert values[5] == [[0, 6], [1, 8, 16, 17, 24, 25]]
    source = Path(experts.__file__).read_text().splitlines()
    lines = [source[int(place.rpartition(":")[2]) - 1] for place in places["0"]["pops"]]
    assert "jnp.sum" in lines[0]
    assert "jnp.min" in lines[1]
    # The first layer's busiest group is the second, the other layer's the third.
    assert list(busiest_pops(plan, routing).values()) == [[4, 6], values[2][1] + values[5][1]]
    with pytest.raises(ValueError, match="does not fit"):
        experts_scenario(dataclasses.replace(plan, layers=3), routing)
