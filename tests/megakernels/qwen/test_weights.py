"""Checkpoint to kernel layout: equal to packing in memory, resumable, and every damage named."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from megakernels.common import weight_files
from megakernels.common.safetensors import CheckpointError, read_folder, write_file
from megakernels.common.weight_files import JOURNAL
from megakernels.qwen import checkpoint, weights
from megakernels.qwen.build import operand_shapes
from megakernels.qwen.config import SMALL, QwenConfig
from megakernels.qwen.pack import pack_all
from megakernels.qwen.parameters import (
    SCALE_SUFFIX,
    dequantize,
    quantize,
    quantize_parameters,
    random_parameters,
)
from megakernels.qwen.plan import Plan

TINY = dataclasses.replace(SMALL, name="tiny", layers=2, attention_period=2)
EXACT = ("A_log", "dt_bias", "linear_attn.norm.weight")


def ignore(done: int, total: int, unit: str) -> None:
    del done, total, unit


def tensors_of(config: QwenConfig, fp8: bool) -> dict[str, np.ndarray]:
    values = random_parameters(config, 0)
    if fp8:
        values = quantize_parameters(values)
    return {
        name: np.asarray(jnp.asarray(value, jnp.bfloat16))
        if value.dtype == np.float32 and not name.endswith(EXACT)
        else value
        for name, value in values.items()
    }


def write_checkpoint(
    folder: Path, tensors: dict[str, np.ndarray], fp8: bool = False, prefix: bool = False
) -> None:
    """A sharded checkpoint of TINY as Hugging Face lays it out; a vision and an MTP tensor are beside."""
    c = TINY
    folder.mkdir(exist_ok=True)
    text = {
        "num_hidden_layers": c.layers,
        "hidden_size": c.hidden,
        "intermediate_size": c.intermediate,
        "vocab_size": c.vocab,
        "num_attention_heads": c.attention_heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "linear_num_key_heads": c.key_heads,
        "linear_num_value_heads": c.value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "full_attention"],
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25},
    }
    described: dict[str, Any] = {"text_config": text} if prefix else dict(text)
    if fp8:
        described["quantization_config"] = {"quant_method": "fp8"}
    (folder / "config.json").write_text(json.dumps(described))

    def named(name: str) -> str:
        return name.replace("model.", "model.language_model.", 1) if prefix else name

    items = [(named(n), v) for n, v in tensors.items()]
    items += [
        ("model.visual.x.weight", np.zeros((2, 2), np.float32)),
        ("mtp.fc.weight", np.zeros(3, np.float32)),
    ]
    half = len(items) // 2
    shards = {"model-1.safetensors": dict(items[:half]), "model-2.safetensors": dict(items[half:])}
    for file, content in shards.items():
        write_file(folder / file, content)
    places = {name: file for file, content in shards.items() for name in content}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> tuple[Path, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    tensors = tensors_of(TINY, fp8=False)
    write_checkpoint(folder, tensors, prefix=True)
    return folder, tensors


@pytest.mark.parametrize("fp8", [False, True])
def test_converted_equals_packed_in_memory(tmp_path, fp8) -> None:
    tensors = tensors_of(TINY, fp8)
    write_checkpoint(tmp_path / "tiny", tensors, fp8)
    source = checkpoint.open_checkpoint(tmp_path / "tiny")
    assert source.config == TINY
    assert source.fp8 == fp8
    plan = Plan(config=source.config, cores=8, fp8=fp8, ring_depth=8)
    weights.convert(source, plan, tmp_path / "out", ignore)
    weights.verify(tmp_path / "out", ignore)
    config, layout, arrays = weights.open_weights(tmp_path / "out")
    assert config == TINY
    assert layout == weights.layout_of(plan)
    for name, packed in pack_all(plan, tensors.__getitem__).items():
        if name == "rope":
            continue
        shape = getattr(operand_shapes(plan), name)
        assert packed.shape == shape.shape
        assert packed.dtype == shape.dtype
        for core in range(8):
            file = "embedding.bin" if name == "embedding" else f"core{core}.{name}.bin"
            np.testing.assert_array_equal(arrays[file], packed if name == "embedding" else packed[core])


def test_every_weight_element_is_in_some_core_once() -> None:
    tensors = tensors_of(TINY, fp8=False)
    plan = Plan(config=TINY, cores=4, ring_depth=4)
    packed = pack_all(plan, tensors.__getitem__)
    stored = sum(int(np.count_nonzero(packed[m.name])) for m in plan.layer_matrices)
    wanted = sum(
        int(np.count_nonzero(value))
        for name, value in tensors.items()
        if name.endswith("_proj.weight") or "in_proj_qkv" in name or "in_proj_z" in name
    )
    assert stored == wanted
    heads = int(np.count_nonzero(packed["lm_head"]))
    assert heads == int(np.count_nonzero(tensors["lm_head.weight"]))


def test_a_conversion_goes_on_where_it_stopped(tmp_path, plain) -> None:
    folder, _ = plain
    source = checkpoint.open_checkpoint(folder)
    plan = Plan(config=source.config, cores=2, ring_depth=4)

    class Stopped(Exception):
        pass

    def stop(done: int, total: int, unit: str) -> None:
        del total, unit
        if done == 5:
            raise Stopped

    out = tmp_path / "out"
    with pytest.raises(Stopped):
        weights.convert(source, plan, out, stop)
    assert not out.exists()
    journal = tmp_path / "out.partial" / JOURNAL
    finished = len(journal.read_text().splitlines())
    assert finished == 5
    with journal.open("a") as file:
        file.write('{"unit": "cut o')
    fetched: list[str] = []
    counting = dataclasses.replace(source, fetch=lambda name: (fetched.append(name), source.fetch(name))[1])
    weights.convert(counting, plan, out, ignore)
    weights.verify(out, ignore)
    assert "model.layers.0.linear_attn.A_log" not in fetched
    with pytest.raises(CheckpointError, match="is there already"):
        weights.convert(source, plan, out, ignore)


def test_an_unfinished_conversion_of_something_else_is_refused(tmp_path, plain) -> None:
    source = checkpoint.open_checkpoint(plain[0])

    def stop(done: int, total: int, unit: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weights.convert(source, Plan(config=TINY, cores=2, ring_depth=4), tmp_path / "out", stop)
    with pytest.raises(CheckpointError, match="begun with another checkpoint or layout"):
        weights.convert(source, Plan(config=TINY, cores=4, ring_depth=4), tmp_path / "out", ignore)


def test_weights_of_an_older_layout_are_refused(tmp_path, plain, monkeypatch) -> None:
    source = checkpoint.open_checkpoint(plain[0])
    plan = Plan(config=source.config, cores=1, ring_depth=4)
    with monkeypatch.context() as older:
        older.setattr(weight_files, "SCHEMA_VERSION", 1)
        weights.convert(source, plan, tmp_path / "out", ignore)
    with pytest.raises(CheckpointError, match="another version of the kernel"):
        weights.open_weights(tmp_path / "out")


def test_a_flipped_bit_is_found(tmp_path, plain) -> None:
    source = checkpoint.open_checkpoint(plain[0])
    out = tmp_path / "out"
    weights.convert(source, Plan(config=source.config, cores=1, ring_depth=4), out, ignore)
    data = bytearray((out / "core0.w_down.bin").read_bytes())
    data[-5] ^= 1
    (out / "core0.w_down.bin").write_bytes(data)
    with pytest.raises(CheckpointError, match="w_down/1 differs from its checksum"):
        weights.verify(out, ignore)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("missing", r"missing: model.layers.1.mlp.up_proj.weight"),
        ("unknown", r"unknown: model.layers.0.mlp.bonus.weight"),
        ("shape", r"of another shape: model.norm.weight \[8\] instead of \[512\]"),
        ("dtype", r"of another dtype: lm_head.weight F8_E4M3"),
    ],
)
def test_wrong_tensors_are_named(tmp_path, damage, said) -> None:
    tensors = tensors_of(TINY, fp8=False)
    match damage:
        case "missing":
            del tensors["model.layers.1.mlp.up_proj.weight"]
        case "unknown":
            tensors["model.layers.0.mlp.bonus.weight"] = np.zeros(3, np.float32)
        case "shape":
            tensors["model.norm.weight"] = np.zeros(8, np.float32)
        case "dtype":
            tensors["lm_head.weight"] = tensors["lm_head.weight"].astype(jnp.float8_e4m3fn)
    write_checkpoint(tmp_path / "tiny", tensors)
    with pytest.raises(CheckpointError, match=said):
        checkpoint.open_checkpoint(tmp_path / "tiny")


def test_damaged_files_are_named(tmp_path, plain) -> None:
    folder = tmp_path / "tiny"
    write_checkpoint(folder, plain[1])
    second = folder / "model-2.safetensors"
    whole = second.read_bytes()
    second.write_bytes(whole[:-1000])
    with pytest.raises(
        CheckpointError, match=r"model-2.safetensors: truncated: \d+ of \d+ bytes, .* are cut"
    ):
        read_folder(folder)
    second.write_bytes(whole[:20])
    with pytest.raises(CheckpointError, match="truncated inside its header"):
        read_folder(folder)
    second.write_bytes(b"<html>")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        read_folder(folder)
    second.unlink()
    with pytest.raises(CheckpointError, match=r"model-2.safetensors of its index are missing"):
        read_folder(folder)
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        checkpoint.open_checkpoint(tmp_path)


def test_random_source_is_what_a_checkpoint_of_it_would_hold() -> None:
    values = random_parameters(TINY, 3)
    name = "model.layers.0.mlp.down_proj.weight"
    source = checkpoint.random_source(TINY, 3, fp8=True)
    expected, scales = quantize(values[name])
    np.testing.assert_array_equal(source.fetch(name), expected)
    np.testing.assert_array_equal(source.fetch(name + SCALE_SUFFIX), scales)
    error = np.abs(dequantize(expected, scales) - values[name])
    assert error.max() <= 0.07 * np.abs(values[name]).max()


def test_quantized_blocks_never_exceed_what_float8_holds() -> None:
    weight = np.random.RandomState(0).standard_normal((256, 384)).astype(np.float32) * 1e3
    values, scales = quantize(weight)
    assert np.isfinite(values.astype(np.float32)).all()
    assert scales.shape == (2, 3)
    assert math.isclose(float(np.abs(values.astype(np.float32)).max()), 448, rel_tol=0.01)
