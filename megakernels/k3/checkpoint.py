"""A published checkpoint of the model, checked tensor by tensor before anything is read from it.

497 thousand tensors in 96 files: they are mapped, and what is not looked at is not read. The text model's
names begin with `language_model.`; the vision tower beside it is not used. A routed expert's matrix `x` is
two tensors of bytes, `x_packed` and `x_scale`.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from megakernels.common.checkpoint import DOWNLOAD, compare, file_sizes, read_config
from megakernels.common.safetensors import INDEX, CheckpointError, Entry, read_folder, write_file
from megakernels.k3.config import KIMI_K3, MXFP4_GROUP, K3Config
from megakernels.k3.mxfp4 import quantize
from megakernels.k3.parameters import PREFIX, random_stored, random_tensor, text_tensors

KINDS = {"bf16": ("BF16",), "f32": ("F32", "BF16")}
BYTES = ("U8", "F8_E8M0")  # E8M0 has a name of its own in newer files
PER_FILE = 64  # tensors of a file of a written checkpoint


@dataclass(frozen=True, slots=True)
class Source:
    """Where tensors come from: `fetch(name)` gives one, in the names of the text model.

    bfloat16 tensors come as such, packed weights and scales as bytes.
    """

    config: K3Config
    fetch: Callable[[str], np.ndarray]
    fingerprint: dict[str, Any]


def stored_shapes(config: K3Config) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[str, ...]]]:
    """Shape and allowed dtypes of every tensor in the files."""
    shapes: dict[str, tuple[int, ...]] = {}
    kinds: dict[str, tuple[str, ...]] = {}
    for name, what in text_tensors(config).items():
        if what.stored != "mxfp4":
            shapes[name], kinds[name] = what.shape, KINDS[what.stored]
            continue
        rows, columns = what.shape
        shapes[f"{name}_packed"], kinds[f"{name}_packed"] = (rows, columns // 2), ("U8",)
        shapes[f"{name}_scale"], kinds[f"{name}_scale"] = (rows, columns // MXFP4_GROUP), BYTES
    return shapes, kinds


def random_source(config: K3Config, seed: int) -> Source:
    """Random weights of any config, made tensor by tensor: those of `parameters.random_stored`."""
    tensors = text_tensors(config)

    @functools.lru_cache(maxsize=4)
    def quantized(name: str) -> tuple[np.ndarray, np.ndarray]:
        return quantize(random_tensor(name, tensors[name].shape, seed))

    def fetch(name: str) -> np.ndarray:
        if name not in tensors:
            plain, _, kind = name.rpartition("_")
            return quantized(plain)[kind == "scale"]
        values = random_tensor(name, tensors[name].shape, seed)
        return values if tensors[name].stored == "f32" else values.astype(ml_dtypes.bfloat16)

    return Source(config, fetch, {"random": seed, "model": config.name})


def open_checkpoint(folder: Path) -> Source:
    """The checkpoint in a folder.

    Raises:
        CheckpointError: A file is missing or damaged, or tensors are missing, unknown, or of another shape or
            dtype than the config says; each is named.
    """
    config = config_of(folder, read_config(folder))
    entries = text_entries(read_folder(folder))
    compare(folder, *stored_shapes(config), entries)
    fingerprint = {"files": file_sizes(entries.values()), "model": config.name}

    def fetch(name: str) -> np.ndarray:
        values = entries[name].array()
        return values.view(np.uint8) if values.dtype == ml_dtypes.float8_e8m0fnu else values

    return Source(config, fetch, fingerprint)


def text_entries(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The text model's tensors; a checkpoint of it alone may leave the prefix out."""
    text = {name.removeprefix(PREFIX): entry for name, entry in entries.items() if name.startswith(PREFIX)}
    return text or dict(entries)


