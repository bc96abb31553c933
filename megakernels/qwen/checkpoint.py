"""A Hugging Face checkpoint of the model, checked tensor by tensor before anything is read from it."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megakernels.common.checkpoint import DOWNLOAD, compare, file_sizes, read_config
from megakernels.common.safetensors import CheckpointError, Entry, read_folder
from megakernels.qwen.config import QwenConfig
from megakernels.qwen.parameters import FP8_BLOCK, SCALE_SUFFIX, is_fp8, random_tensor, tensor_shapes

# Tensors of the same checkpoint that text decoding does not use: vision tower, multi-token prediction.
UNUSED = ("model.visual.", "mtp.", "model.mtp.")
MULTIMODAL = "model.language_model."


@dataclass(frozen=True, slots=True)
class Source:
    """Where tensors come from: `fetch(name)` gives one, `[out, in]`, in the names of the text model."""

    config: QwenConfig
    fp8: bool
    fetch: Callable[[str], np.ndarray]
    fingerprint: dict[str, Any]


def random_source(config: QwenConfig, seed: int, fp8: bool = False) -> Source:
    """Random weights of any config, made tensor by tensor."""
    from megakernels.qwen.parameters import quantize

    shapes = tensor_shapes(config)

    @functools.lru_cache(maxsize=2)  # large tensors are asked for core by core
    def fetch(name: str) -> np.ndarray:
        scale = name.endswith(SCALE_SUFFIX)
        plain = name.removesuffix(SCALE_SUFFIX)
        value = random_tensor(plain, shapes[plain], seed)
        if fp8 and is_fp8(plain):
            return quantize(value)[1 if scale else 0]
        return value

    return Source(config, fp8, fetch, {"random": seed, "model": config.name})


def open_checkpoint(folder: Path) -> Source:
    """The checkpoint in a folder.

    Raises:
        CheckpointError: A file is missing or damaged, or tensors are missing, unknown, or of another shape or
            dtype than the config says; each is named.
    """
    described = read_config(folder)
    config = config_of(folder, described)
    fp8 = (described.get("quantization_config") or {}).get("quant_method") == "fp8"
    entries = {_text_name(name): entry for name, entry in read_folder(folder).items()}
    entries = {name: entry for name, entry in entries.items() if not name.startswith(UNUSED)}
    check(folder, config, fp8, entries)
    fingerprint = {"files": file_sizes(entries.values()), "model": config.name}
    return Source(config, fp8, lambda name: entries[name].array(), fingerprint)


def config_of(folder: Path, described: Mapping[str, Any]) -> QwenConfig:
    """The config of a checkpoint's config.json, whose text part may stand under `text_config`.

    Raises:
        CheckpointError: A field is missing, or says something the kernel does not do.
    """
    text = described.get("text_config") or described
    rope = text.get("rope_parameters") or {}
    try:
        kinds = text.get("layer_types")
        period = text.get("full_attention_interval") or (kinds.index("full_attention") + 1 if kinds else 4)
        config = QwenConfig(
            name=folder.resolve().name,
            layers=text["num_hidden_layers"],
            hidden=text["hidden_size"],
            intermediate=text["intermediate_size"],
            vocab=text["vocab_size"],
            attention_heads=text["num_attention_heads"],
            kv_heads=text["num_key_value_heads"],
            head_dim=text["head_dim"],
            key_heads=text["linear_num_key_heads"],
            value_heads=text["linear_num_value_heads"],
            key_dim=text["linear_key_head_dim"],
            value_dim=text["linear_value_head_dim"],
            conv_taps=text["linear_conv_kernel_dim"],
            attention_period=period,
            rope_fraction=rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25)),
            rope_theta=rope.get("rope_theta", text.get("rope_theta", 1e7)),
            norm_eps=text["rms_norm_eps"],
        )
    except KeyError as error:
        raise CheckpointError(folder / "config.json", f"has no field {error}", DOWNLOAD) from None
    expected = [
        "full_attention" if config.is_attention(i) else "linear_attention" for i in range(config.layers)
    ]
    if kinds and kinds != expected:
        raise CheckpointError(
            folder / "config.json", "its layer_types do not repeat with one period", "Choose another model."
        )
    return config


def _text_name(name: str) -> str:
    return "model." + name.removeprefix(MULTIMODAL) if name.startswith(MULTIMODAL) else name


def check(folder: Path, config: QwenConfig, fp8: bool, entries: Mapping[str, Entry]) -> None:
    """Compare what is there with what the config says.

    Raises:
        CheckpointError: They differ; missing, unknown, mis-shaped tensors and wrong dtypes are each named.
    """
    shapes = dict(tensor_shapes(config))
    kinds: dict[str, tuple[str, ...]] = dict.fromkeys(shapes, ("BF16", "F32", "F16"))
    if fp8:
        for name in [n for n in shapes if is_fp8(n)]:
            kinds[name] = ("F8_E4M3",)
            scales = tuple(-(-size // FP8_BLOCK) for size in shapes[name])
            shapes[name + SCALE_SUFFIX], kinds[name + SCALE_SUFFIX] = scales, ("BF16", "F32")
    compare(folder, shapes, kinds, entries)
