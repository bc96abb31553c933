"""Checkpoint to files of ranks: equal to packing in memory, resumable, every damage named."""

import dataclasses
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from megakernels.common.safetensors import CheckpointError, read_folder, write_file
from megakernels.k3 import checkpoint, weights
from megakernels.k3.checkpoint import open_checkpoint, random_source, write_checkpoint
from megakernels.k3.config import KIMI_K3, SMALL, TINY
from megakernels.k3.parameters import PREFIX, random_parameters
from megakernels.k3.step_pack import pack_all
from megakernels.k3.step_plan import StepPlan
from megakernels.k3.step_refs import REPLICATED
from megakernels.k3.topology import step_plan
from megakernels.k3.weights_cli import numbers

SEED = 4
CONFIG = dataclasses.replace(
    SMALL,
    name="narrow",
    layers=3,
    hidden=256,
    vocab=256,
    heads=4,
    experts=4,
    active_experts=2,
    shared_width=256,
    dense_width=256,
    mla_period=2,
    aux_layers=(2,),
)
PLAN = StepPlan(CONFIG, hosts=2, members=2)
INDEX = "model.safetensors.index.json"


def ignore(done: int, total: int, unit: str) -> None:
    del done, total, unit


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "narrow"
    write_checkpoint(path, CONFIG, SEED)
    # The vision tower lies in the same checkpoint.
    write_file(path / "vision.safetensors", {"vision_tower.x.weight": np.zeros((2, 2), np.float32)})
    index = json.loads((path / INDEX).read_text())
    index["weight_map"]["vision_tower.x.weight"] = "vision.safetensors"
    (path / INDEX).write_text(json.dumps(index))
    return path


@pytest.fixture(scope="module")
def packed() -> dict[str, np.ndarray]:
    return pack_all(PLAN, random_parameters(CONFIG, SEED))


def test_the_config_of_a_checkpoint(folder, tmp_path) -> None:
    source = open_checkpoint(folder)
    assert dataclasses.replace(source.config, aux_layers=CONFIG.aux_layers) == CONFIG
    described = checkpoint.described_config(KIMI_K3)
    assert checkpoint.config_of(tmp_path / "kimi-k3", described) == KIMI_K3
    described["text_config"]["linear_attn_config"]["full_attn_layers"][3] = 17
    with pytest.raises(CheckpointError, match="full attention are not every so many"):
        checkpoint.config_of(tmp_path, described)
    del described["text_config"]["q_lora_rank"]
    with pytest.raises(CheckpointError, match="no field 'q_lora_rank'"):
        checkpoint.config_of(tmp_path, described)


def test_every_rank_of_a_host_gets_what_packing_in_memory_gives(folder, tmp_path, packed) -> None:
    source = open_checkpoint(folder)
    weights.convert(source, PLAN, tmp_path / "out", ignore, ranks=[2, 3])
    weights.verify(tmp_path / "out", ignore)
    config, layout, arrays = weights.open_weights(tmp_path / "out")
    assert config == source.config
    assert layout == {"hosts": 2, "members": 2, "width_ranks": 1}
    assert not [name for name in arrays if name.startswith(("core0.", "core1."))]
    for name, value in packed.items():
        for rank in (2, 3):
            stored = arrays[weights.file_name(name, rank)]
            wanted = value if name in REPLICATED else value[rank]
            assert stored.dtype == wanted.dtype, name
            np.testing.assert_array_equal(stored, wanted, err_msg=name)


def test_random_weights_are_those_of_a_checkpoint(folder) -> None:
    stored, made = open_checkpoint(folder), random_source(CONFIG, SEED)
    prefix = "model.layers.1.block_sparse_moe."
    for name in (
        f"{prefix}experts.3.w2.weight_scale",
        f"{prefix}experts.3.w2.weight_packed",
        f"{prefix}gate.weight",
        f"{prefix}gate.e_score_correction_bias",
    ):
        assert stored.fetch(name).dtype == made.fetch(name).dtype
        np.testing.assert_array_equal(stored.fetch(name), made.fetch(name))