def config_of(folder: Path, described: Mapping[str, Any]) -> K3Config:
    """The config of a checkpoint's config.json, whose text part may stand under `text_config`.

    Raises:
        CheckpointError: A field is missing, or says something the kernel does not do.
    """
    path = folder / "config.json"
    text = described.get("text_config") or described
    try:
        linear = text["linear_attn_config"]
        full = linear["full_attn_layers"]  # 1-based
        layers = text["num_hidden_layers"]
        config = K3Config(
            name=folder.resolve().name,
            layers=layers,
            hidden=text["hidden_size"],
            vocab=text["vocab_size"],
            heads=text["num_attention_heads"],
            head_dim=linear["head_dim"],
            conv_taps=linear["short_conv_kernel_size"],
            decay_rank=linear["head_dim"],
            decay_bound=linear["gate_lower_bound"],
            q_rank=text["q_lora_rank"],
            kv_rank=text["kv_lora_rank"],
            nope_dim=text["qk_nope_head_dim"],
            rope_dim=text["qk_rope_head_dim"],
            value_dim=text["v_head_dim"],
            mla_period=min(full) if full else layers,
            experts=text["num_experts"],
            active_experts=text["num_experts_per_token"],
            latent=text["routed_expert_hidden_size"],
            expert_width=text["moe_intermediate_size"],
            shared_width=text["moe_intermediate_size"] * text["num_shared_experts"],
            dense_width=text["intermediate_size"],
            dense_layers=text["first_k_dense_replace"],
            residual_block=text["attn_res_block_size"],
            gate_cap=text["activation_situ_beta"],
            up_cap=text["activation_situ_linear_beta"],
            norm_eps=text["rms_norm_eps"],
            # No part of the checkpoint: what the published drafter reads, as far as the layers go.
            aux_layers=tuple(layer for layer in KIMI_K3.aux_layers if layer < layers) or (layers - 1,),
        )
    except KeyError as error:
        raise CheckpointError(path, f"has no field {error}", DOWNLOAD) from None
    except (TypeError, ValueError) as error:
        raise CheckpointError(path, str(error), DOWNLOAD) from None
    faults = {
        "layers with full attention are not every so many and the last": sorted(full)
        != [layer + 1 for layer in range(layers) if config.is_mla(layer)],
        "KDA has other heads than MLA": linear["num_heads"] != config.heads,
        "the router scales its weights": text.get("routed_scaling_factor", 1.0) != 1.0,
        "experts are chosen in groups": text.get("num_expert_group", 1) != 1,
        "the router does not use sigmoids": text.get("moe_router_activation_func", "sigmoid") != "sigmoid",
        "attention has no output gate": not text.get("mla_use_output_gate", True),
        "the output gate of KDA has low rank": not linear.get("use_full_rank_gate", True),
    }
    for fault in [fault for fault, found in faults.items() if found]:
        raise CheckpointError(path, fault, "Choose another model.")
    return config


def described_config(config: K3Config) -> dict[str, Any]:
    """The config.json of a model, as `config_of` reads it."""
    c = config
    numbered = range(1, c.layers + 1)
    text = {
        "model_type": "kimi_linear",
        "num_hidden_layers": c.layers,
        "hidden_size": c.hidden,
        "vocab_size": c.vocab,
        "num_attention_heads": c.heads,
        "q_lora_rank": c.q_rank,
        "kv_lora_rank": c.kv_rank,
        "qk_nope_head_dim": c.nope_dim,
        "qk_rope_head_dim": c.rope_dim,
        "v_head_dim": c.value_dim,
        "num_experts": c.experts,
        "num_experts_per_token": c.active_experts,
        "routed_expert_hidden_size": c.latent,
        "moe_intermediate_size": c.expert_width,
        "num_shared_experts": c.shared_width // c.expert_width,
        "intermediate_size": c.dense_width,
        "first_k_dense_replace": c.dense_layers,
        "attn_res_block_size": c.residual_block,
        "activation_situ_beta": c.gate_cap,
        "activation_situ_linear_beta": c.up_cap,
        "rms_norm_eps": c.norm_eps,
        "linear_attn_config": {
            "head_dim": c.head_dim,
            "num_heads": c.heads,
            "short_conv_kernel_size": c.conv_taps,
            "gate_lower_bound": c.decay_bound,
            "use_full_rank_gate": True,
            "kda_layers": [n for n in numbered if not c.is_mla(n - 1)],
            "full_attn_layers": [n for n in numbered if c.is_mla(n - 1)],
        },
    }
    return {"model_type": "kimi_k3", "text_config": text}


def stored_tensors(source: Source) -> dict[str, np.ndarray]:
    """All tensors at once, for small models: bfloat16 ones as float32, as `reference.load` takes them."""
    shapes, _ = stored_shapes(source.config)

    def plain(values: np.ndarray) -> np.ndarray:
        return values.astype(np.float32) if values.dtype == ml_dtypes.bfloat16 else values

    return {name: plain(source.fetch(name)) for name in shapes}


def write_checkpoint(folder: Path, config: K3Config, seed: int) -> None:
    """A checkpoint with random weights as it is published, for trying out what reads one."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = text_tensors(config)
    places: dict[str, str] = {}
    shard: dict[str, np.ndarray] = {}

    def flush() -> None:
        if shard:
            file = f"model-{len(set(places.values())) + 1:05}.safetensors"
            write_file(folder / file, shard)
            places.update(dict.fromkeys(shard, file))
            shard.clear()

    for name, values in random_stored(config, seed):
        as_stored = name in tensors and tensors[name].stored == "bf16"
        shard[PREFIX + name] = values.astype(ml_dtypes.bfloat16) if as_stored else values
        if len(shard) == PER_FILE:
            flush()
    flush()
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(json.dumps(described_config(config)))
