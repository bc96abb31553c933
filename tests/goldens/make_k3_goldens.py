"""Make tests/goldens/k3.npz: what independent implementations say about Kimi K3's arithmetic.

Runs apart from the project, in a throw-away environment with torch for CPU; about 2 GB of packages:

    python3 -m venv /tmp/goldens && cd /tmp/goldens
    bin/pip install torch numpy ml_dtypes transformers einops compressed-tensors
    bin/pip install --no-deps nemo-automodel fla-core
    bin/python .../tests/goldens/make_k3_goldens.py

Three sources, named in the keys of the file:

* `fla.*`: `naive_recurrent_kda` and `naive_kda_lowerbound_gate` of fla-core, loaded from their files, since
  the package itself wants a GPU compiler;
* `mxfp4.*`: the mxfp4 compressor of compressed-tensors, which made the published checkpoint;
* `model.*`: the Kimi K3 of NVIDIA NeMo AutoModel, whole small models with its own loader of the published
  tensor names and packing. Its three GPU kernels are replaced by plain torch (fla's naive recurrence, a
  depthwise convolution, a gated norm).

Weights are not stored: `megakernels.k3.parameters` makes them from names and a seed, here and in the test.
"""

import dataclasses
import importlib.machinery
import importlib.metadata
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))

from megakernels.k3.config import TINY, K3Config
from megakernels.k3.parameters import random_stored, text_tensors

SEED, ROWS = 5, 11
CASES = (
    TINY,
    dataclasses.replace(
        TINY,
        name="k3-other",
        layers=7,
        hidden=48,
        vocab=80,
        heads=3,
        head_dim=8,
        conv_taps=3,
        decay_rank=8,
        shared_width=32,
        q_rank=20,
        mla_period=3,
        experts=10,
        active_experts=4,
        latent=64,
        residual_block=3,
        aux_layers=(1, 2, 3, 4, 6),
    ),
)


def site(package: str, file: str) -> Path:
    """A file of an installed package."""
    return Path(str(importlib.metadata.distribution(package).locate_file(file)))


def functions_of(path: Path, *names: str) -> list[Any]:
    """Functions of a file, without running the rest of it (which imports GPU compilers)."""
    import ast

    from einops import rearrange

    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    for function in tree.body:
        function.decorator_list = []
    space: dict[str, Any] = {"torch": torch, "F": F, "rearrange": rearrange}
    exec(compile(tree, str(path), "exec"), space)
    return [space[name] for name in names]


(naive_recurrent_kda,) = functions_of(site("fla-core", "fla/ops/kda/naive.py"), "naive_recurrent_kda")
(naive_gate,) = functions_of(site("fla-core", "fla/ops/kda/gate.py"), "naive_kda_lowerbound_gate")


class ShortConvolution(torch.nn.Module):
    """fla's module of this name in plain torch: depthwise, causal, then SiLU."""

    def __init__(self, hidden_size: int, kernel_size: int, activation: str, dtype: torch.dtype) -> None:
        super().__init__()
        assert activation == "silu"
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size, 1, kernel_size, dtype=dtype))

    def forward(self, x: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        taps = self.weight.shape[-1]
        padded = F.pad(x.float().transpose(1, 2), (taps - 1, 0))
        y = F.conv1d(padded, self.weight.float(), groups=self.weight.shape[0])
        return F.silu(y).transpose(1, 2).to(x.dtype), None


class FusedRMSNormGated(torch.nn.Module):
    """fla's module of this name in plain torch: RMS norm, weight, times the sigmoid of the gate."""

    def __init__(self, hidden_size: int, eps: float, activation: str, dtype: torch.dtype) -> None:
        super().__init__()
        assert activation == "sigmoid"
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size, dtype=dtype))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.float() * gate.float().sigmoid()).to(x.dtype)


