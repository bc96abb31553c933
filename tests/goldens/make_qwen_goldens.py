"""Make tests/goldens/qwen.npz: logits of transformers' qwen3_5 on random small configs.

Runs apart from the project, in any environment with torch (CPU), transformers and numpy:

    python3 -m venv /tmp/goldens && /tmp/goldens/bin/pip install torch transformers
    /tmp/goldens/bin/python tests/goldens/make_qwen_goldens.py

Weights are not stored: `megakernels.qwen.parameters.random_tensor` makes them from the tensor's name and
a seed, here and in the test. Stored per case: the config, the prompt, the greedy tokens, and the logits of
every prompt row and of 8 decode steps, in float32, plus the greedy tokens of the bfloat16 model.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

sys.path.insert(0, str(Path(__file__).parents[2]))

from megakernels.qwen.config import QwenConfig
from megakernels.qwen.parameters import random_tensor, tensor_shapes

PROMPT, STEPS, SEED = 9, 8, 5
CASES = (
    QwenConfig("a", 8, 64, 96, 120, 4, 2, 32, 2, 6, 16, 16),
    QwenConfig("b", 4, 96, 64, 130, 6, 2, 64, 4, 4, 32, 16),
    QwenConfig("c", 6, 48, 80, 100, 4, 1, 32, 1, 3, 24, 8, attention_period=3),
)


def build_model(config: QwenConfig) -> Qwen3_5ForCausalLM:
    """The transformers model of a config, with our random weights."""
    half = config.rope_dims // 2
    section = [half - 2 * (half // 3), half // 3, half // 3]
    text = Qwen3_5TextConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.attention_heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.norm_eps,
        linear_conv_kernel_dim=config.conv_taps,
        linear_key_head_dim=config.key_dim,
        linear_value_head_dim=config.value_dim,
        linear_num_key_heads=config.key_heads,
        linear_num_value_heads=config.value_heads,
        layer_types=[
            "full_attention" if config.is_attention(i) else "linear_attention" for i in range(config.layers)
        ],
        rope_parameters={
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.rope_fraction,
            "mrope_section": section,
            "mrope_interleaved": True,
        },
        attn_implementation="eager",
    )
    model = Qwen3_5ForCausalLM(text).float().eval()
    state = {n: torch.from_numpy(random_tensor(n, s, SEED)) for n, s in tensor_shapes(config).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if missing or unexpected:
        raise SystemExit(f"names differ from transformers: missing {missing}, unexpected {unexpected}")
    return model


def run(
    model: Qwen3_5ForCausalLM, prompt: np.ndarray, forced: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prefill, then STEPS decode steps; tokens are greedy, or forced so that small errors cannot branch."""
    with torch.no_grad():
        out = model(input_ids=torch.from_numpy(prompt)[None], use_cache=True)
        prefill = out.logits[0].float().numpy()
        tokens, logits = [int(prefill[-1].argmax())], []
        for step in range(STEPS):
            fed = tokens[-1] if forced is None else int(forced[step])
            out = model(input_ids=torch.tensor([[fed]]), past_key_values=out.past_key_values, use_cache=True)
            logits.append(out.logits[0, -1].float().numpy())
            tokens.append(int(logits[-1].argmax()))
    return prefill, np.stack(logits), np.asarray(tokens, np.int32)


def main() -> None:
    """Write the goldens beside this script, to a temporary name first."""
    torch.manual_seed(0)
    arrays: dict[str, np.ndarray] = {}
    for config in CASES:
        model = build_model(config)
        prompt = np.random.RandomState(SEED).randint(0, config.vocab, PROMPT).astype(np.int64)
        prefill, logits, tokens = run(model, prompt, None)
        half = model.bfloat16()
        for name, parameter in half.named_parameters():
            if name.endswith(("A_log", "dt_bias", "linear_attn.norm.weight")):
                parameter.data = torch.from_numpy(random_tensor(name, tuple(parameter.shape), SEED))
        half_prefill, half_logits, half_tokens = run(half, prompt, tokens)
        fields = {f: getattr(config, f) for f in QwenConfig.__dataclass_fields__}
        arrays |= {
            f"{config.name}.config": np.frombuffer(json.dumps(fields).encode(), np.uint8),
            f"{config.name}.prompt": prompt.astype(np.int32),
            f"{config.name}.tokens": tokens,
            f"{config.name}.prefill": prefill,
            f"{config.name}.logits": logits,
            f"{config.name}.bf16_tokens": half_tokens,
            f"{config.name}.bf16_logits": half_logits,
            f"{config.name}.bf16_prefill_last": half_prefill[-1],
        }
        print(config.name, "tokens", tokens, "bf16", half_tokens)
    arrays["made_with"] = np.frombuffer(
        f"torch {torch.__version__} transformers {transformers.__version__}".encode(), np.uint8
    )
    path = Path(__file__).with_name("qwen.npz")
    temporary = path.with_suffix(".tmp.npz")
    np.savez_compressed(temporary, **arrays)
    os.replace(temporary, path)
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
