"""How MLA is split over ranks and cut into tiles.

A rank has whole heads. The two latents (of the queries, and of keys and values) are the same for all heads:
the projections to them are split by columns over a group of ranks, at most the 8 of a host, who then tell one
another. Reading them whole on every rank would cost the real model 30 MB a layer and rank instead of 3.7.
"""

from dataclasses import dataclass
from functools import cached_property

from megakernels.common.gemv import LANES, MXU_COLUMNS
from megakernels.k3.config import BF16_BYTES, F32_BYTES, K3Config
from megakernels.k3.dspark import VERIFY_ROWS
from megakernels.k3.plan import Matrix, check_split, round_up, widest

WINDOW = 32  # tokens around the write position that are read, changed and written back
WINDOW_ALIGN = 16  # bf16 rows that share a tile of memory


@dataclass(frozen=True)
class MlaPlan:
    """Sizes of one build of a stack of MLA mixers.

    Attributes:
        config: The model.
        layers: Mixers in the stack.
        cores: Ranks, one TensorCore each.
        batch: Sequences, each at its own position.
        verify: Rows are 8 consecutive tokens of one sequence instead of one token of each.
        ring_depth: Weight tiles in flight.
        capacity: Tokens the cache holds, a multiple of cache_tile.
        cache_tile: Tokens per copy of the cache.
        cache_slots: Cache tiles in flight.

    Raises:
        ValueError: The model does not split so, or has other head sizes than the vector layout needs.
    """

    config: K3Config
    layers: int = 1
    cores: int = 1
    batch: int = 1
    verify: bool = False
    ring_depth: int = 4
    capacity: int = 1024
    cache_tile: int = 256
    cache_slots: int = 2

    def __post_init__(self) -> None:
        """Refuse what the kernel cannot lay out."""
        c = self.config
        check_split(c, self.cores, self.batch, self.verify)
        if (c.nope_dim, c.value_dim) != (LANES, LANES) or c.rope_dim > LANES:
            raise ValueError(f"{c.name}: MLA heads must be {LANES} wide, their shared part at most that")
        if c.q_rank % LANES or c.kv_rank % LANES:
            raise ValueError(f"{c.name}: q_rank and kv_rank must be multiples of {LANES}")
        if self.capacity % self.cache_tile or self.cache_tile % WINDOW:
            raise ValueError(
                f"capacity {self.capacity} must be a multiple of cache_tile {self.cache_tile}, "
                f"and that of {WINDOW}"
            )

    @property
    def rows(self) -> int:
        """Live rows of activations."""
        return VERIFY_ROWS if self.verify else self.batch

    @property
    def heads(self) -> int:
        """Heads of a rank."""
        return self.config.heads // self.cores

    @property
    def query_rows(self) -> int:
        """Rows of the attention product: every row of every head."""
        return self.heads * self.rows

    @property
    def gated_width(self) -> int:
        """Width of a rank's mixer output, before the output projection."""
        return self.heads * LANES

    @property
    def latent_blocks(self) -> int:
        """Both latents side by side, in blocks of 128."""
        return (self.config.q_rank + self.config.kv_rank) // LANES

    @property
    def group(self) -> int:
        """Ranks that share the projections to the latents, consecutive ones."""
        return max(g for g in (1, 2, 4, 8) if self.cores % g == 0 and self.latent_blocks % g == 0)

    @property
    def own_blocks(self) -> int:
        """Latent blocks a rank computes."""
        return self.latent_blocks // self.group

    @property
    def cache_width(self) -> int:
        """Elements of a cached token: the latent, the shared key part, padding."""
        return self.config.kv_rank + LANES

    @cached_property
    def mla_latent(self) -> Matrix:
        """The rank's columns of q_a | kv_a's latent."""
        width = round_up(self.own_blocks * LANES, MXU_COLUMNS)
        return Matrix("mla_latent", self.config.hidden, width, MXU_COLUMNS)

    @cached_property
    def mla_side(self) -> Matrix:
        """The output gate of the rank's heads, then the shared key part: needs no latent."""
        width = round_up((self.heads + 1) * LANES, MXU_COLUMNS)
        return Matrix("mla_side", self.config.hidden, width, MXU_COLUMNS)

    @cached_property
    def mla_query(self) -> Matrix:
        """q_b of the rank's heads: their latent parts, then their shared parts, each padded to 128."""
        return widest("mla_query", self.config.q_rank, 2 * self.heads * LANES, self.mla_side.rows)

    @cached_property
    def mixer_out(self) -> Matrix:
        """The rank's rows of the output projection."""
        return widest("mixer_out", self.gated_width, self.config.hidden, self.mla_side.rows)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Matrices of a layer in the order they are used."""
        return self.mla_latent, self.mla_side, self.mla_query, self.mixer_out

    @property
    def bank_rows(self) -> int:
        """Rows of 128 elements in a ring bank."""
        return max(matrix.rows for matrix in self.matrices)

    @property
    def constants(self) -> dict[str, tuple[int, int]]:
        """Where each small float32 vector of a layer lies in its constants row: name -> (first, width)."""
        c = self.config
        return {"q_norm": (0, c.q_rank), "kv_norm": (c.q_rank, c.kv_rank)}

    @property
    def constants_width(self) -> int:
        """Elements of a constants row."""
        return self.config.q_rank + self.config.kv_rank

    @property
    def stored_tokens(self) -> int:
        """Tokens there is memory for: the window of the last position reaches beyond the capacity."""
        return self.capacity + WINDOW

    @property
    def max_cache_tiles(self) -> int:
        """Cache tiles of all sequences at full capacity."""
        return self.batch * (self.capacity // self.cache_tile)

    def bytes_per_rank(self) -> dict[str, int]:
        """HBM bytes of weights a rank reads in a step, by operand."""
        expand = self.heads * self.config.kv_rank * LANES * BF16_BYTES
        return {
            **{m.name: self.layers * m.bytes for m in self.matrices},
            "to_keys": self.layers * expand,
            "to_values": self.layers * expand,
            "constants": self.layers * self.constants_width * F32_BYTES,
        }
