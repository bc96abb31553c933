"""Parameters and bytes of a decode step, counted from the config: what a kernel cannot read less of."""

from dataclasses import dataclass

from megakernels.k3.config import BF16_BYTES, F32_BYTES, K3Config
from megakernels.k3.parameters import Tensor, expert_shapes, layer_tensors, tensor


def _sum(tensors: dict[str, Tensor], prefix: str = "") -> tuple[int, int]:
    chosen = [t for name, t in tensors.items() if name.startswith(prefix)]
    return sum(t.elements for t in chosen), sum(t.bytes for t in chosen)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the model: how often it occurs, and one occurrence's weights and bytes as stored."""

    count: int
    parameters: int
    stored_bytes: int

    @property
    def bf16_bytes(self) -> int:
        """Bytes of one occurrence with every weight in bfloat16."""
        return self.parameters * BF16_BYTES


@dataclass(frozen=True, slots=True)
class Counts:
    """The counted sizes of a config."""

    config: K3Config

    @property
    def parts(self) -> dict[str, Part]:
        """Every part by name; together the whole text model."""
        c = self.config
        kda = next((i for i in range(c.layers) if not c.is_mla(i)), None)
        mla = next(i for i in range(c.layers) if c.is_mla(i))
        parts = {"mla": Part(c.mla_layers, *_sum(layer_tensors(c, mla, False), "self_attn."))}
        if kda is not None:
            parts["kda"] = Part(c.kda_layers, *_sum(layer_tensors(c, kda, False), "self_attn."))
        if c.moe_layers:
            moe = layer_tensors(c, c.layers - 1, False)
            parts["moe_fixed"] = Part(c.moe_layers, *_sum(moe, "block_sparse_moe."))
            expert = {n: tensor(f".experts.{n}", *shape) for n, shape in expert_shapes(c).items()}
            parts["expert"] = Part(c.moe_layers * c.experts, *_sum(expert))
        if c.dense_layers:
            parts["dense"] = Part(c.dense_layers, *_sum(layer_tensors(c, 0, False), "mlp."))
        small = tensor("", 6, c.hidden)  # two norms, two residual mixers of a norm and a projection each
        parts["norms"] = Part(c.layers, small.elements, small.bytes)
        final = tensor("", 3, c.hidden)  # the output mixer and the final norm
        parts["final"] = Part(1, final.elements, final.bytes)
        table = tensor("", c.vocab, c.hidden)
        parts["embedding"] = Part(1, table.elements, table.bytes)
        parts["lm_head"] = Part(1, table.elements, table.bytes)
        return parts

    @property
    def parameters(self) -> int:
        """Weights of the whole text model."""
        return sum(part.count * part.parameters for part in self.parts.values())

    @property
    def stored_bytes(self) -> int:
        """Bytes of the text part of the checkpoint, without file headers."""
        return sum(part.count * part.stored_bytes for part in self.parts.values())

    @property
    def active_parameters(self) -> int:
        """Weights one token meets, lm_head included, the embedding not."""
        c, parts = self.config, self.parts
        unused = c.moe_layers * (c.experts - c.active_experts) * parts["expert"].parameters
        return self.parameters - unused - parts["embedding"].parameters

    def distinct_experts(self, rows: int) -> float:
        """Expected distinct experts of a layer that `rows` tokens visit, routed uniformly, independently."""
        c = self.config
        return float(c.experts * (1 - (1 - c.active_experts / c.experts) ** rows))

    def weight_bytes(self, rows: int, experts_in_bf16: bool = False) -> float:
        """Expected weight bytes of a step over `rows` tokens, all cores; one embedding row per token."""
        c, parts = self.config, self.parts
        expert = parts["expert"].bf16_bytes if experts_in_bf16 else parts["expert"].stored_bytes
        routed = c.moe_layers * self.distinct_experts(rows) * expert
        fixed = sum(p.count * p.stored_bytes for n, p in parts.items() if n not in ("expert", "embedding"))
        return routed + fixed + rows * c.hidden * BF16_BYTES

    @property
    def recurrent_bytes(self) -> int:
        """KDA states of one sequence, float32; a step reads and writes them."""
        c = self.config
        return c.kda_layers * c.heads * c.head_dim**2 * F32_BYTES

    @property
    def conv_bytes(self) -> int:
        """Convolution inputs one sequence keeps, bfloat16."""
        c = self.config
        return c.kda_layers * c.conv_channels * (c.conv_taps - 1) * BF16_BYTES

    @property
    def cache_bytes_per_token(self) -> int:
        """What one token adds to the MLA cache, bfloat16."""
        return self.config.mla_layers * self.config.cache_width * BF16_BYTES
