"""What Qwen3.8-27B is, and the small models of the same shape that tests run.

Source of the numbers: the published config of Qwen3.8-27B (class `qwen3_5_text` of transformers).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QwenConfig:
    """Sizes of one model. Layer i is full attention when i % attention_period == attention_period - 1.

    hidden, intermediate, vocab are in elements. rope_dims of each attention head are rotated, the rest
    pass untouched. GDN = Gated DeltaNet, the linear-attention mixer of the other layers.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    vocab: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    key_heads: int
    value_heads: int
    key_dim: int = 128
    value_dim: int = 128
    conv_taps: int = 4
    attention_period: int = 4
    rope_fraction: float = 0.25
    rope_theta: float = 1e7
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.attention_heads % self.kv_heads or self.value_heads % self.key_heads:
            raise ValueError(f"{self.name}: query heads must be a multiple of KV heads, value of key heads")

    @property
    def rope_dims(self) -> int:
        """Rotated elements of an attention head (64 of 256 in the real model)."""
        return int(self.head_dim * self.rope_fraction)

    @property
    def conv_channels(self) -> int:
        """Channels of the depthwise convolution: q, k and v of a GDN layer side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def gate_channels(self) -> int:
        """Channels of the GDN output gate z, equal to the width the output projection reads."""
        return self.value_heads * self.value_dim

    @property
    def attention_layers(self) -> int:
        """How many layers are full attention."""
        return self.layers // self.attention_period

    @property
    def gdn_layers(self) -> int:
        """How many layers are Gated DeltaNet."""
        return self.layers - self.attention_layers

    def is_attention(self, layer: int) -> bool:
        """Whether layer (0-based) is full attention."""
        return layer % self.attention_period == self.attention_period - 1


QWEN3_8_27B = QwenConfig(
    name="qwen3.8-27b",
    layers=64,
    hidden=5120,
    intermediate=17408,
    vocab=248320,
    attention_heads=24,
    kv_heads=4,
    head_dim=256,
    key_heads=16,
    value_heads=48,
)

# The small model of the kernel tests: head sizes of the real one (they decide the vector layout), few of
# everything else. Splits over 1, 2, 4 and 8 cores, the KV heads shared by core pairs at 8 as in the real
# model; the vocabulary is not a multiple of the tile width, so padding is exercised.
SMALL = QwenConfig(
    name="qwen-small",
    layers=4,
    hidden=512,
    intermediate=2048,
    vocab=1016,
    attention_heads=8,
    kv_heads=4,
    head_dim=256,
    key_heads=8,
    value_heads=16,
)

CONFIGS = {config.name: config for config in (QWEN3_8_27B, SMALL)}
