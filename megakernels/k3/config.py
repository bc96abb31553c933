"""What Kimi K3 is, small models of the same shape for tests, and what follows from the sizes.

Source of the numbers: the published config of moonshotai/Kimi-K3 (class `kimi_linear`). Parameter and byte
counts are counted from them, and tested against the published totals.
"""

from dataclasses import dataclass

BF16_BYTES = 2
F32_BYTES = 4
MXFP4_GROUP = 32  # weights that share one scale byte
A_LOG_UNIT = 128  # the checkpoint pads A_log with zeros to a multiple of this


@dataclass(frozen=True, slots=True)
class K3Config:
    """Sizes of one model.

    A layer's mixer is MLA (attention over a latent cache) when its 0-based index is the last of a period or
    of the model, else KDA (Kimi Delta Attention, a gated delta rule). Its FFN is dense for the first
    `dense_layers`, else a mixture of experts that work on a latent of the hidden state.

    Attributes:
        name: How the commands call it.
        layers, hidden, vocab: Of the whole model.
        heads: Heads of KDA and of MLA.
        head_dim: Key and value width of a KDA head.
        conv_taps: Inputs the depthwise convolution before KDA looks at.
        decay_rank: Inner width of the KDA decay projection.
        decay_bound: Log decay of a key channel lies between this and 0.
        q_rank, kv_rank: Widths of the MLA query and key-value latents.
        nope_dim, rope_dim: Query and key width of an MLA head: from the latent, and shared by all heads. K3
            has no position encoding, the second part is never rotated.
        value_dim: Value width of an MLA head.
        mla_period: Every how many layers one is MLA.
        experts, active_experts: Routed experts of a layer, and those a token visits.
        latent: Width the routed experts work on.
        expert_width, shared_width, dense_width: Inner widths of an expert, of the shared expert, and of the
            dense FFN.
        dense_layers: How many layers at the start have a dense FFN.
        residual_block: A snapshot of the residual stream is taken at every layer that this divides.
        gate_cap, up_cap: Bounds of SiTU's two factors.
        norm_eps: Added to the mean square in RMSNorm.
        latent_norm_eps: The same in the norms of the two MLA latents. The published model code has 1e-6,
            several inference engines 1e-5.
        aux_layers: The residual stream entering these layers is what the drafter reads.
    """

    name: str = "kimi-k3"
    layers: int = 93
    hidden: int = 7168
    vocab: int = 163_840
    heads: int = 96
    head_dim: int = 128
    conv_taps: int = 4
    decay_rank: int = 128
    decay_bound: float = -5.0
    q_rank: int = 1536
    kv_rank: int = 512
    nope_dim: int = 128
    rope_dim: int = 64
    value_dim: int = 128
    mla_period: int = 4
    experts: int = 896
    active_experts: int = 16
    latent: int = 3584
    expert_width: int = 3072
    shared_width: int = 6144
    dense_width: int = 33_792
    dense_layers: int = 1
    residual_block: int = 12
    gate_cap: float = 4.0
    up_cap: float = 25.0
    norm_eps: float = 1e-5
    latent_norm_eps: float = 1e-6
    aux_layers: tuple[int, ...] = (24, 48, 72, 88, 92)

    def __post_init__(self) -> None:
        """Refuse sizes that make no model."""
        if self.active_experts > self.experts:
            raise ValueError(
                f"{self.name}: active_experts is {self.active_experts}, more than the {self.experts} experts"
            )
        for what in ("latent", "expert_width"):
            if getattr(self, what) % MXFP4_GROUP:
                raise ValueError(f"{self.name}: {what} must be a multiple of {MXFP4_GROUP}")
        if any(not 0 <= layer < self.layers for layer in self.aux_layers):
            raise ValueError(f"{self.name}: aux_layers must be layers of the model, 0 to {self.layers - 1}")

    def is_mla(self, layer: int) -> bool:
        """Whether the mixer of layer (0-based) is MLA."""
        return layer % self.mla_period == self.mla_period - 1 or layer == self.layers - 1

    def is_moe(self, layer: int) -> bool:
        """Whether the FFN of layer (0-based) is a mixture of experts."""
        return layer >= self.dense_layers

    def takes_snapshot(self, layer: int) -> bool:
        """Whether the residual stream is put aside, and begun anew, in layer (0-based)."""
        return layer % self.residual_block == 0

    def mixer_index(self, layer: int) -> int:
        """How many layers before `layer` have the same mixer."""
        return sum(self.is_mla(i) == self.is_mla(layer) for i in range(layer))

    @property
    def mla_layers(self) -> int:
        """Layers with MLA."""
        return sum(self.is_mla(layer) for layer in range(self.layers))

    @property
    def kda_layers(self) -> int:
        """Layers with KDA."""
        return self.layers - self.mla_layers

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers

    @property
    def snapshots(self) -> int:
        """Snapshots of the residual stream in a step."""
        return -(-self.layers // self.residual_block)

    @property
    def kda_width(self) -> int:
        """All KDA heads side by side: width of q, k, v, the decay and the output gate."""
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: q, k and v side by side."""
        return 3 * self.kda_width

    @property
    def query_dim(self) -> int:
        """Query width of an MLA head."""
        return self.nope_dim + self.rope_dim

    @property
    def cache_width(self) -> int:
        """Elements a token leaves in the MLA cache of a layer: the latent and the shared key part."""
        return self.kv_rank + self.rope_dim

    @property
    def mla_width(self) -> int:
        """All MLA value heads side by side."""
        return self.heads * self.value_dim

    @property
    def a_log_stored(self) -> int:
        """Length of A_log in the checkpoint; the first `heads` are used."""
        return -(-self.heads // A_LOG_UNIT) * A_LOG_UNIT


KIMI_K3 = K3Config()

# The small models of the tests: every kind of layer at least twice, a last layer that is MLA out of turn, two
# and more snapshots.
TINY = K3Config(
    name="k3-tiny",
    layers=5,
    hidden=64,
    vocab=96,
    heads=2,
    head_dim=16,
    decay_rank=16,
    q_rank=24,
    kv_rank=16,
    nope_dim=16,
    rope_dim=8,
    value_dim=16,
    experts=12,
    active_experts=3,
    latent=32,
    expert_width=32,
    shared_width=64,
    dense_width=80,
    residual_block=2,
    aux_layers=(0, 1, 2, 3, 4),
)

# Head sizes of the real model, which decide the vector layout in the kernel, and few of everything else.
# Splits over 1, 2, 4 and 8 cores.
SMALL = K3Config(
    name="k3-small",
    layers=6,
    hidden=512,
    vocab=2048,
    heads=8,
    q_rank=256,
    kv_rank=256,
    decay_rank=128,
    experts=32,
    active_experts=4,
    latent=256,
    expert_width=256,
    shared_width=512,
    dense_width=1024,
    residual_block=3,
    aux_layers=(1, 2, 3, 4, 5),
)

CONFIGS = {config.name: config for config in (KIMI_K3, SMALL, TINY)}