def test_a_conversion_goes_on_where_it_stopped(tmp_path, folder, packed) -> None:
    source = open_checkpoint(folder)
    names = [unit.name for unit in weights.units(PLAN, source, [0, 1])]
    stop_at = names.index("experts/1/1")

    def stop(done: int, total: int, unit: str) -> None:
        del total, unit
        if done == stop_at:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        weights.convert(source, PLAN, out, stop, ranks=[0, 1])
    assert not out.exists()
    with (tmp_path / "out.partial" / "journal.jsonl").open("a") as journal:
        journal.write('{"unit": "exper')
    with pytest.raises(CheckpointError, match="begun with another checkpoint or layout"):
        weights.convert(source, PLAN, out, ignore, ranks=[2, 3])
    fetched: list[str] = []
    counting = dataclasses.replace(source, fetch=lambda name: (fetched.append(name), source.fetch(name))[1])
    weights.convert(counting, PLAN, out, ignore, ranks=[0, 1])
    weights.verify(out, ignore)
    _, _, arrays = weights.open_weights(out)
    np.testing.assert_array_equal(arrays["core1.up.bin"], packed["up"][1])
    assert not [name for name in fetched if "self_attn" in name or "1.block_sparse_moe.experts.0" in name]
    data = bytearray((out / "core1.up.bin").read_bytes())
    data[-5] ^= 1
    (out / "core1.up.bin").write_bytes(data)
    with pytest.raises(CheckpointError, match="experts/2/1 differs from its checksum"):
        weights.verify(out, ignore)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("missing", "missing: model.layers.1.block_sparse_moe.experts.3.w2.weight_scale"),
        ("unknown", "unknown: model.layers.0.mlp.bonus.weight"),
        ("shape", r"of another shape: .*experts.3.w2.weight_scale \[8\] instead of \[32, 1\]"),
        ("dtype", "of another dtype: lm_head.weight F32"),
        ("cut", r"truncated: \d+ of \d+ bytes, .* are cut"),
    ],
)
def test_wrong_tensors_are_named(tmp_path, damage, said) -> None:
    write_checkpoint(tmp_path, TINY, SEED)
    entries = read_folder(tmp_path)
    odd = f"{PREFIX}model.layers.1.block_sparse_moe.experts.3.w2.weight_scale"
    file = entries[f"{PREFIX}lm_head.weight" if damage in ("dtype", "cut") else odd].path
    tensors = {n: np.array(e.array()) for n, e in entries.items() if e.path == file}
    index = json.loads((tmp_path / INDEX).read_text())
    match damage:
        case "missing":
            del tensors[odd], index["weight_map"][odd]
        case "unknown":
            tensors[f"{PREFIX}model.layers.0.mlp.bonus.weight"] = np.zeros(3, np.float32)
            index["weight_map"][f"{PREFIX}model.layers.0.mlp.bonus.weight"] = file.name
        case "shape":
            tensors[odd] = np.zeros(8, np.uint8)
        case "dtype":
            tensors[f"{PREFIX}lm_head.weight"] = tensors[f"{PREFIX}lm_head.weight"].astype(np.float32)
    (tmp_path / INDEX).write_text(json.dumps(index))
    write_file(file, tensors)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(tmp_path)


def test_several_jobs_write_the_same(tmp_path, folder) -> None:
    source = open_checkpoint(folder)
    steps: list[int] = []
    manifests = [
        weights.convert(
            source, PLAN, tmp_path / str(jobs), lambda done, *_: steps.append(done), ranks=[1], jobs=jobs
        )
        for jobs in (1, 3)
    ]
    assert manifests[0] == manifests[1]
    assert steps[-1] == len(manifests[0]["units"])
    made = random_source(CONFIG, SEED)
    broken = dataclasses.replace(made, fetch=lambda name: made.fetch(name) * ("w2.weight_scale" not in name))
    with pytest.raises(CheckpointError, match=r"expert 2 of layer [12]: scales run from 0"):
        weights.convert(broken, PLAN, tmp_path / "broken", ignore, ranks=[2], jobs=3)
    assert not (tmp_path / "broken").exists()


def test_a_scale_that_cannot_be_exact_is_named(tmp_path) -> None:
    made = random_source(CONFIG, SEED)

    def fetch(name: str) -> np.ndarray:
        return made.fetch(name) * ("2.block_sparse_moe.experts.1.w2.weight_scale" not in name)

    with pytest.raises(CheckpointError, match="expert 1 of layer 2: scales run from 0"):
        weights.convert(dataclasses.replace(made, fetch=fetch), StepPlan(CONFIG), tmp_path / "out", ignore)


def test_scales_may_have_a_dtype_of_their_own(tmp_path) -> None:
    write_checkpoint(tmp_path, TINY, SEED)
    name = "model.layers.1.block_sparse_moe.experts.0.w1.weight_scale"
    before = np.array(open_checkpoint(tmp_path).fetch(name))
    path = read_folder(tmp_path)[PREFIX + name].path
    tensors = {n: np.array(e.array()) for n, e in read_folder(tmp_path).items() if e.path == path}
    write_file(
        path, {n: v.view(ml_dtypes.float8_e8m0fnu) if n.endswith("_scale") else v for n, v in tensors.items()}
    )
    after = open_checkpoint(tmp_path).fetch(name)
    assert after.dtype == np.uint8
    np.testing.assert_array_equal(after, before)


def test_folders_of_another_version_are_refused(tmp_path) -> None:
    config = dataclasses.replace(CONFIG, experts=2, active_experts=1)
    weights.convert(random_source(config, 0), StepPlan(config), tmp_path / "out", ignore)
    path = tmp_path / "out" / "weights.json"
    manifest = json.loads(path.read_text())
    for older in ({"layout": {**manifest["layout"], "packing": 1}}, {"schema_version": 1}):
        path.write_text(json.dumps({**manifest, **older}))
        with pytest.raises(CheckpointError, match="another version of the kernel"):
            weights.open_weights(tmp_path / "out")


def test_ranks_and_slices() -> None:
    assert numbers("0-2,7") == [0, 1, 2, 7]
    with pytest.raises(ValueError, match="no list of ranks"):
        numbers("0-x")
    plan = step_plan(KIMI_K3, 32)
    assert (plan.hosts, plan.members, plan.width_ranks) == (4, 8, 4)
    assert step_plan(SMALL, 8).width_ranks == 1
    with pytest.raises(ValueError, match="5 hosts"):
        step_plan(KIMI_K3, 32, hosts=5)
    # What a rank keeps of the real model: 1,560 GB over 32 ranks, and what stands on several, the embedding
    # above all.
    size = sum(int(np.prod(s, dtype=np.int64)) * d.itemsize for s, d in weights.weight_shapes(plan).values())
    assert 54.0e9 < size < 54.4e9
