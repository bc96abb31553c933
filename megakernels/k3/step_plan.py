"""How a whole decode step is split over ranks and cut into tiles.

Ranks come in hosts: rank = host * members + member. Attention heads, the dense FFN, the shared expert and the
vocabulary are split over all ranks; the projections to and from the experts' latent over the members of a
host, and repeated on every host, because their results are gathered and a gather inside a host is short; the
router stands on every rank, so that nobody waits to learn where a row goes. Experts are split over groups of
ranks, and in a group by width.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from megakernels.common.gemv import LANES, MXU_COLUMNS
from megakernels.k3.config import F32_BYTES, K3Config
from megakernels.k3.experts import ExpertPlan
from megakernels.k3.mla_plan import MlaPlan
from megakernels.k3.plan import ROWS, KdaPlan, Matrix, check_split, round_up, widest

HALF = LANES // 2
VMEM_BYTES = 64 << 20
# No row is sent to an expert that does not exist; far below any score, far above minus infinity.
NO_EXPERT = -1e30


@dataclass(frozen=True, slots=True)
class Gated:
    """A rank's share of the width of a gated FFN, in blocks of 128 columns.

    Full blocks of gate and up stand in turns. A rest of at most 64 columns is one block: gate in its first
    half, up in its second; a longer one is padded to a full pair.
    """

    width: int

    @property
    def pairs(self) -> int:
        """Blocks of gate, each followed by one of up."""
        return self.width // LANES + (self.width % LANES > HALF)

    @property
    def has_half(self) -> bool:
        """Whether a block of half gate, half up follows."""
        return 0 < self.width % LANES <= HALF

    @property
    def blocks(self) -> int:
        """Blocks of the matrix with gate and up."""
        return 2 * self.pairs + self.has_half

    @property
    def inner(self) -> int:
        """Width of the activations, padding included: k of the matrix that follows."""
        return LANES * self.pairs + HALF * self.has_half


@dataclass(frozen=True, slots=True)
class Shared:
    """Blocks of 128 columns dealt to the members of a host, the same number to each as far as they go."""

    blocks: int
    members: int

    @property
    def own(self) -> int:
        """Blocks of a member; the last ones may have fewer, or none, and compute padding."""
        return -(-self.blocks // self.members)

    def of(self, member: int) -> range:
        """The blocks of a member that exist."""
        return range(min(member * self.own, self.blocks), min((member + 1) * self.own, self.blocks))


@dataclass(frozen=True)
class StepPlan:
    """Sizes of one build of the step.

    Attributes:
        config: The model.
        hosts: Hosts of the slice.
        members: Ranks of a host, one TensorCore each.
        width_ranks: Ranks that share an expert by width; the experts are split over hosts * members /
            width_ranks groups.
        batch: Sequences, each at its own position.
        verify: Rows are 8 consecutive tokens of one sequence instead of one token of each.
        ring_depth: Weight tiles in flight.
        slots: Experts in flight.
        capacity: Tokens the cache holds.
        cache_tile: Tokens per copy of the cache.

    Raises:
        ValueError: The model does not split so.
    """

    config: K3Config
    hosts: int = 1
    members: int = 1
    width_ranks: int = 1
    batch: int = 1
    verify: bool = False
    ring_depth: int = 8
    slots: int = 3
    capacity: int = 1024
    cache_tile: int = 256

    def __post_init__(self) -> None:
        """Refuse what the kernel cannot lay out."""
        c = self.config
        check_split(c, self.cores, self.batch, self.verify)
        for what in ("shared_width", "dense_width", "vocab"):
            if getattr(c, what) % self.cores:
                raise ValueError(f"{c.name}: {what} does not split over {self.cores} ranks")
        if self.cores % self.width_ranks:
            raise ValueError(f"{self.cores} ranks do not come in groups of {self.width_ranks}")
        if c.latent % LANES or c.dense_layers < 1 or c.layers <= c.dense_layers:
            raise ValueError(f"{c.name}: the step needs a latent of whole blocks, and layers of both FFNs")

    @property
    def cores(self) -> int:
        """Ranks."""
        return self.hosts * self.members

    @property
    def rows(self) -> int:
        """Live rows of activations."""
        return self.kda.rows

    @cached_property
    def kda(self) -> KdaPlan:
        """The KDA mixers."""
        c = self.config
        return KdaPlan(c, c.kda_layers, self.cores, self.batch, self.verify, self.ring_depth)

    @cached_property
    def mla(self) -> MlaPlan:
        """The MLA mixers."""
        c = self.config
        # More sequences are more short copies: their latency wants more of them in flight.
        slots = 2 if self.batch < 4 else 6
        sizes = {"capacity": self.capacity, "cache_tile": self.cache_tile, "cache_slots": slots}
        return MlaPlan(c, c.mla_layers, self.cores, self.batch, self.verify, self.ring_depth, **sizes)

    @cached_property
    def experts(self) -> ExpertPlan:
        """The routed experts."""
        c = self.config
        groups = self.cores // self.width_ranks
        return ExpertPlan(c, c.moe_layers, groups, self.width_ranks, self.kda.rows, self.slots)

    @property
    def latent(self) -> Shared:
        """Columns of the projection to the latent."""
        return Shared(self.config.latent // LANES, self.members)

    @property
    def hidden(self) -> Shared:
        """Columns of the projection from the latent."""
        return Shared(self.config.hidden // LANES, self.members)

    @property
    def router_blocks(self) -> int:
        """The router's columns in blocks of 128."""
        return -(-self.config.experts // LANES)

    @property
    def shared(self) -> Gated:
        """The shared expert's width on a rank."""
        return Gated(self.config.shared_width // self.cores)

    @property
    def dense(self) -> Gated:
        """The dense FFN's width on a rank."""
        return Gated(self.config.dense_width // self.cores)

    @cached_property
    def moe_in(self) -> Matrix:
        """Own columns of the latent, then the router, then the shared expert's gate and up."""
        blocks = self.latent.own + self.router_blocks + self.shared.blocks
        return self._of_hidden("moe_in", blocks)

    @property
    def latent_tiles(self) -> int:
        """Tiles of moe_in that hold the own columns of the latent; the last may hold more."""
        return -(-self.latent.own * LANES // self.moe_in.columns)

    @property
    def router_tiles(self) -> int:
        """Tiles after those that hold the rest of the router."""
        last = (self.latent.own + self.router_blocks) * LANES
        return -(-last // self.moe_in.columns) - self.latent_tiles

    @cached_property
    def shared_out(self) -> Matrix:
        """The rank's rows of the shared expert's down projection."""
        return widest("shared_out", self.shared.inner, self.config.hidden, self.bank_rows)

    @cached_property
    def latent_up(self) -> Matrix:
        """Own columns of the projection from the latent."""
        width = round_up(self.hidden.own * LANES, MXU_COLUMNS)
        return widest("latent_up", self.config.latent, width, self.bank_rows)

    @cached_property
    def dense_in(self) -> Matrix:
        """The rank's gate and up of the dense FFN."""
        return self._of_hidden("dense_in", self.dense.blocks)

    @cached_property
    def dense_out(self) -> Matrix:
        """The rank's rows of the dense FFN's down projection."""
        return widest("dense_out", self.dense.inner, self.config.hidden, self.bank_rows)

    @property
    def ffn_part(self) -> int:
        """Columns of a part of an FFN's output: as many as divide the tiles of either FFN."""
        return math.gcd(self.shared_out.columns, self.dense_out.columns)

    @property
    def latent_part(self) -> int:
        """Columns of a part of the experts' output."""
        return math.gcd(self.config.latent, 512)

    @cached_property
    def lm_head(self) -> Matrix:
        """The rank's share of the vocabulary."""
        return self._of_hidden("lm_head", -(-self.vocab // LANES))

    @property
    def vocab(self) -> int:
        """Tokens of a rank's share of the vocabulary."""
        return self.config.vocab // self.cores

    @property
    def bank_rows(self) -> int:
        """Rows of 128 elements in a ring bank: two columns of the widest matrix, or what attention needs."""
        return max(self.kda.bank_rows, self.mla.bank_rows, 2 * self.config.hidden)

    @cached_property
    def constants(self) -> dict[str, tuple[int, int]]:
        """Where each small float32 vector of a layer lies in its constants row: name -> (first, width).

        The row after the last layer's holds the vectors of the final mixture and norm, under the names of
        those before attention.
        """
        c = self.config
        vectors = {
            "attn_score": c.hidden,
            "input_norm": c.hidden,
            "ffn_score": c.hidden,
            "post_norm": c.hidden,
            "router_bias": self.router_blocks * LANES,
            "expert_norm": c.latent,
        }
        starts = accumulate(vectors.values(), initial=0)
        return {name: (first, width) for (name, width), first in zip(vectors.items(), starts, strict=False)}

    @cached_property
    def constants_width(self) -> int:
        """Elements of a constants row."""
        return sum(width for _, width in self.constants.values())

    @property
    def embedding_rows(self) -> int:
        """A token's embedding is stored as this many rows, so that one token is whole memory tiles."""
        return math.gcd(ROWS, self.config.hidden // LANES)

    def bytes_per_rank(self) -> dict[str, int]:
        """HBM bytes of weights a rank reads in a step, by operand, without the routed experts."""
        c = self.config
        mixers = {f"kda_{n}" if n == "constants" else n: b for n, b in self.kda.bytes_per_rank().items()}
        mixers |= {f"mla_{n}" if n == "constants" else n: b for n, b in self.mla.bytes_per_rank().items()}
        moe = {m.name: c.moe_layers * m.bytes for m in (self.moe_in, self.shared_out, self.latent_up)}
        dense = {m.name: c.dense_layers * m.bytes for m in (self.dense_in, self.dense_out)}
        del mixers["recurrent"]
        return {
            **mixers,
            "mixer_out": c.layers * self.kda.mixer_out.bytes,
            **dense,
            **moe,
            "lm_head": self.lm_head.bytes,
            "constants": (c.layers + 1) * self.constants_width * F32_BYTES,
        }

    def _of_hidden(self, name: str, blocks: int) -> Matrix:
        """A matrix over the hidden state, in tiles of two column blocks or as many as a bank holds."""
        return widest(name, self.config.hidden, round_up(blocks * LANES, MXU_COLUMNS), self.bank_rows)