def recurrent_kda(q: Any, k: Any, v: Any, g: Any, beta: Any, **options: Any) -> tuple[torch.Tensor, None]:
    """fla's kernel: normalizes q and k, then the recurrence."""
    assert options["use_qk_l2norm_in_kernel"]
    q, k = (x.float() * torch.rsqrt(x.float().pow(2).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    out, _ = naive_recurrent_kda(q, k, v.float(), g, beta)
    return out.to(v.dtype), None


def stand_in_for_fla() -> None:
    """Put the plain versions where the model looks for fla's kernels."""
    contents: dict[str, dict[str, Any]] = {
        "fla": {},
        "fla.modules": {"ShortConvolution": ShortConvolution, "FusedRMSNormGated": FusedRMSNormGated},
        "fla.ops": {},
        "fla.ops.kda": {"chunk_kda": recurrent_kda, "fused_recurrent_kda": recurrent_kda},
        "fla.ops.kda.gate": {"fused_kda_gate": lambda **_: None},
    }
    for name, members in contents.items():
        module = types.ModuleType(name)
        module.__dict__.update(members, __path__=[])
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module


def build_model(config: K3Config, dtype: torch.dtype) -> torch.nn.Module:
    """NeMo's model of a config, our random checkpoint loaded through its own adapter."""
    from nemo_automodel.components.models.common import BackendConfig
    from nemo_automodel.components.models.kimi_k3.config import KimiK3TextConfig
    from nemo_automodel.components.models.kimi_k3.model import KimiK3ForCausalLM

    c = config
    text = KimiK3TextConfig(
        vocab_size=c.vocab,
        hidden_size=c.hidden,
        intermediate_size=c.dense_width,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        rms_norm_eps=c.norm_eps,
        moe_intermediate_size=c.expert_width,
        num_experts=c.experts,
        num_experts_per_token=c.active_experts,
        num_shared_experts=c.shared_width // c.expert_width,
        first_k_dense_replace=c.dense_layers,
        routed_expert_hidden_size=c.latent,
        q_lora_rank=c.q_rank,
        kv_lora_rank=c.kv_rank,
        qk_nope_head_dim=c.nope_dim,
        qk_rope_head_dim=c.rope_dim,
        v_head_dim=c.value_dim,
        linear_attn_config={
            "head_dim": c.head_dim,
            "num_heads": c.heads,
            "short_conv_kernel_size": c.conv_taps,
            "kda_layers": [i + 1 for i in range(c.layers) if not c.is_mla(i)],
            "full_attn_layers": [i + 1 for i in range(c.layers) if c.is_mla(i)],
            "use_full_rank_gate": True,
            "gate_lower_bound": c.decay_bound,
        },
        kda_mode="fused_recurrent",
        kda_use_fused_gate=False,
        attn_res_block_size=c.residual_block,
        activation_situ_beta=c.gate_cap,
        activation_situ_linear_beta=c.up_cap,
        torch_dtype=dtype,
    )
    backend = BackendConfig(
        attn="eager", linear="torch", rms_norm="torch", experts="torch", dispatcher="torch", rope_fusion=False
    )
    model = KimiK3ForCausalLM(text, backend=backend).eval()
    stored = text_tensors(c)
    state = {}
    for name, value in random_stored(c, SEED):
        array = torch.from_numpy(value.copy())
        if name in stored and stored[name].stored == "bf16":
            array = array.to(dtype)
        state[f"language_model.{name}"] = array
    missing, unexpected = model.load_state_dict(model.state_dict_adapter.from_hf(state), strict=False)
    if missing or unexpected:
        raise SystemExit(f"names differ from NeMo's: missing {missing}, unexpected {unexpected}")
    return model


def watch(model: torch.nn.Module, streams: dict[int, torch.Tensor], experts: list[torch.Tensor]) -> None:
    """Note what enters every layer, and what every router chooses."""
    for index, block in model.model.layers.items():
        block.register_forward_pre_hook(lambda _, args, index=int(index): streams.__setitem__(index, args[0]))
        if block.is_moe_layer:
            block.mlp.gate.register_forward_hook(lambda _, args, out: experts.append(out[1]))


def model_goldens(config: K3Config) -> dict[str, np.ndarray]:
    """Logits, the streams entering the auxiliary layers, and the experts chosen, of one prompt."""
    tokens = np.random.RandomState(SEED).randint(0, config.vocab, ROWS).astype(np.int64)
    arrays = {"config": as_bytes(dataclasses.asdict(config)), "tokens": tokens.astype(np.int32)}
    for dtype, label in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        model = build_model(config, dtype)
        streams: dict[int, torch.Tensor] = {}
        experts: list[torch.Tensor] = []
        watch(model, streams, experts)
        with torch.no_grad():
            out = model(input_ids=torch.from_numpy(tokens)[None])
        logits = getattr(out, "logits", out)[0].float().numpy()
        arrays[f"logits_{label}"] = logits
        print(config.name, label, "argmax", logits.argmax(-1))
        if dtype == torch.float32:
            arrays["aux"] = torch.stack([streams[i][0] for i in config.aux_layers], 1).numpy()
            arrays["experts"] = np.sort(torch.stack(experts).numpy(), -1).astype(np.int32)
    return {f"model.{config.name}.{name}": value for name, value in arrays.items()}


def fla_goldens() -> dict[str, np.ndarray]:
    """The recurrence at the real head size, from a state, and the bounded gate."""
    rng = np.random.RandomState(SEED)
    batch, rows, heads, dim = 1, 6, 2, 128

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    raw, a_log, dt_bias = normal(batch, rows, heads, dim), normal(heads), normal(heads * dim)
    q, k, v = (normal(batch, rows, heads, dim) for _ in range(3))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    beta = 1 / (1 + np.exp(-normal(batch, rows, heads)))
    initial = normal(batch, heads, dim, dim) * np.float32(0.1)
    made = [torch.from_numpy(x) for x in (q, k, v, raw, beta, initial, a_log, dt_bias)]
    tq, tk, tv, traw, tbeta, tinitial, ta, tdt = made
    gate = naive_gate(traw, ta, tdt, lower_bound=-5.0)
    out, state = naive_recurrent_kda(tq, tk, tv, gate, tbeta, initial_state=tinitial, output_final_state=True)
    # The inputs come from the generator again in the test; what is kept of the state is enough to tell.
    return {
        "fla.gate": gate.numpy(),
        "fla.out": out.numpy(),
        "fla.state": state.numpy()[..., ::8, :],
    }


def mxfp4_goldens() -> dict[str, np.ndarray]:
    """Every nibble pair under every scale a finite value allows, decoded by compressed-tensors."""
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    packed = np.arange(256, dtype=np.uint8).reshape(16, 16)
    values = unpack_fp4_from_uint8(torch.from_numpy(packed), 16, 32, dtype=torch.float32)
    scales = decompress_mx_scale(torch.arange(255, dtype=torch.uint8)).float()
    return {"mxfp4.values": values.numpy(), "mxfp4.scales": scales.numpy().reshape(-1)}


def as_bytes(value: Any) -> np.ndarray:
    """JSON as an array, to go into the file."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def main() -> None:
    """Write the goldens beside this script, to a temporary name first."""
    torch.manual_seed(0)
    arrays = {**fla_goldens(), **mxfp4_goldens()}
    stand_in_for_fla()
    for config in CASES:
        arrays |= model_goldens(config)
    packages = ("torch", "fla-core", "compressed-tensors", "nemo-automodel")
    arrays["made_with"] = as_bytes({name: importlib.metadata.version(name) for name in packages})
    path = Path(__file__).with_name("k3.npz")
    temporary = path.with_suffix(".tmp.npz")
    np.savez_compressed(temporary, **arrays)
    os.replace(temporary, path)
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
